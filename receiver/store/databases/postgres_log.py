"""The log of a domain in PostgreSQL, by psycopg: what goes to the server, in how few messages."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects import postgresql

from receiver.errors import SettingsError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.settings import StoreSettings
from receiver.store.databases.psycopg_messages import PsycopgMessages
from receiver.store.log import Changes, NotCommittedError
from receiver.store.sql_log import (
    IN_AUTOCOMMIT,
    JOIN_HINT,
    ROWS_AT_ONCE,
    SqlLog,
    batch_number_values,
    lock_lost,
    runs_of,
)
from receiver.store.tables import DomainState, receipt_rows, receipts

__all__ = ["READING", "WRITING", "PostgresLog", "TableVacuum", "autocommits", "lock_timeout_ms", "run_of", "types_of"]

_LEAST_VACUUMED = 1_000


class TableVacuum:
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


def lock_timeout_ms(settings: StoreSettings) -> str:
    """For PostgreSQL's `lock_timeout`, where 0 would mean no limit."""
    return str(max(1, round(settings.lock_timeout_secs * 1000)))


WRITING = "READ COMMITTED"
READING = "REPEATABLE READ"


class _Begin(NamedTuple):
    """A statement that begins a transaction and reads the domain's row.

    That is one way to the server and back; and of what is prepared, nothing has to be planned.
    """

    name: str
    isolation_level: str
    locking: str = ""

    def prepared(self, sql_read: str) -> str:
        return f"PREPARE {self.name} AS {sql_read}{self.locking}"

    def __str__(self) -> str:
        return f"BEGIN ISOLATION LEVEL {self.isolation_level}; EXECUTE {self.name}"


_FOR_UPDATE = " FOR UPDATE"
_LOCKING = _Begin("receiver_locking", WRITING, _FOR_UPDATE)
_LOCKING_IF_FREE = _Begin("receiver_locking_if_free", WRITING, f"{_FOR_UPDATE} SKIP LOCKED")
_READING_ONLY = _Begin("receiver_reading", f"{READING}, READ ONLY")
_SAVING = "receiver_saving"
_NOT_PREPARED = "26000"
_DIVISION_BY_ZERO = "22012"
_IDLE, _FAILED = 0, 3  # of libpq's PGTransactionStatusType


_RUN = "receiver_server_run"
_SQL_RUN = (
    "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
    " || ' ' || (SELECT coalesce(extract(epoch FROM stats_reset)::text, '') FROM pg_stat_bgwriter)"
)
"""When the server was started, and since when it counts, which begins anew as it recovers from a crash: that too loses
commits where synchronous_commit is off."""


def run_of(connection: Connection, driver: Any) -> str:
    """Identifies the run of the server, as `DomainLog.server_run`; asked once for each connection of the driver."""
    run: str | None = connection.info.get(_RUN)
    if run is None:
        (run,) = driver.execute(_SQL_RUN).fetchone()
        connection.info[_RUN] = run
    return str(run)


def autocommits(driver: Any) -> bool:
    """Whether each statement is committed by itself. A transaction begun by hand, as a receiver's own is, prevents that."""
    return bool(driver.autocommit) and (not hasattr(driver, "pgconn") or driver.pgconn.transaction_status == _IDLE)


def _literal(value: int | str | bytes | None) -> str:
    if isinstance(value, str):
        return f"convert_from({_literal(value.encode())}, 'UTF8')"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"  # whatever the server's standard_conforming_strings
    return "NULL" if value is None else str(value)


