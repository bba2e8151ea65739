"""Whatever goes wrong, nothing is raised where a batch commits: receipts are dropped, counted, and reported once."""

import logging
import os
import shutil
import subprocess
import sys

import pytest
from recorded import FORMATS, ids, read, receipt, segments, simulate, unfinished

from receiver.errors import LogFormatError, MissingExtraError, OutputError, SettingsError
from receiver.logs import rotating
from receiver.recording import Recorder
from receiver.settings import Recording


@pytest.fixture
def warnings(caplog):
    """The warnings so far, as texts."""
    caplog.set_level(logging.WARNING, "receiver.recording")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def tiny_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.name != "posix" or os.geteuid() != 0:
        pytest.skip("NOT TESTED: a full disk needs the right to mount one")
    ran = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        pytest.skip(f"NOT TESTED: a full disk, because none can be mounted: {ran.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def incompressible(number):
    return receipt(number, body_digest=os.urandom(4_000).hex())


@pytest.mark.parametrize("ending", FORMATS)
def test_a_full_disk(tiny_disk, warnings, ending):
    filler = tiny_disk / "_filler"
    kept = []
    with Recorder(tiny_disk / f"receipts.{ending}") as recorder:

        def recorded(number, make=incompressible):
            before = recorder.written
            recorder.record([make(number)])
            recorder.flush()
            if recorder.written > before:
                kept.append(f"id-{number}")
            return recorder.written > before

        assert recorded(0)
        filler.write_bytes(bytes(40_000))
        for number in range(1, 30):
            recorded(number)
        assert recorder.dropped > 10
        assert recorder.last_error == "No space left on device"
        assert warnings() == ["not recording: No space left on device"]
        filler.unlink()
        assert all(recorded(number, receipt) for number in range(30, 33))
        assert warnings()[1:] == [f"recording again; {recorder.dropped} receipts were dropped so far"]
        (segment,) = unfinished(tiny_disk)
        assert ids(read(segment)) == kept
        assert recorder.written == len(kept) == 33 - recorder.dropped
    assert ids(read(tiny_disk)) == kept


def test_a_disk_too_full_for_parquet(tiny_disk):
    """What was written waits for space, and the next recorder finishes it."""
    with Recorder(tiny_disk / "receipts.parquet") as recorder:
        recorder.record([incompressible(0)])
        recorder.flush()
        (tiny_disk / "_filler").write_bytes(bytes(56_000))
    assert recorder.last_error == "No space left on device"
    assert (recorder.written, recorder.dropped, segments(tiny_disk)) == (1, 0, ["_filler"])
    (tiny_disk / "_filler").unlink()
    Recorder(tiny_disk / "receipts.parquet").close()
    assert ids(read(tiny_disk)) == ["id-0"]
    assert unfinished(tiny_disk) == []


def test_a_folder_that_is_gone(tmp_path, warnings):
    folder = tmp_path / "folder"
    folder.mkdir()
    with Recorder(folder) as recorder:
        for number in range(2):
            recorder.record([receipt(number)])
            recorder.flush()
            if number == 0:
                shutil.rmtree(folder)
        recorder.record([receipt(2)])
        recorder.flush()
        assert (recorder.written, recorder.dropped) == (1, 2)
        assert recorder.last_error == "No such file or directory"
        folder.mkdir()
        recorder.record([receipt(3)])
        recorder.flush()
        shutil.rmtree(folder)
        recorder.record([receipt(4)])
        recorder.flush()
        folder.mkdir()
        recorder.record([receipt(5)])
    assert ids(read(folder)) == ["id-5"]
    assert warnings() == [
        "not recording: No such file or directory",
        "recording again; 2 receipts were dropped so far",
        "not recording: No such file or directory",
        "recording again; 3 receipts were dropped so far",
    ]


def test_a_failure_nobody_thought_of(tmp_path, monkeypatch, warnings):
    with Recorder(tmp_path) as recorder:
        with monkeypatch.context() as broken:
            broken.setattr(rotating.RotatingLog, "write", lambda *_batch: 1 / 0)
            recorder.record([receipt(0), receipt(1)])
            recorder.flush()
        recorder.record([receipt(2)])
    assert (recorder.written, recorder.dropped) == (1, 2)
    assert recorder.last_error == "ZeroDivisionError: division by zero"
    assert len(warnings()) == 2


def test_a_closed_recorder(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.record([receipt(0)])
    recorder.close()
    recorder.close()
    recorder.flush()
    recorder.record([receipt(1), receipt(2)])
    assert (recorder.written, recorder.dropped, recorder.last_error) == (1, 2, "the recorder is closed")
    assert ids(read(tmp_path)) == ["id-0"]


@pytest.mark.parametrize("path", ["receipts.csv", "receipts.jsonl", "receipts", "a.parquet.gz"])
def test_a_path_that_names_no_format(tmp_path, path):
    with pytest.raises(SettingsError, match=r"can't record to .*\.jsonl\.zst or \.parquet"):
        Recorder(tmp_path / path)


@pytest.mark.parametrize("path", ["gone/", "gone/r.parquet", "file/r.parquet", "nul\0.parquet", "x" * 300 + ".parquet"])
def test_a_place_that_cannot_be_written(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="can't record to"):
        Recorder(f"{tmp_path}/{path}")


def test_a_folder_that_is_missing_is_hinted_at(tmp_path):
    with pytest.raises(OutputError, match="make the folder first"):
        Recorder(tmp_path / "gone" / "r.parquet")


def test_what_holds_nothing_yet_is_no_log(tmp_path):
    with Recorder(tmp_path), pytest.raises(LogFormatError, match="a folder without logs"):
        read(tmp_path)


def test_an_id_of_the_receiver_that_no_log_can_hold(tmp_path):
    with pytest.raises(SettingsError, match=r"destination .* lone surrogate"):
        Recorder(tmp_path, destination="queue://\ud800")


@pytest.mark.parametrize(
    "wrong", [{"rotate_bytes": 0}, {"rotate_bytes": 1.5}, {"rotate_secs": 0}, {"keep_files": 0}, {"keep_files": True}]
)
def test_settings_that_cannot_be_meant(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Recording("receipts/", **wrong)
    with pytest.raises(SettingsError, match="path"):
        Recording(7)


def test_without_the_extra(tmp_path, monkeypatch):
    for module in ("receiver.logs.rotating", "receiver.logs.writer", "zstandard"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match="recording receipts needs the extra 'simulate'"):
        Recorder(tmp_path)


def test_importing_it_is_light():
    program = "import sys, receiver.recording; print({'pyarrow', 'numpy', 'zstandard', 'yaml'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_a_folder_stays_the_same_when_the_process_changes_its_own(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Recorder(Recording("receipts.parquet", rotate_bytes=1)) as recorder:
        monkeypatch.chdir("elsewhere")
        for number in range(2):
            recorder.record([receipt(number)])
            recorder.flush()
    assert len(segments(tmp_path)) == 3
    assert ids(read("../receipts.parquet")) == ["id-0", "id-1"]


@pytest.mark.slow
def test_what_was_left_behind_can_be_simulated(tmp_path):
    """Journals of killed processes, with half a frame at the end; the next recorder finishes them as it begins."""
    with Recorder(tmp_path) as recorder:
        recorder.record([receipt(0), receipt(1, unique_message_id="\ud800")])
        (journal,) = unfinished(tmp_path)
        one = journal.read_bytes()
        recorder.record([receipt(3)])
        both = journal.read_bytes()
    name = ".receipts-20260101T000000.000000Z-1.jsonl.zst.journal"
    (tmp_path / name).write_bytes(both[:-3])
    (tmp_path / name.replace("Z-1", "Z-2")).write_bytes(both[: len(one) + 10])
    assert simulate(tmp_path)["log"]["receipts"] == 4
    with Recorder(tmp_path) as recorder:
        recorder.record([receipt(2)])
        recorder.flush()
        assert len(segments(tmp_path)) == 3
    assert unfinished(tmp_path) == []
    assert simulate(tmp_path)["log"]["receipts"] == 5
