"""Several receivers and threads: which has its turn, what is refused at once, and how long a wait may last."""

import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from receiver import retrying
from receiver.durable.holds import _HOLDS, Hold, hold, release
from receiver.errors import ClosedError, StoreBusyError, StoreError
from receiver.settings import StoreSettings
from receiver.store.sql_rows import ROWS_AT_ONCE
from tests.durable.opened import (
    DUPLICATE,
    LONG_SECS,
    MEMORY,
    NEW,
    UndoError,
    held_elsewhere,
    opened,
    send,
    sizes,
    undone,
)
from tests.patience import until
from tests.stores import engine_of, execute

SHORT_SECS = 0.2


def assert_refused_at_once(receiver, match):
    began = time.monotonic()
    with pytest.raises(StoreBusyError, match=match):
        receiver.batch().__enter__()
    assert time.monotonic() - began < LONG_SECS / 2


def test_a_second_batch_of_the_thread_is_refused_at_once(any_url):
    with opened(any_url, patience_secs=LONG_SECS) as receiver:
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0)
            assert_refused_at_once(receiver, "this thread")
            assert batch.receive("y", received_at_us=0).verdict is NEW
        assert send(receiver, "x", "y", "z") == [DUPLICATE, DUPLICATE, NEW]


def test_a_lock_is_known_of_behind_one_that_is_over():
    held, again = (Hold("our lock", object, 1, domain="d") for _ in range(2))
    hold(held)
    try:
        _HOLDS.insert(_HOLDS.index(held), Hold("their lock", object, 1, is_over=lambda: True))
        with pytest.raises(StoreBusyError, match="under way"):
            hold(again)
    finally:
        release(held)


def test_so_is_one_of_another_receiver_of_the_domain(store_url):
    with opened(store_url, patience_secs=LONG_SECS) as one, opened(store_url, patience_secs=LONG_SECS) as other:
        with one.batch() as batch:
            batch.receive("x", received_at_us=0)
            assert_refused_at_once(other, "this thread")
        assert send(other, "x") == [DUPLICATE]
        assert send(one, "x") == [DUPLICATE]


def test_who_is_far_behind_reads_on_though_others_have_deleted_what_it_knew(store_url):
    last = 80 * ROWS_AT_ONCE  # so many that the server still sends rows when it is asked to stop
    with opened(store_url, settings=sizes(last // 2, 0)) as one, opened(store_url) as other:
        send(one, "x")
        with other.batch() as batch:
            batch.receive_many([(f"{number}", None, number) for number in range(1, last + 1)])
        with one.batch() as batch:
            assert batch.receive(f"{last}", received_at_us=last).verdict is DUPLICATE
            assert batch.receive("x", received_at_us=last).verdict is NEW


def test_a_batch_that_decides_nothing_costs_no_reading(store_url):
    engine = create_engine(store_url, poolclass=NullPool)
    with opened(store_url, settings=sizes(1, 1_000_000)) as orders, opened(store_url) as other:
        send(orders, "w", "x")
        policy = orders.session.cache.policy
        undone(orders)
        with orders.batch():
            pass
        with engine.connect() as connection:
            undone(orders, connection=connection)
        for us, ids in enumerate(["yz", "u", "v"], start=5):
            with other.batch() as batch:
                batch.receive_many((id_, None, us) for id_ in ids)
            undone(orders)
        assert send(orders, "x", "y", "u", "v") == [DUPLICATE] * 4
        assert orders.session.cache.policy is policy


def test_an_interrupt_may_leave_memory_half_changed(any_url):
    with opened(any_url) as orders:
        send(orders, "x")
        with pytest.raises(KeyboardInterrupt), orders.batch():  # noqa: PT012
            orders.session.cache.policy._newest.clear()
            raise KeyboardInterrupt
        assert send(orders, "x") == [DUPLICATE]


def test_another_domain_is_free_unless_it_is_in_the_same_file(store_url):
    with (
        opened(store_url, patience_secs=LONG_SECS) as orders,
        opened(store_url, domain="name:prices", patience_secs=LONG_SECS) as prices,
    ):
        with orders.batch() as batch:
            batch.receive("x", received_at_us=0)
            if store_url.startswith("sqlite"):
                assert_refused_at_once(prices, "this thread")
            else:
                assert send(prices, "x") == [NEW]
        assert send(prices, "x") == [DUPLICATE if store_url.startswith("postgres") else NEW]


def test_other_files_are_free(tmp_path):
    with opened(f"sqlite:///{tmp_path}/one.db") as one, opened(f"sqlite:///{tmp_path}/two.db") as two, one.batch():
        assert send(two, "x") == [NEW]
        assert send(two, "x") == [DUPLICATE]


@pytest.mark.parametrize("joins", [False, True])
def test_the_wait_ends_though_an_applications_test_has_frozen_the_clock(sqlite_url, monkeypatch, joins):
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))
    with (
        opened(sqlite_url, patience_secs=SHORT_SECS) as orders,
        engine_of(sqlite_url).begin() as connection,  # which locks the file
        ThreadPoolExecutor(1) as pool,
    ):
        if joins:
            send(orders, "a", connection=connection)
        waiting = pool.submit(send, orders, "b")
        assert isinstance(waiting.exception(LONG_SECS), StoreBusyError)


