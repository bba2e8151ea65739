"""A domain's log in a database: what SQLite and PostgreSQL have in common, also in a transaction of the caller's.

Statements run on the driver's own connection: for a batch of one receipt, SQLAlchemy's execution of them would cost more
than the database does. Where the caller's driver is asynchronous, an `AwaitedDriver` stands for it.

Nothing reports whether a caller's transaction, or the savepoint around a batch, was committed or rolled back. So each
batch leaves its number in it, to be looked up later: there is no event to miss and no constraint violation to catch.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from itertools import pairwise
from operator import attrgetter
from typing import Any, Protocol

from sqlalchemy import Connection, Dialect, Engine, RootTransaction, delete, event

from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.message import ReceiptColumns, ReceiptValues
from receiver.settings import StoreSettings
from receiver.store.awaited_driver import AwaitedDriver
from receiver.store.log import BatchNumber, Changes, PolicyStates
from receiver.store.tables import DomainState, domain_rows, domains, joined, receipt_rows, receipts
from receiver.store.values import to_bytes

__all__ = [
    "IN_AUTOCOMMIT",
    "JOIN_HINT",
    "ROWS_AT_ONCE",
    "JoinedLog",
    "SqlLog",
    "Vacuum",
    "batch_number_values",
    "discard",
    "driver_of",
    "forget_batches",
    "joinable",
    "lock_lost",
    "runs_of",
]

_LOGGER = logging.getLogger("receiver")


def driver_of(connection: Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.dbapi_connection


def discard(connection: Connection) -> None:
    """End a connection, whatever state it is in."""
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()


_IDENTITY = {"domain_id", "store_id", "domain_key", "domain_name", "policy"}
_CHANGING = tuple(name for name in DomainState._fields if name not in _IDENTITY)
_BY_EACH_BATCH = ("last_seq", "last_writer", "latest_us", "clock_us", "receipts")
_changing_of, _changing_each_time_of = attrgetter(*_CHANGING), attrgetter(*_BY_EACH_BATCH)
_seldom_changing_of = attrgetter(*(name for name in _CHANGING if name not in _BY_EACH_BATCH))
_SOURCES_AT_ONCE = 10_000  # SQLite takes 32,766 values in a statement
ROWS_AT_ONCE = 500
"""So few rows are read that they are gone before the garbage collector comes to look at them, and that an event loop gets
its turn between them."""
IN_AUTOCOMMIT = "the connection is in AUTOCOMMIT, so there is no transaction to join"
JOIN_HINT = "give a connection with a transaction, or none: then a transaction is made"


def batch_number_values(state: DomainState, batch_number: BatchNumber) -> tuple[int, ...]:
    """The values of `sql_batch_number`."""
    return state.domain_id, batch_number.writer, batch_number.batch, state.last_seq


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; there is at least one number."""
    breaks = [index for index in range(1, len(seqs)) if seqs[index] != seqs[index - 1] + 1]
    return [(seqs[first], seqs[end - 1]) for first, end in pairwise([0, *breaks, len(seqs)])]


def _ended(connection: Connection, dbapi: Any) -> StoreBusyError | SettingsError:
    """The error for a transaction that ended inside the batch. One that its caller ended isn't worth another try.

    `dbapi` is the driver's connection that the batch began with.
    """
    if connection.closed or connection.invalidated or driver_of(connection) is not dbapi:
        return StoreBusyError(
            "the connection was lost or closed inside the batch, and the transaction and the domain's lock with it",
            hint="send the batch again",
        )
    return SettingsError(
        "the transaction or savepoint of the batch was ended inside its block, so its ids aren't recorded",
        hint="leave committing and rolling back to the batch; of a transaction of yours, do either after the batch",
    )


def lock_lost() -> StoreBusyError:
    """The error for a domain whose row isn't the one that the transaction has locked."""
    return StoreBusyError(
        "others have changed the domain inside the batch, though it was locked", hint="send the batch again"
    )


class Vacuum(Protocol):
    def note(self, deleted: int) -> None:
        """Note that so many rows have been deleted."""

    def run_if_due(self, driver: Any) -> bool:
        """Give back space if there is much, between transactions; whether more is left to do, for the next time."""


