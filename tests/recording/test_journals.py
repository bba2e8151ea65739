"""Journals of receivers of the version before are read and finished, with exactly the committed batches."""

import signal
import subprocess
import textwrap

import msgspec
import pytest
from recorded import START_US, ids, read, segments, unfinished

from receiver.errors import LogFormatError
from receiver.logs.journal import _HEAD, JOURNAL_BEGINS, JournalHeader, _checksum, _journal_of, finished_from
from receiver.recording import Recorder
from tests.before import package_of, python_of
from tests.durable.opened import opened, remembered, send
from tests.postgres import wait_for_the_dead
from tests.stores import execute, rows_of

BEFORE = "46c346d8ea60c831f47cf520840a8c7c1feca3cc"
"""The last version that recorded to journals."""
NAME = ".receipts-20260101T000000.000000Z-1.jsonl.zst.journal"


def frame(number, payload=b""):
    return _HEAD.pack(len(payload), _checksum(number, payload), number) + payload


def beginning(store_id=None):
    return JOURNAL_BEGINS + frame(
        -1, msgspec.msgpack.encode(JournalHeader(1, store_id, "broker", "queue://orders", ""))
    )


def batch(*numbers):
    ids, sources = (b"\n".join(texts) for texts in ([b"id-%d" % number for number in numbers], [b""] * len(numbers)))
    times = b"".join((START_US + number).to_bytes(8, "little") for number in numbers)
    return msgspec.msgpack.encode((ids, sources, times, [(len(numbers), (None, "web", START_US, True, 5, "x"))]))


def test_every_cut(tmp_path):
    """Behind the cut is whatever a power cut may have left."""
    data, ends = beginning(), []  # where each batch ends, and each note of its commit
    for number in range(1, 4):
        data += frame(number, batch(number, 10 + number))
        written = len(data)
        data += frame(number)
        ends.append((written, len(data)))
    torn = tmp_path / NAME
    for cut in range(len(data) + 1):
        for tail in (b"", b"\0" * 40, b"garbage" * 9):
            left = data[:cut] + tail  # the tail may be just what was cut off
            torn.write_bytes(left)
            whole = [(left.startswith(data[:written]), left.startswith(data[:said])) for written, said in ends]
            committed = [number for number, (_, said) in enumerate(whole, start=1) if said]
            uncertain = [number for number, (written, said) in enumerate(whole, start=1) if written and not said]
            assert sorted(_journal_of(left, NAME).uncertain) == uncertain
            if committed:
                assert ids(read(torn)) == [
                    id_ for number in committed for id_ in (f"id-{number}", f"id-{10 + number}", "")
                ]


@pytest.mark.parametrize("store_id", [None, 7], ids=["no store", "a store"])
def test_one_without_uncertain_batches_is_finished_by_anyone(tmp_path, store_id):
    (tmp_path / NAME).write_bytes(beginning(store_id) + frame(1, batch(1)) + frame(1) + b"half a frame")
    (tmp_path / NAME.replace("Z-1", "Z-2")).write_bytes(b"")
    assert ids(read(tmp_path)) == ["id-1", ""]
    opened("memory://", record=tmp_path).close()
    assert unfinished(tmp_path) == []
    assert ids(read(tmp_path)) == ["id-1", ""]


@pytest.mark.parametrize(
    "data", [JOURNAL_BEGINS + frame(-1), beginning() + frame(1, b"x") + frame(1)], ids=["header", "batch"]
)
def test_a_frame_that_makes_no_sense_is_said_and_the_file_stays(tmp_path, data, caplog):
    """An empty frame needs no checksum, only 0."""
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(LogFormatError, match="a frame can't be read"):
        read(tmp_path)
    opened("memory://", record=tmp_path).close()
    assert "a frame can't be read" in caplog.text
    assert (tmp_path / NAME).read_bytes() == data


def test_an_uncertain_batch_of_no_store_was_not_committed(tmp_path):
    (tmp_path / NAME).write_bytes(beginning() + frame(1, batch(1)) + frame(1) + frame(2, batch(2)))
    opened("memory://", record=tmp_path).close()
    assert unfinished(tmp_path) == []
    assert ids(read(tmp_path)) == ["id-1", ""]


