"""A domain's rows in a database, by one connection, in any transaction: the statements that all databases share.

Statements run on the driver's own connection: for a batch of one receipt, executing them by SQLAlchemy would cost more
than the database does. If a caller's driver is asynchronous, an `AwaitedDriver` adapts it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, Self

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from receiver.errors import ReceiverError, SettingsError, StoreBusyError, StoreError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.store import tables
from receiver.store.codec import parts_of, to_bytes
from receiver.store.tables import DomainState, RecordedRow

_IDENTITY = {"domain_id", "store_id", "domain_key", "domain_name"}
_CHANGING = tuple(name for name in DomainState._fields if name not in _IDENTITY)
_changing_of = attrgetter(*_CHANGING)
_POLICY_STATE = tables.receipts.c.policy_state.name
_SOURCES_AT_ONCE = 10_000  # SQLite takes 32,766 values in a statement
ROWS_AT_ONCE = 500
"""How many rows are read at once: so few that they are freed before the garbage collector scans them, and that an event
loop gets its turn in between."""


def autocommit_error() -> SettingsError:
    """The error for a caller's connection without a transaction to join."""
    return SettingsError(
        "the connection is in AUTOCOMMIT, so there is no transaction to join",
        hint="give a connection with a transaction, or none: then a transaction is made",
    )


