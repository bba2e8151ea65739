"""Folding: which process does it, when, and what happens if a step fails."""

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import text

from receiver.durable.audit import look
from receiver.durable.concurrent import _AT_ONCE, _LOOK_SECS, _TAKE_OVER_SECS
from receiver.errors import ClosedError
from receiver.store.sql_rows import driver_of
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, send, sizes
from tests.durable.test_concurrent import callers, claims, concurrent, waiting
from tests.patience import until
from tests.stores import execute, rows_of


def seen_in(secs, value):
    """The values that `value` gives one after another, for so long and until there was a change."""
    seen = [value()]
    ends = time.monotonic() + secs
    while time.monotonic() < ends or len(seen) < 2:
        if value() is not seen[-1]:
            seen.append(value())
        time.sleep(0.001)
    return seen


def test_a_resize_by_another_process_is_noticed(fresh_postgres_url):
    """Ids that the resize forgets are no longer claimed, even if no receipt comes."""
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(3, 0)) as orders:
        send(orders, "a", "b", "c")
        until(lambda: orders.is_folding and waiting(url) == 0)
        with concurrent(url, settings=sizes(1, 0)):
            until(lambda: claims(url) == ["c"])


def test_what_could_not_be_released_is_released_later(fresh_postgres_url, caplog):
    """It is released although the batch before, which retired a source, had forgotten it."""
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(2, 0, max_sources=1), patience_secs=0.1) as orders:
        folder = orders._folding
        folder.close()
        with orders.batch() as batch:
            batch.receive_many([("a", "s", 0), ("b", "t", 0)])
        folder._fold_some()
        with callers(url) as connection:
            connection.execute(text("LOCK TABLE receiver_claim"))
            folder._try_to_fold("trying again")
        assert "lock timeout" in caplog.text
        assert claims(url) == ["a", "b"]
        folder._try_to_fold("trying again")
        assert claims(url) == ["b"]
        folder._let_go()


def test_what_a_batch_forgets_at_its_end_is_released_though_nothing_comes(fresh_postgres_url):
    """The batch retires a source at its end."""
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(2, 0, max_sources=1)) as orders:
        with orders.batch() as batch:
            batch.receive_many([("a", "s", 0), ("b", "t", 0)])
        until(lambda: claims(url) == ["b"])


