"""Reports caught duplicates, and measures how nearly W and E missed them.

Each duplicate shows which share of W and which share of E was left. The larger share is its *headroom*: 1 means that nearly
nothing was used, 0 that the next id could have pushed the id out.

A duplicate also shows what it needed. Its *window need* is the least W that catches it with E = 0; its *expiry need* is the
least E that catches it with W = 0. `receiver simulate` has the same needs. If some source's queue still held the id, both
are exact. If only the time queue held it, newer ids of the source had pushed it out: then the window need is known only to
be more than W, and the expiry need is exact. A missed duplicate shows nothing, because nobody knows that it is a duplicate.

A domain keeps the largest needs of its last day, by the times of its receipts: while no receipt comes, nothing gets old.
The largest needs are kept for each hour: that of the latest receipt and the 24 before it. They are stored in the domain's
row, so all receivers share them and they survive a restart. A batch without duplicates doesn't change them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import NamedTuple

from receiver.message import Decision, Tier
from receiver.quantities import HOUR_US, SECOND_US

_LOGGER = logging.getLogger("receiver.duplicates")
_HOURS_BEFORE = 24


class Need(NamedTuple):
    """The least W and the least E, each of which alone catches a duplicate, or all of several."""

    window: int
    """The window need in ids."""
    is_lower_bound: bool
    """Whether the window need may be larger: only the time queue knew an id, so its window need is more than W."""
    expiry_us: int
    """The expiry need, at least 1."""


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
    """When the id first came since it has been remembered without a break."""
    last_received_at_us: int
    """When the id last came before this receipt."""
    redelivered: bool
    """Whether the broker flagged the message (JMSRedelivered)."""
    decision: Decision
    """The verdict. Its `window_left` and `expiry_left_us` say how close it was."""
    headroom: float | None
    """The share of the window or of the expiry that was left, whichever is more: from 0 to 1."""
    need: Need | None
    """The least W and the least E that would have caught it, each by itself; None where the policy has no two tiers."""

    @property
    def age_us(self) -> int:
        """Time since the id last came."""
        return self.received_at_us - self.last_received_at_us

    @property
    def distance(self) -> int | None:
        """Receipts of the domain since the id last came, including this one."""
        return self.decision.distance

    @property
    def tier(self) -> Tier | None:
        """Which tier still held the id; None if the policy has no two tiers."""
        return self.decision.tier

    @property
    def body_differs(self) -> bool | None:
        """Whether the body differs from all bodies that came with the id before: then a sender reused the id."""
        return self.decision.body_differs

    @property
    def delivered(self) -> bool:
        """Whether it was delivered anyway."""
        return self.decision.deliver


OnDuplicate = Callable[[Duplicate], object]


def report(event: Duplicate, on_duplicate: OnDuplicate | None) -> None:
    """Log an event and call back. An exception of the callback is only logged, because the batch is committed."""
    level = logging.WARNING if event.body_differs else logging.INFO
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(
            level,
            "%s: %r from %r came again after %.6f s and %d receipts%s%s%s",
            event.domain,
            event.unique_message_id,
            event.message_source_id or "",
            event.age_us / SECOND_US,
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


def headroom_of(decision: Decision, window: int, expiry_us: int) -> float | None:
    """The share that a duplicate had left of W or of E, whichever is larger: from 0 to 1.

    None for other verdicts.
    """
    if decision.window_left is None or decision.expiry_left_us is None:
        return None
    by_window = decision.window_left / window if window else 0.0
    by_expiry = decision.expiry_left_us / expiry_us if expiry_us else 0.0
    return max(by_window, by_expiry)


NeedsByHour = Mapping[int, Need]
"""The largest needs of each hour that has a duplicate; hours are counted from 1970, in their order."""


def need_of(decision: Decision, window: int, since_us: int) -> Need | None:
    """The need of a duplicate under a window W; None if the policy hasn't two tiers.

    `since_us`: the time from the id's newest receipt to the receipt just before the duplicate. With W = 0 the latter sets the
    time queue's clock.
    """
    if decision.tier is None or decision.window_left is None:
        return None
    is_lower_bound = decision.tier is Tier.TIME
    # A duplicate in the same microsecond still needs an E above 0: with 0 there is no time queue.
    return Need(window + 1 if is_lower_bound else window - decision.window_left, is_lower_bound, since_us or 1)


def larger(one: Need | None, other: Need) -> Need:
    """The larger W and the larger E of two needs; the other if one is None."""
    if one is None:
        return other
    return Need(
        max(one.window, other.window), one.is_lower_bound or other.is_lower_bound, max(one.expiry_us, other.expiry_us)
    )


def over_last_day(by_hour: NeedsByHour, latest_us: int) -> Need | None:
    """The largest needs in the hour of the latest receipt and in the 24 hours before it; None without any."""
    first = latest_us // HOUR_US - _HOURS_BEFORE
    return reduce(larger, (need for hour, need in by_hour.items() if hour >= first), None)


def with_needs(by_hour: NeedsByHour, duplicates: Iterable[Duplicate], latest_us: int) -> NeedsByHour:
    """The needs by hour, raised by those of more duplicates; the same object if none is larger."""
    raised = dict(by_hour)
    for duplicate in duplicates:
        if duplicate.need is not None:
            hour = duplicate.received_at_us // HOUR_US
            raised[hour] = larger(raised.get(hour), duplicate.need)
    if raised == by_hour:
        return by_hour
    first = latest_us // HOUR_US - _HOURS_BEFORE
    return {hour: need for hour, need in sorted(raised.items()) if hour >= first}


def needs_stored(by_hour: NeedsByHour) -> str | None:
    """The needs by hour as JSON, for the domain's row; None without any."""
    return json.dumps([[hour, *need] for hour, need in by_hour.items()], separators=(",", ":")) if by_hour else None


@lru_cache
def needs_read(stored: str | None) -> NeedsByHour:
    """The needs by hour of a domain's row; `ValueError` for a text that no receiver writes."""
    if stored is None:
        return {}
    rows = json.loads(stored)
    if not isinstance(rows, list) or not rows or not all(map(_is_sound, rows)):
        raise ValueError(f"no needs by hour: {stored:.80}")
    by_hour = {hour: Need(*need) for hour, *need in rows}
    hours = list(by_hour)
    if len(hours) != len(rows) or hours != sorted(hours) or hours[-1] - hours[0] > _HOURS_BEFORE:
        raise ValueError(f"no hours of one day, in their order: {stored:.80}")
    return by_hour


def _is_sound(row: object) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != [int, int, bool, int]:
        return False
    hour, window, _, expiry_us = row
    return bool(hour >= 0 and window >= 1 and expiry_us >= 1)
