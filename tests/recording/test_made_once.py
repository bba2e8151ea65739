"""Each file of a recording is made only once, from batches in the store."""

import pytest
from recorded import ids, read, segments, unfinished

from receiver import recording
from receiver.logs import rotating
from tests.durable.opened import opened, send
from tests.stores import execute, rows_of


@pytest.mark.quick
def test_a_finished_file_is_never_replaced(store_url, tmp_path):
    """It isn't replaced by the batches left in the store, of which a part may be deleted already."""
    path = tmp_path / "r.parquet"
    orders = opened(store_url, record=path)
    for id_ in "abc":
        send(orders, id_)
    with orders.session.recorder._store.connected() as waiting, orders.session.recorder.folder.locked(1):
        cut = waiting.cut("r-20260101T000000.000000Z-1.parquet", 1_000, 0)
        orders.session.recorder.folder.finish(cut.file, waiting.packed(cut), pytest.fail)
        waiting._delete(cut.numbers[:2])
    orders.close()
    assert segments(tmp_path) == ["r-20260101T000000.000000Z-1.parquet", *segments(tmp_path)[1:]]
    assert ids(read(path)) == ["a", "b", "c"]
    assert rows_of(store_url, "receiver_recorded") == 0


@pytest.mark.quick
def test_a_cut_of_batches_that_are_gone_leaves_no_file(store_url, tmp_path):
    path = tmp_path / "r.parquet"
    orders = opened(store_url, record=path)
    send(orders, "a")
    with orders.session.recorder._store.connected() as waiting:
        waiting.cut("r-20260101T000000.000000Z-1.parquet", 1_000, 0)
    execute(store_url, "DELETE FROM receiver_recorded WHERE file IS NULL")
    orders.close()
    assert list(tmp_path.glob("r-*")) == []
    assert rows_of(store_url, "receiver_recorded") == 0


@pytest.mark.quick
def test_parts_that_nobody_makes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_PATIENCE_SECS", 0.1)
    left = tmp_path / ".receipts-20261121T074500.123456Z-4711.jsonl.zst.part"
    left.write_bytes(b"half")
    with (tmp_path / ".receipts.jsonl.zst.lock").open("ab") as lock:
        assert rotating.try_to_lock(lock)  # as a process does that makes it
        orders = opened("memory://", record=tmp_path)
        assert unfinished(tmp_path) == [left]
        rotating.unlock(lock)
    orders.close()
    assert unfinished(tmp_path) == []
