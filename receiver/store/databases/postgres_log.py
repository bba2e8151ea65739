"""A domain's log in PostgreSQL, where who writes locks the domain's row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine

from receiver.errors import SettingsError
from receiver.message import ReceiptRow
from receiver.settings import StoreSettings
from receiver.store.databases.space import TableVacuum
from receiver.store.log import Changes
from receiver.store.sql_log import (
    IN_AUTOCOMMIT,
    JOIN_HINT,
    SqlLog,
    batch_mark_values,
    runs_of,
)
from receiver.store.tables import DomainState, receipt_rows, receipts

__all__ = ["PostgresLog", "lock_timeout_ms"]

_ROWS_AT_ONCE = 10_000
_FEW = 5
"""Rows that are faster in one statement with the domain's new state than as a COPY before it."""
_COLUMNS_WRITTEN = 1 + len(receipt_rows.columns)


def lock_timeout_ms(settings: StoreSettings) -> str:
    """For PostgreSQL's `lock_timeout`, where 0 would mean no limit."""
    return str(max(1, round(settings.lock_timeout_secs * 1000)))


class PostgresLog(SqlLog):
    placeholder = "%s"
    for_update = " FOR UPDATE"

    def __init__(self, engine: Engine, settings: StoreSettings, domain_id: int) -> None:
        super().__init__(engine, settings, domain_id)
        self._vacuum = TableVacuum(receipts.name, truncates=False)
        self._sql_copy = f"COPY {receipts.name} (domain_id, {', '.join(receipt_rows.columns)}) FROM STDIN"
        self._sql_delete = (
            f"DELETE FROM {receipts.name} USING unnest(%s::int8[], %s::int8[]) AS run(first, last)"
            " WHERE domain_id = %s AND seq BETWEEN first AND last"
        )

    def begin(self) -> DomainState:
        try:
            return super().begin()
        except Exception:
            if self.dbapi is None or not self.dbapi.closed:
                raise
            # The server was gone while this connection lay idle, so nothing is lost with it.
            self.discard()
            return super().begin()

    def start(self) -> None:
        """The driver starts a transaction with the first statement."""

    def start_reading(self) -> None:
        self.dbapi.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def rows_after(self, seq: int, last_seq: int) -> Iterator[Sequence[ReceiptRow]]:
        parameters = (self.domain_id, seq)
        if last_seq - seq <= _ROWS_AT_ONCE:
            yield receipt_rows.read_many(self.dbapi.execute(self.sql_rows_after, parameters, binary=True).fetchall())
            return
        with self.dbapi.cursor(name="receiver_rows") as cursor:
            cursor.execute(self.sql_rows_after, parameters, binary=True)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield receipt_rows.read_many(rows)

    def record(self, state: DomainState, changes: Changes, *, since: int) -> None:
        with_it: list[str] = []
        values: list[Any] = []
        if changes.batch_mark is not None:
            with_it.append(f"marked AS ({self.sql_batch_mark})")
            values += batch_mark_values(state, changes.batch_mark)
        rows = changes.rows
        if rows and not changes.gone and not changes.policy_states and len(rows) <= _FEW:
            more = f", ({', '.join([self.placeholder] * _COLUMNS_WRITTEN)})" * (len(rows) - 1)
            with_it.append(f"appended AS ({self.sql_append}{more})")
            values += [value for stored in self.stored(rows) for value in stored]
            changes = changes._replace(rows=())
        statement = f"WITH {', '.join(with_it)} {self.sql_save}" if with_it else self.sql_save
        self.save(statement, values, state, since)
        self.change_rows(changes)

    def append(self, rows: Sequence[ReceiptRow]) -> None:
        with self.cursor.copy(self._sql_copy) as copy:
            for values in self.stored(rows):
                copy.write_row(values)

    def lock_in_callers_transaction(self) -> DomainState:
        if self.dbapi.autocommit:
            raise SettingsError(IN_AUTOCOMMIT, hint=JOIN_HINT)
        waited = lock_timeout_ms(self.settings)
        before = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        (caller_waits, _) = self.dbapi.execute(before, (waited,)).fetchone()
        state = self.read(self.sql_lock)
        self.dbapi.execute("SELECT set_config('lock_timeout', %s, true)", (caller_waits,))
        return state

    def delete(self, seqs: Sequence[int]) -> None:
        runs = runs_of(seqs)
        # As text, which psycopg passes on as it is.
        firsts, lasts = (f"{{{','.join(map(str, ends))}}}" for ends in zip(*runs, strict=True))
        self.cursor.execute(self._sql_delete, (firsts, lasts, self.domain_id))
        self._vacuum.note(len(seqs))

    def give_back_space(self) -> None:
        # Autovacuum is left to shorten the table.
        self._vacuum.run_if_due(self.dbapi)