def types_of(table: Table, columns: Iterable[str]) -> list[str]:
    """What PostgreSQL calls the types of these columns."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    by_name = {column.name: column.type.compile(dialect).lower() for column in table.c}
    return [by_name[name] for name in columns]


class PostgresLog(SqlLog):
    placeholder = "%s"
    naps = True
    for_update = _FOR_UPDATE

    def __init__(self, engine: Engine, settings: StoreSettings, domain_id: int) -> None:
        super().__init__(engine, settings, domain_id)
        self._vacuum = TableVacuum(receipts.name, truncates=False)  # autovacuum is left to shorten the table
        arrays = ", ".join(f"%s::{type_}[]" for type_ in types_of(receipts, receipt_rows.columns))
        self._sql_append_arrays = f"INSERT INTO {receipts.name} (domain_id, {', '.join(receipt_rows.columns)}) SELECT %s, * FROM unnest({arrays})"
        self._sql_with = [
            [self._with(numbered=numbered, rows=rows) for rows in range(_FEW + 1)] for numbered in (False, True)
        ]
        self._prepared: dict[tuple[str, str], str] = {}
        """The names of the statements that are prepared on the connection, beside those that begin."""
        self._messages: PsycopgMessages
        self._unsent = ""
        """What records the batch, to go to the server with its commit."""
        sql_read = self.sql_read.replace("%s", str(int(domain_id)))
        self._sql_prepare = "; ".join(begin.prepared(sql_read) for begin in (_LOCKING, _LOCKING_IF_FREE, _READING_ONLY))
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
            self._messages = PsycopgMessages(self.dbapi)
            self.dbapi.autocommit = True  # so that the driver begins no transaction, for which it would wait once more
            self.cursor.execute(self._sql_prepare, prepare=False)
            self._note_server_run()
        except BaseException:
            self.discard()  # for nothing would prepare it later
            raise

    def _note_server_run(self) -> None:
        assert self._connection is not None  # noqa: S101 - just made, or given
        self.server_run = run_of(self._connection, self.dbapi)

    def begin(self) -> DomainState:
        return self.fetched(self._begun(_LOCKING))

    def begin_if_free(self) -> DomainState | None:
        values = self._begun(_LOCKING_IF_FREE)
        return None if values is None else self.fetched(values)

    def begin_reading(self) -> DomainState:
        return self.fetched(self._begun(_READING_ONLY))

    def _begun(self, begin: _Begin) -> tuple[Any, ...] | None:
        """The values of the domain's row, read as a transaction begins; if it is taken or gone, None and no transaction."""
        try:
            self.connect()
            return self._sent(begin)
        except Exception as error:
            # The server was gone while this connection lay idle, or an application to which it was lent has dropped what
            # was prepared. So nothing is lost with it.
            is_of_use = self.dbapi is None or not self.dbapi.closed
            if is_of_use and getattr(error, "sqlstate", None) != _NOT_PREPARED:
                raise
            self.discard()
            self.connect()
            return self._sent(begin)

    def _sent(self, begin: _Begin) -> tuple[Any, ...] | None:
        self._unsent = ""
        values = self._messages.first_row(str(begin).encode())
        if values is None:
            self.commit()  # of nothing; after a rollback the driver would drop what is prepared
        return values

    @property
    def in_transaction(self) -> bool:
        return self.is_awaited or self.dbapi.pgconn.transaction_status != _IDLE

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
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
        if len(changes.rows) <= _FEW and not (changes.gone or changes.policy_states):
            rows = changes.rows
            values += [value for stored in self.stored(rows) for value in stored]
            changes = changes._replace(rows=())
        with_it = self._sql_with[changes.batch_number is not None][len(rows)]
        if rows and not (self.is_joined or self.is_lent):
            self._unsent = self._executing(with_it, values, *self.state_update(state, before))
        else:
            self.save_state(with_it, values, state, before)
            self.change_rows(changes)

    def _executing(self, with_it: str, values: Sequence[Any], saving: str, changed: Sequence[Any]) -> str:
        """The statements that do what `save_state` does; COMMIT may follow in the same message.

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
        if autocommits(self.dbapi):
            raise SettingsError(IN_AUTOCOMMIT, hint=JOIN_HINT)
        waited = lock_timeout_ms(self.settings)
        before = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        (caller_waits, _) = self.dbapi.execute(before, (waited,)).fetchone()
        state = self.read(self.sql_lock)
        self._note_server_run()
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
