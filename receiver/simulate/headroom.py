"""What each duplicate needs to be caught, and how close those that a setting catches came to being missed.

Headroom is what is left of the window W, or of the expiry E, when a duplicate comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.figures import Headroom
from receiver.simulate.replays import STEPS, Lefts, PairOutcome, histogram_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from receiver.simulate.kernel import GridCounts
    from receiver.simulate.replays import SourceNeeds
    from receiver.simulate.rows import DomainRows

__all__ = [
    "LeftCounts",
    "Needs",
    "count_left",
    "expiry_need_us",
    "headroom_of",
    "needs_of",
    "outcomes_of",
    "pair_outcome",
    "places_of",
]

_NONE_CAUGHT = np.iinfo(np.int64).max
_NOTHING = -1
_BLOCK_BITS = 12


@dataclass(frozen=True, slots=True)
class Needs:
    """Per duplicate of a domain, in order of receipt."""

    row: npt.NDArray[np.int32]
    window: npt.NDArray[np.int64]
    """The smallest W whose per-source tier catches it: distinct newer ids of the source that holds it, plus 1."""
    expiry_us: npt.NDArray[np.int64]
    """The smallest E that catches it with W = 0; an expiry of 0 catches nothing, whatever this says."""


@compiled()
def _count_live(live: npt.NDArray[Any], in_block: npt.NDArray[np.int64], start: int, end: int) -> int:
    """Live places from `start` to before `end`: whole blocks by their sums, the rest one by one."""
    count = 0
    first_block = (start >> _BLOCK_BITS) + 1
    last_block = end >> _BLOCK_BITS
    if first_block >= last_block:
        for place in range(start, end):
            count += live[place]
        return count
    for place in range(start, first_block << _BLOCK_BITS):
        count += live[place]
    for block in range(first_block, last_block):
        count += in_block[block]
    for place in range(last_block << _BLOCK_BITS, end):
        count += live[place]
    return count


@compiled()
def _window_needs(  # noqa: PLR0917 - compiled functions take no names
    earlier: npt.NDArray[np.int32],
    replaced: npt.NDArray[np.int32],
    several: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    place: npt.NDArray[np.int32],
    following: npt.NDArray[np.int64],
    several_ids: int,
    weights: npt.NDArray[Any],
    needs: npt.NDArray[np.int64],
) -> None:
    live = np.zeros(len(earlier) + 1, weights.dtype)
    in_block = np.zeros((len(earlier) >> _BLOCK_BITS) + 1, np.int64)
    # The entries of an id of several sources, newest first: a chain of rows.
    newest = np.full(several_ids, _NOTHING, np.int32)
    older = np.full(len(earlier) if several_ids else 0, _NOTHING, np.int32)
    found = 0
    for row in range(len(earlier)):
        number = several[row]
        if earlier[row] != _NOTHING:
            entry = earlier[row] if number == _NOTHING else newest[number]
            least = np.iinfo(np.int64).max
            while entry != _NOTHING:
                least = min(least, _count_live(live, in_block, place[entry] + 1, following[source[entry]]))
                entry = _NOTHING if number == _NOTHING else older[entry]
            needs[found] = least + 1
            found += 1
        if replaced[row] != _NOTHING:
            at = place[replaced[row]]
            in_block[at >> _BLOCK_BITS] -= live[at]
            live[at] = 0
            if number != _NOTHING:
                _unchain(newest, older, number, replaced[row])
        if number != _NOTHING:
            older[row] = newest[number]
            newest[number] = row
        weight = np.int64(weights[row]) if row < len(weights) else 1
        live[place[row]] = weight
        in_block[place[row] >> _BLOCK_BITS] += weight
        following[source[row]] = place[row] + 1


@compiled()
def _unchain(newest: npt.NDArray[np.int32], older: npt.NDArray[np.int32], number: int, row: int) -> None:
    if newest[number] == row:
        newest[number] = older[row]
        return
    entry = newest[number]
    while older[entry] != row:
        entry = older[entry]
    older[entry] = older[row]


def needs_of(rows: DomainRows, weights: npt.NDArray[np.int64] | None = None) -> Needs:
    """What each duplicate of a domain needed.

    The first rows may stand for as many ids each as their `weights` say, ids that none of these rows repeats.
    """
    duplicates = np.flatnonzero(rows.earlier != _NOTHING).astype(np.int32)
    windows = np.zeros(len(duplicates), np.int64)
    _window_needs(
        rows.earlier,
        rows.replaced,
        rows.several,
        rows.source,
        rows.place,
        rows.slab_start.copy(),
        rows.several_ids,
        np.empty(0, np.uint8) if weights is None else weights,
        windows,
    )
    # With W = 0 every receipt enters the time queue at once, so the clock is the receipt before.
    expiry_us = rows.received_at_us[duplicates - 1] - rows.received_at_us[rows.earlier[duplicates]]
    return Needs(duplicates, windows, expiry_us)


@dataclass(frozen=True, slots=True)
class LeftCounts:
    """What one pair (W, E) leaves to the duplicates it catches, in some part of a log. Those of parts add up."""

    window_counts: npt.NDArray[np.int64]
    """Of duplicates that some source's queue holds, by what is left of W, between the `STEPS`."""
    expiry_counts: npt.NDArray[np.int64]
    """Of duplicates that only the time queue holds, by what is left of E."""
    least_window: npt.NDArray[np.int64]
    """Per source of `Facts.sources`, in their order, and at last for all others together; a huge number if none."""
    least_expiry_us: npt.NDArray[np.int64]

    @classmethod
    def none(cls, sources: int) -> LeftCounts:
        """Of no duplicate yet, `sources` being how many `Facts.sources` has."""
        return cls(
            np.zeros(len(STEPS), np.int64),
            np.zeros(len(STEPS), np.int64),
            np.full(sources + 1, _NONE_CAUGHT),
            np.full(sources + 1, _NONE_CAUGHT),
        )

    def __add__(self, other: LeftCounts) -> LeftCounts:
        return LeftCounts(
            self.window_counts + other.window_counts,
            self.expiry_counts + other.expiry_counts,
            np.minimum(self.least_window, other.least_window),
            np.minimum(self.least_expiry_us, other.least_expiry_us),
        )


