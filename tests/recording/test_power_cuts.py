"""What a power cut may leave of a recording: no step counts on what the disk may not have yet.

A cut keeps what was synced, and of what came after any part, in any order. So the order of a process' own calls shows
what a cut can leave: each test lists them, by strace.
"""

import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from mortal import BOOKED, Life
from recorded import read, receipt, segments, unfinished
from test_recording_kills import assert_complete, live_to_the_end

from receiver import Recording
from receiver.logs import rotating
from receiver.logs.journal import JournalHeader
from receiver.logs.rotating import finished_from
from tests.durable.opened import opened
from tests.durable.strace import traced
from tests.stores import engine_of

CHANGES = ("write", "pwrite64", "ftruncate")
SYNCS = ("fsync", "fdatasync")
NAMES = ("rename", "renameat", "renameat2", "unlink", "unlinkat")


def calls_of(program, *, files, tmp_path, without=None):
    """The calls of a program on files, in order; without the syncs of a module where that is asked for."""
    start = (
        f"import os, {without} as module\nmodule.os = type('os', (), {{**vars(os), 'fsync': lambda _: None}})\n"
        if without
        else ""
    )
    script = tmp_path / "program.py"
    script.write_text(start + textwrap.dedent(program), encoding="utf-8")
    command = [sys.executable, script]
    _, calls = traced(
        command, syscalls=(*CHANGES, *SYNCS, *NAMES), files=files, log=tmp_path / "strace.log", cwd=Path.cwd()
    )
    return calls


def owed_at_syncs_of(store, journal, calls):
    """How many changes of the journal weren't synced whenever the store was."""
    owed, seen = 0, []
    for call in calls:
        if call.path == journal:
            owed = 0 if call.name in SYNCS else owed + (call.name in CHANGES)
        elif call.name in SYNCS and call.path.name.startswith(store.name):
            seen.append(owed)
    return seen


@pytest.fixture
def life(tmp_path, seed):
    folder = tmp_path / "receipts"
    folder.mkdir()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    BOOKED.create(engine_of(url))
    return Life(url=url, path=str(folder), seed=seed)


@pytest.mark.parametrize("without", [None, "receiver.logs.rotating"])
def test_what_was_settled_is_synced_before_the_store_forgets_the_number_that_proves_it(life, tmp_path, without):
    live_to_the_end(replace(life, step="before that is said", when=4))
    *_, journal = unfinished(Path(life.path))
    store = tmp_path / "store.db"
    calls = calls_of(
        f"""
        from tests.durable.opened import opened
        opened({life.url!r}, record={life.path!r}).close()
        """,
        files=[journal, store, tmp_path / "store.db-wal"],
        tmp_path=tmp_path,
        without=without,
    )
    owed = owed_at_syncs_of(store, journal, calls)
    assert owed
    assert any(owed) == (without is not None)  # a sync that is missing is seen
    assert_complete(life)


@pytest.mark.parametrize("without", [None, "receiver.logs.rotating"])
def test_a_batch_that_was_rolled_back_is_off_the_disk_before_another_is_committed(life, tmp_path, without):
    """Else it could come back, covered by the number of the next."""
    program = f"""
    from sqlalchemy import NullPool, create_engine
    from tests.durable.opened import opened
    own = create_engine({life.url!r}, poolclass=NullPool)
    with opened({life.url!r}, record={life.path!r}) as orders:
        for number in range(4):
            with own.connect() as connection:
                with orders.batch(connection) as batch:
                    batch.receive(f"{{number}}")
                connection.commit() if number % 2 else connection.rollback()
    """
    calls = calls_of(program, files=[], tmp_path=tmp_path, without=without)  # the journal's name isn't known yet
    journal = [call for call in calls if call.path.name.endswith(".journal")]
    cuts = [index for index, call in enumerate(journal) if call.name == "ftruncate"]
    assert cuts
    synced = [journal[index + 1].name in SYNCS for index in cuts]
    assert all(synced) == (without is None)


@pytest.mark.parametrize("without", [None, "receiver.closing"])
def test_a_file_has_its_name_for_certain_before_its_journal_goes(life, tmp_path, without):
    live_to_the_end(replace(life, step="before it is finished", when=1))
    (journal, *_) = unfinished(Path(life.path))
    part, folder = journal.with_suffix(".part"), Path(life.path)
    calls = calls_of(
        f"""
        from tests.durable.opened import opened
        opened({life.url!r}, record={life.path!r}).close()
        """,
        files=[journal, part, folder],
        tmp_path=tmp_path,
        without=without,
    )
    log = (tmp_path / "strace.log").read_text()
    lines = [line for line in log.splitlines() if journal.stem.removeprefix(".") in line or "fsync" in line]
    renamed = next(index for index, line in enumerate(lines) if "rename" in line and ".part" in line)
    removed = next(index for index, line in enumerate(lines) if "unlink" in line and ".journal" in line)
    synced = [line for line in lines[renamed:removed] if "fsync" in line and f"<{folder}>" in line]
    assert bool(synced) == (without is None)
    assert calls is not None
    assert_complete(life)


@pytest.mark.quick
def test_a_complete_file_is_never_replaced_by_what_is_left_of_its_journal(tmp_path):
    with opened("memory://", record=tmp_path) as orders, orders.batch() as batch:
        batch.receive_many([receipt(number) for number in range(9)])
    (name,) = segments(tmp_path)
    torn = tmp_path / f".{name}.journal"
    torn.write_bytes(rotating.beginning(JournalHeader(1, None, "broker", "queue://orders", "")))
    assert finished_from(torn) == tmp_path / name
    opened("memory://", record=Recording(tmp_path)).close()
    assert len(read(tmp_path)) == 9
    assert unfinished(tmp_path) == []


@pytest.mark.quick
def test_parts_that_nobody_makes_are_removed(tmp_path):
    stem = ".receipts-20261121T074500.123456Z-4711.jsonl.zst"
    left, made = tmp_path / f"{stem}.part", tmp_path / f"{stem.replace('4711', '4712')}.part"
    left.write_bytes(b"half")
    made.write_bytes(b"half")
    journal = made.with_suffix(".journal")
    with journal.open("w+b") as file:
        assert rotating._locked(file)  # as a process that is at it
        opened("memory://", record=tmp_path).close()
        assert (left.exists(), made.exists()) == (False, True)
    opened("memory://", record=tmp_path).close()
    opened("memory://", record=tmp_path).close()
    assert (made.exists(), journal.exists()) == (False, False)
