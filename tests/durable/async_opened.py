"""Receivers and the application's own engine for an event loop, by each asynchronous driver."""

from contextlib import asynccontextmanager

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from receiver import AsyncReceiver
from receiver.settings import StoreSettings

DRIVERS = {"aiosqlite": "sqlite", "psycopg": "postgresql", "asyncpg": "postgresql"}


def engine_for(url: str, driver: str) -> AsyncEngine:
    made = make_url(url)
    return create_async_engine(made.set(drivername=f"{made.get_backend_name()}+{driver}"), poolclass=NullPool)


async def opened(url: str, *, patience_secs: float = 10.0, **options) -> AsyncReceiver:
    defaults = {
        "connection_id": "broker",
        "destination": "queue://orders",
        "store_settings": StoreSettings(lock_timeout_secs=patience_secs),
    }
    return await AsyncReceiver.open(url, **defaults | options)


@asynccontextmanager
async def orders_and_engine(url: str, driver: str, **options):
    """A receiver, and an engine of the application's own."""
    engine = engine_for(url, driver)
    try:
        async with await opened(url, **options) as orders:
            yield orders, engine
    finally:
        await engine.dispose()
