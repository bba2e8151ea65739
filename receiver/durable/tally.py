"""What a batch adds to the counters of its domain and its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from receiver.durable.events import Duplicate
from receiver.message import Receipt, ReceiptRow, Tier
from receiver.store.tables import DomainState

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    receipts: int = 0
    unchecked: int = 0
    duplicates: int = 0
    time_tier_duplicates: int = 0
    """Those that only the time tier still knew."""
    reused_ids: int = 0
    """Duplicates that came with another body."""
    redelivered: int = 0
    clock_clamped: int = 0
    max_delivery_us: int = 0
    """The longest way from JMSTimestamp to receipt, of receipts flagged JMSRedelivered."""
    batch_secs: float = 0.0
    """From asking for the domain to the end of the commit or, in a transaction of the caller's, of recording."""
    commit_secs: float | None = None
    """How long the database took to commit; None where the caller commits."""
    events: list[Duplicate] = field(default_factory=list)
    told: list[tuple[int, Receipt]] = field(default_factory=list)
    """The receipts that tell more than their row, or have none, by their index in the batch: for a recorder."""

    def note(self, receipt: Receipt) -> None:
        """Note what a receipt tells beside its id and time."""
        if receipt.redelivered:
            self.redelivered += 1
            if receipt.jms_timestamp_ms and receipt.received_at_us is not None:
                self.max_delivery_us = max(
                    self.max_delivery_us, receipt.received_at_us - receipt.jms_timestamp_ms * 1000
                )

    def rows_not_told(self, rows: Sequence[ReceiptRow]) -> Sequence[ReceiptRow]:
        """Of the rows of the batch, those that say all of their receipt."""
        if not self.told:
            return rows
        without_row = 0
        told = set()
        for index, receipt in self.told:
            if receipt.unique_message_id:
                told.add(index - without_row)
            else:
                without_row += 1
        return [row for index, row in enumerate(rows) if index not in told]

    def note_duplicate(self, event: Duplicate) -> None:
        self.duplicates += 1
        if event.tier is Tier.TIME:
            self.time_tier_duplicates += 1
        if event.body_differs:
            self.reused_ids += 1
        self.events.append(event)

    def added_to(self, state: DomainState, **changes: Any) -> DomainState:
        """The state with the batch counted, and other fields changed as given."""
        return state._replace(
            receipts=state.receipts + self.receipts,
            unchecked=state.unchecked + self.unchecked,
            duplicates=state.duplicates + self.duplicates,
            reused_ids=state.reused_ids + self.reused_ids,
            redelivered=state.redelivered + self.redelivered,
            clock_clamped=state.clock_clamped + self.clock_clamped,
            max_delivery_us=max(state.max_delivery_us, self.max_delivery_us),
            **changes,
        )

    def add(self, other: Tally) -> None:
        """Add the counters of a committed batch."""
        self.receipts += other.receipts
        self.unchecked += other.unchecked
        self.duplicates += other.duplicates
        self.time_tier_duplicates += other.time_tier_duplicates
        self.reused_ids += other.reused_ids
        self.redelivered += other.redelivered
        self.clock_clamped += other.clock_clamped
        self.max_delivery_us = max(self.max_delivery_us, other.max_delivery_us)
