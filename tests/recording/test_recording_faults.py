"""Whatever goes wrong, a commit never raises because of it. Receipts are dropped and counted, and a warning is given
once."""

import logging
import os
import shutil
import subprocess
import sys

import pytest
from recorded import FORMATS, ids, read, receipt, record, segments, unfinished

from receiver import recording
from receiver.domains import Channel
from receiver.errors import LogFormatError, MissingExtraError, OutputError, SettingsError
from receiver.logs import rotating
from receiver.recording import Recorder
from receiver.settings import Recording
from tests.durable.opened import DUPLICATE, NEW, opened, send
from tests.stores import execute, rows_of


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
            record(recorder, [make(number)])
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
        assert recorder.written == len(kept) == 33 - recorder.dropped
    assert ids(read(tiny_disk)) == kept


def test_a_disk_too_full_for_parquet(tiny_disk):
    """Written receipts wait for space, and the next recorder finishes the file."""
    with Recorder(tiny_disk / "receipts.parquet") as recorder:
        record(recorder, [incompressible(0)])
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
            record(recorder, [receipt(number)])
            recorder.flush()
            if number == 0:
                shutil.rmtree(folder)
        record(recorder, [receipt(2)])
        recorder.flush()
        assert (recorder.written, recorder.dropped) == (1, 2)
        assert recorder.last_error == "No such file or directory"
        folder.mkdir()
        record(recorder, [receipt(3)])
        recorder.flush()
        shutil.rmtree(folder)
        record(recorder, [receipt(4)])
        recorder.flush()
        folder.mkdir()
        record(recorder, [receipt(5)])
    assert ids(read(folder)) == ["id-5"]
    lacking = [
        "not recording: No such file or directory",
        "no file can be made, so receipts wait: No such file or directory",
    ]
    assert warnings() == [
        *lacking,
        "recording again; 2 receipts were dropped so far",
        *lacking,
        "recording again; 3 receipts were dropped so far",
    ]


def test_a_failure_nobody_thought_of(tmp_path, monkeypatch, warnings):
    with Recorder(tmp_path) as recorder:
        with monkeypatch.context() as broken:
            broken.setattr(rotating.Unfinished, "append", lambda *_batch: 1 / 0)
            record(recorder, [receipt(0), receipt(1)])
            recorder.flush()
        record(recorder, [receipt(2)])
    assert (recorder.written, recorder.dropped) == (1, 2)
    assert recorder.last_error == "ZeroDivisionError: division by zero"
    assert len(warnings()) == 2


def test_a_closed_recorder(tmp_path):
    recorder = Recorder(tmp_path)
    record(recorder, [receipt(0)])
    recorder.close()
    recorder.close()
    recorder.flush()
    record(recorder, [receipt(1), receipt(2)])
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


def test_a_file_for_a_folder_has_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="name another place: a folder of this path is a file"):
        Recorder(f"{tmp_path}/file/")


def test_what_holds_nothing_yet_is_no_log(tmp_path):
    with Recorder(tmp_path), pytest.raises(LogFormatError, match="a folder without logs"):
        read(tmp_path)


def test_an_id_of_the_receiver_that_no_log_can_hold(tmp_path):
    with pytest.raises(SettingsError, match=r"destination .* lone surrogate"):
        Recorder(tmp_path, Channel(destination="queue://\ud800"))


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
            record(recorder, [receipt(number)])
            recorder.flush()
    assert len(segments(tmp_path)) == 3
    assert ids(read("../receipts.parquet")) == ["id-0", "id-1"]


def test_what_was_left_behind_is_finished(tmp_path):
    """A killed process without a store left it, with half a batch at its end."""
    with Recorder(tmp_path) as recorder:
        record(recorder, [receipt(0), receipt(1, unique_message_id="\ud800")])
        (waiting,) = unfinished(tmp_path)
        one = waiting.read_bytes()
        record(recorder, [receipt(3)])
        both = waiting.read_bytes()
    name = ".receipts-20260101T000000.000000Z-1.jsonl.zst.unfinished"
    (tmp_path / name).write_bytes(both[:-3])
    (tmp_path / name.replace("Z-1", "Z-2")).write_bytes(one + bytes(40))
    (tmp_path / name.replace("Z-1", "Z-3")).write_bytes(b"")
    with Recorder(tmp_path) as recorder:
        recorder.flush()
        assert len(segments(tmp_path)) == 3
    assert unfinished(tmp_path) == []
    assert ids(read(tmp_path)) == ["id-0", "id-0", "id-0", "id-3"]


# With a store, receipts that can't be written to a file wait there.


