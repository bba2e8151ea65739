"""Receivers and the application's engine for an event loop, by each asynchronous driver, and a way to run them in a
test."""

import asyncio
import gc
from contextlib import asynccontextmanager
from functools import partial

import aiosqlite
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from receiver import AsyncReceiver
from receiver.durable.holds import _HOLDS
from receiver.settings import StoreSettings
from tests.durable.opened import LONG_SECS

DRIVERS = {"aiosqlite": "sqlite", "psycopg": "postgresql", "asyncpg": "postgresql"}
WAYS = pytest.mark.parametrize(
    ("driver", "joins"),
    [("aiosqlite", False), ("psycopg", False), ("aiosqlite", True), ("psycopg", True), ("asyncpg", True)],
)
"""Ways to batch: in transactions of their own on either database, and in joined transactions by each driver."""


def engine_for(url: str, driver: str) -> AsyncEngine:
    made = make_url(url)
    options = {"async_creator": partial(_sqlite_connection, made.database)} if driver == "aiosqlite" else {}
    by_driver = made.set(drivername=f"{made.get_backend_name()}+{driver}")
    return create_async_engine(by_driver, poolclass=NullPool, **options)


async def _sqlite_connection(path: str) -> aiosqlite.Connection:
    """Connect to SQLite, and close the connection if the task is cancelled meanwhile.

    aiosqlite would leave that connection open (its issue 259), and Python 3.13 warns of it. So a connection that a test
    leaves open is ours.
    """
    made = asyncio.ensure_future(aiosqlite.connect(path).__aenter__())
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:
        await (await made).close()
        raise


async def opened(url: str, *, patience_secs: float = 10.0, **options) -> AsyncReceiver:
    defaults = {
        "connection_id": "broker",
        "destination": "queue://orders",
        "store_settings": StoreSettings(lock_timeout_secs=patience_secs),
    }
    return await AsyncReceiver.open(url, **defaults | options)


@asynccontextmanager
async def orders_and_engine(url: str, driver: str, **options):
    """A receiver, and an engine of the application."""
    engine = engine_for(url, driver)
    try:
        async with await opened(url, **options) as orders:
            yield orders, engine
    finally:
        await engine.dispose()


async def send(receiver, *ids, connection=None):
    async with receiver.batch(connection) as batch:
        return [(await batch.receive(id_, received_at_us=0)).verdict for id_ in ids]


def run(coroutine):
    """Run a coroutine as a program does. Nothing may be left behind, and nothing be said on standard error."""
    said = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
        return await asyncio.wait_for(coroutine, LONG_SECS)

    result = asyncio.run(watched())
    gc.collect()
    assert said == []
    assert [held for held in _HOLDS if held.domain is not None] == []
    return result
