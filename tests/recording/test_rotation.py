"""Files follow each other by size and by time, whoever else records beside them."""

import threading
import time
from datetime import datetime

import pytest
from recorded import FORMATS, ids, read, receipt, record, segments, unfinished

from receiver.logs import rotating
from receiver.recording import Recorder
from receiver.settings import Recording
from tests.durable.opened import opened, send
from tests.patience import until
from tests.stores import execute, rows_of


def record_in_turns(recorder, batches, size=20):
    for batch in range(batches):
        record(recorder, [receipt(batch * size + row) for row in range(size)])
        recorder.flush()


@pytest.mark.parametrize("ending", FORMATS)
def test_by_size(tmp_path, ending):
    with Recorder(Recording(tmp_path / f"r.{ending}", rotate_bytes=700)) as recorder:
        record_in_turns(recorder, 12)
    names = segments(tmp_path)
    assert 3 <= len(names) <= 12
    assert all(name.startswith("r-") and name.endswith(ending) for name in names)
    in_order_of_names = [id_ for name in names for id_ in ids(read(tmp_path / name))]
    assert in_order_of_names == ids(read(tmp_path)) == [f"id-{number}" for number in range(240)]
    assert unfinished(tmp_path) == []


def test_by_time(tmp_path):
    """It happens even if no receipt comes any more. And no empty file is made."""
    with Recorder(Recording(tmp_path, rotate_secs=0.05)) as recorder:
        for number in range(2):
            record(recorder, [receipt(number)])
            recorder.flush()
            until(lambda number=number: len(segments(tmp_path)) > number)
        time.sleep(0.1)
    assert len(segments(tmp_path)) == 2
    assert ids(read(tmp_path)) == ["id-0", "id-1"]


def test_never_in_practice(tmp_path):
    """The longest time that the settings allow is longer than a thread can wait."""
    with Recorder(Recording(tmp_path, rotate_bytes=10**12, rotate_secs=10**12)) as recorder:
        record_in_turns(recorder, 3)
    assert (len(segments(tmp_path)), recorder.written) == (1, 60)


def test_the_oldest_are_removed(tmp_path):
    """Only files with the recorder's own name are removed."""
    others = ["receipts.csv", "receipts-20260101T000000.000000Z-1.parquet", "r-20260101T000000.000000Z-1.jsonl.zst"]
    for name in others:
        (tmp_path / name).write_text("not mine")
    with Recorder(Recording(tmp_path, rotate_bytes=1, keep_files=2)) as recorder:
        record_in_turns(recorder, 5, size=1)
        record(recorder, [receipt(5)])
    mine = [name for name in segments(tmp_path) if name not in others]
    assert len(segments(tmp_path)) == 5
    assert ids(read(*(tmp_path / name for name in mine))) == ["id-4", "id-5"]


def test_names_keep_the_order_when_the_clock_is_set_back(tmp_path, monkeypatch):
    class Stuck(datetime):
        @classmethod
        def now(cls, tz):
            return cls(2026, 11, 21, 7, 45, tzinfo=tz)

    monkeypatch.setattr(rotating, "datetime", Stuck)
    with Recorder(Recording(tmp_path, rotate_bytes=1)) as one, Recorder(Recording(tmp_path, rotate_bytes=1)) as two:
        for number in range(6):
            record(one, [receipt(number)])
            one.flush()
            record(two, [receipt(100 + number)])
            two.flush()
    ids_read = [id_ for name in segments(tmp_path) for id_ in ids(read(tmp_path / name))]
    assert [id_ for id_ in ids_read if len(id_) == 4] == [f"id-{number}" for number in range(6)]
    assert [id_ for id_ in ids_read if len(id_) == 6] == [f"id-{100 + number}" for number in range(6)]
    assert len(ids_read) == 12


def test_threads_share_a_recorder(tmp_path):
    threads, batches = 8, 50
    with Recorder(Recording(tmp_path, rotate_bytes=2_000)) as recorder:

        def work(thread):
            for batch in range(batches):
                record(recorder, [receipt(row, message_source_id=f"{thread}") for row in (2 * batch, 2 * batch + 1)])
                if batch % 10 == thread:
                    recorder.flush()

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert recorder.written == threads * batches * 2
    by_name = [each for name in segments(tmp_path) for each in read(tmp_path / name)]
    for thread in range(threads):
        mine = [each for each in by_name if each.message_source_id == f"{thread}"]
        assert ids(mine) == [f"id-{number}" for number in range(batches * 2)]


# With a store, in which receipts wait:


@pytest.mark.parametrize("ending", FORMATS)
def test_by_size_from_a_store(store_url, tmp_path, ending):
    """The oldest files are removed too."""
    path = tmp_path / f"r.{ending}"
    with opened(store_url, record=Recording(path, rotate_bytes=700, keep_files=None)) as orders:
        for batch in range(12):
            send(orders, *(f"{batch}-{row}" for row in range(20)))
            orders.session.recorder.flush()
        assert rows_of(store_url, "receiver_recorded") < 12
    names = [path.name for path in sorted(tmp_path.glob("r-*"))]
    assert 3 <= len(names) <= 12
    in_order_of_names = [id_ for name in names for id_ in ids(read(tmp_path / name))]
    assert in_order_of_names == [f"{batch}-{row}" for batch in range(12) for row in range(20)]
    with opened(store_url, record=Recording(path, keep_files=2)) as orders:
        send(orders, "last")
    assert [path.name for path in sorted(tmp_path.glob("r-*"))][:-1] == names[-1:]
    assert rows_of(store_url, "receiver_recorded") == 0


def test_by_time_from_a_store(store_url, tmp_path):
    path = tmp_path / "r.parquet"
    with opened(store_url, record=Recording(path, rotate_secs=0.05)) as orders:
        for number in range(2):
            send(orders, f"{number}")
            until(lambda number=number: len(list(tmp_path.glob("r-*"))) > number)
        time.sleep(0.1)
    assert len(list(tmp_path.glob("r-*"))) == 2
    assert ids(read(path)) == ["0", "1"]


def test_a_clock_that_was_set_back_keeps_nothing_waiting(store_url, tmp_path):
    path = tmp_path / "r.parquet"
    with opened(store_url, record=path) as orders:
        send(orders, "a")
        orders.session.recorder.flush()
        assert list(tmp_path.glob("r-*")) == []
        execute(store_url, "UPDATE receiver_recorded SET recorded_at_us = recorded_at_us + 86400000000")
        orders.session.recorder.flush()
        assert ids(read(path)) == ["a"]