@pytest.mark.parametrize("patience_secs", [0, 0.0001, SHORT_SECS])
def test_the_wait_for_others_is_bounded(store_url, patience_secs):
    with opened(store_url) as other, opened(store_url, patience_secs=patience_secs) as receiver:
        send(receiver, "before")
        with held_elsewhere(other):
            began = time.monotonic()
            with pytest.raises(StoreBusyError, match="lock_timeout_secs"):
                receiver.batch().__enter__()
            assert patience_secs <= time.monotonic() - began < LONG_SECS / 2
            assert receiver.status().rx == 1
        assert send(receiver, "before", "held", "x") == [DUPLICATE, DUPLICATE, NEW]


@pytest.mark.parametrize("patience_secs", [0, SHORT_SECS])
def test_the_wait_for_other_threads_is_bounded(any_url, patience_secs):
    with opened(any_url, patience_secs=patience_secs) as receiver, held_elsewhere(receiver):
        with pytest.raises(StoreBusyError, match="kept the receiver busy"):
            send(receiver, "x")
        with pytest.raises(StoreBusyError):
            receiver.close()


@pytest.mark.parametrize("waits_to", ["begin", "close"])
def test_it_is_closed_while_another_thread_waits(any_url, monkeypatch, waits_to):
    receiver = opened(any_url)
    session = receiver.session
    lock = session._thread_lock

    class ClosedMeanwhile:
        """The receiver's lock. Its owner gives it back only once another thread has closed the receiver."""

        release = lock.release

        def acquire(self, *wait):
            monkeypatch.setattr(session, "_thread_lock", lock)
            closing = threading.Thread(target=receiver.close)
            closing.start()
            closing.join()
            return lock.acquire(*wait)

    monkeypatch.setattr(session, "_thread_lock", ClosedMeanwhile())
    if waits_to == "close":
        receiver.close()
    else:
        with pytest.raises(ClosedError):
            receiver.batch().__enter__()
    with pytest.raises(ClosedError):
        send(receiver, "x")
    assert receiver.status().rx == 0


def test_who_waits_gets_the_domain_when_it_is_free(store_url):
    with opened(store_url) as other, opened(store_url) as receiver:
        with held_elsewhere(other) as may_end:
            threading.Timer(SHORT_SECS, may_end.set).start()
            assert send(receiver, "held") == [DUPLICATE]
        assert send(other, "held") == [DUPLICATE]


