"""Concurrent receivers at their edges: odd ids, deadlocks, callers' transactions, lost connections, forks, closing."""

import os
import random
import threading
import time
from contextlib import suppress
from unittest.mock import patch

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError

from receiver.durable.session import DomainSession
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreError
from receiver.store.sql_rows import driver_of
from tests.durable.claimed_domain import HandFolder
from tests.durable.forked import forked, refusal
from tests.durable.opened import DUPLICATE, NEW, UNCHECKED, UndoError, opened, send, sizes, undone
from tests.durable.proxy import Cut, proxied
from tests.durable.server import mortal_server
from tests.durable.test_concurrent import callers, claims, concurrent, waiting
from tests.patience import until
from tests.stores import execute, rows_of

OTHERS = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
ODD_IDS = ["\0", "a\0b", "a", "A", "a ", "\ud800", "\udfff", "é", "e\u0301", "x" * 10_000, "x" * 10_001]


def cut(url, connection):
    """Have the server end a connection, unknown to its client."""
    pid = driver_of(connection).info.backend_pid
    with callers(url, "AUTOCOMMIT") as other:
        other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        ended = text("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = :pid)")
        until(lambda: other.execute(ended, {"pid": pid}).scalar())


@pytest.mark.parametrize("at_once", [False, True])
def test_ids_are_exact_text(fresh_postgres_url, seed, at_once):
    url = fresh_postgres_url
    long = "".join(random.Random(seed).choices("0123456789abcdef", k=10_000))  # which can't be compressed
    ids = [*ODD_IDS, long, long[:-1] + "x"]
    kept_twice = "receiver_claim WHERE long_id = unique_message_id"

    def received(orders, *ids):
        with orders.batch() as batch:
            if at_once:
                return [decision.verdict for decision in batch.receive_many((id_, None, 0) for id_ in ids)]
            return [batch.receive(id_, received_at_us=0).verdict for id_ in ids]

    with concurrent(url) as orders:
        assert received(orders, *ids) == [NEW] * len(ids)
        assert received(orders, *ids, None, "") == [DUPLICATE] * len(ids) + [UNCHECKED] * 2
        until(lambda: waiting(url) == 0)
        assert received(orders, *ids) == [DUPLICATE] * len(ids)
    assert rows_of(url, kept_twice) == 0
    assert claims(url) == sorted(ids, key=lambda id_: id_.encode("utf-8", "surrogatepass"))
    opened(url).close()
    with concurrent(url) as orders:
        assert received(orders, *ids) == [DUPLICATE] * len(ids)
        assert rows_of(url, kept_twice) == 0
    with concurrent(url, settings=sizes(1, 0)):
        until(lambda: claims(url) == ids[-1:])


@pytest.mark.parametrize(
    "receipt",
    [
        *[(5, None, 0), (0, None, 0), ("a", 5, 0), (None, 5, 0), ("a", None, -1), ("a", None, True)],
        *[("a", None, 10**18), ("a", None, 0, 2), ("a", None, 0, False, -1), ("a", None, 0, False, 0, 5)],
    ],
)
def test_what_no_receipt_can_be(fresh_postgres_url, receipt):
    with concurrent(fresh_postgres_url) as orders, orders.batch() as batch:
        with pytest.raises(SettingsError):
            batch.decide(*receipt)
        assert batch.receive("a", received_at_us=0).verdict is NEW


def test_opposite_orders(fresh_postgres_url):
    """Two transactions wait for each other. The server ends one, which may try again; the other goes on."""
    said = []
    with concurrent(fresh_postgres_url) as orders:
        both_have_one = threading.Barrier(2)

        def receive(first, second):
            try:
                with orders.batch() as batch:
                    batch.receive(first, received_at_us=0)
                    both_have_one.wait()
                    batch.receive(second, received_at_us=0)
                said.append(None)
            except StoreBusyError as error:
                said.append(error)

        threads = [threading.Thread(target=receive, args=order) for order in ("ab", "ba")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (refused,) = [error for error in said if error is not None]
        assert "try again" in refused.hint
        assert len(said) == 2
        assert send(orders, "a", "b") == [DUPLICATE] * 2


@pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_callers_older_snapshot(fresh_postgres_url, isolation_level):
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url, isolation_level) as connection:
        connection.execute(text("SELECT count(*) FROM receiver_claim"))
        assert send(orders, "a", "b") == [NEW, NEW]
        with pytest.raises(StoreBusyError) as refused:
            send(orders, "a", connection=connection)
        assert "in a new one" in refused.value.hint
        connection.rollback()
        assert send(orders, "c", "a", connection=connection) == [NEW, DUPLICATE]
        connection.commit()
        assert send(orders, "c") == [DUPLICATE]


