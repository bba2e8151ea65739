"""A domain's rows in a database, through one connection and in whatever transaction that is: what all databases share.

Statements run on the driver's own connection: for a batch of one receipt, SQLAlchemy's execution of them would cost more
than the database does. Where a caller's driver is asynchronous, an `AwaitedDriver` stands for it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, Self

from sqlalchemy import Connection

from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.store import tables
from receiver.store.codec import to_bytes
from receiver.store.tables import DomainState, RecordedRow

_IDENTITY = {"domain_id", "store_id", "domain_key", "domain_name"}
_CHANGING = tuple(name for name in DomainState._fields if name not in _IDENTITY)
_changing_of = attrgetter(*_CHANGING)
_POLICY_STATE = tables.receipts.c.policy_state.name
_SOURCES_AT_ONCE = 10_000  # SQLite takes 32,766 values in a statement
ROWS_AT_ONCE = 500
"""How many rows are read at once: so few that they are gone before the garbage collector comes to look at them, and that an
event loop gets its turn in between."""


def in_autocommit() -> SettingsError:
    """The error for a connection of the caller's that has no transaction to join."""
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


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; there is at least one number."""
    breaks = [index for index in range(1, len(seqs)) if seqs[index] != seqs[index - 1] + 1]
    return [(seqs[first], seqs[end - 1]) for first, end in pairwise([0, *breaks, len(seqs)])]


class PolicyStates(NamedTuple):
    """A policy state to set on rows: on those of these sources that have none yet; on all rows where `sources` is None."""

    policy_state: int | None
    sources: Sequence[str | None] | None
    """One of them may be None, the anonymous source."""


class BatchNumber(NamedTuple):
    """What a batch leaves in the store if its outcome may have to be looked up; a receiver's next one replaces it."""

    writer: int
    """The receiver's number."""
    batch: int
    """The batch's number, which the receiver counts itself."""


class Changes(NamedTuple):
    """What a transaction does to the rows of a domain, in this order."""

    gone: Sequence[int] = ()
    """The numbers of rows to delete, ascending."""
    policy_states: PolicyStates | None = None
    """To set on rows that are there already."""
    forgotten: Sequence[int] = ()
    """The numbers of rows that are to have an empty id from now on, which no message can have."""
    rows: Sequence[ReceiptValues] = ()
    """To append."""
    batch_number: BatchNumber | None = None
    """None where the batch's outcome won't have to be looked up."""
    recorded: RecordedRow | None = None
    """The batch's receipts for a recording. `memory://` has no place for it."""


class Vacuum(Protocol):
    def note(self, deleted: int) -> None:
        """Note that so many rows have been deleted."""

    def run_if_due(self, driver: Any) -> bool:
        """Give back space if there is much, between transactions; whether more is left to do, for the next time."""


