"""Programs that end, hang, fork or remember in ways of their own: the kit says what is wrong, and goes on."""

import asyncio
import multiprocessing
import os
import queue
import re
import sqlite3
import threading
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from sqlalchemy import NullPool, create_engine, text

from receiver.errors import SettingsError
from receiver.testing import NoDatabaseWarning, check_exactly_once
from receiver.testing.crash_points import ProgramCrash
from receiver.testing.running import IDLE_SECS
from tests.testing.gallery import take, with_an_inbox
from tests.testing.shop import report_of

pytestmark = pytest.mark.costly


def that_exits_at_once(_broker, shop):
    shop.opened()
    os._exit(0)


async def that_exits_at_once_in_a_loop(broker, shop):
    that_exits_at_once(broker, shop)


@pytest.mark.parametrize("consume", [that_exits_at_once, that_exits_at_once_in_a_loop])
def test_a_program_that_ends_its_process_does_not_end_the_tests(checked_on_sqlite, consume):
    with pytest.raises(AssertionError, match=r"SystemExit: os._exit\(0\), which would end the tests, too\n"):
        checked_on_sqlite(consume)
    with pytest.raises(AssertionError, match="its process ended with exit code 0"):
        checked_on_sqlite(consume, kill=True)


def test_a_process_that_ends_before_its_first_call():
    """The story has no event yet then."""
    said = "^the program failed without a fault from outside: its process ended with exit code 3\n"
    with pytest.raises(AssertionError, match=said):
        check_exactly_once(lambda _: os._exit(3), list, kill=True)


async def blocks_its_loop(broker, _shop):
    await broker.receive(5)
    threading.Event().wait()


async def leaves_a_task_that_goes_on(broker, _shop):
    async def goes_on():
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Future()

    asyncio.get_running_loop().create_task(goes_on())
    while messages := await broker.receive(5):
        await broker.acknowledge(messages)


@pytest.mark.parametrize("consume", [blocks_its_loop, leaves_a_task_that_goes_on])
def test_a_loop_that_hangs(checked_on_sqlite, consume, monkeypatch):
    monkeypatch.setattr("receiver.testing.running.IDLE_SECS", 0.2)
    assert "The program was stopped as it made no call for 0.2 s" in report_of(checked_on_sqlite, consume)


def test_a_thread_that_outlives_a_process(checked_on_sqlite, monkeypatch):
    def consume(_broker, shop):
        shop.opened()
        threading.Thread(target=threading.Event().wait).start()

    monkeypatch.setattr("receiver.testing.running.IDLE_SECS", 1)
    said = report_of(checked_on_sqlite, consume, kill=True)
    assert said.startswith(
        "the program failed without a fault from outside: its process still ran 1 s after consume had returned: does it leave a thread?"
    )


def test_a_crash_in_a_thread_that_the_main_one_waits_for(checked_on_sqlite):
    """The main thread ends at once, too: so many crashes are tried that none may take seconds."""

    def consume(broker, shop):
        engine, left = shop.opened(), queue.Queue()

        def work():
            while True:
                message = left.get()
                broker.acknowledge([message])
                with engine.begin() as connection:
                    take(connection, message)
                left.task_done()

        threading.Thread(target=work, daemon=True).start()
        while messages := broker.receive(5):
            for message in messages:
                left.put(message)
            left.join()

    began = time.monotonic()
    assert report_of(checked_on_sqlite, consume).startswith("the effect of message 1 of sender A is missing")
    assert time.monotonic() - began < IDLE_SECS