def test_autocommit_is_refused(fresh_postgres_url):
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url, "AUTOCOMMIT") as connection:
        for _ in range(2):
            with pytest.raises(SettingsError, match="AUTOCOMMIT"):
                send(orders, "a", connection=connection)
        assert orders.status().batches_failed == 2
        assert send(orders, "a") == [NEW]


@pytest.mark.parametrize("receipts", [1, 2])
def test_a_callers_patience_is_kept(fresh_postgres_url, receipts):
    with concurrent(fresh_postgres_url, patience_secs=0.05) as orders, callers(fresh_postgres_url) as connection:

        def patience():
            return connection.execute(text("SHOW lock_timeout")).scalar()

        def receive(id_):
            with orders.batch(connection) as batch:
                return {decision.verdict for decision in batch.receive_many([(id_, None, 0)] * receipts)}

        connection.execute(text("SET lock_timeout = '41s'"))
        connection.commit()
        connection.execute(text("SET LOCAL lock_timeout = '40s'"))
        receive("a")
        assert patience() == "40s"
        with orders.batch() as batch:
            batch.receive("b", received_at_us=0)
            began = time.monotonic()
            with connection.begin_nested() as savepoint:
                with pytest.raises(StoreBusyError):
                    receive("b")
                savepoint.rollback()
            assert time.monotonic() - began < 20
        assert patience() == "40s"
        assert receive("a") | receive("b") == {DUPLICATE}
        connection.commit()
        assert patience() == "41s"


@pytest.mark.parametrize("receipts", [1, 2])
def test_a_callers_patience_is_put_back_though_the_domain_is_another_kind(fresh_postgres_url, receipts):
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        orders._folding.close()
        opened(fresh_postgres_url).close()
        connection.execute(text("SET lock_timeout = '7s'"))
        with pytest.raises(StoreError, match="any more"), orders.batch(connection) as batch:
            batch.receive_many([("a", None, 0)] * receipts)
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "7s"


def test_a_domain_made_anew_is_another_one(fresh_postgres_url):
    """Even if it has the number of the domain that was dropped."""
    with concurrent(fresh_postgres_url) as orders:
        orders._folding.close()
        execute(fresh_postgres_url, "UPDATE receiver_domain SET incarnation = incarnation + 1")
        with pytest.raises(StoreError, match="was dropped"):
            send(orders, "a")


def test_what_an_exception_leaves_to_the_caller(fresh_postgres_url):
    """The caller keeps nothing of that batch, and all of the others."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        orders._folding.close()
        assert send(orders, "a", connection=connection) == [NEW]
        assert undone(orders, "b", "a", "b", None, connection=connection) == [NEW, DUPLICATE, DUPLICATE, UNCHECKED]
        assert send(orders, "b", "c", connection=connection) == [NEW, NEW]
        assert undone(orders, "c", "d", connection=connection) == [DUPLICATE, NEW]
        connection.commit()
        assert claims(fresh_postgres_url) == ["a", "b", "c"]
        assert waiting(fresh_postgres_url) == 3


@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")
@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1 / 0"])
def test_an_exception_leaves_a_savepoint_open(fresh_postgres_url, statement):
    """A later rollback to it must not bring back what the batch had claimed before it."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        savepoints = []

        def receive():
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
                savepoints.extend([connection.begin_nested(), connection.begin_nested()])
                connection.execute(text(statement))
                raise UndoError

        with connection.begin_nested() as outer:
            with pytest.raises((UndoError, DataError)):
                receive()
            assert connection.get_nested_transaction() is outer
            for savepoint in reversed(savepoints):
                savepoint.rollback()
            assert send(orders, "b", connection=connection) == [NEW]
        connection.commit()
        assert send(orders, "a", "b") == [NEW, DUPLICATE]


def test_batches_of_one_connection_follow_each_other(fresh_postgres_url):
    """Otherwise one batch could take back the receipt of which the other batch reports a duplicate."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        with suppress(UndoError), orders.batch(connection) as batch:
            assert batch.receive("a", received_at_us=0).verdict is NEW
            with pytest.raises(StoreBusyError, match="under way"):
                send(orders, "a", connection=connection)
            with concurrent(fresh_postgres_url, destination="others") as others:
                assert send(others, "a", connection=connection) == [NEW]
            raise UndoError
        assert send(orders, "a", connection=connection) == [NEW]
        connection.commit()
        assert send(orders, "a") == [DUPLICATE]


def test_an_exception_takes_back_nobody_elses(fresh_postgres_url):
    """The batch's claim had gone with a savepoint. Another transaction has claimed the id since."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        with suppress(UndoError), orders.batch(connection) as batch:
            savepoint = connection.begin_nested()
            batch.receive("a", received_at_us=0)
            savepoint.rollback()
            assert send(orders, "a") == [NEW]
            until(lambda: waiting(fresh_postgres_url) == 0)
            raise UndoError
        connection.commit()
        assert send(orders, "a") == [DUPLICATE]