class SqlLog(ABC):
    """One domain's log through a connection of the receiver's own, made when it is first needed."""

    naps = False
    server_run: Hashable = None
    placeholder: str
    for_update: str
    """What makes a SELECT lock its rows."""
    _vacuum: Vacuum

    def __init__(self, engine: Engine, settings: StoreSettings, domain_id: int) -> None:
        self.engine = engine
        self.settings = settings
        self.domain_id = domain_id
        self.is_idle: Callable[[], bool] = lambda: False
        """Whether no thread uses the connection. To be replaced: this one says no, to be safe."""
        self.dbapi: Any = None
        self.cursor: Any = None
        """One cursor for all short statements."""
        self.is_awaited = False
        """Whether the connection is an asynchronous one of the caller's."""
        self.is_joined = False
        """Whether the transaction is the caller's, who commits it."""
        self._connection: Connection | None = None
        self._lent: RootTransaction | None = None
        p = self.placeholder
        columns = ", ".join(receipt_rows.columns)
        self.sql_read = f"SELECT {domain_rows.selected} FROM {domains.name} WHERE domain_id = {p}"
        self.sql_lock = self.sql_read + self.for_update
        self._sql_save, self._sql_save_less = map(self._update_of, (_CHANGING, _BY_EACH_BATCH))
        self.sql_rows_after = f"SELECT {columns} FROM {receipts.name} WHERE domain_id = {p} AND seq > {p} ORDER BY seq"
        self.sql_page_after = f"{self.sql_rows_after} LIMIT {ROWS_AT_ONCE}"
        values = ", ".join([p] * (1 + len(receipt_rows.columns)))
        self._policy_state = receipts.c.policy_state.name
        self._sql_set_state = f"UPDATE {receipts.name} SET {self._policy_state} = {p} WHERE domain_id = {p}"
        self.sql_forget = f"UPDATE {receipts.name} SET unique_message_id = {p}, body_digests = NULL WHERE domain_id = {p} AND seq = {p}"
        self.sql_append = f"INSERT INTO {receipts.name} (domain_id, {columns}) VALUES ({values})"
        self.sql_last_batch = f"SELECT batch FROM {joined.name} WHERE domain_id = {p} AND writer = {p}"
        # The newest replaces the one before.
        self.sql_batch_number = (
            f"INSERT INTO {joined.name} (domain_id, writer, batch, last_seq) VALUES ({p}, {p}, {p}, {p})"
            " ON CONFLICT (domain_id, writer) DO UPDATE SET batch = excluded.batch, last_seq = excluded.last_seq"
        )

    def _update_of(self, names: Iterable[str]) -> str:
        p = self.placeholder
        changes = ", ".join(f"{domains.c[name].name} = {p}" for name in names)
        return f"UPDATE {domains.name} SET {changes} WHERE domain_id = {p} AND last_seq = {p}"

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is under way; where that can't be asked, True."""

    @abstractmethod
    def begin(self) -> DomainState: ...

    @abstractmethod
    def begin_if_free(self) -> DomainState | None: ...

    @abstractmethod
    def begin_reading(self) -> DomainState: ...

    @abstractmethod
    def lock_in_callers_transaction(self) -> DomainState:
        """Have the domain to ourselves until the caller's transaction ends; `SettingsError` if there is none."""

    @abstractmethod
    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]: ...

    def pages_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        """As `rows_after`, by a statement for each few rows: a cursor that stays open can't be awaited here."""
        while seq < last_seq and (rows := self.cursor.execute(self.sql_page_after, (self.domain_id, seq)).fetchall()):
            yield receipt_rows.read_columns(rows)
            seq = rows[-1][0]

    @abstractmethod
    def append(self, rows: Sequence[ReceiptValues]) -> None: ...

    @abstractmethod
    def delete(self, seqs: Sequence[int]) -> None: ...

    def connect(self) -> None:
        if self._connection is None or self._connection.closed:
            connection = self.engine.connect()
            self.use(connection)
            event.listen(connection, "commit", self._refuse_while_lent)
        self._lent = None

    def use(self, connection: Connection) -> None:
        self._connection = connection
        self._lent = None
        self.is_awaited = connection.dialect.is_async
        self.dbapi = AwaitedDriver(connection) if self.is_awaited else driver_of(connection)
        self.cursor = self.dbapi.cursor()

    def read(self, statement: str) -> DomainState:
        return self.fetched(self.cursor.execute(statement, (self.domain_id,)).fetchone())

    def fetched(self, values: Sequence[Any] | None) -> DomainState:
        """The state of these values of the domain's row; `StoreError` for None, where there is no row."""
        if values is None:
            raise StoreError(
                "the domain is gone from the database",
                hint="it was dropped, or the database replaced: open it again, and it begins anew",
            )
        return domain_rows.read(values)

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        self.save_state("", (), state, before)
        if changes.batch_number is not None:
            self.cursor.execute(self.sql_batch_number, batch_number_values(state, changes.batch_number))
        self.change_rows(changes)

    def change_rows(self, changes: Changes) -> None:
        if changes.gone:
            self.delete(changes.gone)
        for states in changes.policy_states:
            self._set_states(states)
        for seq in changes.forgotten:
            self.cursor.execute(self.sql_forget, (to_bytes(""), self.domain_id, seq))
        if changes.rows:
            self.append(changes.rows)

    def _set_states(self, states: PolicyStates) -> None:
        """Set a policy state; rows are read to find those of the sources, for no index has them."""
        values = (states.policy_state, self.domain_id)
        if states.sources is None:
            self.cursor.execute(self._sql_set_state, values)
            return
        update = f"{self._sql_set_state} AND {self._policy_state} IS NULL"
        if None in states.sources:
            self.cursor.execute(f"{update} AND message_source_id IS NULL", values)
        named = [to_bytes(source) for source in states.sources if source]
        for first in range(0, len(named), _SOURCES_AT_ONCE):
            part = named[first : first + _SOURCES_AT_ONCE]
            placeholders = ", ".join([self.placeholder] * len(part))
            self.cursor.execute(f"{update} AND message_source_id IN ({placeholders})", (*values, *part))

    def last_batch(self, writer: int) -> int:
        row = self.cursor.execute(self.sql_last_batch, (self.domain_id, writer)).fetchone()
        return 0 if row is None else int(row[0])

    def save_state(self, with_it: str, values: Sequence[Any], state: DomainState, before: DomainState) -> None:
        """Save what is new in the domain's state, by a statement that begins otherwise and takes other values first."""
        statement, changed = self.state_update(state, before)
        self.cursor.execute(with_it + statement, (*values, *changed))
        if self.cursor.rowcount != 1:
            raise lock_lost()

    def state_update(self, state: DomainState, before: DomainState) -> tuple[str, tuple[Any, ...]]:
        """The statement that saves what is new in the domain's state, and its values. Raises if the transaction has ended."""
        lent = self._lent
        has_ended = lent is not None and not (lent.is_active and self.connection.get_transaction() is lent)
        if has_ended or not self.in_transaction:  # outside of one, each statement would be committed by itself
            assert self._connection is not None  # noqa: S101 - a batch is under way
            raise _ended(self._connection, self.dbapi)
        if _seldom_changing_of(state) == _seldom_changing_of(before):
            statement, changed = self._sql_save_less, _changing_each_time_of(state)
        else:
            statement, changed = self._sql_save, _changing_of(state)
        return statement, (*changed, self.domain_id, before.last_seq)

    def stored(self, rows: Sequence[ReceiptValues]) -> list[tuple[Any, ...]]:
        """The values of `sql_append` for each row."""
        if len(rows) == 1:  # for which converting column by column takes twice as long
            return [(self.domain_id, *receipt_rows.stored(rows[0]))]
        return [(self.domain_id, *values) for values in receipt_rows.stored_many(rows)]

    @property
    def holder(self) -> object:
        return self._connection

    @property
    def is_lent(self) -> bool:
        """Whether the application has had the connection since the transaction began."""
        return self._lent is not None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None  # noqa: S101 - a batch is under way
        if self._lent is None:
            # Takes over the driver's transaction, which is under way.
            self._lent = self._connection.get_transaction() or self._connection.begin()
        return self._connection

    def _refuse_while_lent(self, _: Connection) -> None:
        if self._lent is not None:
            raise SettingsError(
                "a batch's connection was told to commit, which would keep its rows without its ids; nothing is committed",
                hint="leave committing to the batch: it commits rows and ids together where its block ends",
            )

    def commit(self) -> None:
        self._lent = None
        transaction = self._connection.get_transaction() if self._connection else None
        if transaction is None:
            self.dbapi.commit()
        else:
            transaction.commit()

    def rollback(self) -> None:
        try:
            if self._connection is not None and not self._connection.closed:
                self._connection.rollback()
                self.dbapi.rollback()
        except Exception:  # noqa: BLE001 - whatever it is, the transaction ends with its connection
            self.discard()

    def discard(self) -> None:
        connection, self._connection = self._connection, None
        self.dbapi = self.cursor = None
        if connection is not None:
            discard(connection)

    def give_back_space(self) -> None:
        try:
            self._vacuum.run_if_due(self.dbapi)
        except Exception:
            _LOGGER.warning("can't give back the space of what was deleted: %s", self.engine.url, exc_info=True)
            self.discard()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self.engine.dispose()


