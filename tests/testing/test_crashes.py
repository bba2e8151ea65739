"""What a program's crash leaves behind: nothing uncommitted, and no lock, whoever still holds its connections."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread, current_thread, main_thread

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from receiver import Receiver
from receiver.testing import check_exactly_once
from receiver.testing.crash_points import ProgramCrash, Run
from receiver.testing.running import _Alarm
from tests.stores import execute
from tests.testing.gallery import take, with_an_inbox
from tests.testing.shop import KNOWN

pytestmark = pytest.mark.costly

KEPT = []
"""Objects that somebody holds on to, as a log holds an error's frames."""


@pytest.fixture(autouse=True)
def nothing_kept():
    KEPT.clear()
    yield
    KEPT.clear()


def by_session(broker, shop):
    engine = shop.opened()
    KEPT.append(session := Session(engine))
    while messages := broker.receive(2):
        for message in messages:
            take(session, message)
        session.commit()
        broker.acknowledge(messages)


def by_an_open_transaction(broker, shop):
    """Only the crashed program could end the transaction."""
    KEPT.append(connection := shop.opened().connect())
    while messages := broker.receive(2):
        for message in messages:
            take(connection, message)
        connection.commit()
        broker.acknowledge(messages)


def by_the_driver(broker, shop):
    """All its statements but one bypass SQLAlchemy."""
    engine = shop.opened()
    KEPT.append(driver := engine.raw_connection())
    mark = "%s" if shop.is_server else "?"
    remember = f"INSERT INTO inbox (id) VALUES ({mark}) ON CONFLICT DO NOTHING"  # noqa: S608
    add = f"INSERT INTO orders VALUES ({mark})"  # noqa: S608
    while messages := broker.receive(2):
        KEPT.append(cursor := driver.cursor())
        for message in messages:
            cursor.execute(remember, (message.unique_message_id,))
            if cursor.rowcount:
                with engine.connect() as other:
                    other.scalar(KNOWN, {"id": "1"})
                cursor.execute(add, (message.unique_message_id,))
        driver.commit()
        broker.acknowledge(messages)


def opened_with_rows(shop):
    """An engine for a shop whose inbox has a few rows to read."""
    engine = shop.opened()
    with engine.begin() as connection:
        for number in range(3):
            connection.execute(
                text("INSERT INTO inbox (id) VALUES (:id) ON CONFLICT DO NOTHING"), {"id": f"old {number}"}
            )
    return engine


def while_it_reads(broker, shop):
    """A half-read result holds a lock in SQLite."""
    engine = opened_with_rows(shop)
    while messages := broker.receive(2):
        reading = engine.connect()
        KEPT.append(rows := reading.execute(text("SELECT id FROM inbox"), execution_options={"stream_results": True}))
        rows.fetchone()
        reading.execute(text("SELECT 1"))
        rows.close()
        reading.close()
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def while_its_driver_reads(broker, shop):
    """Only the frames of the crashed program know its cursor."""
    engine = opened_with_rows(shop)
    while messages := broker.receive(2):
        driver = engine.raw_connection()
        cursor = driver.cursor()
        cursor.execute("SELECT id FROM inbox")
        cursor.fetchone()
        with engine.connect() as other:
            other.scalar(KNOWN, {"id": "1"})
        cursor.close()
        driver.close()
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def by_an_engine_for_all_lives(broker, shop):
    engine = KEPT[0] if KEPT and KEPT[0].url == shop.engine().url else shop.opened(pool_size=1)
    KEPT[:] = [engine]
    with engine.begin() as connection:
        for statement in shop.statements():
            connection.execute(statement)
    while messages := broker.receive(2):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


