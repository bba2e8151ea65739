"""A receiver's figures, by the names that Apama's JMS status line has for them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Status"]


@dataclass(frozen=True, slots=True)
class Status:
    """Counted since the receiver was opened; batches that were rolled back don't count."""

    domain: str
    window: int
    expiry_secs: float
    rx: int
    """Receipts."""
    unchecked: int
    """Receipts without id."""
    rRedel: int  # noqa: N815 - Apama's names, here and below
    """Receipts flagged JMSRedelivered."""
    rMaxDeliverySecs: float  # noqa: N815
    """The longest time from JMSTimestamp to receipt among those; 0.0 when there is none."""
    rDupsDet: int  # noqa: N815
    """Duplicates detected."""
    rDupIds: int  # noqa: N815
    """Distinct ids remembered, as of this receiver's last batch."""
    reused_ids: int
    """Duplicates that came with another body than before."""
    clock_clamped: int
    """Receipts from before the domain's latest one."""

    def line(self) -> str:
        """The figures as Apama's status line shows them."""
        return (
            f"JMS Status: rx={self.rx:,} rRedel={self.rRedel:,} rMaxDeliverySecs={self.rMaxDeliverySecs:.1f}"
            f" rDupsDet={self.rDupsDet:,} rDupIds={self.rDupIds:,}"
        )
