"""A shop, as an example of a program with consumers: for each story, it keeps the orders that it has taken."""

import sqlite3
from contextlib import closing
from functools import lru_cache
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from receiver.testing import check_exactly_once

TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS inbox (id TEXT PRIMARY KEY, number INTEGER, sent_ms BIGINT)",
)
ORDER = text("INSERT INTO orders (id) VALUES (:id)")
REMEMBER = text("INSERT INTO inbox (id, number, sent_ms) VALUES (:id, :number, :sent_ms) ON CONFLICT DO NOTHING")
KNOWN = text("SELECT count(*) FROM inbox WHERE id = :id")
ORDERED = text("SELECT id FROM orders")


@lru_cache(maxsize=1)
def reader(url):
    """An engine on a server, for all stories: making one takes longer than reading."""
    return create_engine(url, poolclass=NullPool)


def number_of(message):
    return int(message.unique_message_id.partition(":")[0])


def order(connection, message):
    connection.execute(ORDER, {"id": message.unique_message_id})


def is_known(connection, message):
    return connection.scalar(KNOWN, {"id": message.unique_message_id}) > 0


def is_new(connection, message, key=None):
    """Whether the message is new. It is remembered then."""
    row = {"id": key or message.unique_message_id, "number": number_of(message), "sent_ms": message.jms_timestamp_ms}
    return connection.execute(REMEMBER, row).rowcount == 1


class Shop:
    """A shop's tables, in their own file or schema, and a folder for what isn't in a database."""

    def __init__(self, url, folder, story):
        self.url, self.story = make_url(url), story
        self.folder = folder / story
        self.folder.mkdir(exist_ok=True)
        self.is_server = self.url.get_backend_name() == "postgresql"
        if not self.is_server:
            self.url = self.url.set(database=str(self.folder / "shop.db"))
        else:
            self.url = self.url.update_query_dict({"options": f"-csearch_path={story} -clock_timeout=2000"})

    def engine(self, **options):
        """An engine that hardly waits for locks: not at all in SQLite, for two seconds in PostgreSQL."""
        waits_not = {"use_native_hstore": False} if self.is_server else {"connect_args": {"timeout": 0}}
        engine = create_engine(self.url, **waits_not | options)
        self._hurry(engine)
        return engine

    def async_engine(self, driver):
        url, waits_not = self.url.set(drivername=f"{self.url.get_backend_name()}+{driver}"), {}
        if driver == "aiosqlite":
            waits_not = {"timeout": 0}
        elif driver == "asyncpg":
            waits_not = {"server_settings": {"search_path": self.story, "lock_timeout": "2000"}}
            url = url.difference_update_query(["options"])
        engine = create_async_engine(url, connect_args=waits_not)
        self._hurry(engine.sync_engine)
        return engine

    def _hurry(self, engine):
        if not self.is_server:  # a process that crashes loses nothing by it

            @event.listens_for(engine, "connect")
            def hurry(connection, _):
                connection.cursor().execute("PRAGMA synchronous = OFF")

    def opened(self, **options):
        """An engine, after the tables are made."""
        engine = self.engine(**options)
        with engine.begin() as connection:
            for statement in self.statements():
                connection.execute(statement)
        return engine

    async def async_opened(self, driver):
        engine = self.async_engine(driver)
        async with engine.begin() as connection:
            for statement in self.statements():
                await connection.execute(statement)
        return engine

    def statements(self):
        schema = [f"CREATE SCHEMA IF NOT EXISTS {self.story}"] if self.is_server else []
        return map(text, [*schema, *TABLES])

    def ordered(self):
        """The effects that stand, read through another connection, which hardly waits for locks either."""
        if self.is_server:
            with reader(self.url.update_query_dict({"options": "-clock_timeout=2000"})).connect() as connection:
                return list(connection.scalars(text(f"SELECT id FROM {self.story}.orders")))  # noqa: S608
        with closing(sqlite3.connect(self.url.database, timeout=0)) as connection:
            return [id_ for (id_,) in connection.execute("SELECT id FROM orders")]

    # Without a database.

    def file(self, name):
        return Notes(self.folder / name)


class Notes:
    """A file of lines. Each line is safe as soon as it is written."""

    def __init__(self, path: Path):
        self.path = path

    def __iter__(self):
        return iter(self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else [])

    def add(self, line):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def clear(self):
        self.path.unlink(missing_ok=True)


class Checked:
    """Checks consumers, each with a shop for every story: `consume(broker, shop)`."""

    def __init__(self, url, folder):
        self.url, self.folder = url, folder

    def __call__(self, consume, effects=Shop.ordered, **options):
        def run(broker, story):
            consume(broker, self.shop(story))

        async def run_in_loop(broker, story):
            await consume(broker, self.shop(story))

        run = run_in_loop if iscoroutinefunction(consume) else run
        check_exactly_once(run, lambda story: effects(self.shop(story)), **options)

    def shop(self, story):
        return Shop(self.url, self.folder, story)


def report_of(check, *arguments, **options):
    """What a check says of a program that fails it."""
    with pytest.raises(AssertionError) as raised:
        check(*arguments, **options)
    return str(raised.value)