def test_a_full_disk_beside_a_store(store_url, tiny_disk, warnings):
    filler = tiny_disk / "_filler"
    filler.write_bytes(bytes(60_000))
    sent = []
    with opened(store_url, record=Recording(tiny_disk / "receipts.parquet", rotate_bytes=12_000)) as orders:
        for _ in range(6):
            sent.append(os.urandom(1_000).hex())
            send(orders, sent[-1])
        orders.session.recorder.flush()
        status = orders.status()
        assert (status.recorded, status.record_dropped) == (6, 0)
        assert orders.session.recorder.last_error == "No space left on device"
        assert segments(tiny_disk) == ["_filler"]
        filler.unlink()
        orders.session.recorder.flush()
        assert ids(read(tiny_disk)) == sent
        send(orders, "a")
    assert ids(read(tiny_disk)) == [*sent, "a"]
    assert rows_of(store_url, "receiver_recorded") == 0
    assert warnings() == [
        "no file can be made, so receipts wait: No space left on device",
        "recording again; 0 receipts were dropped so far",
    ]


def test_a_folder_that_is_gone_beside_a_store(store_url, tmp_path, monkeypatch, warnings):
    """Once as many receipts wait as may, new ones are dropped."""
    monkeypatch.setattr(recording, "_LEAST_LIMIT_BYTES", 0)
    folder = tmp_path / "receipts"
    folder.mkdir()
    with opened(store_url, record=Recording(folder, rotate_bytes=200)) as orders:
        shutil.rmtree(folder)
        for number in range(60):
            send(orders, f"{number}")
        orders.session.recorder.flush()
        status = orders.status()
        assert (status.rx, status.recorded + status.record_dropped) == (60, 60)
        assert 800 / 100 < status.recorded < 60
        assert orders.session.recorder.last_error == "No such file or directory"
        folder.mkdir()
        orders.session.recorder.flush()
        send(orders, "again")
    assert ids(read(folder)) == [*(f"{number}" for number in range(status.recorded)), "again"]
    assert "not recording: too much waits in the store already" in warnings()
    assert warnings()[-1] == f"recording again; {status.record_dropped} receipts were dropped so far"


def test_a_folder_that_is_gone_at_the_end(store_url, tmp_path, warnings):
    folder = tmp_path / "receipts"
    folder.mkdir()
    with opened(store_url, record=folder) as orders:
        send(orders, "a", "b")
        shutil.rmtree(folder)
    assert warnings()[-1] == "receipts may wait in the store"
    folder.mkdir()
    opened(store_url, record=folder).close()
    assert ids(read(folder)) == ["a", "b"]


def test_packing_that_fails_harms_no_batch(store_url, tmp_path, monkeypatch, warnings):
    with opened(store_url, record=tmp_path / "r.parquet") as orders:
        with monkeypatch.context() as broken:
            broken.setattr("receiver.logs.packing.packed", lambda *_batch: 1 / 0)
            assert send(orders, "a") == [NEW]
        assert send(orders, "a", "b") == [DUPLICATE, NEW]
        assert (orders.status().recorded, orders.status().record_dropped) == (2, 1)
    assert warnings() == [
        "not recording: ZeroDivisionError: division by zero",
        "recording again; 1 receipts were dropped so far",
    ]
    assert ids(read(tmp_path / "r.parquet")) == ["a", "b"]


def test_damage_in_the_store_costs_what_is_damaged(store_url, tmp_path, warnings):
    with opened(store_url, record=tmp_path / "r.parquet") as orders:
        for id_ in "abc":
            send(orders, id_)
        execute(store_url, "UPDATE receiver_recorded SET packed = :garbage WHERE number = 2", garbage=b"garbage")
    assert ids(read(tmp_path / "r.parquet")) == ["a", "c"]
    assert orders.figures().record_dropped == 1
    (warning,) = warnings()
    assert warning.startswith("not recording: no batch of receipts")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_others_who_keep_the_folder_locked(store_url, tmp_path, warnings, monkeypatch, is_frozen):
    """Meanwhile receipts wait in the store. An application's test may have frozen the clock."""
    if is_frozen:
        monkeypatch.setattr("time.monotonic", lambda: 0.0)
    lock = tmp_path / ".r.parquet.lock"
    with opened(store_url, record=tmp_path / "r.parquet", patience_secs=0.1) as orders, lock.open() as file:
        assert rotating.try_to_lock(file)
        send(orders, "a")
        orders.session.recorder.flush()
        assert warnings() == ["no file can be made, so receipts wait: others keep making files there"]
        rotating.unlock(file)
    assert ids(read(tmp_path / "r.parquet")) == ["a"]
