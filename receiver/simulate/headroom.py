"""Reuse distances, and the headroom of the duplicates that a setting catches: how close they came to being missed.

The reuse distance of a duplicate is the least W, and the least E, that catch it by themselves: what it *needs*, for users. Its
slack under a setting is by how much W or E exceeds that; users read of it as headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.figures import HeadroomFigures
from receiver.simulate.kernel import WindowAsked, is_caught
from receiver.simulate.replays import PairOutcome, Slack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from receiver.simulate.kernel import WindowCounts
    from receiver.simulate.replays import SourceNeeds
    from receiver.simulate.rows import DomainRows

__all__ = [
    "Duplicates",
    "PairCounts",
    "ReuseDistances",
    "SlackCounts",
    "count_slack",
    "expiry_need_us",
    "grid_and_pairs",
    "headroom_of",
    "pair_outcome",
    "reuse_distances",
    "source_indexes",
]

_NONE_CAUGHT = np.iinfo(np.int64).max
_NOTHING = -1
_BLOCK_BITS = 12


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """The reuse distance of each duplicate of a domain, as its needs: columns, in order of receipt."""

    row: npt.NDArray[np.int32]
    """The duplicate's row in the domain."""
    window: npt.NDArray[np.int64]
    """The smallest W whose per-source tier catches it: distinct newer ids of the source that holds it, plus 1."""
    expiry_us: npt.NDArray[np.int64]
    """The smallest E that catches it with W = 0; an expiry of 0 catches nothing, whatever this says."""


@compiled()
def _count_live(live: npt.NDArray[Any], in_block: npt.NDArray[np.int64], start: int, end: int) -> int:
    """How many ids are live from index `start` to before `end`: whole blocks by their sums, the rest one by one."""
    count = 0
    first_block = (start >> _BLOCK_BITS) + 1
    last_block = end >> _BLOCK_BITS
    if first_block >= last_block:
        for index in range(start, end):
            count += live[index]
        return count
    for index in range(start, first_block << _BLOCK_BITS):
        count += live[index]
    for block in range(first_block, last_block):
        count += in_block[block]
    for index in range(last_block << _BLOCK_BITS, end):
        count += live[index]
    return count


@compiled()
def _window_distances(  # noqa: PLR0917 - compiled functions take no names
    earlier: npt.NDArray[np.int32],
    replaced: npt.NDArray[np.int32],
    several: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    slab_index: npt.NDArray[np.int32],
    following: npt.NDArray[np.int64],
    several_ids: int,
    weights: npt.NDArray[Any],
    windows: npt.NDArray[np.int64],
) -> None:
    live = np.zeros(len(earlier) + 1, weights.dtype)
    in_block = np.zeros((len(earlier) >> _BLOCK_BITS) + 1, np.int64)
    # The entries of an id of several sources, newest first: a chain of rows.
    newest = np.full(several_ids, _NOTHING, np.int32)
    older = np.full(len(earlier) if several_ids else 0, _NOTHING, np.int32)
    duplicate = 0
    for row in range(len(earlier)):
        number = several[row]
        if earlier[row] != _NOTHING:
            entry = earlier[row] if number == _NOTHING else newest[number]
            least = np.iinfo(np.int64).max
            while entry != _NOTHING:
                least = min(least, _count_live(live, in_block, slab_index[entry] + 1, following[source[entry]]))
                entry = _NOTHING if number == _NOTHING else older[entry]
            windows[duplicate] = least + 1
            duplicate += 1
        if replaced[row] != _NOTHING:
            at = slab_index[replaced[row]]
            in_block[at >> _BLOCK_BITS] -= live[at]
            live[at] = 0
            if number != _NOTHING:
                _unchain(newest, older, number, replaced[row])
        if number != _NOTHING:
            older[row] = newest[number]
            newest[number] = row
        weight = np.int64(weights[row]) if row < len(weights) else 1
        live[slab_index[row]] = weight
        in_block[slab_index[row] >> _BLOCK_BITS] += weight
        following[source[row]] = slab_index[row] + 1