def driver_of(connection: Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.dbapi_connection


def discard(connection: Connection) -> None:
    """End a connection, whatever state it is in."""
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()


def end_if_interrupted(connection: Connection, error: BaseException) -> None:
    """End a connection after an interrupt: a statement may be half done, so its transaction must not commit.

    A signal's handler may raise any exception, so whatever isn't an error of ours or of the database is one.
    """
    if not isinstance(error, ReceiverError | SQLAlchemyError):
        with suppress(Exception):
            connection.invalidate()


def note_loss(connection: Connection) -> None:
    """Tell SQLAlchemy if a caller's connection is lost. Otherwise rolling back would raise its error in place of ours."""
    if not (connection.closed or connection.invalidated) and getattr(driver_of(connection), "closed", False):
        connection.invalidate()


class PolicyStates(NamedTuple):
    """A policy state to set on rows: on those of these sources that have none yet, or on all rows if `sources` is None."""

    policy_state: int | None
    sources: Sequence[str | None] | None
    """The sources; None among them is the anonymous source."""


class Changes(NamedTuple):
    """A transaction's changes to the rows of a domain, in the order in which they are made."""

    gone: Sequence[int] = ()
    """The numbers of rows to delete, ascending."""
    policy_states: PolicyStates | None = None
    """A state to set on rows that are there already."""
    forgotten: Sequence[int] = ()
    """The numbers of rows whose id becomes empty, as no message's can be."""
    rows: Sequence[ReceiptValues] = ()
    """The rows to append."""
    batch_number: tuple[int, int] | None = None
    """The receiver's number and the number that it gives to the batch, to look the batch's outcome up. The receiver's next one
    replaces it. None if there will be nothing to look up."""
    recorded: RecordedRow | None = None
    """The batch's receipts for a recording; `memory://` ignores it."""


class Vacuum(Protocol):
    def note(self, deleted: int) -> None:
        """Note that so many rows have been deleted."""

    def run_if_due(self, driver: Any) -> bool:
        """Give back space if it is much. Call it between transactions. Returns whether more is left for the next call."""


class Statements:
    """The statements that all databases understand, each with the placeholders of its driver."""

    def __init__(self, placeholder: str, *, for_update: str) -> None:
        """`for_update` makes a SELECT lock its rows."""
        p = self.placeholder = placeholder
        columns = ", ".join(tables.receipt_codec.columns)
        self.read = f"SELECT {tables.domain_codec.selected} FROM {tables.domains.name} WHERE domain_id = {p}"
        self.lock = self.read + for_update
        changes = ", ".join(f"{tables.domains.c[name].name} = {p}" for name in _CHANGING)
        # It updates no row if the domain's last number isn't that of the state before: then the lock was lost meanwhile.
        self.save = f"UPDATE {tables.domains.name} SET {changes} WHERE domain_id = {p} AND last_seq = {p}"
        self.rows_after = (
            f"SELECT {columns} FROM {tables.receipts.name} WHERE domain_id = {p} AND seq > {p} ORDER BY seq"
        )
        self.page_after = f"{self.rows_after} LIMIT {ROWS_AT_ONCE}"
        self.append = f"INSERT INTO {tables.receipts.name} (domain_id, {columns}) VALUES ({p}{f', {p}' * len(tables.receipt_codec.columns)})"
        self.set_state = f"UPDATE {tables.receipts.name} SET {_POLICY_STATE} = {p} WHERE domain_id = {p}"
        self.forget = f"UPDATE {tables.receipts.name} SET unique_message_id = {p}, body_digests = NULL WHERE domain_id = {p} AND seq = {p}"
        recorded_values = ", ".join([p] * len(tables.recorded_codec.columns))
        self.recorded = f"INSERT INTO {tables.recorded.name} ({', '.join(tables.recorded_codec.columns)}) VALUES ({recorded_values})"
        self.last_batch = f"SELECT batch FROM {tables.batch_numbers.name} WHERE domain_id = {p} AND writer = {p}"
        # A receiver's newest number replaces the one before: a lookup asks only for the last one committed.
        self.number_batch = (
            f"INSERT INTO {tables.batch_numbers.name} (domain_id, writer, batch, last_seq) VALUES ({p}, {p}, {p}, {p})"
            " ON CONFLICT (domain_id, writer) DO UPDATE SET batch = excluded.batch, last_seq = excluded.last_seq"
        )


class AwaitedDriver:
    """Adapts a caller's asynchronous driver to our statements: it acts as the driver's connection and as its one cursor.

    It is used inside `run_sync`, where SQLAlchemy awaits statements: while one waits, as for a lock, the event loop goes on.
    """

    def __init__(self, connection: Connection) -> None:
        self._adapted = driver_of(connection)
        self._connection = connection
        self._is_asyncpg = connection.dialect.driver == "asyncpg"
        self._cursor = self._adapted.cursor()

    def cursor(self) -> Self:
        return self

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        with self._noticing_loss():
            self._cursor.execute(self._written(statement), tuple(values))
        return self

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        # SQLite's cursor keeps such a statement until the cursor is closed. If the connection is closed first, as SQLAlchemy
        # does when a task is cancelled, it lives on with its lock for as long as the cursor.
        cursor = self._adapted.cursor()
        try:
            with self._noticing_loss():
                cursor.executemany(self._written(statement), rows)
        finally:
            cursor.close()

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> Sequence[Any]:
        rows: Sequence[Any] = self._cursor.fetchall()
        return rows

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    @property
    def autocommit(self) -> bool:
        """Whether each statement is committed by itself; only drivers of a server have this."""
        return bool(self._adapted.autocommit)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; only SQLite's driver has this."""
        return bool(self._adapted.driver_connection.in_transaction)

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Tell SQLAlchemy that the connection is lost: SQLAlchemy notices a loss only by statements of its own.

        asyncpg rolls a lost connection back without an error, so the pool would give it out for ever. If its BEGIN is cancelled,
        SQLAlchemy sees no transaction, and a later commit there would only end a savepoint.
        """
        try:
            yield
        except BaseException as error:
            is_cancelled = self._is_asyncpg and not isinstance(error, Exception)
            if is_cancelled or self._connection.dialect.is_disconnect(error, self._adapted, None):  # type: ignore[arg-type]
                self._connection.invalidate(error)
            raise

    def _written(self, statement: str) -> str:
        return _numbered(statement) if self._is_asyncpg else statement


@lru_cache
def _numbered(statement: str) -> str:
    """The statement with `$1`, `$2` … in place of each `%s` and `%b`: asyncpg's placeholders."""
    numbers = count(1)
    return re.sub("%[sb]", lambda _: f"${next(numbers)}", statement)


class SqlRows(ABC):
    """The rows of one domain, by one connection. Methods that begin a transaction are for a connection of our own."""

    sql: Statements
    server_run: Hashable = None
    """Identifies the server's run at the time of the transaction under way. A run goes from a start of the server, or from a
    crash, to its end. Within one run no commit is lost. None without a server."""

    def __init__(self, connection: Connection, domain_id: int) -> None:
        self.connection = connection
        self.domain_id = domain_id
        self.is_awaited = connection.dialect.is_async
        """Whether the connection is a caller's asynchronous one."""
        self.dbapi: Any = driver_of(connection)
        self.driver: Any = AwaitedDriver(connection) if self.is_awaited else self.dbapi
        """Takes statements: the driver's connection, or its `AwaitedDriver`."""
        self.cursor: Any = self.driver.cursor()
        """One for all short statements."""
        self._last_seq = 0
        """The domain's last number, as it was read or saved last."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; True if the driver can't say."""

    # `OwnLog` describes these four methods, and `record`.

    @abstractmethod
    def begin(self) -> DomainState: ...

    @abstractmethod
    def begin_at_once(self) -> DomainState: ...

    @abstractmethod
    def begin_if_free(self) -> DomainState | None: ...

    @abstractmethod
    def begin_reading(self) -> DomainState: ...

    @abstractmethod
    def join(self, patience_secs: float) -> DomainState:
        """Lock the domain until the caller's transaction ends; `SettingsError` if there is no transaction."""

    def is_joined(self) -> bool:
        """Whether the joined transaction goes on: only the database knows whether an error ended it. Call it once."""
        return self.in_transaction

    def is_kept_out(self) -> bool:
        """Whether the lock of a caller's transaction keeps this connection out. Only a file can give another answer."""
        return True

    @abstractmethod
    def append(self, rows: Sequence[ReceiptValues]) -> None: ...

    @abstractmethod
    def delete(self, seqs: Sequence[int]) -> None: ...

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        """The rows numbered above `seq`, in order, some hundreds at a time; the domain's last row has the number `last_seq`.

        Each page is a statement of its own, because a cursor that stays open can't be awaited here.
        """
        while seq < last_seq and (rows := self.cursor.execute(self.sql.page_after, (self.domain_id, seq)).fetchall()):
            yield tables.receipt_codec.read_columns(rows)
            seq = rows[-1][0]

    def read(self, statement: str) -> DomainState:
        return self.fetched(self.cursor.execute(statement, (self.domain_id,)).fetchone())

    def fetched(self, values: Sequence[Any] | None) -> DomainState:
        """The state from the values of the domain's row; `StoreError` for None: the row is gone."""
        if values is None:
            raise StoreError(
                "the domain is gone from the database",
                hint="it was dropped, or the database replaced: open it again, and it begins anew",
            )
        state = tables.domain_codec.read(values)
        self._last_seq = state.last_seq
        return state

    def record(self, state: DomainState, changes: Changes) -> None:
        self.save(state)
        if changes.batch_number is not None:
            self.cursor.execute(self.sql.number_batch, (self.domain_id, *changes.batch_number, state.last_seq))
        if changes.recorded is not None:
            self.cursor.execute(self.sql.recorded, tables.recorded_codec.stored(changes.recorded))
        self.change_rows(changes)

    def change_rows(self, changes: Changes) -> None:
        """Delete, change and append rows of the domain."""
        if changes.gone:
            self.delete(changes.gone)
        if changes.policy_states is not None:
            self._set_states(changes.policy_states)
        for seq in changes.forgotten:
            self.cursor.execute(self.sql.forget, (b"", self.domain_id, seq))
        if changes.rows:
            self.append(changes.rows)

    def save(self, state: DomainState, with_it: str = "", values: Sequence[Any] = ()) -> None:
        """Save the changes of the domain's state. The statement begins with `with_it`, which takes the `values`."""
        self.cursor.execute(with_it + self.sql.save, (*values, *_changing_of(state), state.domain_id, self._last_seq))
        if self.cursor.rowcount != 1:
            raise StoreBusyError(
                "others have changed the domain inside the batch, though it was locked", hint="send the batch again"
            )
        self._last_seq = state.last_seq

    def _set_states(self, states: PolicyStates) -> None:
        """Set a policy state. Without an index on sources, this reads all rows."""
        values = (states.policy_state, self.domain_id)
        if states.sources is None:
            self.cursor.execute(self.sql.set_state, values)
            return
        update = f"{self.sql.set_state} AND {_POLICY_STATE} IS NULL"
        if None in states.sources:
            self.cursor.execute(f"{update} AND message_source_id IS NULL", values)
        named = [to_bytes(source) for source in states.sources if source]
        for part in parts_of(named, _SOURCES_AT_ONCE):
            placeholders = ", ".join([self.sql.placeholder] * len(part))
            self.cursor.execute(f"{update} AND message_source_id IN ({placeholders})", (*values, *part))

    def last_batch(self, writer: int) -> int:
        """The last batch number of a receiver, as seen in the transaction under way; 0 for none."""
        row = self.cursor.execute(self.sql.last_batch, (self.domain_id, writer)).fetchone()
        return 0 if row is None else int(row[0])

    def stored(self, rows: Sequence[ReceiptValues]) -> list[tuple[Any, ...]]:
        """The values of `Statements.append` for each row."""
        if len(rows) == 1:  # converting a single row column by column takes twice as long
            return [(self.domain_id, *tables.receipt_codec.stored(rows[0]))]
        return [(self.domain_id, *values) for values in zip(*tables.receipt_codec.stored_columns(rows), strict=True)]
