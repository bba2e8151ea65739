"""Concurrent receivers: claims, folding, and what follows from them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import NullPool, create_engine, text

from receiver import Receiver
from receiver.durable.audit import audit, look
from receiver.durable.concurrent import _AT_ONCE
from receiver.durable.forgetting import forget, look_up, retire_sources
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreCorruptError, StoreError
from receiver.store.sql_rows import driver_of
from tests.durable.opened import DUPLICATE, NEW, UNCHECKED, UndoError, opened, send, sizes, undone
from tests.patience import until
from tests.stores import execute, rows_of

WAITING_FOR_A_LOCK = "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def concurrent(url, **options):
    return opened(url, concurrent=True, **options)


@contextmanager
def callers(url, isolation_level="READ COMMITTED"):
    engine = create_engine(url, poolclass=NullPool, isolation_level=isolation_level)
    with engine.connect() as connection:
        yield connection


def claims(url):
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        rows = (
            connection.execute(text("SELECT coalesce(long_id, unique_message_id) FROM receiver_claim ORDER BY 1"))
            .scalars()
            .all()
        )
    return [bytes(row).decode("utf-8", "surrogatepass") for row in rows]


def waiting(url):
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM receiver_arrival")).scalar()


def test_new_then_duplicate_then_forgotten(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(2, 0)) as orders:
        assert send(orders, "a", "b", "a") == [NEW, NEW, DUPLICATE]
        until(lambda: waiting(url) == 0)
        assert send(orders, "c", "d") == [NEW, NEW]
        until(lambda: claims(url) == ["c", "d"])
        assert send(orders, "a", "d") == [NEW, DUPLICATE]
        until(lambda: waiting(url) == 0)
        until(lambda: orders.status().rx == 7)
    assert claims(url) == ["a", "d"]


def test_a_rolled_back_batch_claims_nothing(fresh_postgres_url):
    url = fresh_postgres_url
    engine = create_engine(url, poolclass=NullPool)
    with concurrent(url) as orders:
        assert undone(orders, "a") == [NEW]
        with engine.connect() as connection:
            assert undone(orders, "a", connection=connection) == [NEW]
            assert send(orders, "b", connection=connection) == [NEW]
            connection.commit()
        assert send(orders, "a", "b") == [NEW, DUPLICATE]
        assert orders.status().batches_rolled_back == 2
    assert claims(url) == ["a", "b"]


def test_batches_are_counted_and_timed_but_not_foldings(fresh_postgres_url, caplog):
    with concurrent(fresh_postgres_url, patience_secs=0.05) as orders, callers(fresh_postgres_url) as connection:
        for id_ in "aba":
            send(orders, id_)
        undone(orders, "c")
        send(orders)
        send(orders, "d", connection=connection)
        connection.commit()
        until(lambda: orders.status().rx == 4)
        connection.execute(text("SELECT * FROM receiver_domain FOR SHARE"))
        send(orders, "e")
        until(lambda: "can't fold receipts in" in caplog.text)
        connection.rollback()
        status = orders.status()
    assert (status.batches_committed, status.batches_rolled_back, status.batches_failed) == (5, 1, 0)
    assert (sum(status.batch_secs.counts), sum(status.commit_secs.counts)) == (5, 4)


@pytest.mark.parametrize("observe_only", [False, True])
def test_a_duplicate_is_delivered_where_duplicates_are_but_observed(fresh_postgres_url, observe_only):
    with concurrent(fresh_postgres_url, observe_only=observe_only) as orders, orders.batch() as batch:
        new, duplicate = batch.receive_many([("a", None, 0)] * 2)
    assert (new.verdict, new.deliver, new.delivered_anyway) == (NEW, True, False)
    assert (duplicate.verdict, duplicate.deliver, duplicate.delivered_anyway) == (DUPLICATE, observe_only, observe_only)


def test_others_go_on_while_one_waits(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url, patience_secs=0.5) as orders:
        with orders.batch() as batch:
            assert batch.receive("a", received_at_us=0).verdict is NEW
            assert send(orders, "b", "c") == [NEW, NEW]
            until(lambda: waiting(url) == 0)  # they are folded in although one batch is open
            began = time.monotonic()
            with pytest.raises(StoreBusyError):
                send(orders, "a")
            assert time.monotonic() - began < 8, "it waits once"
        assert send(orders, "a") == [DUPLICATE]


def test_who_waits_for_the_first_id_of_a_statement_keeps_nobody_from_the_others(fresh_postgres_url):
    """Ids are claimed in their own order, so that two statements never wait for each other."""
    url, others = fresh_postgres_url, "zyxwvutsrq"
    with concurrent(url, patience_secs=3) as orders:
        answers = []

        def received(batch, *ids):
            return [decision.verdict for decision in batch.receive_many((id_, None, 0) for id_ in ids)]

        def wait():
            with orders.batch() as batch:
                answers.extend(received(batch, *others, "a"))

        waiter = threading.Thread(target=wait)
        with orders.batch() as batch:
            batch.receive("a", received_at_us=0)
            waiter.start()
            until(lambda: rows_of(url, WAITING_FOR_A_LOCK) == 1)
            assert received(batch, *others) == [NEW] * len(others)
        waiter.join()
    assert answers == [DUPLICATE] * (1 + len(others))


@pytest.mark.parametrize(("ends_well", "verdict"), [(True, DUPLICATE), (False, NEW)])
def test_who_waits_learns_what_became_of_the_other(fresh_postgres_url, ends_well, verdict):
    with concurrent(fresh_postgres_url) as orders:
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(send(orders, "a")))
        with suppress(UndoError), orders.batch() as batch:
            batch.receive("a", received_at_us=0)
            waiter.start()
            time.sleep(0.2)
            assert answers == []
            if not ends_well:
                raise UndoError
        waiter.join()
        assert answers == [[verdict]]


def test_conversion_both_ways(fresh_postgres_url):
    url = fresh_postgres_url
    with opened(url, settings=sizes(3, 0)) as old:
        send(old, "a", "b", "c", "d")
        with concurrent(url) as orders:
            assert claims(url) == ["b", "c", "d"]
            with pytest.raises(StoreError, match="another kind"):
                send(old, "x")
            assert send(orders, "b", "a") == [DUPLICATE, NEW]
            with opened(url) as again:
                assert claims(url) == []
                assert send(again, "a", "b", "c") == [DUPLICATE, DUPLICATE, NEW]
                with pytest.raises(StoreError, match="any more"):
                    send(orders, "y")


def test_converting_folds_in_whatever_waits(fresh_postgres_url):
    """That includes receipts that don't fit in one folding. Otherwise their ids would be judged new again."""
    url = fresh_postgres_url
    with concurrent(url) as orders:
        orders._folding.close()
        with orders.batch() as batch:
            batch.receive_many((f"{number}", None, 0) for number in range(_AT_ONCE))
        send(orders, "a")
    with opened(url) as exclusive:
        assert waiting(url) == 0
        assert send(exclusive, "a") == [DUPLICATE]


