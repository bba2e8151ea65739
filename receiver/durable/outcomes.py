"""Batches whose outcome isn't known at once: it is looked up by the number that each batch leaves in the store.

A batch may be in its caller's transaction, or the connection may be lost during its commit. If a process is killed then,
and the batch was recorded, the next process that records to the same path looks it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from receiver.durable.status import Tally
from receiver.message import ReceiptRow, ReceiptValues
from receiver.recording import Recorder
from receiver.store.log import BatchNumber, DomainLog
from receiver.store.sql_log import JoinedLog

__all__ = ["Outcomes"]


class _Unsettled(NamedTuple):
    """A batch whose outcome isn't known yet."""

    number: int
    tally: Tally | None
    """To be counted if it was committed; None of a batch that has failed for its caller."""
    transaction: Any = None
    """The caller's; None where it was in one of our own."""


class Outcomes:
    """The outcomes of one receiver's batches.

    Whoever makes it sets `committed`, which is called with the tally of each batch once that is known to be committed,
    and `rolled_back`, which is called for each batch in a transaction of its caller's that wasn't committed.
    """

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.committed: Callable[[Tally], None]
        self.rolled_back: Callable[[], None]
        self.recorder: Recorder | None = None
        self.batches = 0
        """How many have left their number: those in a transaction of the caller's, and those recorded."""
        self._unsettled: deque[_Unsettled] = deque()

    def prepare(self, log: DomainLog, rows: Sequence[ReceiptValues], tally: Tally) -> BatchNumber | None:
        """Write the batch to the recording, if there is one, and number it if its outcome may have to be looked up."""
        transaction = log.transaction if isinstance(log, JoinedLog) else None
        if transaction is None and self.recorder is None:
            return None
        self.batches += 1
        self._unsettled.append(_Unsettled(self.batches, None, transaction))
        if self.recorder is not None:
            self.recorder.write(
                self.batches, [ReceiptRow._make(row) for row in tally.plain_rows(rows)], tally.full_receipts
            )
        return BatchNumber(self.writer, self.batches)

    def expect(self, tally: Tally) -> None:
        """Note that the batch is in its caller's transaction, whose outcome will be looked up."""
        self._unsettled.append(self._unsettled.pop()._replace(tally=tally))

    def count(self, tally: Tally) -> None:
        """Count the batch, which is known to be committed."""
        if self._unsettled:
            self._settled(self._unsettled[-1])
            self._unsettled.pop()
        self.committed(tally)

    def _settled(self, batch: _Unsettled) -> None:
        if self.recorder is not None:
            self.recorder.commit(batch.number)
        if batch.tally is not None:
            self.committed(batch.tally)

    def settle(self, log: DomainLog, *, has_domain: bool = True) -> bool:
        """Look up which of the unsettled batches were committed; whether all were.

        Where the log doesn't have the domain for itself, a batch that wasn't committed yet stays unsettled: the server may
        still have its COMMIT to do.
        """
        if not self._unsettled:
            return True
        were_all = True
        last = log.last_batch(self.writer)
        # A batch's number is committed with all that the batch saw, so the batches before it were committed too.
        while has_domain and self._unsettled and self._unsettled[-1].number > last:
            lost = self._unsettled.pop()
            were_all = False
            if self.recorder is not None:
                self.recorder.cut(lost.number)
            if lost.tally is not None:
                self.rolled_back()
        # What was recorded in the very transaction that looks is seen, but may yet be rolled back.
        under_way = log.transaction if isinstance(log, JoinedLog) else log
        while self._unsettled:
            oldest = self._unsettled[0]
            if oldest.number > last or oldest.transaction is under_way:
                break
            self._settled(self._unsettled.popleft())
        return were_all

    @property
    def are_settled(self) -> bool:
        """Whether each batch's outcome is known."""
        return not self._unsettled

    def callers_go_on(self, *, but_for: Any = None) -> bool:
        """Whether a caller's transaction is still under way, other than this one."""
        return any(
            batch.tally is not None and batch.transaction is not but_for and batch.transaction.is_active
            for batch in self._unsettled
        )

    def can_be_looked_up(self) -> bool:
        """Whether there is something to settle, and no caller's transaction is still under way."""
        return bool(self._unsettled) and not self.callers_go_on()

    def can_forget_numbers(self) -> bool:
        """Whether there are numbers that nobody will look up any more; a recording may still need the last one."""
        return self.batches > 0 and (self.recorder is None or self.recorder.is_settled)
