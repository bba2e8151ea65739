"""Batches in transactions of their callers: what became of each is looked up by the number that it leaves in the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from receiver.durable.status import Counters, Tally
from receiver.message import ReceiptValues
from receiver.recording import Recorder
from receiver.store.log import DomainLog, JoinedLog
from receiver.store.sql_rows import BatchNumber
from receiver.store.tables import RecordedRow


class _Unsettled(NamedTuple):
    """A batch whose outcome isn't known yet."""

    number: int
    tally: Tally | None
    """To be counted if it was committed; None of a batch that has failed for its caller."""
    transaction: Any
    """The caller's."""


class Outcomes:
    """The outcomes of one receiver's batches, which are counted once they are known."""

    def __init__(self, writer: int, counters: Counters) -> None:
        self.writer = writer
        self._counters = counters
        self.recorder: Recorder | None = None
        self.batches = 0
        """How many have left their number."""
        self._unsettled: deque[_Unsettled] = deque()

    def prepare(self, log: DomainLog) -> BatchNumber | None:
        """Number the batch if its outcome will have to be looked up."""
        if not isinstance(log, JoinedLog):
            return None
        self.batches += 1
        self._unsettled.append(_Unsettled(self.batches, None, log.transaction))
        return BatchNumber(self.writer, self.batches)

    def recorded(self, rows: Sequence[ReceiptValues], tally: Tally) -> RecordedRow | None:
        """What the batch leaves in the store for a recording."""
        if self.recorder is not None:
            tally.recorded = self.recorder.packed(tally.plain_rows(rows), tally.full_receipts)
        return tally.recorded

    def expect(self, tally: Tally) -> None:
        """Note that the batch is in its caller's transaction, whose outcome will be looked up."""
        self._unsettled.append(self._unsettled.pop()._replace(tally=tally))

    def count(self, tally: Tally) -> None:
        """Count the batch, which is known to be committed."""
        if self.recorder is not None and tally.recorded is not None:
            self.recorder.commit(tally.recorded)
        self._counters.commit(tally)

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
            if lost.tally is not None:
                self._counters.roll_back()
        # What was recorded in the very transaction that looks is seen, but may yet be rolled back.
        under_way = log.transaction if isinstance(log, JoinedLog) else log
        while self._unsettled:
            oldest = self._unsettled[0]
            if oldest.number > last or oldest.transaction is under_way:
                break
            settled = self._unsettled.popleft()
            if settled.tally is not None:
                self.count(settled.tally)
        return were_all

    def callers_go_on(self, *, but_for: Any = None) -> bool:
        """Whether a caller's transaction is still under way, other than this one."""
        return any(
            batch.tally is not None and batch.transaction is not but_for and batch.transaction.is_active
            for batch in self._unsettled
        )

    def can_be_looked_up(self) -> bool:
        """Whether there is something to settle, and no caller's transaction is still under way."""
        return bool(self._unsettled) and not self.callers_go_on()