def test_converting_drops_claims_that_nobody_made(fresh_postgres_url):
    """`receiver check` reports such claims in a damaged store. If they were kept, messages would be dropped."""
    url = fresh_postgres_url
    with opened(url) as old:
        send(old, "a")
    execute(url, "INSERT INTO receiver_claim SELECT domain_id, 'b', null, false, true FROM receiver_domain")
    assert [finding.kind for finding in audit(url).findings] == ["claims"]
    with concurrent(url) as orders:
        assert send(orders, "a", "b") == [DUPLICATE, NEW]


def test_converting_is_said_aloud(fresh_postgres_url, caplog):
    """A program that forgets `concurrent=True` takes the domain from all others."""
    with concurrent(fresh_postgres_url) as orders:
        send(orders, "a")
        assert not caplog.messages
        opened(fresh_postgres_url).close()
    assert [said for said in caplog.messages if "becomes exclusive, for all who use it" in said]


@pytest.mark.parametrize("name", ["memory://", "sqlite:///{}"])
def test_where_none_can_be_concurrent_nothing_is_made(name, tmp_path):
    with pytest.raises(SettingsError, match="concurrent receivers need PostgreSQL"):
        concurrent(name.format(tmp_path / "store.db"))
    assert not list(tmp_path.iterdir())


def test_a_refused_conversion_is_said_by_the_error_alone(sqlite_url, caplog):
    with opened(sqlite_url) as orders:
        send(orders, "a")
    with pytest.raises(SettingsError, match="need PostgreSQL"):
        concurrent(sqlite_url)
    assert "becomes" not in caplog.text


