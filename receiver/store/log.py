"""The log of one domain, and its operations: lock, read on, record, commit.

The table of receipts is the log: rows are only appended and deleted. What a domain remembers follows from the rows that are
left and from the domain's own row. Nothing here knows what counts as a duplicate.

A log in a database uses transactions of our own, on a connection that is kept, or a caller's transaction. Nothing reports
whether a caller's transaction, or the savepoint around a batch, was committed or rolled back. So each batch leaves its
number in the transaction. If the number is there later, the batch was committed.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from operator import itemgetter
from typing import NoReturn, TypeVar, cast

from sqlalchemy import Connection, Dialect, Engine, NestedTransaction, RootTransaction, delete, event

from receiver.closing import acquired_if_free
from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.message import ReceiptColumns, ReceiptRow, ReceiptValues
from receiver.store.databases import database_of, store_error, translated
from receiver.store.sql_rows import Changes, SqlRows, discard, driver_of, note_loss
from receiver.store.tables import DomainState, batch_numbers, receipts

_LOGGER = logging.getLogger("receiver")
_T = TypeVar("_T")
_ENDS = re.compile(r"\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to\b))\b", re.IGNORECASE)
"""A statement that ends a transaction."""
_KEPT_SEQS = 1_000_000_000
"""A dead receiver's batch number is deleted once the domain has had this many more receipts. Until then it shows which batches
in the journal of an earlier version were committed."""
_seq_of = itemgetter(ReceiptRow._fields.index("seq"))


class MemoryLog:
    """The log of `memory://`, which ends with the process. It has the methods of `OwnLog` and of `SqlRows`."""

    def __init__(self, state: DomainState) -> None:
        self.in_use = threading.Lock()
        self.url = None
        self._state = state
        self._rows: dict[int, ReceiptValues] = {}

    def begin(self) -> DomainState:
        return self._state

    begin_at_once = begin_if_free = begin_reading = begin

    @property
    def rows(self) -> MemoryLog:
        return self

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        if seq < last_seq:
            rows = (row for row in self._rows.values() if _seq_of(row) > seq)
            yield cast("ReceiptColumns", tuple(zip(*rows, strict=True)))

    def record(self, state: DomainState, changes: Changes) -> None:
        for seq in changes.gone:
            self._rows.pop(seq, None)
        if changes.policy_states is not None:
            policy_state, sources = changes.policy_states
            for row in map(ReceiptRow._make, self._rows.values()):
                if sources is None or (row.message_source_id in sources and row.policy_state is None):
                    self._rows[row.seq] = row._replace(policy_state=policy_state)
        for seq in changes.forgotten:
            self._rows[seq] = ReceiptRow._make(self._rows[seq])._replace(unique_message_id="", body_digests=None)
        self._rows.update(zip(map(_seq_of, changes.rows), changes.rows, strict=True))
        self._state = state

    def last_batch(self, writer: int) -> int:
        del writer  # no batch leaves a number here: there is no transaction to join
        return 0

    def join(self, connection: object, patience_secs: float) -> NoReturn:
        del connection, patience_secs
        raise SettingsError("memory:// has no transactions to join", hint="open a sqlite:/// or postgresql:// store")

    def delete_batch_numbers(self, state: DomainState, writer: int) -> None:
        pass

    def _nothing(self) -> None:
        """Does nothing: a batch in memory is recorded whole or not at all."""

    commit = rollback = discard = give_back_space = close = _nothing

    holder = server_run = None

    @property
    def connection(self) -> NoReturn:
        raise SettingsError("memory:// has no database connection", hint="open a sqlite:/// or postgresql:// store")


class OwnLog:
    """One domain's log in transactions of our own, on a connection that is made when first needed, and kept."""

    def __init__(self, engine: Engine, domain_id: int) -> None:
        self.engine = engine
        self.url = engine.url
        self.domain_id = domain_id
        self._database = database_of(self.url)
        # Autovacuum is left to shorten the table.
        self.vacuum = self._database.vacuum_of(receipts.name, truncates=False)
        self.in_use = threading.Lock()
        """Held by the thread that uses the connection."""
        self._rows: SqlRows | None = None
        self._lent: RootTransaction | None = None
        """The transaction of the connection that was lent to the application in this batch; None before that."""

    @property
    def rows(self) -> SqlRows:
        """The domain's rows, by the connection of the transaction under way."""
        assert self._rows is not None  # noqa: S101 - a transaction is under way
        return self._rows

    def begin(self) -> DomainState:
        """Start a transaction that locks the domain, waiting for the lock."""
        return self._begun(lambda rows: rows.begin())

    def begin_at_once(self) -> DomainState:
        """Start a transaction that locks the domain. It waits for a domain, but not for a whole file: `FileBusyError`."""
        return self._begun(lambda rows: rows.begin_at_once())

    def begin_if_free(self) -> DomainState | None:
        """Start a transaction that locks the domain, without waiting. None, and no transaction, if others have locked it."""
        return self._begun(lambda rows: rows.begin_if_free())

    def begin_reading(self) -> DomainState:
        """Start a read-only transaction, which sees one state of the domain and keeps nobody waiting."""
        return self._begun(lambda rows: rows.begin_reading())

    def _begun(self, begin: Callable[[SqlRows], _T]) -> _T:
        self._lent = None
        rows = self.connected()
        try:
            return begin(rows)
        except Exception:
            if not getattr(rows.driver, "closed", False):
                raise
            # The server went away while the connection was idle, so nothing is lost.
            self.discard()
            return begin(self.connected())

    def connected(self) -> SqlRows:
        """The domain's rows, by a connection to the database that the address leads to now."""
        database = self._database
        if self._rows is not None and (self._rows.connection.closed or database.is_replaced(self._rows.driver)):
            self.discard()
        if self._rows is None:
            connection = self.engine.connect()
            rows = self._rows = database.rows(connection, self.domain_id)
            database.watch_idle(
                rows.driver, lambda: not (self.in_use.locked() or rows.in_transaction), self._discard_if_idle
            )
            keep_whole(connection, lambda: self._lent is not None, self._check_not_undone)
        return self._rows

    def _check_not_undone(self) -> None:
        """Raise if SQLite has rolled the transaction back by itself: later statements would be committed without the ids."""
        rows, lent = self.rows, self._lent
        if lent is not None and rows.connection.get_transaction() is lent and not rows.in_transaction:
            raise ended_error(rows.connection, rows.dbapi)

    def record(self, state: DomainState, changes: Changes) -> None:
        """Make the changes and save the domain's new state.

        `StoreBusyError` if the domain's last number isn't that of the state that `begin` has read: then the lock was lost.
        """
        rows, lent = self.rows, self._lent
        has_ended = lent is not None and not (lent.is_active and rows.connection.get_transaction() is lent)
        if has_ended or not rows.in_transaction:  # outside a transaction, each statement would be committed by itself
            raise ended_error(rows.connection, rows.dbapi)
        rows.record(state, changes)
        self.vacuum.note(len(changes.gone))

    def join(self, connection: object, patience_secs: float) -> JoinedLog:
        """The log in the transaction of a caller's connection; `SettingsError` if it can't join that."""
        with translated(self.url):
            callers = joinable(connection, self.engine.dialect, "batch()", may_await=True)
            return JoinedLog(callers, self._database.rows(callers, self.domain_id), self, patience_secs)

    def delete_batch_numbers(self, state: DomainState, writer: int) -> None:
        """Delete a receiver's batch number, and old numbers of dead receivers, in the transaction under way."""
        over = (batch_numbers.c.writer == writer) | (batch_numbers.c.last_seq < state.last_seq - _KEPT_SEQS)
        self.connection.execute(delete(batch_numbers).where(batch_numbers.c.domain_id == state.domain_id, over))

    @property
    def holder(self) -> object:
        """The connection, which holds the lock if there is one."""
        return None if self._rows is None else self._rows.connection

    @property
    def connection(self) -> Connection:
        """The connection under way, for statements of the application in the same transaction."""
        connection = self.rows.connection
        if self._lent is None:
            # Makes SQLAlchemy take over the driver's transaction, which is under way.
            self._lent = connection.get_transaction() or connection.begin()
        return connection

    def commit(self) -> None:
        rows, self._lent = self.rows, None
        with self._database.committing(rows.connection):
            # SQLAlchemy knows of a transaction only if the connection was lent to the application: our own statements go to the
            # driver directly.
            (rows.connection.get_transaction() or rows.driver).commit()

    def rollback(self) -> None:
        """Roll the transaction back, or discard the connection if that fails. Raises nothing but interrupts."""
        try:
            if self._rows is not None and not self._rows.connection.closed:
                self._rows.connection.rollback()  # does nothing if only the driver knows of the transaction
                self._rows.driver.rollback()
        except BaseException as error:
            self.discard()  # whatever is wrong, the transaction ends with its connection
            if not isinstance(error, Exception):
                raise

    def discard(self) -> None:
        """Discard the connection, which an error may have broken. The next transaction makes another."""
        rows, self._rows = self._rows, None
        if rows is not None:
            discard(rows.connection)

    def _discard_if_idle(self) -> None:
        with acquired_if_free(self.in_use) as is_ours:
            if is_ours and self._rows is not None and not self._rows.in_transaction:
                self.discard()

    def give_back_space(self) -> None:
        """Give back some of the space of deleted rows if it is much. Call it between transactions.

        Never raises: the deletion is committed, and space can be given back the next time.
        """
        try:
            if self._rows is not None:
                self.vacuum.run_if_due(self._rows.driver)
        except Exception as error:  # noqa: BLE001
            failure = store_error(error, self.url)
            _LOGGER.warning("can't give back the space of what was deleted: %s", failure)
            self.discard()

    def close(self) -> None:
        if self._rows is not None:
            with suppress(Exception):
                self._rows.connection.close()
        self.engine.dispose()


