"""Forks: the child is refused clearly, may open its own, and harms neither its parent nor the store."""

import multiprocessing
import os
import sqlite3
from contextlib import nullcontext, suppress

import pytest
from sqlalchemy import NullPool, create_engine, text

from receiver.errors import ClosedError, ReceiverError
from tests.durable.checks import assert_sound
from tests.durable.forked import forked, refusal
from tests.durable.opened import DUPLICATE, NEW, UndoError, held_elsewhere, opened, send, undone

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = [
    needs_fork,
    # Newer Pythons warn of threads that a fork leaves behind; a recorder or a library may have threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def test_a_child_is_refused_the_receiver(any_url):
    with opened(any_url) as receiver:
        send(receiver, "x")
        assert forked(lambda: [refusal(lambda: send(receiver, "y")) for _ in range(2)])() == ["ClosedError"] * 2
        assert forked(receiver.close)() is None
        assert send(receiver, "x", "y") == [DUPLICATE, NEW]


def test_a_child_reports_none_of_its_parents_duplicates(sqlite_url):
    reported, by_child = [], []

    def note(duplicate):
        reported.append(duplicate.unique_message_id)
        if len(reported) == 1:
            by_child.append(forked(lambda: [receiver.close(), len(reported)])())

    with opened(sqlite_url, on_duplicate=note) as receiver:
        send(receiver, "x", "y", "x", "y")
    assert reported == ["x", "y"]
    assert by_child == [[None, 1]]


def test_a_child_of_a_batch_under_way(any_url):
    """The child leaves the batch alone. The parent's batch goes on."""
    with opened(any_url) as receiver:
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0)

            def child():
                outer = refusal(lambda: send(receiver, "y"))
                return [outer, refusal(receiver.close)]

            assert forked(child)() == ["ClosedError", "no error"]
            batch.receive("y", received_at_us=0)
        assert send(receiver, "x", "y", "z") == [DUPLICATE, DUPLICATE, NEW]


@pytest.mark.parametrize("ending", [None, SystemExit])
@pytest.mark.parametrize("undo", [False, True])
def test_a_child_that_leaves_its_parents_batch(store_url, ending, undo):
    """The child is inside the parent's `with` blocks too, but only the parent decides the batch."""

    def child(receiver, batch):
        said = refusal(lambda: batch.__exit__(ending, ending and ending(), None))
        receiver.__exit__(None, None, None)
        return said

    with opened(store_url, patience_secs=0.5) as receiver:
        with receiver.batch() as batch:
            batch.connection.execute(text("CREATE TABLE effects (message TEXT)"))
        with suppress(UndoError), receiver.batch() as batch:
            batch.receive("x", received_at_us=0)
            batch.connection.execute(text("INSERT INTO effects VALUES ('x')"))
            assert forked(lambda: child(receiver, batch))() == ("no error" if ending else "ClosedError")
            assert batch.receive("y", received_at_us=0).verdict is NEW
            if undo:
                raise UndoError
        with receiver.batch() as batch:
            assert batch.connection.execute(text("SELECT count(*) FROM effects")).scalar() == (not undo)
        assert send(receiver, "x", "y") == [NEW if undo else DUPLICATE] * 2
    assert_sound(store_url)


def test_status_in_a_child_asks_no_database(store_url):
    """The outcome of a caller's transaction is for the parent to look up, since the child shares the connection."""
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url) as receiver:
        with engine.connect() as connection:
            send(receiver, "x", "x", connection=connection)
            connection.commit()
        assert forked(lambda: receiver.status().rx)() == 0
        assert (receiver.status().rx, receiver.status().rDupsDet) == (2, 1)


def test_a_child_opens_its_own(store_url):
    with opened(store_url) as receiver:
        send(receiver, "parent's")

        def child():
            with opened(store_url) as own:
                return [verdict.value for verdict in send(own, "parent's", "child's")]

        assert forked(child)() == ["duplicate", "new"]
        assert send(receiver, "parent's", "child's", "x") == [DUPLICATE, DUPLICATE, NEW]
    assert_sound(store_url)


@pytest.mark.parametrize("under_way", [False, True], ids=["idle", "in-a-batch"])
def test_a_child_goes_on_when_its_parent_has_closed(store_url, under_way):
    """If the child's own receiver reports a commit, it is committed, or the child is refused. Nothing is lost
    silently."""
    receiver = opened(store_url)
    send(receiver, "parent's")
    parent_said, child_said = os.pipe(), os.pipe()

    def child():
        committed = []
        try:
            with opened(store_url, patience_secs=1) as own:
                send(own, "before")
                committed.append("before")
                os.write(child_said[1], b".")
                os.read(parent_said[0], 1)
                send(own, "after")
                committed.append("after")
        except ReceiverError:
            os.write(child_said[1], b".")
        return committed

    with receiver.batch() if under_way else nullcontext():
        answer = forked(child)
    os.read(child_said[0], 1)
    receiver.close()
    os.write(parent_said[1], b".")
    committed = answer()
    if store_url.startswith("sqlite"):
        # During a batch SQLite's connection is in use, and a child can't get rid of it.
        assert committed == ([] if under_way else ["before", "after"])
    with opened(store_url) as another:
        assert undone(another, "parent's", *committed) == [DUPLICATE] * (1 + len(committed))
    for end in (*parent_said, *child_said):
        os.close(end)


def _child_of_a_pool(url):
    with opened(url) as own:
        return [verdict.value for verdict in send(own, "parent's", f"{os.getpid()}")]


def test_processes_of_multiprocessing(store_url):
    with opened(store_url) as receiver:
        send(receiver, "parent's")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            said = pool.map(_child_of_a_pool, [store_url] * 4)
        assert [first for first, _ in said] == ["duplicate"] * 4
        assert send(receiver, "parent's") == [DUPLICATE]
    assert_sound(store_url)


def test_what_threads_of_the_parent_held_does_not_bind_the_child(store_url):
    """When the process forked, another thread had the receiver's turn and a lock of the module."""
    with opened(store_url) as receiver:
        with held_elsewhere(receiver):
            said = forked(lambda: [refusal(lambda: send(receiver, "x")), refusal(receiver.close)])()
        assert said == ["ClosedError", "no error"]
        assert send(receiver, "held") == [DUPLICATE]


def test_a_file_stays_whole(sqlite_url, tmp_path):
    """Children come and go while the parent commits."""
    with opened(sqlite_url) as receiver:
        for number in range(5):
            with receiver.batch() as batch:
                batch.receive(f"{number}", received_at_us=0)
                answer = forked(lambda: None)
            answer()
    with sqlite3.connect(tmp_path / "receiver.db") as driver:
        assert driver.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    driver.close()
    assert_sound(sqlite_url)


def test_closed_error_says_what_to_do(any_url):
    with opened(any_url) as receiver:

        def child():
            try:
                receiver.batch().__enter__()
            except ClosedError as error:
                return str(error)
            return ""

        assert "open another in the new process" in forked(child)()