class Statements:
    """The statements that all databases understand, each with the placeholders of its driver."""

    def __init__(self, placeholder: str, *, for_update: str) -> None:
        """`for_update` makes a SELECT lock its rows."""
        p = self.placeholder = placeholder
        columns = ", ".join(tables.receipt_rows.columns)
        self.read = f"SELECT {tables.domain_rows.selected} FROM {tables.domains.name} WHERE domain_id = {p}"
        self.lock = self.read + for_update
        changes = ", ".join(f"{tables.domains.c[name].name} = {p}" for name in _CHANGING)
        # It touches no row if the domain's last number isn't that of the state before: then the lock was lost on the way.
        self.save = f"UPDATE {tables.domains.name} SET {changes} WHERE domain_id = {p} AND last_seq = {p}"
        self.rows_after = (
            f"SELECT {columns} FROM {tables.receipts.name} WHERE domain_id = {p} AND seq > {p} ORDER BY seq"
        )
        self.page_after = f"{self.rows_after} LIMIT {ROWS_AT_ONCE}"
        self.append = f"INSERT INTO {tables.receipts.name} (domain_id, {columns}) VALUES ({p}{f', {p}' * len(tables.receipt_rows.columns)})"
        self.set_state = f"UPDATE {tables.receipts.name} SET {_POLICY_STATE} = {p} WHERE domain_id = {p}"
        self.forget = f"UPDATE {tables.receipts.name} SET unique_message_id = {p}, body_digests = NULL WHERE domain_id = {p} AND seq = {p}"
        recorded_values = ", ".join([p] * len(tables.recorded_rows.columns))
        self.recorded = (
            f"INSERT INTO {tables.recorded.name} ({', '.join(tables.recorded_rows.columns)}) VALUES ({recorded_values})"
        )
        self.last_batch = f"SELECT batch FROM {tables.joined.name} WHERE domain_id = {p} AND writer = {p}"
        # The newest number of a receiver replaces the one before: who looks a batch up asks for the last one committed.
        self.number_batch = (
            f"INSERT INTO {tables.joined.name} (domain_id, writer, batch, last_seq) VALUES ({p}, {p}, {p}, {p})"
            " ON CONFLICT (domain_id, writer) DO UPDATE SET batch = excluded.batch, last_seq = excluded.last_seq"
        )


class AwaitedDriver:
    """An asynchronous driver of the caller's as our statements need one: it stands for the driver's own connection, and for
    the one cursor that all statements share.

    Statements run where SQLAlchemy awaits them, inside `run_sync`. While one waits, such as for a lock, the event loop goes on.
    """

    def __init__(self, connection: Connection) -> None:
        self._adapted = driver_of(connection)
        self._connection = connection
        self._is_numbered = connection.dialect.paramstyle == "numeric_dollar"
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
        # SQLite's cursor keeps such a statement until it is closed. A connection that is closed before, as SQLAlchemy does
        # where a task is cancelled, would live on with its lock for as long as the cursor does.
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
        """Whether each statement is committed by itself; only a server's driver says so."""
        return bool(self._adapted.autocommit)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; only SQLite's driver says so."""
        return bool(self._adapted.driver_connection.in_transaction)

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Tell SQLAlchemy of a connection that is lost. By itself it notices that only by statements of its own.

        asyncpg rolls a lost connection back without an error, so the pool would give it out for ever.
        """
        try:
            yield
        except Exception as error:
            if self._connection.dialect.is_disconnect(error, self._adapted, None):  # type: ignore[arg-type]
                self._connection.invalidate(error)
            raise

    def _written(self, statement: str) -> str:
        return _numbered(statement) if self._is_numbered else statement


@lru_cache
def _numbered(statement: str) -> str:
    """The statement with `$1`, `$2` … in place of each `%s` and `%b`: asyncpg's placeholders."""
    numbers = count(1)
    return re.sub("%[sb]", lambda _: f"${next(numbers)}", statement)