_KEPT_SEQS = 1_000_000_000
"""For how many more receipts of the domain a killed receiver's number is kept, by which its recording can be settled."""


class JoinedLog:
    """A domain's log in the caller's transaction: each batch is a savepoint there, and commits or rolls back nothing itself."""

    naps = False

    def __init__(self, log: SqlLog, connection: object) -> None:
        connection = joinable(connection, log.engine.dialect, "batch()", may_await=True)
        self.connection = self.holder = connection
        self.transaction = connection.get_transaction()
        self._savepoint = connection.get_nested_transaction()
        self._dbapi = driver_of(connection)
        log = self._log = copy(log)
        log.is_joined = True
        log.use(connection)
        self.begin = self.begin_if_free = log.lock_in_callers_transaction  # it never naps
        self.last_batch = log.last_batch
        self.rows_after = log.pages_after if log.is_awaited else log.rows_after

    @property
    def server_run(self) -> Hashable:
        return self._log.server_run

    def is_over(self) -> bool:
        """Whether the caller's transaction has ended."""
        return self.transaction is None or not self.transaction.is_active

    def begin_reading(self) -> DomainState:
        return self._log.read(self._log.sql_read)

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        connection = self.connection
        under_way = connection.get_transaction(), connection.get_nested_transaction()
        if connection.closed or connection.invalidated or under_way != (self.transaction, self._savepoint):
            raise _ended(connection, self._dbapi)
        savepoint = connection.begin_nested()
        try:
            self._log.record(state, changes, before=before)
        except BaseException:
            with suppress(Exception):  # where the connection is broken, that must not hide by what
                savepoint.rollback()
            raise
        savepoint.commit()

    def _callers(self) -> None:
        """Nothing to do, for the caller does it."""

    commit = rollback = discard = give_back_space = close = _callers


