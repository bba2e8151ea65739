"""PostgreSQL, through psycopg: a server, where who writes locks the domain's row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError

from receiver.errors import MissingExtraError, SettingsError
from receiver.settings import StoreSettings
from receiver.store.databases import database
from receiver.store.databases.database import ADDRESSES, Database, Fault, masked, shown
from receiver.store.databases.postgres_log import (
    READING,
    WRITING,
    PostgresLog,
    TableVacuum,
    autocommits,
    lock_timeout_ms,
    run_of,
    types_of,
)
from receiver.store.sql_log import driver_of
from receiver.store.tables import METADATA, VERSION_TABLE, inbox

__all__ = ["Postgres"]

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
_TOAST_BYTES = 2_000
"""A large body is kept in rows of about this size, which are deleted with it."""
_SEQUENCE = inbox.c.sequence.name
_AMONG = f"FROM {inbox.name} WHERE target_id = %s AND {_SEQUENCE} = ANY(%s::int8[])"
# The length of a body is known without reading it.
_DELETE_COUNTING = (
    f"WITH gone AS (DELETE {_AMONG} RETURNING length(body) AS bytes)"
    f" SELECT coalesce(sum(1 + bytes / {_TOAST_BYTES}), 0) FROM gone"
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
_CANCELLED = Fault("the server cancelled the statement", "raise its statement_timeout for this user")
_FAULTS = {
    "08": _LOST,
    "25006": database.READ_ONLY,
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
    log = PostgresLog
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
        return _engine(url, WRITING, {"lock_timeout": lock_timeout_ms(settings)})

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        session = {"lock_timeout": lock_timeout_ms(settings), "default_transaction_read_only": "on"}
        return _engine(url, READING, session)

    def fault_of(self, raw: BaseException) -> Fault | None:
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

    def locked_file(self, url: URL) -> None:
        """None, for a transaction locks rows."""

    def is_there(self, url: URL) -> bool:
        del url
        return True

    def keep_migrators_out(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})

    def wait_briefly_for_tables(self, connection: Connection) -> None:
        connection.execute(text(f"SET LOCAL lock_timeout = {_LONGEST_TABLE_WAIT_MS}"))

    def is_replaced(self, driver: Any) -> bool:
        del driver
        return False

    def watch_idle(self, driver: Any, is_idle: Callable[[], bool]) -> None:
        """Nothing to do, for a connection inherited by a fork does no harm to others."""

    def server_run(self, connection: Connection) -> str:
        return run_of(connection, driver_of(connection))

    def autocommits(self, connection: Connection) -> bool:
        return autocommits(driver_of(connection))

    def vacuum_of(self, table: str, *, truncates: bool) -> TableVacuum:
        return TableVacuum(table, truncates=truncates)

    def vacuum_of_all(self) -> None:
        """None, for autovacuum does it."""

    def add_waiting(self, driver: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement, types = _copy(tuple(columns))
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def waiting(
        self, driver: Any, columns: Sequence[str], target_id: int, numbers: Sequence[int]
    ) -> Iterator[Sequence[Any]]:
        with driver.cursor(binary=True) as cursor:
            yield from cursor.execute(
                f"SELECT {', '.join(columns)} {_AMONG} ORDER BY {_SEQUENCE}", (target_id, numbers)
            )

    def delete_waiting(self, driver: Any, target_id: int, numbers: Sequence[int]) -> int:
        """A large body counts as several rows, in which it is kept."""
        (vacuumable,) = driver.execute(_DELETE_COUNTING, (target_id, numbers)).fetchone()
        return int(vacuumable)

    def accept_broken_text(self, driver: Any) -> None:
        """Nothing to do, for the server accepts no such text."""

    def damage(self, connection: Connection, on_rows: Callable[[int], None]) -> Iterator[str]:
        """Nothing, for the server finds damage as it reads."""
        del connection, on_rows
        return iter(())

    def size_bytes(self, connection: Connection, url: URL) -> int:
        del url
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in (*METADATA.tables, VERSION_TABLE))
        return int(connection.execute(text(f"SELECT {sizes}")).scalar_one())


def _engine(url: URL, isolation_level: str, session: dict[str, str]) -> Engine:
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = create_engine(
        url,
        poolclass=NullPool,
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


@lru_cache
def _copy(columns: tuple[str, ...]) -> tuple[str, list[str]]:
    """The statement, and the types of what it takes."""
    return f"COPY {inbox.name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)", types_of(inbox, columns)
