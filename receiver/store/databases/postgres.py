"""PostgreSQL, through psycopg: a server, where who writes locks the domain's row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from receiver.errors import MissingExtraError, SettingsError, StoreBusyError
from receiver.settings import StoreSettings
from receiver.store.databases import database
from receiver.store.databases.claims import Claims
from receiver.store.databases.database import ADDRESSES, Database, Fault, masked, shown
from receiver.store.databases.postgres_rows import (
    READING,
    WRITING,
    PostgresRows,
    TableVacuum,
    autocommits,
    lock_timeout_ms,
    run_of,
)
from receiver.store.sql_rows import driver_of
from receiver.store.tables import METADATA, VERSION_TABLE

_LOCK_KEY = int.from_bytes(b"receiver", "big")
_LONGEST_TABLE_WAIT_MS = 500
"""How long a migration waits for a table before it begins anew. Receivers queue behind it only so long, and where they
and it wait for each other, it gives up before the server ends one of them."""
_CONNECTING = {
    "connect_timeout": 10,
    "application_name": "receiver",
    # A server that vanished without a word is noticed within half a minute, not after the system's two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_ALL_IN_USE = Fault(
    "tasks have all connections of the receiver in use",
    "keep batches short, raise lock_timeout_secs, or give batch() a connection of yours",
    StoreBusyError,
)
_FORBIDDEN = Fault("the user may not do this", "grant the right that is named")
_REFUSED = Fault("the server refuses the user", "check user and password, and pg_hba.conf on the server")
_NO_SUCH_DATABASE = Fault("there is no such database", "create it first: CREATE DATABASE")
_FEW_CONNECTIONS = Fault("the server has no connection left", "close others, or raise its max_connections")
_UNREACHABLE = Fault("the server can't be reached", "check host and port, and that it runs")
_NOT_READY = Fault("the server isn't ready", "try again when it is")
_LOST = Fault("the connection is lost", "try again when the server is back")
_TOO_LONG = Fault("the server ended it, which took too long", "keep batches short, or raise the time-out named")
_NO_TABLE = Fault("a table or its schema isn't there", "mind the search_path; restore a copy if it was dropped")
_BAD_OPTION = Fault("the address is wrong", "mend the option that is named")
_FAILED_BEFORE = Fault("an earlier statement of the transaction failed", "roll it back, then try again in a new one")
_CANCELLED = Fault("the server cancelled the statement", "raise its statement_timeout for this user")
_FAULTS = {
    "08": _LOST,
    "25006": database.READ_ONLY,
    "25P02": _FAILED_BEFORE,
    "25P03": _TOO_LONG,
    "25P04": _TOO_LONG,
    "28": _REFUSED,
    "3D000": _NO_SUCH_DATABASE,
    "3F000": _NO_TABLE,
    "40001": database.OUTRUN,
    "40P01": database.OUTRUN,
    "42501": _FORBIDDEN,
    "42P01": _NO_TABLE,
    "53100": database.FULL,
    "53200": database.MEMORY,
    "53300": _FEW_CONNECTIONS,
    "55P03": database.BUSY,
    "57014": _CANCELLED,
    "57P": _LOST,
    "57P03": _NOT_READY,
    "58": database.INPUT_OUTPUT,
    "XX001": database.CORRUPT,
    "XX002": database.CORRUPT,
}
"""By SQLSTATE or the beginning of one: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
_IN_WORDS = {
    "authentication failed": _REFUSED,
    "no password supplied": _REFUSED,
    "no pg_hba.conf entry": _REFUSED,
    "too many": _FEW_CONNECTIONS,
    "connection slots": _FEW_CONNECTIONS,
    "permission denied": _FORBIDDEN,
    "invalid connection option": _BAD_OPTION,
    "bad value for": _BAD_OPTION,
    'role "': _REFUSED,
    'database "': _NO_SUCH_DATABASE,
    "database system is": _NOT_READY,
    "connection failed": _UNREACHABLE,
    "connection is bad": _UNREACHABLE,
    "failed to resolve": _UNREACHABLE,
    "timeout": _UNREACHABLE,
    "consuming input failed": _LOST,
    "flushing failed": _LOST,
    "connection": _LOST,
}
"""Errors without SQLSTATE, met while connecting or for lack of a connection: the first of these in the text decides."""