def test_opening_a_domain_that_is_there_waits_for_nobody(store_url, tmp_path, caplog):
    with (
        opened(store_url) as other,
        held_elsewhere(other),
        opened(store_url, patience_secs=0, record=tmp_path) as receiver,
    ):
        assert receiver.status().rDupIds == 0
        with pytest.raises(StoreBusyError):
            opened(store_url, settings=sizes(1, 0), patience_secs=0)
    assert not caplog.messages, "nor does closing it, where nothing is left to be done"


@contextmanager
def kept_from_readers(url):
    """The store as VACUUM FULL locks a table, or as a program with this pragma locks a file."""
    if url.startswith("postgresql"):
        with create_engine(url, poolclass=NullPool).begin() as connection:
            connection.execute(text("LOCK TABLE receiver_domain IN ACCESS EXCLUSIVE MODE"))
            yield
    else:
        with closing(sqlite3.connect(make_url(url).database)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("DELETE FROM receiver_joined")
            yield


@pytest.mark.parametrize("patience_secs", [0, SHORT_SECS])
def test_the_wait_for_who_locks_readers_out_is_bounded(store_url, patience_secs):
    opened(store_url).close()
    with kept_from_readers(store_url):
        began = time.monotonic()
        with pytest.raises(StoreBusyError, match="lock_timeout_secs"):
            opened(store_url, patience_secs=patience_secs)
        assert patience_secs <= time.monotonic() - began < StoreSettings().lock_timeout_secs / 2


def test_what_is_over_gives_up_nothing_of_others(any_url):
    """If its COMMIT failed, a batch is given up again when its block ends. By then another thread may have the
    domain."""
    with opened(any_url) as receiver:
        with receiver.batch() as batch:
            batch.receive("x", received_at_us=0)
        with held_elsewhere(receiver):
            batch.transaction.abandon(UndoError())
        assert send(receiver, "x", "held") == [DUPLICATE, DUPLICATE]


def test_threads_ask_for_the_status_beside_batches_that_join(sqlite_url):
    def let_others_go_on(frame, _event, _of):
        if frame.f_code.co_name == "<genexpr>":
            time.sleep(0.001)

    def join():
        engine = create_engine(sqlite_url, poolclass=NullPool)
        for number in range(50):
            with engine.begin() as connection:
                send(receiver, str(number), connection=connection)

    with opened(sqlite_url) as receiver, ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join)
        sys.setprofile(let_others_go_on)
        try:
            while not joining.done():
                receiver.status()
        finally:
            sys.setprofile(None)
        joining.result()


@pytest.mark.parametrize("each_has_its_own", [False, True])
def test_threads_take_turns(any_url, each_has_its_own):
    """Whichever thread comes first, each id is new once, and no thread sees half a batch."""
    if any_url == MEMORY and each_has_its_own:
        pytest.skip("receivers in memory share nothing")
    threads, rounds, size = 4, 15, 5
    shared = opened(any_url)
    verdicts = [[] for _ in range(threads)]
    failures = []

    def work(number):
        receiver = opened(any_url) if each_has_its_own else shared
        try:
            for first in range(rounds):
                verdicts[number] += send(receiver, *(f"{first}-{n}" for n in range(size)))
        except Exception as error:  # noqa: BLE001 - whatever it is
            failures.append(error)
        finally:
            if each_has_its_own:
                receiver.close()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    if not each_has_its_own:
        assert shared.status().rx == threads * rounds * size
    assert [column.count(NEW) for column in zip(*verdicts, strict=True)] == [1] * rounds * size
    batches = [
        tuple(of_thread[first : first + size]) for of_thread in verdicts for first in range(0, rounds * size, size)
    ]
    assert {len(set(batch)) for batch in batches} == {1}
    shared.close()


def test_a_batch_may_move_between_threads(any_url):
    """It begins in one thread, and is used and ended in others."""
    with opened(any_url) as receiver:
        batch = receiver.batch()
        for step in (
            batch.__enter__,
            lambda: batch.receive("x", received_at_us=0),
            lambda: batch.__exit__(None, None, None),
        ):
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        assert send(receiver, "x") == [DUPLICATE]


# Threads beside a caller's transaction