def test_one_whose_file_is_finished_is_removed(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.commit(recorder.packed([(1, 5, None, None, "a", None, None)], []))
    (finished,) = tmp_path.glob("receipts-*")
    torn = tmp_path / f".{finished.name}.journal"
    torn.write_bytes(beginning())
    assert finished_from(torn) == finished
    opened("memory://", record=tmp_path).close()
    assert ids(read(tmp_path)) == ["a"]
    assert unfinished(tmp_path) == []


def test_the_number_of_a_process_at_work_is_kept(tmp_path, store_url):
    """The process has left one journal in order, and works on another. An unreadable journal harms nobody."""
    folder = tmp_path / "receipts"
    folder.mkdir()
    with opened(store_url) as orders:
        send(orders, "a")
        store_id = orders.store_id
    for writer in (1, 2):
        execute(store_url, "INSERT INTO receiver_joined VALUES (1, :writer, 5, 1)", writer=writer)
    left = beginning(store_id) + frame(1, batch(1)) + frame(1) + frame(-2)
    (folder / NAME).write_bytes(left)
    (folder / NAME.replace("Z-1", "Z-9")).write_bytes(beginning(store_id) + frame(1, b"garbage") + frame(1))
    opened(store_url, record=folder).close()
    assert len(unfinished(folder)) == 1
    assert rows_of(store_url, "receiver_joined") == 2
    (finished,) = segments(folder)
    assert ids(read(folder / finished)) == ["id-1", ""]


@pytest.fixture(scope="session")
def package_before(tmp_path_factory):
    return package_of(BEFORE, tmp_path_factory.mktemp("before"))


PROGRAM = """
import os, signal, sys, time
from sqlalchemy import create_engine
from receiver import Receiver
from receiver.logs.rotating import RotatingLog

url, folder, joins, until = sys.argv[1:]
orders = Receiver.open(url, connection_id="broker", destination="queue://orders", record=folder)
engine = create_engine(url)

def send(number):
    if joins:
        with engine.begin() as connection, orders.batch(connection) as batch:
            batch.receive(f"{number}", received_at_us=number)
    else:
        with orders.batch() as batch:
            batch.receive(f"{number}", received_at_us=number)

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

for number in range(5):
    send(number)
if until == "at work":
    print("at work", flush=True)
    time.sleep(600)
if until == "committed":
    RotatingLog.commit = die
else:
    orders._session.log.__class__.record = die
send(5)
send(6)
"""


@pytest.mark.thinned(4)
@pytest.mark.parametrize("joins", ["", "joins"])
@pytest.mark.parametrize("until", ["committed", "written"])
def test_one_of_a_killed_process_is_settled_by_its_store(package_before, unmade_store_url, tmp_path, joins, until):
    folder = tmp_path / "receipts"
    folder.mkdir()
    with before(package_before, unmade_store_url, folder, joins, until) as process:
        assert process.wait() == -signal.SIGKILL
    wait_for_the_dead(unmade_store_url)
    opened("memory://", record=folder).close()  # it can't know, and leaves it alone
    opened(unmade_store_url, destination="queue://refunds", record=folder).close()
    assert len(unfinished(folder)) == 1
    with opened(unmade_store_url, record=folder) as orders:
        send(orders, "new")
    # A joined batch is looked up, and noted in its journal, when the next one begins. So the fifth batch is uncertain
    # there.
    committed = [f"{number}" for number in range(6 if until == "committed" and not joins else 5)]
    assert sorted(ids(read(folder))) == [*committed, "new"]
    assert set(remembered(unmade_store_url, *(f"{number}" for number in range(7)))) == set(committed)
    assert (unfinished(folder), rows_of(unmade_store_url, "receiver_joined")) == ([], 0)


def test_one_of_a_process_at_work_is_left_alone(package_before, unmade_store_url, tmp_path):
    folder = tmp_path / "receipts"
    folder.mkdir()
    with before(package_before, unmade_store_url, folder, "", "at work") as process:
        assert process.stdout.readline() == "at work\n"
        opened(unmade_store_url, record=folder).close()
        assert len(unfinished(folder)) == 1
        assert len(ids(read(folder))) == 5
        process.kill()
    wait_for_the_dead(unmade_store_url)
    opened(unmade_store_url, record=folder).close()
    assert ids(read(folder)) == [f"{number}" for number in range(5)]
    assert (unfinished(folder), rows_of(unmade_store_url, "receiver_joined")) == ([], 0)


def before(package, url, folder, joins, until):
    command = [*python_of(package), "-c", textwrap.dedent(PROGRAM), url, str(folder), joins, until]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