def joinable(connection: object, ours: Dialect, taker: str, *, may_await: bool = False) -> Connection:
    """The connection, in a transaction; SettingsError unless it fits our database. `taker`, for errors, was given it.

    With `may_await` that may be one of an asynchronous driver, as `run_sync` gives it.
    """
    if not isinstance(connection, Connection):
        raise SettingsError(
            f"{taker} takes a Connection of SQLAlchemy, not {connection!r:.80}",
            hint="of a Session: session.connection(); one of asyncio is for an AsyncReceiver",
        )
    if connection.closed or connection.invalidated:
        raise SettingsError(f"the connection given to {taker} is closed")
    theirs = connection.dialect
    if ours.name != theirs.name or not ((may_await and theirs.is_async) or ours.driver == theirs.driver):
        raise SettingsError(
            f"the connection given to {taker} is for {theirs.name}+{theirs.driver}, the store is in"
            f" {ours.name}+{ours.driver}",
            hint="give a connection to the store's own database, through the same driver",
        )
    if not connection.in_transaction():
        connection.begin()
    return connection


def forget_batches(connection: Connection, state: DomainState, writer: int) -> None:
    """Delete one receiver's number, and those so many receipts old that whoever left them died without closing."""
    over = (joined.c.writer == writer) | (joined.c.last_seq < state.last_seq - _KEPT_SEQS)
    connection.execute(delete(joined).where(joined.c.domain_id == state.domain_id, over))