@pytest.fixture
def engine(store_url):
    return create_engine(store_url, poolclass=NullPool)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("first", ["recorded", "undone", "another receiver's"])
def test_a_transaction_goes_on_while_another_thread_waits_for_it(store_url, engine, pool, first, joins):
    """Its next batch doesn't wait for that thread, which has asked for the domain before it."""

    def from_the_other_thread():
        with engine.begin() as connection:
            return send(orders, "b", "c", connection=connection if joins else None)

    with opened(store_url, patience_secs=5) as orders, opened(store_url) as another:
        with engine.begin() as connection:
            begin = undone if first == "undone" else send
            begin(another if first == "another receiver's" else orders, "a", connection=connection)
            waiting = pool.submit(from_the_other_thread)
            time.sleep(SHORT_SECS)
            began = time.monotonic()
            assert send(orders, "b", connection=connection) == [NEW]
            assert time.monotonic() - began < 2
            assert not waiting.done()
        assert waiting.result() == [DUPLICATE, NEW]


def test_a_transaction_goes_on_with_a_receiver_that_has_waited_for_its_batch_of_another(store_url, engine, pool):
    """On SQLite, a receiver of another domain in the file waits too."""
    other = {"destination": "queue://other"} if store_url.startswith("sqlite") else {}
    with opened(store_url) as orders, opened(store_url, patience_secs=5, **other) as another:
        with engine.begin() as connection:
            with orders.batch(connection) as batch:
                batch.receive("a", received_at_us=0)
                waiting = pool.submit(send, another, "b")
                time.sleep(SHORT_SECS)
            began = time.monotonic()
            assert send(another, "b", connection=connection) == [NEW]
            assert time.monotonic() - began < 2
        assert waiting.result() == [DUPLICATE]


def test_transactions_of_many_threads_with_two_receivers_each_wait_for_no_thread_in_vain(store_url, engine):
    """On SQLite the receivers are of two domains, which one file locks. Whoever waits for the lock has a receiver."""
    other = {"destination": "queue://other"} if store_url.startswith("sqlite") else {}

    def work(thread):
        for turn in range(10):
            with engine.begin() as connection:
                for part, receiver in enumerate((orders, another, orders)):
                    assert send(receiver, f"{thread}-{turn}-{part}", connection=connection) == [NEW]
            assert send(another, f"{thread}-{turn}") == [NEW]
        return True

    with opened(store_url) as orders, opened(store_url, **other) as another, ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))


@pytest.mark.parametrize("first", ["undone", "another receiver's"])
def test_closing_inside_a_transaction_that_has_the_lock_waits_for_nothing(store_url, engine, caplog, first):
    """It still reports what was committed before."""
    reported = []
    with opened(store_url) as another, engine.connect() as connection:
        orders = opened(store_url, patience_secs=LONG_SECS, on_duplicate=reported.append)
        send(orders, "a", "a", connection=connection)
        connection.commit()
        begin = undone if first == "undone" else send
        begin(orders if first == "undone" else another, "b", connection=connection)
        orders.close()
        connection.commit()
        assert [each.unique_message_id for each in reported] == ["a"]
        assert caplog.text == ""


def test_a_transaction_may_move_between_threads(store_url, engine, pool):
    with opened(store_url, patience_secs=SHORT_SECS) as orders, engine.begin() as connection:
        send(orders, "a", connection=connection)
        assert pool.submit(send, orders, "a", "b", connection=connection).result() == [DUPLICATE, NEW]
        assert send(orders, "b", connection=connection) == [DUPLICATE]


def test_who_waits_for_a_transaction_comes_before_later_ones(store_url, engine, pool):
    with opened(store_url) as orders, engine.connect() as one, engine.connect() as later:
        for id_ in "abcdef":
            send(orders, "x", connection=one)
            waiting = pool.submit(send, orders, id_)
            time.sleep(SHORT_SECS / 4)
            one.commit()
            assert send(orders, id_, connection=later) == [DUPLICATE]
            later.commit()
            assert waiting.result() == [NEW]