@pytest.mark.parametrize("joins", [False, True])
def test_a_failed_receive_fails_the_batch(fresh_postgres_url, joins):
    """Otherwise PostgreSQL would answer COMMIT with a rollback, without an error."""
    with concurrent(fresh_postgres_url, patience_secs=0.05) as orders, callers(fresh_postgres_url) as connection:
        with orders.batch() as holder:
            holder.receive("a", received_at_us=0)

            def receive():
                with orders.batch(connection if joins else None) as batch:
                    batch.receive("b", received_at_us=0)
                    with pytest.raises(StoreBusyError):
                        batch.receive("a", received_at_us=0)

            with pytest.raises(StoreError, match="earlier statement"):
                receive()
        connection.rollback()
        assert send(orders, "b") == [NEW]


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("how", ["rollback", "commit"])
def test_a_transaction_ended_inside_the_block(fresh_postgres_url, joins, how):
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:

        def receive(*more):
            with orders.batch(connection if joins else None) as batch:
                batch.receive("a", received_at_us=0)
                getattr(batch.connection, how)()
                for id_ in more:
                    batch.receive(id_, received_at_us=0)

        refused = "told to commit" if how == "commit" and not joins else "ended inside"
        for more in ["b", ""]:
            with pytest.raises(SettingsError, match=refused):
                receive(*more)
        connection.rollback()
        assert send(orders, "b") == [NEW]


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("how", ["invalidate", "close"])
def test_a_connection_lost_or_closed_inside_the_block(fresh_postgres_url, joins, how):
    """A lost connection is worth another try. A caller's mistake isn't."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:

        def receive():
            with orders.batch(connection if joins else None) as batch:
                batch.receive("a", received_at_us=0)
                getattr(batch.connection, how)()

        expected = (StoreBusyError, "lost inside") if how == "invalidate" else (SettingsError, "ended inside")
        with pytest.raises(expected[0], match=expected[1]):
            receive()
        assert send(orders, "a") == [NEW]


@pytest.mark.parametrize("how", ["rollback", "commit", "begin_nested"])
def test_a_savepoint_ended_or_left_open_inside_the_block(fresh_postgres_url, how):
    """The savepoint's end, now or later, may undo receipts. So all of the batch is taken back."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        savepoint = connection.begin_nested()

        def receive():
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
                getattr(connection if how == "begin_nested" else savepoint, how)()

        with pytest.raises(SettingsError, match="savepoint"):
            receive()
        connection.commit()
        assert claims(fresh_postgres_url) == []
        assert send(orders, "a") == [NEW]


DEFERRED = "CREATE TABLE effects (body int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
AT_COMMIT = text("INSERT INTO effects VALUES (1), (1)")
"""It fails at the commit."""


def test_a_commit_that_fails(fresh_postgres_url):
    """The pool gets the connection back."""
    execute(fresh_postgres_url, DEFERRED)
    with concurrent(fresh_postgres_url) as orders:
        orders._folding.close()

        def receive():
            with orders.batch() as batch:
                batch.receive("a", received_at_us=0)
                batch.connection.execute(AT_COMMIT)

        with pytest.raises(StoreError, match="effects") as failed:
            receive()
        assert failed.traceback, "which refers to the connection"
        assert orders._engine.pool.checkedout() == 0
        assert orders.status().batches_failed == 1
        assert send(orders, "a") == [NEW]


@pytest.mark.parametrize("more", ["", "b"])
def test_a_commit_that_fails_inside_the_block(fresh_postgres_url, more):
    """The failed commit has ended the transaction. So nothing is done on the connection that its caller's rollback
    wouldn't undo."""
    execute(fresh_postgres_url, DEFERRED)
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:

        def receive():
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
                connection.execute(AT_COMMIT)
                with pytest.raises(IntegrityError):
                    connection.commit()
                for id_ in more:
                    batch.receive(id_, received_at_us=0)

        with pytest.raises(SettingsError, match="ended inside"):
            receive()
        connection.rollback()
        assert driver_of(connection).info.transaction_status == TransactionStatus.IDLE
        assert send(orders, "a", "b") == [NEW, NEW]


