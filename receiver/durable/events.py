"""Every duplicate, reported to a callback and to the log named `receiver.duplicates`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from receiver.durable.needs import Need
from receiver.message import Decision, Tier

_LOGGER = logging.getLogger("receiver.duplicates")


@dataclass(frozen=True, slots=True)
class Duplicate:
    """One duplicate that was caught, reported once its batch is known to be committed.

    Times are microseconds since 1970 on the domain's clock, which never runs backwards.
    """

    domain: str
    unique_message_id: str
    message_source_id: str | None
    received_at_us: int
    first_received_at_us: int
    """When the id first came, as far as it has been remembered without a break."""
    last_received_at_us: int
    """When the id came last, before this."""
    redelivered: bool
    """Whether the broker said so itself (JMSRedelivered)."""
    decision: Decision
    """The verdict. Its `window_left` and `expiry_left_us` say how close it was."""
    headroom: float | None
    """The share of the window or of the expiry that was left, whichever is more: from 0 to 1."""
    need: Need | None
    """The least W and the least E that would have caught it, each by itself; None where the policy has no two tiers."""

    @property
    def age_us(self) -> int:
        """Time since the id came last."""
        return self.received_at_us - self.last_received_at_us

    @property
    def distance(self) -> int | None:
        """Receipts of the domain since the id came last, this one counted."""
        return self.decision.distance

    @property
    def tier(self) -> Tier | None:
        """Which tier still held the id; None if the policy has no two tiers."""
        return self.decision.tier

    @property
    def body_differs(self) -> bool | None:
        """Whether the body is another than each that came with the id before: an id used again, not a duplicate."""
        return self.decision.body_differs

    @property
    def delivered(self) -> bool:
        """Whether it was delivered anyway."""
        return self.decision.deliver


OnDuplicate = Callable[[Duplicate], object]


def report(event: Duplicate, on_duplicate: OnDuplicate | None) -> None:
    """Log an event and call back. What the callback raises is logged, as the batch is committed whatever it says."""
    level = logging.WARNING if event.body_differs else logging.INFO
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(
            level,
            "%s: %r from %r came again after %.6f s and %d receipts%s%s%s",
            event.domain,
            event.unique_message_id,
            event.message_source_id or "",
            event.age_us / 1_000_000,
            event.distance,
            f", caught by the {event.tier} tier" if event.tier else "",
            "; its body is another one" if event.body_differs else "",
            "; delivered all the same" if event.delivered else "",
            extra={"duplicate": event},
        )
    if on_duplicate is not None:
        try:
            on_duplicate(event)
        except Exception:
            _LOGGER.exception("the callback for duplicates failed")
