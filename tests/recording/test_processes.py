"""Processes that record into one folder, are killed, or fork."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded import FORMATS, ids, read, receipt, record, segments, simulate, unfinished

from receiver.recording import Recorder
from receiver.settings import Recording
from tests.durable.opened import opened, send
from tests.stores import rows_of

RECORDING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from recorded import receipt, record
from receiver.recording import Recorder
from receiver.settings import Recording
from tests.durable.opened import opened, send
from tests.stores import rows_of
from receiver.settings import Recording

path, source, batches = sys.argv[2], sys.argv[3], int(sys.argv[4])
recorder = Recorder(Recording(path, rotate_bytes=1500, keep_files=None))
for batch in range(batches):
    record(recorder, [receipt(3 * batch + row, message_source_id=source) for row in range(3)])
    recorder.flush()
    assert not recorder.dropped, recorder.last_error
    print(batch, flush=True)  # these are safe
    time.sleep(0.002)
"""


def start(path, source, batches):
    here = Path(__file__).parent
    command = [sys.executable, "-c", RECORDING, str(here), str(path), source, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def of_source(receipts_read, source):
    return ids(receipt for receipt in receipts_read if receipt.message_source_id == source)


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_processes_share_a_folder(tmp_path, ending):
    """The end of the process closes these recorders, and nobody else does."""
    path = tmp_path / f"receipts.{ending}"
    processes = {f"s{number}": start(path, f"s{number}", 40) for number in range(3)}
    for process in processes.values():
        process.communicate()
        assert process.returncode == 0
    receipts_read = [each for name in segments(tmp_path) for each in read(tmp_path / name)]
    for source in processes:
        assert of_source(receipts_read, source) == [f"id-{number}" for number in range(120)]
    assert unfinished(tmp_path) == []
    assert len(segments(tmp_path)) > 6
    assert simulate(path)["log"]["receipts"] == 360


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_kill_9(tmp_path, ending):
    """At random moments: flushed receipts are there, every file is whole and in order, and no reader fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)  # noqa: S311
    path = tmp_path / f"receipts.{ending}"
    safe = {}
    survivor = start(path, "survivor", 10_000_000)
    try:
        for kill in range(3):
            source = f"s{kill}"
            process = start(path, source, 10_000_000)
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
            safe[source] = 3 * len(process.communicate()[0].splitlines()) + 3
            if segments(tmp_path):
                read(tmp_path)
    finally:
        survivor.kill()
        safe["survivor"] = 3 * len(survivor.communicate()[0].splitlines())
    Recorder(path).close()
    assert unfinished(tmp_path) == []
    receipts_read = [each for name in segments(tmp_path) for each in read(tmp_path / name)]
    for source, least in safe.items():
        mine = of_source(receipts_read, source)
        assert mine == [f"id-{number}" for number in range(len(mine))]
        assert least <= len(mine) <= least + 3
    assert simulate(path)["log"]["receipts"] == len(receipts_read)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_leaves_the_file_to_its_parent(tmp_path):
    recorder = Recorder(tmp_path)
    record(recorder, [receipt(0)])
    recorder.flush()
    with recorder._changed:  # another thread may hold it at that very moment
        child = os.fork()
        if child == 0:
            record(recorder, [receipt(1), receipt(2)])
            recorder.flush()
            recorder.close()
            reported = (recorder.dropped, recorder.last_error) == (
                2,
                "the recorder belongs to the process that opened it",
            )
            os._exit(0 if reported else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(unfinished(tmp_path)) == 1
    record(recorder, [receipt(3)])
    recorder.close()
    assert (recorder.written, recorder.dropped) == (2, 0)
    assert ids(read(tmp_path)) == ["id-0", "id-3"]


def test_a_segment_that_is_being_written_is_left_alone(tmp_path):
    with Recorder(tmp_path) as first:
        record(first, [receipt(0)])
        first.flush()
        Recorder(tmp_path).close()
        assert segments(tmp_path) == []
        record(first, [receipt(1)])
    assert ids(read(tmp_path)) == ["id-0", "id-1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_who_has_a_store_records_nothing_and_keeps_nobody_from_making_files(store_url, tmp_path):
    path = tmp_path / "r.parquet"
    with opened(store_url, record=path) as orders:
        send(orders, "a")
        with orders.session.recorder.folder.locked(1):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
        try:
            orders.session.recorder.flush()
            send(orders, "b")
            other = os.fork()
            if other == 0:
                orders.session.recorder.close()
                os._exit(0 if orders.session.recorder.packed([], []) is None else 1)
            assert os.waitpid(other, 0)[1] == 0
            orders.close()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ids(read(path)) == ["a", "b"]


def test_receivers_of_several_domains_and_stores_share_a_folder(store_url, tmp_path):
    """Each domain's receipts are in order. When one receiver ends, it also writes those of others in its store."""
    urls = [store_url, store_url, f"sqlite:///{tmp_path / 'other.db'}", "memory://"]
    folder = tmp_path / "receipts"
    folder.mkdir()
    record = Recording(folder, rotate_bytes=500)
    receivers = [opened(url, destination=f"queue://{n}", record=record) for n, url in enumerate(urls)]
    for batch in range(20):
        for number, receiver in enumerate(receivers):
            send(receiver, f"{number}:{batch}")
    receivers[0].close()
    assert rows_of(store_url, "receiver_recorded") == 0
    for receiver in receivers[1:]:
        receiver.close()
    by_name = [id_ for name in segments(folder) for id_ in ids(read(folder / name))]
    for number in range(len(urls)):
        assert [id_ for id_ in by_name if id_.startswith(f"{number}:")] == [f"{number}:{batch}" for batch in range(20)]
    assert unfinished(folder) == []


UNCLOSED = """
import atexit, sys, time
from tests.durable.opened import opened, send

def at_last():  # once the recording has ended: so a thread may go on
    send(orders, "b")
    time.sleep(sys.argv[3] == "concurrent")  # meanwhile it is folded in

atexit.register(at_last)
orders = opened(sys.argv[1], record=sys.argv[2], concurrent=sys.argv[3] == "concurrent")
send(orders, "a")
"""


@pytest.mark.parametrize("kind", ["exclusive", "concurrent"])
def test_a_program_that_ends_without_closing_its_receiver_records_everything(store_url, tmp_path, kind):
    """Its end makes a file. Later receipts wait in the store."""
    if kind == "concurrent" and not store_url.startswith("postgresql"):
        pytest.skip("concurrent receivers are for PostgreSQL")
    command = [sys.executable, "-c", UNCLOSED, store_url, str(tmp_path / "receipts"), kind]
    (tmp_path / "receipts").mkdir()
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stderr == ""
    if kind == "exclusive":
        assert recorded_in(tmp_path / "receipts") == ["a"]
    with opened(store_url, concurrent=kind == "concurrent", record=tmp_path / "receipts"):
        pass
    assert sorted(recorded_in(tmp_path / "receipts")) == ["a", "b"]


def recorded_in(folder):
    return [id_ for name in segments(folder) for id_ in ids(read(folder / name))]
