"""PostgreSQL, through psycopg: a server, where who writes locks the domain's row, and a domain's log in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import islice
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError

from receiver.errors import MissingExtraError, SettingsError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.settings import StoreSettings
from receiver.store.databases import database
from receiver.store.databases.database import ADDRESSES, Database, Fault, masked, shown
from receiver.store.log import Changes, NotCommittedError
from receiver.store.sql_log import (
    IN_AUTOCOMMIT,
    JOIN_HINT,
    ROWS_AT_ONCE,
    SqlLog,
    batch_number_values,
    driver_of,
    lock_lost,
    runs_of,
)
from receiver.store.tables import METADATA, VERSION_TABLE, DomainState, inbox, receipt_rows, receipts

__all__ = ["Postgres", "PostgresLog"]

_LEAST_VACUUMED = 1_000


class _TableVacuum:
    """Lets new rows of a PostgreSQL table take the space of those deleted, once a quarter as many are as there are.

    Autovacuum does so too, but once a minute, which is late for a busy table.
    """

    def __init__(self, table: str, *, truncates: bool) -> None:
        """`truncates`: also shorten the table where its end is empty, for which others must be kept out."""
        self._sql_vacuum = f"VACUUM (SKIP_LOCKED, TRUNCATE {truncates}) {table}"
        self._sql_rows_left = f"SELECT reltuples FROM pg_class WHERE oid = '{table}'::regclass"
        self._deleted = 0
        self._due_after = _LEAST_VACUUMED

    def note(self, deleted: int) -> None:
        self._deleted += deleted

    def run_if_due(self, driver: Any) -> bool:
        """Whether more is left to do: never, for it does all of it."""
        if self._deleted <= self._due_after:
            return False
        self._deleted = 0
        autocommitted = driver.autocommit
        driver.autocommit = True
        try:
            driver.execute(self._sql_vacuum)
            (rows,) = driver.execute(self._sql_rows_left).fetchone()
        finally:
            driver.autocommit = autocommitted
        self._due_after = max(_LEAST_VACUUMED, rows // 4)
        return False


_ROWS_AWAITED_AT_ONCE = 250
_FEW = 5
"""Up to so many rows are faster in one statement with the domain's new state than by a COPY of their own."""
_COLUMNS_WRITTEN = 1 + len(receipt_rows.columns)


def _streamed_at_once() -> int:
    """How many rows the driver passes on together; libpq before 17 has them one by one alone."""
    import psycopg

    return ROWS_AT_ONCE if psycopg.capabilities.has_stream_chunked() else 1


def _lock_timeout_ms(settings: StoreSettings) -> str:
    """For PostgreSQL's `lock_timeout`, where 0 would mean no limit."""
    return str(max(1, round(settings.lock_timeout_secs * 1000)))


_LOCKING = "receiver_locking"
_WRITING = "READ COMMITTED"
_BEGIN_LOCKING = f"BEGIN ISOLATION LEVEL {_WRITING}; EXECUTE {_LOCKING}".encode()
"""One way to the server and back; and of what is prepared, nothing has to be planned."""
_SAVING = "receiver_saving"
_NOT_PREPARED = "26000"
_DIVISION_BY_ZERO = "22012"
_IDLE, _FAILED = 0, 3  # of libpq's PGTransactionStatusType


def _autocommits(driver: Any) -> bool:
    """Whether each statement is committed by itself. A transaction begun by hand, as a receiver's own is, prevents that."""
    return bool(driver.autocommit) and (not hasattr(driver, "pgconn") or driver.pgconn.transaction_status == _IDLE)


class _Messages:
    """Sends statements together, without the driver's cursors, which take as much time as all else in a batch of one."""

    def __init__(self, driver: Any) -> None:
        from psycopg import errors, generators
        from psycopg.adapt import Transformer

        self._driver = driver
        self._executing = generators.execute
        self._error_of = errors.error_from_result
        self._transformer = Transformer(driver)

    def send(self, statements: bytes) -> Any:
        """The result of the last statement. None comes after one that fails, whose error is raised."""
        pgconn = self._driver.pgconn
        pgconn.send_query(statements)
        result = self._driver.wait(self._executing(pgconn))[-1]
        if result.error_message:
            raise self._error_of(result)
        return result

    def first_row(self, statements: bytes) -> tuple[Any, ...] | None:
        """The first row that the last statement gives; None if it gives none."""
        result = self.send(statements)
        if not result.ntuples:
            return None
        self._transformer.set_pgresult(result)
        return self._transformer.load_row(0, tuple)


def _literal(value: int | str | bytes | None) -> str:
    if isinstance(value, str):
        return f"convert_from({_literal(value.encode())}, 'UTF8')"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"  # whatever the server's standard_conforming_strings
    return "NULL" if value is None else str(value)