def test_nothing_is_written_while_nothing_comes(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        send(orders, "a")
        until(lambda: orders.is_folding and waiting(url) == 0)
        until(lambda: orders._folding._known is not None)
        written = look(url).domains[0].state.last_writer
        time.sleep(5 * _LOOK_SECS)
        assert look(url).domains[0].state.last_writer == written


def test_a_lost_folder_is_replaced(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as first, concurrent(url) as second:
        until(lambda: first._folding.waiting and second._folding.waiting)
        assert first.is_folding != second.is_folding
        folding, other = (first, second) if first.is_folding else (second, first)
        folding.close()
        send(other, "a")
        until(lambda: waiting(url) == 0)


def test_who_doesnt_fold_asks_now_and_then(fresh_postgres_url):
    """It asks through one connection."""
    with concurrent(fresh_postgres_url) as first:
        until(lambda: first.is_folding)
        with concurrent(fresh_postgres_url) as second:
            folder = second._folding
            until(lambda: folder.waiting)
            kept = folder._kept
            assert len(seen_in(_TAKE_OVER_SECS, lambda: folder.waiting)) <= 3
            assert folder._kept is kept
            assert not second.is_folding


def test_a_failure_to_fold_is_said_once(fresh_postgres_url, caplog, monkeypatch):
    """If it was over and comes again, it is logged again."""
    monkeypatch.setattr("receiver.durable.concurrent._TAKE_OVER_SECS", 0.01)
    url = fresh_postgres_url
    with concurrent(url) as orders:
        until(lambda: orders._folding._known is not None)
        for times in (1, 2):
            session = driver_of(orders._folding._kept).info.backend_pid
            execute(url, "ALTER TABLE receiver_arrival RENAME TO elsewhere")
            until(
                lambda pid=session: not rows_of(url, f"pg_stat_activity WHERE pid = {pid}")
            )  # so that another may fold
            time.sleep(0.1)
            execute(url, "ALTER TABLE elsewhere RENAME TO receiver_arrival")
            until(lambda: orders._folding._known is not None)
            assert caplog.text.count("can't fold receipts in, trying again") == times


def test_receivers_that_fail_to_fold_by_turns_say_so_once_each(fresh_postgres_url, caplog, monkeypatch):
    """Each says each text once, also if errors alternate."""
    monkeypatch.setattr("receiver.durable.concurrent._TAKE_OVER_SECS", 0.01)
    url = fresh_postgres_url

    def said(table):
        return sum("can't fold" in text and f'"{table}" does not exist' in text for text in caplog.messages)

    with concurrent(url) as first, concurrent(url):
        until(lambda: first._folding._known is not None)
        execute(url, "ALTER TABLE receiver_receipt RENAME TO elsewhere")
        send(first, "a")
        until(lambda: said("receiver_receipt") >= 2)
        execute(url, "ALTER TABLE receiver_arrival RENAME TO arrivals")
        until(lambda: said("receiver_arrival") >= 2)
        execute(url, "ALTER TABLE arrivals RENAME TO receiver_arrival")
        time.sleep(1)
        execute(url, "ALTER TABLE elsewhere RENAME TO receiver_receipt")
    # Two receivers; a text names the statement, which depends on whether the receiver has to read its domain anew.
    assert max(Counter(caplog.messages).values()) == 2


def test_a_domain_that_is_dropped_is_missed(fresh_postgres_url, caplog):
    with concurrent(fresh_postgres_url) as orders:
        until(lambda: orders._folding._known is not None)
        execute(fresh_postgres_url, "DELETE FROM receiver_domain")
        until(lambda: "the domain is gone" in caplog.text)


def test_who_folds_folds_in_at_the_end_what_waits(fresh_postgres_url, monkeypatch):
    """That includes receipts that don't fit in one folding."""
    monkeypatch.setattr("receiver.durable.concurrent._LOOK_SECS", LONG_SECS)
    with concurrent(fresh_postgres_url) as orders:
        until(lambda: orders._folding._known is not None)
        with orders.batch() as batch:
            batch.receive_many((f"{number}", None, 0) for number in range(_AT_ONCE))
        send(orders, "a")
    assert waiting(fresh_postgres_url) == 0


def test_a_long_transaction_holds_up_nobody(fresh_postgres_url):
    """The rule forgets an id that the transaction has touched. The claim is released once the transaction is rolled
    back, even if no receipt comes."""
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(1, 0)) as orders, callers(url) as connection:
        send(orders, "a")
        assert send(orders, "a", connection=connection) == [DUPLICATE]
        for id_ in "bcd":
            assert send(orders, id_) == [NEW]
            until(lambda: waiting(url) == 0)
        until(lambda: claims(url) == ["a", "d"])
        assert len(seen_in(2 * _LOOK_SECS, lambda: orders._folding._known)) <= 4
        connection.rollback()
        until(lambda: claims(url) == ["d"])


@pytest.mark.parametrize("callback", ["closes", "exits"])
def test_a_callback_that_ends_more_than_itself(fresh_postgres_url, callback):
    """The callback runs in the folding thread. That lets another process take over, or goes on."""
    url, called = fresh_postgres_url, threading.Event()

    def end(_duplicate):
        called.set()
        if callback == "exits":
            raise SystemExit
        orders.close()

    with concurrent(url, on_duplicate=end) as orders:
        send(orders, "a", "a")
        until(called.is_set)
        if callback == "exits":
            send(orders, "b")
            until(lambda: waiting(url) == 0)
            return
        until(lambda: orders.is_closed)
        with pytest.raises(ClosedError):
            send(orders, "b")
        with concurrent(url) as other:
            until(lambda: other.is_folding)