class SqlRows(ABC):
    """The rows of one domain through one connection. Methods that begin a transaction are for a connection of our own."""

    sql: Statements
    server_run: Hashable = None
    """Identifies the run of the server that the transaction under way is in: the time from its start, or from its last
    crash, to its end. Within one run no commit is lost. None where there is no server."""

    def __init__(self, connection: Connection, domain_id: int) -> None:
        self.connection = connection
        self.domain_id = domain_id
        self.is_awaited = connection.dialect.is_async
        """Whether the connection is an asynchronous one of the caller's."""
        self.dbapi: Any = driver_of(connection)
        self.driver: Any = AwaitedDriver(connection) if self.is_awaited else self.dbapi
        """Takes statements: the driver's connection, or what stands for it."""
        self.cursor: Any = self.driver.cursor()
        """One for all short statements."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; where that can't be asked, True."""

    # The first three, and `record`, are as in `OwnLog`.

    @abstractmethod
    def begin(self) -> DomainState: ...

    @abstractmethod
    def begin_if_free(self) -> DomainState | None: ...

    @abstractmethod
    def begin_reading(self) -> DomainState: ...

    @abstractmethod
    def join(self, patience_secs: float) -> DomainState:
        """Have the domain to ourselves until the caller's transaction ends; `SettingsError` if there is none."""

    def is_joined(self) -> bool:
        """Whether the transaction that was joined goes on; asked once. Only the database knows whether an error ended it."""
        return self.in_transaction

    def is_kept_out(self) -> bool:
        """Whether a caller's transaction, which has the domain, keeps this connection out of it; only a file is asked."""
        return True

    @abstractmethod
    def append(self, rows: Sequence[ReceiptValues]) -> None: ...

    @abstractmethod
    def delete(self, seqs: Sequence[int]) -> None: ...

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        """The rows numbered above `seq`, in order, some hundreds at a time; the last one there is has the number `last_seq`.

        By a statement for each page: a cursor that stays open can't be awaited here.
        """
        while seq < last_seq and (rows := self.cursor.execute(self.sql.page_after, (self.domain_id, seq)).fetchall()):
            yield tables.receipt_rows.read_columns(rows)
            seq = rows[-1][0]

    def read(self, statement: str) -> DomainState:
        return self.fetched(self.cursor.execute(statement, (self.domain_id,)).fetchone())

    def fetched(self, values: Sequence[Any] | None) -> DomainState:
        """The state of these values of the domain's row; `StoreError` for None, where there is no row."""
        if values is None:
            raise StoreError(
                "the domain is gone from the database",
                hint="it was dropped, or the database replaced: open it again, and it begins anew",
            )
        return tables.domain_rows.read(values)

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        self.save(state, before)
        if changes.batch_number is not None:
            self.cursor.execute(self.sql.number_batch, (self.domain_id, *changes.batch_number, state.last_seq))
        if changes.recorded is not None:
            self.cursor.execute(self.sql.recorded, tables.recorded_rows.stored(changes.recorded))
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

    def save(self, state: DomainState, before: DomainState, with_it: str = "", values: Sequence[Any] = ()) -> None:
        """Save what is new in the domain's state. The statement begins with `with_it`, which takes the `values`."""
        self.cursor.execute(with_it + self.sql.save, (*values, *_changing_of(state), state.domain_id, before.last_seq))
        if self.cursor.rowcount != 1:
            raise StoreBusyError(
                "others have changed the domain inside the batch, though it was locked", hint="send the batch again"
            )

    def _set_states(self, states: PolicyStates) -> None:
        """Set a policy state; rows are read to find those of the sources, for no index has them."""
        values = (states.policy_state, self.domain_id)
        if states.sources is None:
            self.cursor.execute(self.sql.set_state, values)
            return
        update = f"{self.sql.set_state} AND {_POLICY_STATE} IS NULL"
        if None in states.sources:
            self.cursor.execute(f"{update} AND message_source_id IS NULL", values)
        named = [to_bytes(source) for source in states.sources if source]
        for first in range(0, len(named), _SOURCES_AT_ONCE):
            part = named[first : first + _SOURCES_AT_ONCE]
            placeholders = ", ".join([self.sql.placeholder] * len(part))
            self.cursor.execute(f"{update} AND message_source_id IN ({placeholders})", (*values, *part))

    def last_batch(self, writer: int) -> int:
        """The last batch whose number a receiver has left, as seen from the transaction under way; 0 for none."""
        row = self.cursor.execute(self.sql.last_batch, (self.domain_id, writer)).fetchone()
        return 0 if row is None else int(row[0])

    def stored(self, rows: Sequence[ReceiptValues]) -> list[tuple[Any, ...]]:
        """The values of `Statements.append` for each row."""
        if len(rows) == 1:  # for which converting column by column takes twice as long
            return [(self.domain_id, *tables.receipt_rows.stored(rows[0]))]
        return [(self.domain_id, *values) for values in tables.receipt_rows.stored_many(rows)]