def orders_in(url):
    return create_engine(url, poolclass=NullPool).connect().scalar(text("SELECT count(*) FROM orders"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork where there are threads
@pytest.mark.parametrize("kill", [False, True])
def test_processes_that_a_program_forks(checked_on_sqlite, kill):
    """They count for nothing, and end with the run."""
    context = multiprocessing.get_context("fork")

    def consume(broker, shop):
        engine = shop.opened()
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            while messages := broker.receive(5):
                pool.submit(orders_in, shop.url).result(30)
                with engine.begin() as connection:
                    for message in messages:
                        take(connection, message)
                broker.acknowledge(messages)

    checked_on_sqlite(consume, kill=kill, messages=2, max_examples=1)


def test_a_pool_that_outlives_a_run(checked_on_sqlite):
    with ThreadPoolExecutor(1) as pool:

        def consume(broker, shop):
            engine = shop.opened()
            while messages := broker.receive(5):
                with engine.begin() as connection:
                    for message in messages:
                        pool.submit(take, connection, message).result()
                broker.acknowledge(messages)

        said = report_of(checked_on_sqlite, consume)
    assert said.startswith(
        "the program failed without a fault from outside: a thread of an earlier run made a call. Make threads in consume, or"
    )


@pytest.mark.parametrize("is_faulty", [False, True])
def test_an_engine_that_a_killed_process_has_of_its_parent(fresh_postgres_url, is_faulty):
    """Both would use one connection, with the transaction that the killed process has begun."""
    engine = create_engine(fresh_postgres_url)
    of_story = text("SELECT id FROM orders WHERE story = :story")
    order = text("INSERT INTO orders (story, id) VALUES (:story, :id)")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (story TEXT, id TEXT)"))

    def consume(broker, story):
        while messages := broker.receive(10):
            with engine.begin() as connection:
                for message in messages:
                    if message.unique_message_id not in connection.scalars(of_story, {"story": story}).all():
                        connection.execute(order, {"story": story, "id": message.unique_message_id})
                if is_faulty:
                    broker.acknowledge(messages)
            broker.acknowledge(messages)

    def effects(story):
        with engine.connect() as connection:
            return list(connection.scalars(of_story, {"story": story}))

    try:
        if is_faulty:
            said = report_of(check_exactly_once, consume, effects, kill=True)
            assert said.startswith("the effect of message 1 of sender A is missing\n")
        else:
            check_exactly_once(consume, effects, kill=True, max_examples=5)
    finally:
        engine.dispose()


def test_an_interrupt_while_a_crashed_program_cleans_up(checked_on_sqlite):
    def consume(broker, shop):
        try:
            with_an_inbox(broker, shop)
        except ProgramCrash:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        checked_on_sqlite(consume)


def test_a_driver_used_directly(tmp_path):
    """Its connections keep locks until they are collected. A transaction is open here during calls to the broker."""

    def consume(broker, story):
        connection = sqlite3.connect(tmp_path / story, timeout=1, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)")
        while True:
            connection.execute("BEGIN IMMEDIATE")
            messages = broker.receive(5)
            for message in messages:
                connection.execute("INSERT OR IGNORE INTO orders VALUES (?)", (message.unique_message_id,))
            connection.execute("COMMIT")
            if not messages:
                return
            broker.acknowledge(messages)

    def effects(story):
        with closing(sqlite3.connect(tmp_path / story)) as connection:
            return [id_ for (id_,) in connection.execute("SELECT id FROM orders")]

    with pytest.warns(NoDatabaseWarning):
        check_exactly_once(consume, effects, max_examples=5)


def test_tables_made_through_sqlalchemy_do_not_hide_that_nothing_else_is(checked_on_sqlite):
    def consume(broker, shop):
        engine = shop.opened()
        while messages := broker.receive(5):
            connection = engine.raw_connection()
            for message in messages:
                connection.cursor().execute("INSERT INTO orders VALUES (?)", (message.unique_message_id,))
            connection.commit()
            connection.close()
            broker.acknowledge(messages)

    with pytest.warns(NoDatabaseWarning), suppress(AssertionError):
        checked_on_sqlite(consume, max_examples=1)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("most", "secs"), [(29, 10**9), (99, 6 * 86_400)])
def test_a_memory_that_is_too_short_fails_whatever_the_seed(most, secs, seed):
    """It holds 29 ids, where 30 messages come; or each for 6 days, where one comes again after a week."""
    known, done = defaultdict(dict), defaultdict(list)

    def consume(broker, story):
        while messages := broker.receive(5):
            for message in messages:
                id_, now_secs = message.unique_message_id, broker.now_ms // 1_000
                if now_secs - known[story].pop(id_, -secs) >= secs:
                    done[story].append(id_)
                known[story][id_] = now_secs
                while len(known[story]) > most:
                    del known[story][next(iter(known[story]))]
            broker.acknowledge(messages)

    with pytest.warns(NoDatabaseWarning):
        said = report_of(check_exactly_once, consume, lambda story: done[story], seed=seed)
    assert said.startswith("the effect of message 1 of sender A stands twice\n")
    assert re.search("^Found as story [1-9] of ", said, re.MULTILINE)  # it isn't left to chance


@pytest.mark.parametrize(("messages", "most"), [(30, 9), (2_000, 20), (30, 29)])
def test_a_story_of_many_messages_is_made_smaller(messages, most):
    """So the report shows how many ids the program remembers."""
    known, done = defaultdict(list), defaultdict(list)

    def consume(broker, story):
        while batch := broker.receive(5):
            for message in batch:
                if message.unique_message_id not in known[story]:
                    done[story].append(message.unique_message_id)
                known[story].append(message.unique_message_id)
                del known[story][:-most]
            broker.acknowledge(batch)

    with pytest.warns(NoDatabaseWarning):
        said = report_of(check_exactly_once, consume, lambda story: done[story], messages=messages)
    first = f"1. Messages 1 to {most + 1} of sender A came, one after another, and each was acknowledged."
    assert first in said


@pytest.mark.parametrize("body", [lambda id_: id_, lambda _: None])
def test_a_body_that_is_no_bytes(checked_on_sqlite, body):
    with pytest.raises(SettingsError, match="body must give bytes, not "):
        checked_on_sqlite(with_an_inbox, body=body)