def test_what_was_committed_inside_the_block_is_left(fresh_postgres_url):
    """Other batches may have called receipts duplicates of these."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:
        orders._folding.close()

        def receive():
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
                connection.commit()
                assert send(orders, "a") == [DUPLICATE]

        with pytest.raises(SettingsError, match="ended inside"):
            receive()
        connection.execute(text("SELECT 1"))
        connection.commit()
        assert claims(fresh_postgres_url) == ["a"]
        assert waiting(fresh_postgres_url) == 2


@pytest.mark.parametrize(
    ("joins", "holds"), [(False, "rows"), (False, "receipts"), (True, "nothing"), (True, "rows"), (True, "receipts")]
)
def test_what_was_done_on_a_lost_connection_isnt_passed_over(fresh_postgres_url, joins, holds):
    """A batch begins again on another connection only while it is empty, and only if the connection isn't its
    caller's."""
    with concurrent(fresh_postgres_url) as orders, callers(fresh_postgres_url) as connection:

        def receive():
            with orders.batch(connection if joins else None) as batch:
                if holds == "receipts":
                    batch.receive("b", received_at_us=0)
                elif holds == "rows":
                    batch.connection.execute(text("CREATE TABLE effects ()"))
                cut(fresh_postgres_url, batch._connection)
                batch.receive("a", received_at_us=0)

        with pytest.raises(StoreError):
            receive()
        connection.invalidate()
        assert send(orders, "a", "b") == [NEW, NEW]