def test_converting_waits_for_open_transactions(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        with orders.batch() as batch:
            batch.receive("a", received_at_us=0)
            with pytest.raises(StoreBusyError):
                opened(url, patience_secs=0.1)
        assert send(orders, "a") == [DUPLICATE]
        with callers(url) as of_earlier_version:  # it knows no gate
            of_earlier_version.execute(text("SELECT FROM receiver_domain FOR KEY SHARE"))
            with pytest.raises(StoreBusyError):
                opened(url, patience_secs=0.1)


def test_converting_is_outrun_by_nobody(fresh_postgres_url):
    """Otherwise converting would wait as long as there is always an open transaction."""
    url = fresh_postgres_url
    with concurrent(url) as orders, ThreadPoolExecutor() as threads:
        orders._folding.close()
        with orders.batch() as batch:
            batch.receive("a", received_at_us=0)
            converting = threads.submit(lambda: opened(url).close())
            until(lambda: rows_of(url, WAITING_FOR_A_LOCK) == 1)
            later = threads.submit(send, orders, "b")
            until(lambda: rows_of(url, WAITING_FOR_A_LOCK) == 2 or later.done())
            batch.receive("a", received_at_us=0)
        converting.result()
        with pytest.raises(StoreError, match="any more"):
            later.result()


def test_what_is_refused(fresh_postgres_url, sqlite_url):
    with pytest.raises(SettingsError):
        concurrent(sqlite_url)
    with pytest.raises(SettingsError):
        concurrent(fresh_postgres_url, policy="artemis:id_cache_size=3")
    with pytest.raises(SettingsError, match="bodies"):
        concurrent(fresh_postgres_url, id_reuse="deliver")
    with pytest.raises(SettingsError):
        Receiver.open(fresh_postgres_url, connection_id="c", destination="q", concurrent=1)


def test_looked_up_and_forgotten(fresh_postgres_url):
    """Before its receipt is folded in, an id is known too. It can be forgotten after that."""
    url = fresh_postgres_url
    with concurrent(url) as orders:
        assert send(orders, "a", "b", None) == [NEW, NEW, UNCHECKED]
        assert [known.is_remembered for known in look_up(url, "a")] == [True]
        until(lambda: waiting(url) == 0)
        assert [known.is_remembered for known in look_up(url, "a")] == [True]
        assert len(forget(url, "a")) == 1
        assert send(orders, "a", "b", "forgotten") == [NEW, DUPLICATE, NEW]
        until(lambda: waiting(url) == 0)
        with orders.batch() as batch:
            batch.receive("b", received_at_us=0)
            with pytest.raises(StoreBusyError, match="open"):
                forget(url, "b")
        until(lambda: waiting(url) == 0)
        assert send(orders, "forgotten", "b") == [DUPLICATE, DUPLICATE]
        assert not audit(url).findings


def test_an_id_that_is_only_claimed_is_known_and_can_be_forgotten(fresh_postgres_url):
    """Nothing has folded since the rule forgot it, so its next message would be dropped."""
    url = fresh_postgres_url
    with concurrent(url, settings=sizes(2, 0)) as orders:
        send(orders, "a", "b")
        until(lambda: waiting(url) == 0)
        orders._folding.close()
        retire_sources(url, sources=[""])
        assert [(known.is_remembered, known.tier) for known in look_up(url, "a")] == [(True, None)]
        assert forget(url, "a") == [orders.domain]
        assert [known.is_remembered for known in look_up(url, "a")] == [False]
        assert forget(url, "a") == []
        assert send(orders, "a", "b") == [NEW, DUPLICATE]


def test_figures(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        orders._folding.close()
        send(orders, "a", "b")
        (domain,) = look(url).domains
        assert (domain.unfolded_receipts, domain.state.receipts) == (2, 0)
        assert domain.unfolded_secs > 0
    with concurrent(url) as orders:
        until(lambda: orders.figures().unfolded_receipts == 0 and orders.status().rx == 2)
    (domain,) = look(url).domains
    assert (domain.unfolded_receipts, domain.unfolded_secs, domain.state.receipts) == (0, None, 2)


def test_what_waits_is_counted(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as orders, concurrent(url, destination="others") as others:
        orders._folding.close()
        others._folding.close()
        with orders.batch() as batch:
            batch.receive_many([("a", None, 5), ("b", None, 3)])
            batch.receive("c", received_at_us=4)
        with others.batch() as batch:
            before_us = time.time_ns() // 1_000
            batch.receive("a")
            after_us = time.time_ns() // 1_000
        with create_engine(url, poolclass=NullPool).connect() as connection:
            looks = [each.session.claims_of(connection).look() for each in (orders, others)]
    assert looks[0][1] == (3, 3)
    assert looks[1][1].receipts == 1
    assert before_us <= looks[1][1].oldest_us <= after_us
    assert looks[0][0] != looks[1][0]


def test_a_batch_is_used_inside_its_block(fresh_postgres_url):
    with concurrent(fresh_postgres_url) as orders:
        batch = orders.batch()
        with pytest.raises(ClosedError):
            batch.connection.close()
        with batch:
            batch.receive("a", received_at_us=0)
            assert list(batch.duplicates) == []
            with pytest.raises(SettingsError, match="no concurrent receiver has"):
                batch.advance(min_msg_time_us=0)
        with pytest.raises(ClosedError):
            batch.connection.close()
        with pytest.raises(ClosedError):
            batch.receive("b", received_at_us=0)
        assert batch.receive_many([]) == []
        batch.__exit__(UndoError, UndoError(), None)
        assert send(orders, "a") == [DUPLICATE]


def test_what_is_remembered_and_not_claimed_is_a_finding(fresh_postgres_url):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        send(orders, "a", "b")
        until(lambda: waiting(url) == 0)
    execute(url, "DELETE FROM receiver_claim WHERE unique_message_id = 'a'")
    assert [finding.kind for finding in audit(url).findings] == ["claims"]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM receiver_claim WHERE unique_message_id = 'b'",
        "UPDATE receiver_arrival SET receipts = 2",
        "UPDATE receiver_arrival SET received_at_us = received_at_us + 1",
        "UPDATE receiver_arrival SET packed = 'x'",
        "UPDATE receiver_arrival SET packed = '[[\"a\"]]'",
        "UPDATE receiver_arrival SET receipts = 1, packed = '[[5,null,0,false,null,null]]'",
        'UPDATE receiver_arrival SET receipts = 2, packed = \'[["a",null,0,false,null,null],["b",null,0,2,null,null]]\'',
    ],
)
def test_what_waits_to_be_folded_in_is_checked(fresh_postgres_url, damage):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        orders._folding.close()
        send(orders, "a", "b")
        assert not audit(url).findings
        execute(url, damage)
        assert {finding.kind for finding in audit(url).findings} == {"claims"}
        execute(url, "DELETE FROM receiver_arrival")


def test_receipts_that_make_no_sense_are_an_error(fresh_postgres_url, caplog):
    url = fresh_postgres_url
    with concurrent(url) as orders:
        orders._folding.close()
        send(orders, "a")
        execute(url, "UPDATE receiver_arrival SET packed = 'x'")
        with pytest.raises(StoreCorruptError, match="make no sense"):
            look_up(url, "a")
    with concurrent(url):
        until(lambda: "make no sense" in caplog.text)
    assert waiting(url) == 1, "nothing is dropped"


def test_a_connection_goes_on_after_a_batch_that_has_failed(fresh_postgres_url):
    """A new connection each time would take long."""

    def session_of(batch):
        return driver_of(batch.connection).info.backend_pid

    with concurrent(fresh_postgres_url) as orders:
        with suppress(UndoError), orders.batch() as batch:
            failed = session_of(batch)
            raise UndoError
        with orders.batch() as batch:
            assert session_of(batch) == failed


def test_more_receipts_at_once_than_a_row_can_number(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr("receiver.store.databases.claims._INDEX_BITS", 2)
    with concurrent(fresh_postgres_url) as orders:
        with orders.batch() as batch:
            decisions = batch.receive_many([(id_, None, 0) for id_ in "abcdeabcde"])
            numbers = list(batch.arrivals)
        assert [decision.verdict for decision in decisions] == [NEW] * 5 + [DUPLICATE] * 5
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 10
        until(lambda: orders.status().rx == 10)