class Postgres(Database):
    name = "postgresql"
    drivers = ("postgresql", "postgresql+psycopg")
    rows = PostgresRows
    insert = staticmethod(postgresql.insert)

    def checked(self, url: URL) -> URL:
        if url.host and "@" in url.host:
            raise SettingsError(f"{masked(url)!r:.200} has more than one @", hint="write %40 for one in a password")
        try:
            import psycopg  # noqa: F401 - is it there, and its libpq?
        except ImportError as error:
            raise MissingExtraError("postgres", f"the store {shown(url)}") from error
        try:
            url.get_dialect()().create_connect_args(url)
        except ArgumentError as error:  # says what of several hosts and ports doesn't fit
            raise SettingsError(f"{masked(url)!r:.200}: {error}", hint=ADDRESSES) from None
        return url.set(drivername="postgresql+psycopg")

    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        return _engine(url, WRITING, {"lock_timeout": lock_timeout_ms(settings.lock_timeout_secs)})

    def pooled(self, url: URL, settings: StoreSettings, *, is_awaited: bool = False) -> Engine:
        session = {"lock_timeout": lock_timeout_ms(settings.lock_timeout_secs)}
        if not is_awaited:
            return _engine(url, WRITING, session, **_POOLED)
        return _engine(url, WRITING, session, _awaited_engine, **_AWAITED, pool_timeout=settings.lock_timeout_secs)

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        session = {"lock_timeout": lock_timeout_ms(settings.lock_timeout_secs), "default_transaction_read_only": "on"}
        return _engine(url, READING, session)

    def fault_of(self, raw: BaseException) -> Fault | None:
        if isinstance(raw, PoolTimeoutError):
            return _ALL_IN_USE
        # Whoever never loaded a driver can't have met its errors.
        psycopg = sys.modules.get("psycopg")
        asyncpg = sys.modules.get("sqlalchemy.dialects.postgresql.asyncpg")  # by which a caller's transaction is joined
        if not (psycopg is not None and isinstance(raw, psycopg.Error)) and not (
            asyncpg is not None and isinstance(raw, asyncpg.AsyncAdapt_asyncpg_dbapi.Error)
        ):
            return None
        state = raw.sqlstate
        if state is None:
            said = str(raw)
            return next((fault for words, fault in _IN_WORDS.items() if words in said), database.UNKNOWN)
        beginnings = (state[:length] for length in (5, 3, 2))
        return next((_FAULTS[beginning] for beginning in beginnings if beginning in _FAULTS), database.UNKNOWN)

    def claims(self, driver: Any, domain_id: int) -> Claims:
        return Claims(driver, domain_id)

    def keep_migrators_out(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})

    def wait_briefly_for_tables(self, connection: Connection) -> None:
        connection.execute(text(f"SET LOCAL lock_timeout = {_LONGEST_TABLE_WAIT_MS}"))

    def server_run(self, connection: Connection) -> str:
        return run_of(connection, driver_of(connection))

    def autocommits(self, connection: Connection) -> bool:
        return autocommits(driver_of(connection))

    def vacuum_of(self, table: str, *, truncates: bool) -> TableVacuum:
        return TableVacuum(table, truncates=truncates)

    def size_bytes(self, connection: Connection, url: URL) -> int:
        del url
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in (*METADATA.tables, VERSION_TABLE))
        return int(connection.execute(text(f"SELECT {sizes}")).scalar_one())


_POOLED: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 32, "max_overflow": -1, "pool_use_lifo": True}
_AWAITED: dict[str, Any] = {"pool_size": 20, "max_overflow": 0, "pool_use_lifo": True}
"""Tasks are made by the thousand. So they wait for a connection, and a server's stay few."""


def _awaited_engine(url: URL, **options: Any) -> Engine:
    try:
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(url, **options).sync_engine
    except (ImportError, ValueError) as error:  # whichever says that there is no greenlet
        raise MissingExtraError("asyncio", "a receiver for an event loop") from error


def _engine(
    url: URL,
    isolation_level: str,
    session: dict[str, str],
    create: Callable[..., Engine] = create_engine,
    **pool: Any,
) -> Engine:
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = create(
        url,
        **(pool or {"poolclass": NullPool}),
        # Whatever the defaults of server, database and user are.
        isolation_level=isolation_level,
        connect_args={**options, "client_encoding": "utf8"},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        for name, value in session.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()

    @event.listens_for(engine, "begin")
    def begin_unless_begun(connection: Connection) -> None:
        # A receiver's connection, lent to an application that ended the transaction: what it does next must not be
        # committed statement by statement.
        if autocommits(driver_of(connection)):
            connection.exec_driver_sql(f"BEGIN ISOLATION LEVEL {isolation_level}")

    return engine