class JoinedLog:
    """A domain's log in a caller's transaction: each batch is a savepoint there; the caller commits or rolls back."""

    def __init__(self, connection: Connection, rows: SqlRows, own: OwnLog, patience_secs: float) -> None:
        self.connection = self.holder = connection
        self.transaction, self._savepoint = transactions_of(connection)
        self.rows = rows
        self._own = own
        self._patience_secs = patience_secs

    def is_over(self) -> bool:
        """Whether the caller's transaction is over."""
        return is_over(self.transaction)

    def begin_at_once(self) -> DomainState:
        """Lock the domain until the caller's transaction ends, as `OwnLog.begin_at_once` does."""
        self._own.connected()  # notices, for the caller's connection too, that a file's log was removed
        return self.rows.join(self._patience_secs)

    def check_same(self) -> None:
        """Raise `StoreError` if the transaction doesn't lock our file, but for example a copy of it."""
        if not self._own.rows.is_kept_out():
            raise StoreError(
                "the connection given to batch() locks another file than the receiver's: a copy, or one that was moved away,"
                " or it is opened so that it locks nothing",
                hint="end it, such as by engine.dispose(), and connect to the receiver's own file",
            )

    def record(self, state: DomainState, changes: Changes) -> None:
        """Make the changes and save the domain's new state, as `OwnLog.record` does."""
        connection = self.connection
        is_lost = connection.closed or connection.invalidated
        goes_on = not is_lost and transactions_of(connection) == (self.transaction, self._savepoint)
        if not (goes_on and self.rows.is_joined()):
            raise ended_error(connection, self.rows.dbapi)
        savepoint = connection.begin_nested()
        try:
            self.rows.record(state, changes)
        except BaseException:
            with suppress(Exception):  # a broken connection fails here too, and that must not hide the first error
                savepoint.rollback()
            raise
        savepoint.commit()
        self._own.vacuum.note(len(changes.gone))

    def rollback(self) -> None:
        """Leave rolling back to the caller, but tell SQLAlchemy if the connection is lost."""
        note_loss(self.connection)

    def _callers(self) -> None:
        """Does nothing: the caller does it."""

    commit = discard = give_back_space = _callers


