"""What a store keeps of one domain, and what can be done with it: lock, read on, record, commit.

The table of receipts is the log: rows are only appended and deleted, and whatever is remembered follows from the rows
that are left and from the domain's own row. Nothing here knows what counts as a duplicate.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, cast

from sqlalchemy import Connection

from receiver.errors import SettingsError
from receiver.message import ReceiptColumns, ReceiptRow, ReceiptValues
from receiver.store.tables import DomainState, RecordedRow

if TYPE_CHECKING:
    from receiver.store.sql_log import JoinedLog

_seq_of = itemgetter(ReceiptRow._fields.index("seq"))


class PolicyStates(NamedTuple):
    """A policy state to set: on those rows of these sources that have none or, where `sources` is None, on all rows."""

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
    policy_states: Sequence[PolicyStates] = ()
    """To set on rows that are there already."""
    forgotten: Sequence[int] = ()
    """The numbers of rows that are to have an empty id from now on, which no message can have."""
    rows: Sequence[ReceiptValues] = ()
    """To append."""
    batch_number: BatchNumber | None = None
    """None where the batch's outcome won't have to be looked up."""
    recorded: RecordedRow | None = None
    """The batch's receipts for a recording. `memory://` has no place for it."""


class DomainLog(Protocol):
    """The log of one domain, through one connection.

    What is recorded after `begin` becomes lasting, all of it or nothing, with `commit`. Errors of a database are its
    driver's own.
    """

    def begin(self) -> DomainState:
        """Start a transaction that has the domain for itself, waiting for it."""

    @property
    def server_run(self) -> Hashable:
        """Identifies the run of the server that the transaction under way is in: the time from its start, or from its
        last crash, to its end. Within one run no commit is lost. None where there is no server.
        """

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        """The rows numbered above `seq`, in order, some hundreds at a time; the last one there is has the number `last_seq`."""

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        """Make the changes and save the domain's new state.

        `before` is the state that it replaces, as this transaction has read it. Where a database has another last number
        by now, the lock was lost on the way: `StoreBusyError`.
        """

    def last_batch(self, writer: int) -> int:
        """The last batch whose number a receiver has left, as seen from the transaction under way; 0 for none."""

    def commit(self) -> None:
        """Commit the transaction under way."""

    def rollback(self) -> None:
        """Give up the transaction, and the connection where that fails; never raises."""

    def discard(self) -> None:
        """Give up the connection, which an error may have broken; the next transaction makes another."""

    def give_back_space(self) -> None:
        """Shrink the file where much of it is empty: a part at a time; between transactions.

        Never raises: what was deleted is committed, and space can be given back the next time.
        """

    def close(self) -> None: ...

    @property
    def holder(self) -> object:
        """What holds the lock when there is one: the connection."""

    @property
    def connection(self) -> Connection:
        """The connection under way, for statements of the application's own in the same transaction."""


class KeptLog(DomainLog, Protocol):
    """A log whose transactions are our own, on a connection that is kept for them."""

    in_use: threading.Lock
    """Held by the thread that uses the connection."""

    def begin_if_free(self) -> DomainState | None:
        """As `begin`, but without waiting: None where others have the domain now, and then nothing is started."""

    def begin_reading(self) -> DomainState:
        """Start a transaction that sees one state of the domain, changes nothing and keeps nobody waiting."""

    def join(self, connection: object, patience_secs: float) -> JoinedLog:
        """The log in the transaction of a caller's connection; `SettingsError` where that can't be."""

    def forget_batches(self, state: DomainState, writer: int) -> None:
        """Delete the number that one receiver has left, and old ones of receivers that died, in the transaction under way."""


class MemoryLog:
    """The log of `memory://`, which ends with the process."""

    def __init__(self, state: DomainState) -> None:
        self.in_use = threading.Lock()
        self._state = state
        self._rows: dict[int, ReceiptValues] = {}
        self._last_batch = 0

    def begin(self) -> DomainState:
        return self._state

    begin_if_free = begin_reading = begin

    def rows_after(self, seq: int, last_seq: int) -> Generator[ReceiptColumns, None, None]:
        if seq < last_seq:
            rows = (row for row in self._rows.values() if _seq_of(row) > seq)
            yield cast("ReceiptColumns", tuple(zip(*rows, strict=True)))

    def record(self, state: DomainState, changes: Changes, *, before: DomainState) -> None:
        del before
        for seq in changes.gone:
            self._rows.pop(seq, None)
        for policy_state, sources in changes.policy_states:
            for row in map(ReceiptRow._make, self._rows.values()):
                if sources is None or (row.message_source_id in sources and row.policy_state is None):
                    self._rows[row.seq] = row._replace(policy_state=policy_state)
        for seq in changes.forgotten:
            self._rows[seq] = ReceiptRow._make(self._rows[seq])._replace(unique_message_id="", body_digests=None)
        self._rows.update(zip(map(_seq_of, changes.rows), changes.rows, strict=True))
        self._state = state
        if changes.batch_number is not None:
            self._last_batch = changes.batch_number.batch

    def last_batch(self, writer: int) -> int:
        del writer  # nobody else is here
        return self._last_batch

    def join(self, connection: object, patience_secs: float) -> NoReturn:
        del connection, patience_secs
        raise SettingsError("memory:// has no transactions to join", hint="open a sqlite:/// or postgresql:// store")

    def forget_batches(self, state: DomainState, writer: int) -> None:
        """Nothing to do, for the number ends with the process."""

    def _nothing(self) -> None:
        """A batch is recorded whole or not at all, so nothing is left to do."""

    commit = rollback = discard = give_back_space = close = _nothing

    holder = server_run = None

    @property
    def connection(self) -> NoReturn:
        raise SettingsError("memory:// has no database connection", hint="open a sqlite:/// or postgresql:// store")