class PostgresLog(SqlLog):
    placeholder = "%s"
    for_update = " FOR UPDATE"

    def __init__(self, engine: Engine, settings: StoreSettings, domain_id: int) -> None:
        super().__init__(engine, settings, domain_id)
        self._vacuum = _TableVacuum(receipts.name, truncates=False)  # autovacuum is left to shorten the table
        arrays = ", ".join(f"%s::{type_}[]" for type_ in _types_of(receipts, receipt_rows.columns))
        self._sql_append_arrays = f"INSERT INTO {receipts.name} (domain_id, {', '.join(receipt_rows.columns)}) SELECT %s, * FROM unnest({arrays})"
        self._sql_with = [
            [self._with(numbered=numbered, rows=rows) for rows in range(_FEW + 1)] for numbered in (False, True)
        ]
        self._prepared: dict[tuple[str, str], str] = {}
        """The names of the statements that are prepared on the connection, beside the one that locks."""
        self._messages: _Messages
        self._unsent = ""
        """What records the batch, to go to the server with its commit."""
        self._sql_prepare = f"PREPARE {_LOCKING} AS {self.sql_lock.replace('%s', str(int(domain_id)))}"
        self._sql_copy = f"COPY {receipts.name} (domain_id, {', '.join(receipt_rows.columns)}) FROM STDIN"
        self._sql_delete = (
            f"DELETE FROM {receipts.name} USING unnest(%s::int8[], %s::int8[]) AS run(first, last)"
            " WHERE domain_id = %s AND seq BETWEEN first AND last"
        )

    def connect(self) -> None:
        kept = self.dbapi
        super().connect()
        if self.dbapi is kept:
            return
        try:
            self._prepared = {}
            self._messages = _Messages(self.dbapi)
            self.dbapi.autocommit = True  # so that the driver begins no transaction, for which it would wait once more
            self.cursor.execute(self._sql_prepare)
        except BaseException:
            self.discard()  # for nothing would prepare it later
            raise

    def begin(self) -> DomainState:
        try:
            return super().begin()
        except Exception as error:
            # The server was gone while this connection lay idle, or an application to which it was lent has dropped what
            # was prepared. So nothing is lost with it.
            is_of_use = self.dbapi is None or not self.dbapi.closed
            if is_of_use and getattr(error, "sqlstate", None) != _NOT_PREPARED:
                raise
            self.discard()
            return super().begin()

    def lock(self) -> DomainState:
        self._unsent = ""
        return self.fetched(self._messages.first_row(_BEGIN_LOCKING))

    @property
    def in_transaction(self) -> bool:
        return self.is_awaited or self.dbapi.pgconn.transaction_status != _IDLE

    def start_reading(self) -> None:
        self.cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def rows_after(self, seq: int, last_seq: int) -> Iterator[ReceiptColumns]:
        parameters = (self.domain_id, seq)
        if last_seq - seq <= ROWS_AT_ONCE:
            # With a limit, the server plans it once and for all.
            if rows := self.dbapi.execute(self.sql_page_after, parameters, binary=True).fetchall():
                yield receipt_rows.read_columns(rows)
            return
        with (
            self.dbapi.cursor(binary=True) as cursor,
            closing(cursor.stream(self.sql_rows_after, parameters, binary=True, size=_streamed_at_once())) as streamed,
        ):
            # The server goes on reading while we judge what it has sent.
            while rows := list(islice(streamed, ROWS_AT_ONCE)):
                yield receipt_rows.read_columns(rows)

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        values: list[Any] = []
        if changes.batch_number is not None:
            values += batch_number_values(state, changes.batch_number)
        rows: Sequence[ReceiptValues] = ()
        if len(changes.rows) <= _FEW and not changes.gone and not changes.policy_states:
            rows = changes.rows
            values += [value for stored in self.stored(rows) for value in stored]
            changes = changes._replace(rows=())
        with_it = self._sql_with[changes.batch_number is not None][len(rows)]
        if rows and not (self.is_joined or self.is_lent):
            self._unsent = self._executing(with_it, values, *self.saving(state, before))
        else:
            self.save(with_it, values, state, before)
            self.change_rows(changes)

    def _executing(self, with_it: str, values: Sequence[Any], saving: str, changed: Sequence[Any]) -> str:
        """The statements that do what `save` does; COMMIT may follow in the same message.

        The first time on a connection it is prepared, so nothing has to be planned again. COMMIT isn't reached where no
        state is saved, for that is an error.
        """
        values = (*values, *changed)
        execute = f"({', '.join(map(_literal, values))})"
        name = self._prepared.get((with_it, saving))
        if name is not None:
            return f"EXECUTE {name}{execute}"
        name = self._prepared[with_it, saving] = f"{_SAVING}_{len(self._prepared)}"
        statement = f"{with_it.rstrip()}, saved AS ({saving} RETURNING 1) SELECT 1 / count(*) FROM saved"
        statement %= tuple(f"${number}" for number in range(1, len(values) + 1))
        return f"PREPARE {name} AS {statement}; EXECUTE {name}{execute}"

    def commit(self) -> None:
        if not self._unsent:
            super().commit()
            return
        try:
            self._messages.send(f"{self._unsent}; COMMIT".encode())
        except Exception as error:
            if self.dbapi.pgconn.transaction_status != _FAILED:  # so COMMIT may have been reached
                raise
            is_lost = getattr(error, "sqlstate", None) == _DIVISION_BY_ZERO
            raise NotCommittedError(lock_lost() if is_lost else error) from error
        self._unsent = ""

    def rollback(self) -> None:
        if self._unsent:
            self.discard()  # for nobody knows whether its statement was prepared
        else:
            super().rollback()

    def discard(self) -> None:
        self._unsent = ""
        super().discard()

    def _with(self, *, numbered: bool, rows: int) -> str:
        """What goes with the domain's new state in one statement: a batch's number, and so many rows."""
        parts = [f"numbered AS ({self.sql_batch_number})"] if numbered else []
        if rows:
            more = f", ({', '.join([self.placeholder] * _COLUMNS_WRITTEN)})" * (rows - 1)
            parts.append(f"appended AS ({self.sql_append}{more})")
        return f"WITH {', '.join(parts)} " if parts else ""

    def append(self, rows: Sequence[ReceiptValues]) -> None:
        if self.is_awaited:
            self._append_arrays(rows)
            return
        with self.cursor.copy(self._sql_copy) as copy:
            for values in self.stored(rows):
                copy.write_row(values)

    def _append_arrays(self, rows: Sequence[ReceiptValues]) -> None:
        """As `append`, but by statements, which SQLAlchemy can await."""
        for first in range(0, len(rows), _ROWS_AWAITED_AT_ONCE):
            part = receipt_rows.stored_many(rows[first : first + _ROWS_AWAITED_AT_ONCE])
            self.cursor.execute(self._sql_append_arrays, (self.domain_id, *map(list, zip(*part, strict=True))))

    def lock_in_callers_transaction(self) -> DomainState:
        if _autocommits(self.dbapi):
            raise SettingsError(IN_AUTOCOMMIT, hint=JOIN_HINT)
        waited = _lock_timeout_ms(self.settings)
        before = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        (caller_waits, _) = self.dbapi.execute(before, (waited,)).fetchone()
        state = self.read(self.sql_lock)
        self.dbapi.execute("SELECT set_config('lock_timeout', %s, true)", (caller_waits,))
        return state

    def delete(self, seqs: Sequence[int]) -> None:
        runs = runs_of(seqs)
        firsts: Any
        lasts: Any
        firsts, lasts = map(list, zip(*runs, strict=True))
        if not self.is_awaited:  # as text, which psycopg passes on as it is
            firsts, lasts = (f"{{{','.join(map(str, ends))}}}" for ends in (firsts, lasts))
        self.cursor.execute(self._sql_delete, (firsts, lasts, self.domain_id))
        self._vacuum.note(len(seqs))


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
        return _engine(url, _WRITING, {"lock_timeout": _lock_timeout_ms(settings)})

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        session = {"lock_timeout": _lock_timeout_ms(settings), "default_transaction_read_only": "on"}
        return _engine(url, "REPEATABLE READ", session)

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

    def autocommits(self, connection: Connection) -> bool:
        return _autocommits(driver_of(connection))

    def vacuum_of(self, table: str, *, truncates: bool) -> _TableVacuum:
        return _TableVacuum(table, truncates=truncates)

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

    def damage(self, connection: Connection, advance: Callable[[int], None]) -> Iterator[str]:
        """Nothing, for the server finds damage as it reads."""
        del connection, advance
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
        if _autocommits(driver_of(connection)):
            connection.exec_driver_sql(f"BEGIN ISOLATION LEVEL {isolation_level}")

    return engine


@lru_cache
def _copy(columns: tuple[str, ...]) -> tuple[str, list[str]]:
    """The statement, and the types of what it takes."""
    return f"COPY {inbox.name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)", _types_of(inbox, columns)


def _types_of(table: Table, columns: Iterable[str]) -> list[str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types_of = {column.name: column.type.compile(dialect).lower() for column in table.c}
    return [types_of[name] for name in columns]