KeptLog = OwnLog | MemoryLog
"""A log whose transactions are our own. `commit` makes durable all that was recorded after `begin`, or nothing."""
DomainLog = OwnLog | MemoryLog | JoinedLog


def is_over(transaction: RootTransaction | None) -> bool:
    """Whether a caller's transaction is over: ended, or lost with its connection, which SQLAlchemy calls active still."""
    return transaction is None or not transaction.is_active or transaction.connection.invalidated


def transactions_of(connection: Connection) -> tuple[RootTransaction | None, NestedTransaction | None]:
    """The transaction and the savepoint of a connection."""
    return connection.get_transaction(), connection.get_nested_transaction()


class EndedByHandError(SettingsError):
    """The application has tried to end a batch's transaction. The transaction goes on."""


def keep_whole(
    connection: Connection, is_lent: Callable[[], bool], check_statement: Callable[[], None] = lambda: None
) -> None:
    """Make a connection refuse a commit, or a statement that ends its transaction, while it is lent to a batch's block.

    `check_statement` may refuse any other statement.
    """

    def refuse(_: Connection) -> None:
        if is_lent():
            raise EndedByHandError(
                "a batch's connection was told to commit, which would keep its rows without its ids; nothing is committed",
                hint="leave committing to the batch: it commits rows and ids together where its block ends",
            )

    def refuse_statement(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        check_statement()
        if _ENDS.match(statement):
            refuse(connection)

    event.listen(connection, "commit", refuse)
    event.listen(connection, "before_cursor_execute", refuse_statement)


def ended_error(connection: Connection, driver: object) -> StoreBusyError | SettingsError:
    """The error for a transaction that ended inside the batch. If the caller ended it, no retry helps: `SettingsError`.

    A session's commit closes the connection, so a retry might commit the session's rows once more.
    """
    if not connection.closed and (connection.invalidated or driver_of(connection) is not driver):
        return StoreBusyError(
            "the connection was lost inside the batch, and the transaction and the domain's lock with it",
            hint="send the batch again",
        )
    return SettingsError(
        "the transaction, savepoint or connection of the batch was ended inside its block, and the batch can't be committed as"
        " a whole",
        hint="leave committing and rolling back to the batch; of a transaction of yours, do either after the batch",
    )


def joinable(connection: object, ours: Dialect, taker: str, *, may_await: bool = False) -> Connection:
    """The connection, in a transaction; `SettingsError` unless it fits our database. Errors name `taker`, which was given it.

    `may_await`: the connection may have an asynchronous driver, as inside `run_sync`.
    """
    if not isinstance(connection, Connection):
        raise SettingsError(
            f"{taker} takes a Connection of SQLAlchemy, not {connection!r:.80}",
            hint="of an Engine: engine.begin(); of a Session: session.connection(); one of asyncio is for an AsyncReceiver",
        )
    if connection.closed or connection.invalidated:
        raise SettingsError(f"the connection given to {taker} is closed", hint="give one that is open: engine.begin()")
    theirs = connection.dialect
    if ours.name != theirs.name or not ((may_await and theirs.is_async) or ours.driver == theirs.driver):
        raise SettingsError(
            f"the connection given to {taker} is for {theirs.name}+{theirs.driver}, the store is in"
            f" {ours.name}+{ours.driver}",
            hint=f"connect to the store's own database, by create_engine('{ours.name}+{ours.driver}://...')",
        )
    if not connection.in_transaction():
        connection.begin()
    return connection
