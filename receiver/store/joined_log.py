"""A domain's log through the caller's own connection and transaction, which alone decides what becomes of a batch.

Nothing tells us whether that transaction, or the savepoint around a batch, was committed or rolled back. So each batch
leaves its number in it, to be looked up later: there is no event to miss and no constraint violation to catch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy

from sqlalchemy import Connection, Dialect, delete

from receiver.errors import SettingsError, StoreBusyError
from receiver.message import ReceiptRow
from receiver.store.log import Changes
from receiver.store.sql_log import SqlLog
from receiver.store.tables import DomainState, joined

__all__ = ["JoinedLog", "forget_batches", "joinable"]

_KEPT_SEQS = 1_000_000_000
"""A killed receiver's recording is settled by its mark, when somebody records there again."""


class JoinedLog:
    """As `log`, but each batch is a savepoint in the caller's transaction, and commits or rolls back nothing itself."""

    def __init__(self, log: SqlLog, connection: object) -> None:
        connection = joinable(connection, log.engine.dialect, "batch()")
        self.connection = self.holder = connection
        self.transaction = connection.get_transaction()
        self._savepoint = connection.get_nested_transaction()
        self._log = copy(log)
        self._log.use(connection)

    def is_over(self) -> bool:
        """Whether the caller's transaction has ended."""
        return self.transaction is None or not self.transaction.is_active

    def begin(self) -> DomainState:
        return self._log.lock_in_callers_transaction()

    def begin_reading(self) -> DomainState:
        return self._log.read(self._log.sql_read)

    def rows_after(self, seq: int, last_seq: int) -> Iterator[Sequence[ReceiptRow]]:
        return self._log.rows_after(seq, last_seq)

    def record(self, state: DomainState, changes: Changes, *, since: int) -> None:
        connection = self.connection
        under_way = connection.get_transaction(), connection.get_nested_transaction()
        if connection.closed or connection.invalidated or under_way != (self.transaction, self._savepoint):
            raise StoreBusyError(
                "the caller's transaction or savepoint ended inside the batch",
                hint="commit or roll back after the batch only",
            )
        savepoint = connection.begin_nested()
        try:
            self._log.record(state, changes, since=since)
        except BaseException:
            with suppress(Exception):  # where the connection is broken, that must not hide by what
                savepoint.rollback()
            raise
        savepoint.commit()

    def last_batch(self, writer: int) -> int:
        return self._log.last_batch(writer)

    def _callers(self) -> None:
        """The caller's to do."""

    commit = rollback = discard = give_back_space = close = _callers


def joinable(connection: object, ours: Dialect, taker: str) -> Connection:
    """The connection, in a transaction; SettingsError unless it is one to a database as ours. `taker` was given it."""
    if not isinstance(connection, Connection):
        raise SettingsError(
            f"{taker} takes a Connection of SQLAlchemy, not {connection!r:.80}",
            hint="of a Session: session.connection()",
        )
    if connection.closed or connection.invalidated:
        raise SettingsError(f"the connection given to {taker} is closed")
    theirs = connection.dialect
    if (ours.name, ours.driver) != (theirs.name, theirs.driver):
        raise SettingsError(
            f"the connection given to {taker} is for {theirs.name}+{theirs.driver}, the store is in"
            f" {ours.name}+{ours.driver}",
            hint="give a connection to the store's own database, through the same driver",
        )
    if not connection.in_transaction():
        connection.begin()
    return connection


def forget_batches(connection: Connection, state: DomainState, writer: int) -> None:
    """Drop the marks of one receiver, and those from so many receipts ago that whoever left them died without closing."""
    over = (joined.c.writer == writer) | (joined.c.last_seq < state.last_seq - _KEPT_SEQS)
    connection.execute(delete(joined).where(joined.c.domain_id == state.domain_id, over))
