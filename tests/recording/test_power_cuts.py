"""What a power cut may leave of a recording: no step counts on what the disk may not have yet.

A cut keeps what was synced, and of what came after any part, in any order. So the order of a process' own calls shows
what a cut can leave: the first test lists them, by strace.
"""

import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from mortal import BOOKED, Life
from recorded import ids, read, segments, unfinished
from test_recording_kills import KILLED, assert_complete, live_to_the_end

from receiver.logs import rotating
from tests.durable.opened import opened, send
from tests.durable.strace import traced
from tests.stores import engine_of, execute, rows_of

SYNCS = ("fsync", "fdatasync")
NAMES = ("rename", "renameat", "renameat2", "unlink", "unlinkat")


@pytest.fixture
def life(tmp_path, seed):
    folder = tmp_path / "receipts"
    folder.mkdir()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    BOOKED.create(engine_of(url))
    return Life(url=url, path=str(folder), seed=seed)


@pytest.mark.parametrize("without", [None, "receiver.closing", "receiver.logs.writer"])
def test_a_file_is_on_the_disk_for_certain_before_the_store_forgets_its_batches(life, tmp_path, without):
    """A sync that is missing is seen."""
    assert live_to_the_end(replace(life, step="cut")) == KILLED
    folder, log = Path(life.path), tmp_path / "strace.log"
    start = f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\n"
    if without:
        start += (
            f"import {without} as module\nmodule.os = type('os', (), {{**vars(module.os), 'fsync': lambda _: None}})"
        )
    program = f"""
    from tests.durable.opened import opened
    opened({life.url!r}, record={life.path!r}).close()
    """
    script = tmp_path / "program.py"
    script.write_text(start + textwrap.dedent(program), encoding="utf-8")
    calls = [*SYNCS, *NAMES, "write", "pwrite64"]
    traced([sys.executable, script], syscalls=calls, files=[], log=log, cwd=Path.cwd())
    lines = log.read_text().splitlines()
    renames = [at for at, line in enumerate(lines) if "rename" in line and ".part" in line]
    assert renames
    for renamed in renames:
        part = re.search(r'[^"/]+\.part', lines[renamed])[0]
        part_synced = any("fsync(" in line and f"{part}>" in line for line in lines[:renamed])
        # The store's next write behind it deletes.
        deleted = next(
            at for at, line in enumerate(lines) if at > renamed and "write" in line and "store.db-wal>" in line
        )
        name_synced = any("fsync(" in line and f"<{folder}>" in line for line in lines[renamed:deleted])
        assert (part_synced, name_synced) == (without != "receiver.logs.writer", without != "receiver.closing")
    assert_complete(life)


@pytest.mark.quick
def test_a_finished_file_is_never_replaced(store_url, tmp_path):
    """By what is left of its batches in the store, some of which may be deleted already."""
    path = tmp_path / "r.parquet"
    orders = opened(store_url, record=path)
    for id_ in "abc":
        send(orders, id_)
    with orders._recorder._store.connected() as waiting, orders._recorder.folder.locked(1):
        cut = waiting.cut("r-20260101T000000.000000Z-1.parquet", 1_000, 0)
        orders._recorder.folder.finish(cut.file, waiting.packed(cut), pytest.fail)
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
    with orders._recorder._store.connected() as waiting:
        waiting.cut("r-20260101T000000.000000Z-1.parquet", 1_000, 0)
    execute(store_url, "DELETE FROM receiver_recorded WHERE file IS NULL")
    orders.close()
    assert list(tmp_path.glob("r-*")) == []
    assert rows_of(store_url, "receiver_recorded") == 0


@pytest.mark.quick
def test_parts_that_nobody_makes_are_removed(tmp_path):
    left = tmp_path / ".receipts-20261121T074500.123456Z-4711.jsonl.zst.part"
    left.write_bytes(b"half")
    with (tmp_path / ".receipts.jsonl.zst.lock").open("ab") as lock:
        assert rotating.taken(lock)  # as a process that is at it
        orders = opened("memory://", record=tmp_path, patience_secs=0.1)
        assert unfinished(tmp_path) == [left]
        rotating._let_go(lock)
    orders.close()
    assert unfinished(tmp_path) == []
