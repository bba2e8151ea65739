"""The needs of a domain's duplicates: the largest window need and the largest expiry need over the last day.

The *window need* of a duplicate is the least W that catches it with E = 0, its *expiry need* the least E that catches it
with W = 0, as `receiver simulate` has them. A duplicate that some source's queue still held shows both exactly. Where only
the time queue held the id, the source's newer ids had pushed it out, so the window need is known to be more than W and
nothing else; the expiry need is exact there too. A duplicate that is missed shows neither, for nobody knows that it is one.

The day goes by the times of receipts, as everything in a domain does: while nothing comes, nothing gets old. Of each hour
the largest needs are kept, of the hour of the latest receipt and of the 24 before it. They stand in the domain's row, so
they are the domain's over all receivers and survive a restart, and a batch without duplicates has nothing to do with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from receiver.message import Decision, Tier

if TYPE_CHECKING:
    from receiver.durable.events import Duplicate

HOUR_US = 3_600_000_000
_HOURS_BEFORE = 24


class Need(NamedTuple):
    """The least W and the least E, each of which alone catches a duplicate, or all of several."""

    window: int
    """The window need in ids."""
    is_lower_bound: bool
    """Whether the window need may be larger: the time queue alone knew an id, so that need is more than W."""
    expiry_us: int
    """The expiry need, at least 1."""


NeedsByHour = Mapping[int, Need]
"""The largest needs of each hour that has a duplicate; hours are counted from 1970, in their order."""


def need_of(decision: Decision, window: int, since_us: int) -> Need | None:
    """The need of a duplicate under a window W; None where the policy has no two tiers.

    `since_us`: how long the id's newest receipt was before the receipt just before the duplicate. With W = 0 that receipt
    sets the time queue's clock.
    """
    if decision.tier is None or decision.window_left is None:
        return None
    is_lower_bound = decision.tier is Tier.TIME
    # A duplicate in the same microsecond needs an E all the same: with 0 there is no time queue.
    return Need(window + 1 if is_lower_bound else window - decision.window_left, is_lower_bound, since_us or 1)


def larger(one: Need | None, other: Need | None) -> Need | None:
    """The needs of both together."""
    if one is None or other is None:
        return one or other
    return Need(
        max(one.window, other.window), one.is_lower_bound or other.is_lower_bound, max(one.expiry_us, other.expiry_us)
    )


def over_last_day(by_hour: NeedsByHour, latest_us: int) -> Need | None:
    """The largest needs in the hour of the latest receipt and in the 24 hours before it; None without any."""
    first = latest_us // HOUR_US - _HOURS_BEFORE
    return reduce(larger, (need for hour, need in by_hour.items() if hour >= first), None)


def with_needs(by_hour: NeedsByHour, duplicates: Iterable[Duplicate], latest_us: int) -> NeedsByHour:
    """The needs by hour with those of more duplicates; the very same mapping where none is larger."""
    raised: dict[int, Need] = {}
    for duplicate in duplicates:
        need = duplicate.need
        if need is not None:
            hour = duplicate.received_at_us // HOUR_US
            known = raised.get(hour) or by_hour.get(hour)
            needed = larger(known, need)
            if needed is not None and needed != known:
                raised[hour] = needed
    if not raised:
        return by_hour
    first = latest_us // HOUR_US - _HOURS_BEFORE
    return {hour: need for hour, need in sorted({**by_hour, **raised}.items()) if hour >= first}


def needs_stored(by_hour: NeedsByHour) -> str | None:
    """The needs by hour as the domain's row has them: in JSON; None without any."""
    return json.dumps([[hour, *need] for hour, need in by_hour.items()], separators=(",", ":")) if by_hour else None


def needs_read(stored: str | None) -> NeedsByHour:
    """The needs by hour that were stored; ValueError for what no receiver has written."""
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
