"""Consumers in an event loop, by each driver: wrong ones are detected, and crashed ones leave no task."""

import asyncio
import threading
from contextlib import suppress
from functools import partial

import aiosqlite
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from receiver.testing.crash_points import Run
from tests.patience import until
from tests.testing.gallery import take
from tests.testing.shop import ORDERED, Checked
from tests.testing.test_gallery import found


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
def driver(request):
    return request.param


@pytest.fixture
def checked(request, driver, tmp_path):
    url = request.getfixturevalue("sqlite_url" if driver == "aiosqlite" else "fresh_postgres_url")
    return Checked(url, tmp_path)


async def with_an_inbox(driver, broker, shop):
    engine = await shop.async_opened(driver)
    while messages := await broker.receive(5):
        async with engine.begin() as connection:
            for message in messages:
                await connection.run_sync(take, message)
        await broker.acknowledge(messages)
    await engine.dispose()


async def by_session(driver, broker, shop):
    """It never closes its session."""
    session = AsyncSession(await shop.async_opened(driver))
    while messages := await broker.receive(5):
        for message in messages:
            await session.run_sync(take, message)
        await session.commit()
        await broker.acknowledge(messages)


async def by_a_task_for_each_message(driver, broker, shop):
    engine, turn = await shop.async_opened(driver), asyncio.Lock()

    async def work(message):
        async with turn, engine.begin() as connection:
            await connection.run_sync(take, message)
        await broker.acknowledge([message])

    while messages := await broker.receive(3):
        async with asyncio.TaskGroup() as group:
            for message in messages:
                group.create_task(work(message))


async def by_a_worker_that_nobody_waits_for(driver, broker, shop):
    """If the worker crashes, a program that waits for its queue would wait for ever."""
    engine, waiting = await shop.async_opened(driver), asyncio.Queue()

    async def work():
        while True:
            messages = await waiting.get()
            with suppress(OperationalError):
                async with engine.begin() as connection:
                    for message in messages:
                        await connection.run_sync(take, message)
                await broker.acknowledge(messages)
            waiting.task_done()

    worker = asyncio.create_task(work())
    while messages := await broker.receive(3):
        await waiting.put(messages)
        await waiting.join()
    worker.cancel()


async def that_cleans_up_behind_itself(driver, broker, shop):
    engine = await shop.async_opened(driver)
    try:
        while messages := await broker.receive(5):
            async with engine.begin() as connection:
                for message in messages:
                    await connection.run_sync(take, message)
            await broker.acknowledge(messages)
    finally:
        with suppress(Exception):
            await broker.recover()
        await engine.dispose()


async def acknowledges_before_the_commit(driver, broker, shop):
    engine = await shop.async_opened(driver)
    while messages := await broker.receive(5):
        async with engine.begin() as connection:
            for message in messages:
                await connection.run_sync(take, message)
            await broker.acknowledge(messages)


async def acts_at_the_end(driver, broker, shop):
    engine, new = await shop.async_opened(driver), []
    try:
        while messages := await broker.receive(5):
            await broker.acknowledge(messages)
            new += messages
    finally:
        async with engine.begin() as connection:
            for message in new:
                await connection.run_sync(take, message)


async def swallows_errors_and_acknowledges(driver, broker, shop):
    engine = await shop.async_opened(driver)
    while messages := await broker.receive(5):
        with suppress(Exception):
            async with engine.begin() as connection:
                for message in messages:
                    await connection.run_sync(take, message)
        await broker.acknowledge(messages)


RIGHT = [
    with_an_inbox,
    by_session,
    by_a_task_for_each_message,
    by_a_worker_that_nobody_waits_for,
    that_cleans_up_behind_itself,
]
WRONG = [acknowledges_before_the_commit, acts_at_the_end, swallows_errors_and_acknowledges]


@pytest.mark.costly
@pytest.mark.parametrize("consume", RIGHT)
def test_a_right_consumer_passes(checked, driver, consume):
    checked(partial(consume, driver), max_examples=10)


@pytest.mark.costly
@pytest.mark.parametrize("consume", WRONG)
def test_a_wrong_consumer_is_found(checked, driver, consume):
    found(checked, partial(consume, driver))


@pytest.mark.filterwarnings("ignore::receiver.testing.NoDatabaseWarning")
def test_aiosqlite_used_directly(sqlite_url, tmp_path):
    """If the program crashes, nobody closes its connection."""

    async def consume(broker, shop):
        shop.opened().dispose()
        connection = await aiosqlite.connect(shop.url.database)
        while messages := await broker.receive(5):
            for message in messages:
                id_ = message.unique_message_id
                if (await connection.execute("INSERT OR IGNORE INTO inbox (id) VALUES (?)", [id_])).rowcount:
                    await connection.execute("INSERT INTO orders VALUES (?)", [id_])
            await connection.commit()
            await broker.acknowledge(messages)
        await connection.close()

    Checked(sqlite_url, tmp_path)(consume, messages=1, max_examples=1)


def test_a_thread_may_meet_a_loop_that_is_closed(sqlite_url, tmp_path, monkeypatch):
    """As one of aiosqlite does if its connection is still being made."""
    threads, end = [], Run.end

    def answer_late(loop):
        until(loop.is_closed)
        loop.call_soon_threadsafe(print)

    async def consume(broker, shop):
        threads.append(threading.Thread(target=answer_late, args=[asyncio.get_running_loop()]))
        threads[-1].start()
        await with_an_inbox("aiosqlite", broker, shop)

    monkeypatch.setattr(Run, "end", lambda run: (threads[-1].join(), end(run)))
    Checked(sqlite_url, tmp_path)(consume, messages=1, max_examples=1)


@pytest.mark.costly
def test_effects_may_be_read_in_an_event_loop_too(checked, driver):
    async def effects(shop):
        engine = shop.async_engine(driver)
        try:
            async with engine.connect() as connection:
                return list(await connection.scalars(ORDERED))
        finally:
            await engine.dispose()

    checked(partial(with_an_inbox, driver), effects, max_examples=3)
    found(checked, partial(acts_at_the_end, driver), effects)
