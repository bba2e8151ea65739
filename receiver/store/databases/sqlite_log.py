"""A domain's log in SQLite, where who writes has the whole file for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Engine

from receiver.errors import SettingsError
from receiver.message import ReceiptRow
from receiver.settings import StoreSettings
from receiver.store.databases.bulk import insert_rows
from receiver.store.databases.space import FileVacuum
from receiver.store.sql_log import IN_AUTOCOMMIT, JOIN_HINT, SqlLog, runs_of
from receiver.store.tables import DomainState, domains, receipt_rows, receipts

__all__ = ["SqliteLog"]

_ROWS_AT_ONCE = 10_000


class SqliteLog(SqlLog):
    placeholder = "?"
    for_update = ""  # a transaction that writes has all of the file

    def __init__(self, engine: Engine, settings: StoreSettings, domain_id: int) -> None:
        super().__init__(engine, settings, domain_id)
        self._vacuum = FileVacuum()
        self._sql_delete = f"DELETE FROM {receipts.name} WHERE domain_id = ? AND seq BETWEEN ? AND ?"
        self._sql_touch = f"UPDATE {domains.name} SET last_seq = last_seq WHERE domain_id = ?"

    def connect(self) -> None:
        if self._connection is not None and self.dbapi.is_replaced():
            self.discard()
        super().connect()
        self.dbapi.is_idle = self.is_idle

    def start(self) -> None:
        self.dbapi.execute("BEGIN IMMEDIATE")

    def start_reading(self) -> None:
        self.dbapi.execute("BEGIN")

    def lock_in_callers_transaction(self) -> DomainState:
        (caller_waits_ms,) = self.dbapi.execute("PRAGMA busy_timeout").fetchone()
        self.dbapi.execute(f"PRAGMA busy_timeout = {self.settings.lock_timeout_secs * 1000:.0f}")
        try:
            # A write, for that is what begins a transaction of the driver's and takes the lock.
            self.dbapi.execute(self._sql_touch, (self.domain_id,))
        finally:
            self.dbapi.execute(f"PRAGMA busy_timeout = {caller_waits_ms}")
        if not self.dbapi.in_transaction:
            raise SettingsError(IN_AUTOCOMMIT, hint=JOIN_HINT)
        return self.read(self.sql_lock)

    def rows_after(self, seq: int, last_seq: int) -> Iterator[Sequence[ReceiptRow]]:
        del last_seq
        cursor = self.dbapi.execute(self.sql_rows_after, (self.domain_id, seq))
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield receipt_rows.read_many(rows)

    def append(self, rows: Sequence[ReceiptRow]) -> None:
        insert_rows(self.dbapi, self.sql_append, self.stored(rows))

    def delete(self, seqs: Sequence[int]) -> None:
        self.dbapi.executemany(self._sql_delete, [(self.domain_id, *run) for run in runs_of(seqs)])
        self._vacuum.note(len(seqs))

    def give_back_space(self) -> None:
        self._vacuum.run_if_due(self.dbapi)