@compiled()
def _count(  # noqa: PLR0917 - compiled functions take no names
    window: int,
    expiry_us: int,
    window_needs: npt.NDArray[np.int64],
    needs_us: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    steps: npt.NDArray[np.int64],
    window_counts: npt.NDArray[np.int64],
    expiry_counts: npt.NDArray[np.int64],
    least_window: npt.NDArray[np.int64],
    least_expiry_us: npt.NDArray[np.int64],
) -> None:
    for k in range(len(needs_us)):
        if needs_us[k] < 0:
            left = window - window_needs[k]
            window_counts[np.searchsorted(steps, left, side="right") - 1] += 1
            least_window[source[k]] = min(least_window[source[k]], left)
        elif needs_us[k] <= expiry_us:
            left = expiry_us - needs_us[k]
            expiry_counts[np.searchsorted(steps, left, side="right") - 1] += 1
            least_expiry_us[source[k]] = min(least_expiry_us[source[k]], left)


def count_left(
    pair: tuple[int, int],
    window_needs: npt.NDArray[np.int64],
    needs_us: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    sources: int,
) -> LeftCounts:
    """What a pair (window, expiry_us) leaves, counted over duplicates.

    Of each duplicate: the window that catches it alone; the expiry, never 0, that catches it together with the pair's
    window, or -1 where that does alone; and the place of its source among the `sources` of `Facts.sources`, or `sources`.
    """
    counts = LeftCounts.none(sources)
    _count(
        *pair,
        window_needs,
        needs_us,
        source,
        STEPS,
        counts.window_counts,
        counts.expiry_counts,
        counts.least_window,
        counts.least_expiry_us,
    )
    return counts


def outcomes_of(
    pairs: Sequence[tuple[int, int]],
    replay: Callable[[Sequence[int], Sequence[int]], GridCounts],
    window_needs: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    sources: int,
) -> list[tuple[int, int, LeftCounts]]:
    """Per pair (window, expiry_us): duplicates caught, ids at the peak, and what the pair left.

    `replay` gives a grid with its needs; the rest is as in `count_left`.
    """
    windows, expiries_us = sorted({window for window, _ in pairs}), sorted({expiry_us for _, expiry_us in pairs})
    counts = replay(windows, expiries_us)
    found = []
    for window, expiry_us in pairs:
        at = windows.index(window), expiries_us.index(expiry_us)
        left = count_left((window, expiry_us), window_needs, counts.needs_us[:, at[0]], source, sources)
        found.append((int(counts.caught[at]), int(counts.peak_ids[at]), left))
    return found


def places_of(sources: Sequence[SourceNeeds], domain: str, names: Iterable[str]) -> npt.NDArray[np.int32]:
    """Per name of a source of a domain, its place among the `sources` of `Facts`, or their number."""
    places = {source.source: place for place, source in enumerate(sources) if source.domain == domain}
    return np.array([places.get(name, len(sources)) for name in names], np.int32)


def expiry_need_us(needs_us: npt.NDArray[np.int64], max_missed: int) -> int:
    """The smallest E that leaves no more than `max_missed` uncaught, of needs with -1 for caught anyway.

    Of the needs themselves the `max_missed` + 1 largest will do.
    """
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))


def _or_none(least: int) -> int | None:
    return None if least == _NONE_CAUGHT else least


def pair_outcome(caught: int, peak_ids: int, counts: LeftCounts) -> PairOutcome:
    """The outcome of a pair over the whole log, by its figures and what it left over the whole log."""
    least_windows = [_or_none(least) for least in counts.least_window.tolist()]
    least_expiries_us = [_or_none(least) for least in counts.least_expiry_us.tolist()]
    return PairOutcome(
        caught,
        peak_ids,
        Lefts(
            counts.window_counts,
            counts.expiry_counts,
            _or_none(int(counts.least_window.min())),
            _or_none(int(counts.least_expiry_us.min())),
        ),
        tuple(zip(least_windows, least_expiries_us, strict=True))[:-1],
    )


def headroom_of(lefts: Lefts) -> Headroom | None:
    """None where nothing is caught."""
    caught_by_source, caught_by_time = int(lefts.window_counts.sum()), int(lefts.expiry_counts.sum())
    if not caught_by_source and not caught_by_time:
        return None
    return Headroom(
        caught_by_source=caught_by_source,
        caught_by_time=caught_by_time,
        window_left=histogram_of(lefts.window_counts),
        expiry_left_us=histogram_of(lefts.expiry_counts),
        least_window_left=lefts.least_window,
        least_expiry_left_us=lefts.least_expiry_us,
    )