def that_rolls_back(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(2):
        connection = engine.connect()
        try:
            for message in messages:
                take(connection, message)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()
        broker.acknowledge(messages)


@pytest.mark.parametrize(
    "consume",
    [
        by_session,
        by_an_open_transaction,
        by_the_driver,
        while_it_reads,
        while_its_driver_reads,
        by_an_engine_for_all_lives,
        that_rolls_back,
    ],
)
def test_no_lock_and_nothing_uncommitted_stays(checked, consume):
    checked(consume, max_examples=10)


def test_a_crash_as_it_connects_is_no_exception(checked_on_sqlite):
    """A program that ignores every `Exception` doesn't see it."""

    def consume(broker, shop):
        with suppress(Exception):
            with_an_inbox(broker, shop)

    checked_on_sqlite(consume, max_examples=1)


def test_a_crash_lets_other_threads_end_their_calls(checked_on_sqlite):
    """If a connection is closed while a thread reads from it, SQLite crashes, and Python with it."""
    count = text("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM n")

    def consume(broker, shop):
        engine = shop.opened(connect_args={"timeout": 10})

        def read():
            with engine.connect() as connection:
                connection.execute(count).fetchmany(1000)
                connection.execute(text(f"SELECT sum(i) FROM ({count})")).all()  # noqa: S608

        with ThreadPoolExecutor(2) as threads:
            while messages := broker.receive(2):
                reading = [threads.submit(read) for _ in range(2)]
                with engine.begin() as connection:
                    for message in messages:
                        take(connection, message)
                broker.acknowledge(messages)
                for each in reading:
                    each.result()

    checked_on_sqlite(consume, max_examples=3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # so its thread ends
def test_no_thread_commits_half_of_a_transaction_that_the_end_of_its_run_undoes(checked_on_sqlite, monkeypatch):
    undone, gone_on, cut = Event(), Event(), Run.cut_connections

    def cut_as_a_thread_goes_on(run):
        cut(run)
        undone.set()
        if current_thread() is main_thread():
            gone_on.wait(10)

    def consume(broker, shop):
        undone.clear()
        engine, begun = shop.opened(), Event()

        def pay_again():
            try:
                with engine.connect() as connection:
                    connection.execute(text("INSERT INTO inbox (id) VALUES ('half')"))
                    begun.set()
                    undone.wait(10)
                    connection.execute(text("INSERT INTO orders SELECT * FROM orders LIMIT 1"))
                    connection.commit()
            finally:
                begun.set()
                gone_on.set()

        with_an_inbox(broker, shop)
        gone_on.clear()
        Thread(target=pay_again).start()
        begun.wait(10)

    gone_on.set()
    monkeypatch.setattr(Run, "cut_connections", cut_as_a_thread_goes_on)
    checked_on_sqlite(consume, max_examples=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # so its thread ends
def test_a_thread_may_crash_while_consume_returns(checked_on_sqlite, monkeypatch):
    """The signal by which it ends the main thread would end the tests, once the main thread doesn't expect it any more."""
    cut, has_begun = Run.cut_connections, Event()

    def cut_once_consume_has_returned(run):
        if current_thread() is not main_thread():
            has_begun.set()
            while signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
                time.sleep(0.01)
        cut(run)

    def consume(broker, shop):
        has_begun.clear()
        engine = shop.opened()
        with_an_inbox(broker, shop)

        def look():
            try:
                with engine.connect() as connection:
                    connection.execute(KNOWN, {"id": "1:A"})
            finally:
                has_begun.set()

        Thread(target=look).start()
        has_begun.wait(10)

    monkeypatch.setattr(Run, "cut_connections", cut_once_consume_has_returned)
    checked_on_sqlite(consume, max_examples=1)


def test_a_crash_as_the_main_thread_leaves_does_not_ring_again_later():
    """The timer would go on, and half a minute later crash whatever the main thread does then."""
    run, many = Run(lambda *_: None), (1,) * 8_000_000
    with suppress(ProgramCrash), _Alarm(run, 60):
        run.crash = ProgramCrash()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert 1.5 not in many  # takes longer, and Python runs no handler before the next call: that of the exit
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.slow
def test_an_acknowledgement_inside_a_batch_of_a_receiver_is_blamed(tmp_path):
    """The crash ends the batch, and leaves nothing of it for the program's next run."""

    def consume(broker, story):
        with Receiver.open(url_of(story), connection_id="broker", destination="orders") as orders:
            while messages := broker.receive(10):
                with orders.batch() as batch:
                    for message in messages:
                        if batch.receive(message.unique_message_id).deliver:
                            batch.connection.execute(
                                text("INSERT INTO payment VALUES (:id)"), {"id": message.unique_message_id}
                            )
                    broker.acknowledge(messages)

    def url_of(story):
        url = f"sqlite:///{tmp_path}/{story}.db"
        if not (tmp_path / f"{story}.db").exists():
            execute(url, "CREATE TABLE payment (id text)")
        return url

    def effects(story):
        with create_engine(url_of(story), poolclass=NullPool).connect() as connection:
            return list(connection.scalars(text("SELECT id FROM payment")))

    with pytest.raises(AssertionError, match="the effect of message 1 of sender A is missing") as raised:
        check_exactly_once(consume, effects, max_examples=1)
    assert "The program crashed after acknowledge()" in str(raised.value)