@compiled()
def _unchain(newest: npt.NDArray[np.int32], older: npt.NDArray[np.int32], number: int, row: int) -> None:
    if newest[number] == row:
        newest[number] = older[row]
        return
    entry = newest[number]
    while older[entry] != row:
        entry = older[entry]
    older[entry] = older[row]


def reuse_distances(rows: DomainRows, weights: npt.NDArray[np.int64] | None = None) -> ReuseDistances:
    """The reuse distances of a domain's duplicates.

    The first rows may stand for as many ids each as their `weights` say, ids that none of these rows repeats.
    """
    duplicates = np.flatnonzero(rows.earlier != _NOTHING).astype(np.int32)
    windows = np.zeros(len(duplicates), np.int64)
    _window_distances(
        rows.earlier,
        rows.replaced,
        rows.several,
        rows.source,
        rows.slab_index,
        rows.slab_start.copy(),
        rows.several_ids,
        np.empty(0, np.uint8) if weights is None else weights,
        windows,
    )
    # With W = 0 every receipt enters the time queue at once, so the clock is the receipt before.
    expiry_us = rows.received_at_us[duplicates - 1] - rows.received_at_us[rows.earlier[duplicates]]
    return ReuseDistances(duplicates, windows, expiry_us)


@dataclass(frozen=True, slots=True)
class SlackCounts:
    """The slack of the duplicates that one pair (W, E) catches in a part of a log. Those of parts add up."""

    by_source: int
    """Duplicates whose id a source's queue still holds."""
    by_time: int
    """Duplicates whose id only the time queue still holds."""
    least_window: npt.NDArray[np.int64]
    """The least slack in W of each source of `Facts.sources`, in their order, and last of all others together; the
    largest `int64` where nothing is caught."""
    least_expiry_us: npt.NDArray[np.int64]
    """The least slack in microseconds of E, of the same sources."""

    @classmethod
    def none(cls, sources: int) -> SlackCounts:
        """Of no duplicate, where `Facts.sources` has this many `sources`."""
        return cls(0, 0, np.full(sources + 1, _NONE_CAUGHT), np.full(sources + 1, _NONE_CAUGHT))

    def __add__(self, other: SlackCounts) -> SlackCounts:
        return SlackCounts(
            self.by_source + other.by_source,
            self.by_time + other.by_time,
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
    least_window: npt.NDArray[np.int64],
    least_expiry_us: npt.NDArray[np.int64],
) -> tuple[int, int]:
    by_source, by_time = 0, 0
    for k in range(len(needs_us)):
        if needs_us[k] < 0:
            by_source += 1
            least_window[source[k]] = min(least_window[source[k]], window - window_needs[k])
        elif needs_us[k] <= expiry_us:
            by_time += 1
            least_expiry_us[source[k]] = min(least_expiry_us[source[k]], expiry_us - needs_us[k])
    return by_source, by_time


def count_slack(
    pair: tuple[int, int],
    window_needs: npt.NDArray[np.int64],
    needs_us: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    sources: int,
) -> SlackCounts:
    """Count the slack that a pair (window, expiry_us) leaves to duplicates.

    Each column has a value per duplicate:
    - `window_needs`: the window that catches it alone;
    - `needs_us`: the expiry, never 0, that catches it together with the pair's window; -1 where that window does alone;
    - `source`: the index of its source in `Facts.sources`; `sources` for any other source.
    `sources` is how many `Facts.sources` has.
    """
    none = SlackCounts.none(sources)
    counts = _count(*pair, window_needs, needs_us, source, none.least_window, none.least_expiry_us)
    return SlackCounts(*counts, none.least_window, none.least_expiry_us)


class PairCounts(NamedTuple):
    """One pair (W, E) over one domain, or a part of it."""

    caught: int
    caught_in_first_half: int
    peak_ids: int
    slack: SlackCounts


