"""A receiver's figures: those of Apama's JMS status line by their names there, and those that it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from receiver.durable.headroom import Buckets, Headroom

__all__ = ["LOG_FORMAT", "Status", "status_line"]

LOG_FORMAT = "%(asctime)s %(levelname)-5s [%(process)d:%(threadName)s] - %(message)s"
"""For `logging.basicConfig`: lines as in a correlator's log, so that whatever reads those finds the status lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Counted since the receiver was opened, of batches known to be committed where nothing else is said."""

    domain: str
    policy: str
    """Its canonical text, such as `apama:window=2000,expiry=120`."""
    window: int
    """Of its sizes the one in ids, 0 where it has none; for `apama` W."""
    expiry_secs: float
    """The one in seconds; for `apama` E."""
    rx: int
    """Receipts."""
    rRate: float  # noqa: N815 - Apama's names, here and below
    """Receipts per second since `status()` was last asked for, or since the receiver was opened."""
    unchecked: int
    """Receipts without id."""
    rRedel: int  # noqa: N815
    """Receipts flagged JMSRedelivered."""
    rMaxDeliverySecs: float  # noqa: N815
    """The longest time from JMSTimestamp to receipt among those; 0.0 when there is none."""
    rDupsDet: int  # noqa: N815
    """Duplicates detected."""
    rDupIds: int  # noqa: N815
    """Distinct ids remembered, as of this receiver's last batch."""
    sources: int
    """Sources whose newest ids are kept, as of this receiver's last batch; 0 where the policy keeps none by source."""
    silent_sources: int
    """Those of them that haven't sent for a day, by the domain's own time."""
    retired_sources: int
    """Sources retired since the domain was made, as of this receiver's last batch."""
    time_tier_dups: int
    """Duplicates that only the time tier still knew."""
    reused_ids: int
    """Duplicates that came with another body than before."""
    clock_clamped: int
    """Receipts from before the domain's latest one."""
    headroom: Headroom
    """How near duplicates came to being missed."""
    batches_committed: int
    batches_rolled_back: int
    """Left by an exception, or rolled back by the caller whose transaction they had joined."""
    batches_failed: int
    """Not begun or not committed: the domain was busy, or the store failed."""
    recorded: int
    """Receipts in the log that `record` names."""
    record_dropped: int
    """Receipts that couldn't be recorded there."""
    batch_secs: Buckets
    """How long batches took, from asking for the domain to the end of the commit."""
    commit_secs: Buckets
    """How long the database took to commit them; batches in transactions of their callers' aren't in it."""

    @property
    def min_headroom(self) -> float | None:
        """The least share of its window or expiry that a duplicate had left, from 0 to 1; None before any."""
        return self.headroom.least

    @property
    def recent_min_headroom(self) -> float | None:
        """The same, of the last 1,000 duplicates."""
        return self.headroom.recent_least

    def line(self) -> str:
        """The figures as Apama's status line has them, those of senders and of a connection left out."""
        return status_line(
            rx=self.rx,
            rate=self.rRate,
            redelivered=self.rRedel,
            max_delivery_secs=self.rMaxDeliverySecs,
            duplicates=self.rDupsDet,
            remembered_ids=self.rDupIds,
        )


def status_line(
    *,
    rx: int,
    rate: float | None,
    redelivered: int,
    max_delivery_secs: float,
    duplicates: int,
    remembered_ids: int | None,
) -> str:
    """Apama's status line of one receiver; what is None isn't known and is left out."""
    rates = "" if rate is None else f" rRate={rate:,.0f}"
    ids = "" if remembered_ids is None else f" rDupIds={remembered_ids:,}"
    return (
        f"JMS Status: r=1 rx={rx:,}{rates} rRedel={redelivered:,}"
        f" rMaxDeliverySecs={max_delivery_secs:,.1f} rDupsDet={duplicates:,}{ids}"
    )