@pytest.mark.parametrize("patience_secs", [0, SHORT_SECS])
def test_the_wait_for_a_transaction_of_another_thread_is_bounded(store_url, engine, pool, patience_secs):
    with opened(store_url, patience_secs=patience_secs) as orders, engine.connect() as connection:
        send(orders, "a", connection=connection)
        with pytest.raises(StoreBusyError, match=r"other transactions of this process.*lock_timeout_secs"):
            pool.submit(send, orders, "b").result()
        assert send(orders, "b", connection=connection) == [NEW]


def test_a_transaction_that_the_server_has_ended_keeps_others_waiting_no_longer_than_their_patience(
    fresh_postgres_url, pool
):
    """Its thread hangs, and doesn't notice. The server ends it, as by `idle_in_transaction_session_timeout`."""
    engine = create_engine(fresh_postgres_url, poolclass=NullPool)
    with opened(fresh_postgres_url, patience_secs=SHORT_SECS) as orders, engine.connect() as connection:
        process = connection.scalar(text("SELECT pg_backend_pid()"))
        send(orders, "a", connection=connection)
        execute(fresh_postgres_url, f"SELECT pg_terminate_backend({process}, 5000)")
        assert pool.submit(send, orders, "a").result() == [NEW]
        connection.invalidate()


def test_the_server_ends_a_batch_that_hangs(fresh_postgres_url):
    name = make_url(fresh_postgres_url).database
    execute(fresh_postgres_url, f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = 100")
    idle = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'")
    watching = create_engine(fresh_postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with opened(fresh_postgres_url) as orders, watching.connect() as other:

        def hang() -> None:
            with orders.batch() as batch:
                batch.receive("a", received_at_us=0)
                until(lambda: not other.scalar(idle), lambda: "it keeps the domain")

        for _ in range(3):  # what a driver sends behind a statement stops the server's clock, but not always
            with pytest.raises(StoreError, match="took too long"):
                hang()


def test_a_new_thread_waits_for_the_batch_of_an_ended_one(any_url):
    """Even if the system gives it the number of that thread."""
    with opened(any_url, patience_secs=0) as receiver, ThreadPoolExecutor(1) as pool:
        batch = receiver.batch()
        ended = threading.Thread(target=batch.__enter__)
        ended.start()
        ended.join()
        with pytest.raises(StoreBusyError, match="other threads kept the receiver busy"):
            pool.submit(send, receiver, "x").result()
        batch.__exit__(None, None, None)
        if pool.submit(threading.get_ident).result() != ended.ident:
            pytest.skip("it has another number")


def test_closing_inside_its_own_batch_is_refused_at_once(any_url):
    with opened(any_url, patience_secs=LONG_SECS) as receiver:
        with receiver.batch() as batch:
            with pytest.raises(StoreBusyError, match="under way"):
                receiver.close()
            batch.receive("a", received_at_us=0)
        assert send(receiver, "a") == [DUPLICATE]


@pytest.mark.parametrize("joins", [False, True])
def test_a_thread_that_waits_for_a_file_keeps_no_domain_from_who_has_written_there(sqlite_url, pool, joins):
    """The transaction has the file's lock before its batch asks for the domain."""

    def from_the_other_thread():
        with create_engine(sqlite_url, poolclass=NullPool).begin() as connection:
            return send(orders, "a", connection=connection if joins else None)

    execute(sqlite_url, "CREATE TABLE effects (message TEXT)")
    with opened(sqlite_url) as orders:
        with create_engine(sqlite_url, poolclass=NullPool).begin() as connection:
            connection.execute(text("INSERT INTO effects VALUES ('a')"))
            waiting = pool.submit(from_the_other_thread)
            time.sleep(SHORT_SECS)
            began = time.monotonic()
            assert send(orders, "a", connection=connection) == [NEW]
            assert time.monotonic() - began < 2
        assert waiting.result() == [DUPLICATE]
        assert orders.status().rx == 2