class Duplicates(NamedTuple):
    """What is known of the duplicates of a domain, or of a part of it, in order of receipt."""

    window_needs: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    """The index of its source among those whose slack is counted, as for `count_slack`."""
    sources: int
    in_first_half: int
    """How many came before the middle of the log: the first ones."""


def grid_and_pairs(
    replay: Callable[[Sequence[WindowAsked]], Sequence[WindowCounts]],
    windows: Sequence[int],
    expiries_us: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    duplicates: Duplicates,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[PairCounts]]:
    """Caught duplicates and peaks of a grid, [window, expiry], and the counts of pairs (window, expiry_us).

    Each window is replayed once, by `replay`.
    """
    of_window: dict[int, set[int]] = {window: set(expiries_us) for window in windows}
    for window, expiry_us in pairs:
        of_window.setdefault(window, set()).add(expiry_us)
    with_pairs = {window for window, _ in pairs}
    asked = [WindowAsked(window, sorted(expiries), window in with_pairs) for window, expiries in of_window.items()]
    counts = {each.window: (each.expiries_us, result) for each, result in zip(asked, replay(asked), strict=True)}

    caught, peak_ids = (np.zeros((len(windows), len(expiries_us)), np.int64) for _ in range(2))
    for i, window in enumerate(windows):
        tried, result = counts[window]
        columns = np.searchsorted(tried, expiries_us)
        caught[i], peak_ids[i] = result.caught[columns], result.peak_ids[columns]
    outcomes = []
    for window, expiry_us in pairs:
        tried, result = counts[window]
        at = tried.index(expiry_us)
        early = is_caught(result.needs_us[: duplicates.in_first_half], expiry_us)
        slack = count_slack(
            (window, expiry_us), duplicates.window_needs, result.needs_us, duplicates.source, duplicates.sources
        )
        outcomes.append(
            PairCounts(int(result.caught[at]), int(np.count_nonzero(early)), int(result.peak_ids[at]), slack)
        )
    return caught, peak_ids, outcomes


def source_indexes(sources: Sequence[SourceNeeds], domain: str, names: Iterable[str]) -> npt.NDArray[np.int32]:
    """The index in `sources`, which are those of `Facts`, of each named source of a domain; `len(sources)` for any other."""
    indexes = {source.source: index for index, source in enumerate(sources) if source.domain == domain}
    return np.array([indexes.get(name, len(sources)) for name in names], np.int32)


def expiry_need_us(needs_us: npt.NDArray[np.int64], max_missed: int) -> int:
    """The smallest E in microseconds that leaves no more than `max_missed` duplicates uncaught.

    `needs_us` has the expiry need of each duplicate, -1 where a window catches it. The `max_missed` + 1 largest needs are
    enough.
    """
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))


def _or_none(least: int) -> int | None:
    return None if least == _NONE_CAUGHT else least


def pair_outcome(caught: int, caught_in_first_half: int, peak_ids: int, counts: SlackCounts) -> PairOutcome:
    """The outcome of a pair, made of its figures and its slack over the whole log."""
    least_windows = [_or_none(least) for least in counts.least_window.tolist()]
    least_expiries_us = [_or_none(least) for least in counts.least_expiry_us.tolist()]
    return PairOutcome(
        caught,
        caught_in_first_half,
        peak_ids,
        Slack(
            counts.by_source,
            counts.by_time,
            _or_none(int(counts.least_window.min())),
            _or_none(int(counts.least_expiry_us.min())),
        ),
        tuple(zip(least_windows, least_expiries_us, strict=True))[:-1],
    )


def headroom_of(slack: Slack) -> HeadroomFigures | None:
    """The figures of a setting's slack; None where it catches nothing."""
    if not slack.by_source and not slack.by_time:
        return None
    return HeadroomFigures(slack.by_source, slack.by_time, slack.least_window, slack.least_expiry_us)
