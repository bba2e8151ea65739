"""The rows of a domain in PostgreSQL, by psycopg or by a caller's asynchronous driver."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql

from receiver.errors import SettingsError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.store.sql_rows import IN_AUTOCOMMIT, JOIN_HINT, ROWS_AT_ONCE, Changes, SqlRows, Statements, runs_of
from receiver.store.tables import DomainState, receipt_rows, receipts, recorded_rows

_IN_ERROR = 3  # psycopg.pq.TransactionStatus.INERROR
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
"""Up to so many rows go with the domain's new state in one statement, and spare a way to the server and back."""


def _streamed_at_once() -> int:
    """How many rows the driver passes on together; libpq before 17 has them one by one alone."""
    import psycopg

    return ROWS_AT_ONCE if psycopg.capabilities.has_stream_chunked() else 1


def lock_timeout_ms(secs: float) -> str:
    """For PostgreSQL's `lock_timeout`, where 0 would mean no limit."""
    return str(max(1, round(secs * 1000)))


WRITING = "READ COMMITTED"
READING = "REPEATABLE READ"
_RUN = "receiver_server_run"
_SQL_RUN = (
    "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
    " || ' ' || (SELECT coalesce(extract(epoch FROM stats_reset)::text, '') FROM pg_stat_bgwriter)"
)
"""When the server was started, and since when it counts, which begins anew as it recovers from a crash: that too loses
commits where synchronous_commit is off."""


def run_of(connection: Connection, driver: Any) -> str:
    """Identifies the run of the server, as `OwnLog.server_run`; asked once for each connection of the driver."""
    run: str | None = connection.info.get(_RUN)
    if run is None:
        (run,) = driver.execute(_SQL_RUN).fetchone()
        connection.info[_RUN] = run
    return str(run)


def _is_idle(driver: Any) -> bool:
    """Whether psycopg's connection has no transaction under way."""
    return int(driver.info.transaction_status) == 0  # psycopg.pq.TransactionStatus.IDLE


def has_failed(driver: Any) -> bool:
    """Whether a statement has failed in the transaction of psycopg's connection, so that it can only be rolled back."""
    return int(driver.info.transaction_status) == _IN_ERROR


def autocommits(driver: Any) -> bool:
    """Whether each statement is committed by itself. A transaction begun by hand, as a receiver's own is, prevents that."""
    return bool(driver.autocommit) and (not hasattr(driver, "info") or _is_idle(driver))


def types_of(table: Table, columns: Iterable[str]) -> list[str]:
    """What PostgreSQL calls the types of these columns."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    by_name = {column.name: column.type.compile(dialect).lower() for column in table.c}
    return [by_name[name] for name in columns]


_COLUMNS = ", ".join(receipt_rows.columns)
_APPEND_ARRAYS = (
    f"INSERT INTO {receipts.name} (domain_id, {_COLUMNS}) SELECT %s, *"
    f" FROM unnest({', '.join(f'%s::{type_}[]' for type_ in types_of(receipts, receipt_rows.columns))})"
)
_COPY = f"COPY {receipts.name} (domain_id, {_COLUMNS}) FROM STDIN"
_DELETE = (
    f"DELETE FROM {receipts.name} USING unnest(%s::int8[], %s::int8[]) AS run(first, last)"
    " WHERE domain_id = %s AND seq BETWEEN first AND last"
)


_SQL = Statements("%s", for_update=" FOR NO KEY UPDATE")


@lru_cache
def _appended(rows: int) -> str:
    """The part of a statement that appends so many rows."""
    more = f", (%s{', %s' * len(receipt_rows.columns)})" * (rows - 1)
    return f"appended AS ({_SQL.append}{more})"


class PostgresRows(SqlRows):
    sql = _SQL

    @property
    def in_transaction(self) -> bool:
        return self.is_awaited or not _is_idle(self.driver)

    def begin(self) -> DomainState:
        return self.fetched(self._begun(WRITING, self.sql.lock))

    def begin_if_free(self) -> DomainState | None:
        values = self._begun(WRITING, f"{self.sql.lock} SKIP LOCKED")
        if values is None:
            self.driver.rollback()
            return None
        return self.fetched(values)

    def begin_reading(self) -> DomainState:
        return self.fetched(self._begun(f"{READING}, READ ONLY", self.sql.read))

    def _begun(self, isolation_level: str, select: str) -> tuple[Any, ...] | None:
        """The values of the domain's row, read as a transaction begins: both on one way to the server and back."""
        if self.server_run is None:
            self.driver.autocommit = (
                True  # so that the driver begins no transaction of its own, for which it would wait
            )
            self.server_run = run_of(self.connection, self.driver)
        with self.driver.pipeline():
            self.driver.execute(f"BEGIN ISOLATION LEVEL {isolation_level}")
            self.cursor.execute(select, (self.domain_id,))
        values: tuple[Any, ...] | None = self.cursor.fetchone()
        return values

    def join(self, patience_secs: float) -> DomainState:
        if autocommits(self.driver):
            raise SettingsError(IN_AUTOCOMMIT, hint=JOIN_HINT)
        before = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        (caller_waits, _) = self.driver.execute(before, (lock_timeout_ms(patience_secs),)).fetchone()
        state = self.read(self.sql.lock)
        self.server_run = run_of(self.connection, self.driver)
        self.driver.execute("SELECT set_config('lock_timeout', %s, true)", (caller_waits,))
        return state

    def streamed_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        parameters = (self.domain_id, seq)
        if last_seq - seq <= ROWS_AT_ONCE:
            # With a limit, the server plans it once and for all.
            if rows := self.driver.execute(self.sql.page_after, parameters, binary=True).fetchall():
                yield receipt_rows.read_columns(rows)
            return
        with (
            self.driver.cursor(binary=True) as cursor,
            closing(cursor.stream(self.sql.rows_after, parameters, binary=True, size=_streamed_at_once())) as streamed,
        ):
            # The server goes on reading while we judge what it has sent.
            while rows := list(islice(streamed, ROWS_AT_ONCE)):
                yield receipt_rows.read_columns(rows)

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        if len(changes.rows) > _FEW or changes.gone or changes.policy_states or changes.forgotten:
            super().record(state, changes, before=before)
            return
        parts, values = [], []
        if changes.batch_number is not None:
            parts.append(f"numbered AS ({self.sql.number_batch})")
            values += [self.domain_id, *changes.batch_number, state.last_seq]
        if changes.rows:
            parts.append(_appended(len(changes.rows)))
            values += chain.from_iterable(self.stored(changes.rows))
        if changes.recorded is not None:
            parts.append(f"recorded AS ({self.sql.recorded})")
            values += recorded_rows.stored(changes.recorded)
        self.save(state, before, f"WITH {', '.join(parts)} " if parts else "", values)

    def append(self, rows: Sequence[ReceiptValues]) -> None:
        if self.is_awaited:  # SQLAlchemy can't await a COPY
            for first in range(0, len(rows), _ROWS_AWAITED_AT_ONCE):
                self.cursor.execute(_APPEND_ARRAYS, self._arrays(rows[first : first + _ROWS_AWAITED_AT_ONCE]))
            return
        with self.cursor.copy(_COPY) as copy:
            for values in self.stored(rows):
                copy.write_row(values)

    def _arrays(self, rows: Sequence[ReceiptValues]) -> list[Any]:
        return [self.domain_id, *map(list, receipt_rows.stored_columns(rows))]

    def delete(self, seqs: Sequence[int]) -> None:
        firsts, lasts = zip(*runs_of(seqs), strict=True)
        self.cursor.execute(_DELETE, (list(firsts), list(lasts), self.domain_id))