def test_all_connections_that_a_pool_kept_may_be_lost(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr("receiver.durable.concurrent.IDLE_AT_MOST", 1)
    with concurrent(fresh_postgres_url) as orders, orders.batch() as batch:
        cut(fresh_postgres_url, batch._connection)
        assert batch.receive("a", received_at_us=0).verdict is NEW
        assert batch.receive("a", received_at_us=0).verdict is DUPLICATE


@pytest.mark.parametrize(("when", "verdict"), [(Cut.BEFORE_COMMIT, NEW), (Cut.BEFORE_REPLY, DUPLICATE)])
def test_a_link_cut_around_the_commit(fresh_postgres_url, when, verdict):
    with proxied(fresh_postgres_url) as proxy, concurrent(proxy.url) as orders:
        orders._folding.close()
        send(orders, "a")
        proxy.arm(when)
        with pytest.raises(StoreError, match="isn't known") as unknown:
            send(orders, "b")
        assert "again" in unknown.value.hint
        assert send(orders, "a", "b") == [DUPLICATE, verdict]


def test_a_link_lost_while_idle_that_stays_away(fresh_postgres_url):
    """The application may catch the first error: the batch's end then says that the batch is to be sent again."""
    with proxied(fresh_postgres_url) as proxy, concurrent(proxy.url) as orders:
        orders._folding.close()
        send(orders, "a")
        with pytest.raises(StoreBusyError, match="was lost inside the batch"), orders.batch() as batch:  # noqa: PT012
            proxy.reachable = False
            proxy.cut()
            with pytest.raises(StoreError, match="can't be reached"):
                batch.receive("b", received_at_us=0)


def test_a_server_lost_while_a_receiver_opens(fresh_postgres_url, monkeypatch):
    load = DomainSession.load
    with proxied(fresh_postgres_url) as proxy:

        def load_at_last(session):
            state = load(session)
            proxy.reachable = False
            proxy.cut()
            return state

        monkeypatch.setattr(DomainSession, "load", load_at_last)
        with pytest.raises(StoreError, match="can't be reached"):
            concurrent(proxy.url)


def test_a_server_restarted_while_idle(caplog):
    """The dead connections in its pool cause no errors."""
    with mortal_server() as server, concurrent(server.url) as orders:
        with orders.batch() as one, orders.batch() as other, orders.batch() as third:
            for batch, id_ in [(one, "a"), (other, "b"), (third, "c")]:
                batch.receive(id_, received_at_us=0)
        until(lambda: waiting(server.url) == 0)
        server.kill()
        server.start()
        with orders.batch() as one, orders.batch() as other:
            for batch, id_ in [(one, "a"), (other, "d")]:
                batch.receive(id_, received_at_us=0)
        assert send(orders, "a", "b", "c", "d") == [DUPLICATE] * 4
        until(lambda: waiting(server.url) == 0)
        server.kill()
        orders.close()
        server.start()
    said = [message for message in caplog.messages if "the next receiver does" in message or "trying again" in message]
    assert said
    assert all(": postgresql+psycopg:" in message for message in said), (
        "a driver's own words say neither where nor what to do"
    )


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_connection_lost_as_its_transaction_has_ended(fresh_postgres_url, monkeypatch, caplog, ending):
    """Nothing is logged about it: SQLAlchemy's pool would log a traceback."""
    with concurrent(fresh_postgres_url) as orders:
        with suppress(UndoError), orders.batch() as batch:
            batch.receive("a")
            driver = driver_of(batch.connection)
            end = getattr(driver, ending)
            monkeypatch.setattr(driver, ending, lambda: (end(), driver.close()))
            if ending == "rollback":
                raise UndoError
        assert send(orders, "a") == [DUPLICATE if ending == "commit" else NEW]
    assert not caplog.messages


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("joins", [False, True])
def test_a_fork(fresh_postgres_url, joins):
    """The child is refused the receiver and its batch, and harms neither. It may open its own."""
    url = fresh_postgres_url
    with concurrent(url) as orders, callers(url) as connection:
        until(lambda: orders.is_folding)
        with orders.batch(connection if joins else None) as batch:
            batch.receive("a", received_at_us=0)

            def child():
                said = [
                    refusal(lambda: send(orders, "x")),
                    refusal(lambda: batch.receive("x", received_at_us=0)),
                    refusal(lambda: batch.__exit__(None, None, None)),
                    refusal(orders.close),
                ]
                with concurrent(url) as own:
                    return said, [verdict.value for verdict in send(own, "y")]

            assert forked(child)() == [["ClosedError", "ClosedError", "ClosedError", "no error"], ["new"]]
            assert forked(lambda: refusal(lambda: batch.__exit__(UndoError, UndoError(), None)))() == "no error"
            assert batch.receive("b", received_at_us=0).verdict is NEW
        connection.commit()
        assert orders.is_folding
        assert send(orders, "a", "b", "x", "y") == [DUPLICATE, DUPLICATE, NEW, DUPLICATE]
        until(lambda: waiting(url) == 0)


def test_who_folds_leaves_a_server_that_takes_no_writes(fresh_postgres_url):
    """Its address may lead to another by now, where the receipts are that nobody would fold in."""
    with concurrent(fresh_postgres_url) as orders:
        until(lambda: orders.is_folding)
        before = orders._folding._kept
        driver_of(before).execute("SET default_transaction_read_only = on")
        until(lambda: orders.is_folding and orders._folding._kept is not before)


def test_closing_under_way(fresh_postgres_url):
    """Batches that have begun may end, and no other may begin. Every thread that closes waits until that is done."""
    orders = concurrent(fresh_postgres_url)
    until(lambda: orders.is_folding)
    with orders.batch() as batch:
        batch.receive("a", received_at_us=0)
        closing = [threading.Thread(target=orders.close) for _ in range(3)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        batch.receive("b", received_at_us=0)
        with pytest.raises(ClosedError):
            send(orders, "c")
    orders.close()
    until(lambda: rows_of(fresh_postgres_url, OTHERS) == 0)
    with concurrent(fresh_postgres_url) as again:
        assert send(again, "a", "b", "c") == [DUPLICATE, DUPLICATE, NEW]


def test_a_batch_that_ends_or_begins_in_mid_close(fresh_postgres_url, monkeypatch):
    """Its connection ends with it: no pool keeps that."""
    orders = concurrent(fresh_postgres_url)
    ends, begins = orders.batch(), orders.batch()
    ends.__enter__()

    def in_mid_close(dispose=orders._engine.dispose):
        dispose()
        ends.__exit__(None, None, None)
        begins.__enter__()

    monkeypatch.setattr(orders._engine, "dispose", in_mid_close)
    orders.close()
    begins.__exit__(None, None, None)
    until(lambda: rows_of(fresh_postgres_url, OTHERS) == 0)


def test_two_open_a_new_domain_at_once(fresh_postgres_url):
    """The second one sees that the domain is made, and leaves the claims of receipts that wait to be folded in."""
    load = DomainSession.load

    def overtaken(second):
        state = load(second)
        with (
            patch.object(DomainSession, "load", load),
            patch("receiver.durable.receiver.FoldingThread", HandFolder),
            concurrent(fresh_postgres_url) as first,
        ):
            assert send(first, "a") == [NEW]
        return state

    with patch.object(DomainSession, "load", overtaken):
        second = concurrent(fresh_postgres_url)
    with second:
        assert send(second, "a") == [DUPLICATE]
