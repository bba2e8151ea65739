"""What turns counts into figures, wherever they were counted: steps of histograms, slices of time, orders of merit."""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.figures import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from receiver.logs import StatusLine
    from receiver.simulate.replays import SourceNeeds, ValueCounts

__all__ = [
    "STEPS",
    "WORST_SOURCES",
    "counts_of",
    "histogram_of",
    "in_order",
    "maybe_worst",
    "slices_of",
    "value_histogram",
    "worst",
]

STEPS = np.array([0, *chain.from_iterable((10**p, 2 * 10**p, 5 * 10**p) for p in range(18))], np.int64)
"""Where the bars of histograms begin: 0, 1, 2, 5, 10, 20, ..."""
WORST_SOURCES = 50
_SLICES = 200


def counts_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many values stand between each of the `STEPS` and the next; counts of parts add up."""
    return np.bincount(np.searchsorted(STEPS, values, side="right") - 1, minlength=len(STEPS))


def histogram_of(counts: npt.NDArray[np.int64]) -> Histogram:
    """Of counts between the `STEPS`, those that values span."""
    filled = np.flatnonzero(counts)
    if not len(filled):
        return Histogram((), ())
    first, last = int(filled[0]), int(filled[-1])
    return Histogram(tuple(STEPS[first : last + 2].tolist()), tuple(counts[first : last + 1].tolist()))


def value_histogram(values: ValueCounts) -> Histogram:
    """The histogram of values that were counted one by one."""
    below = np.searchsorted(values.values, STEPS)
    sums = np.concatenate([[0], np.cumsum(values.counts)])
    return histogram_of(np.diff(sums[below], append=sums[-1]))


def slices_of(first_us: int, last_us: int) -> tuple[int, int]:
    """Slices of a round length for a log's time, at most some two hundred. -> (length in microseconds, how many)"""
    slice_us = int(STEPS[np.searchsorted(STEPS, (last_us - first_us) // _SLICES + 1)])
    return slice_us, (last_us - first_us) // slice_us + 1


def _by_need(source: SourceNeeds) -> tuple[int, int, str, str]:
    """A key to sort by, the source that needs most first."""
    return -source.window_need, -source.expiry_need_us, source.domain, source.source


def worst(sources: Iterable[SourceNeeds]) -> tuple[SourceNeeds, ...]:
    """Those that need most, worst first, and no more than `WORST_SOURCES`."""
    return tuple(heapq.nsmallest(WORST_SOURCES, sources, _by_need))


def maybe_worst(window_needs: npt.NDArray[np.int64], expiry_needs_us: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The places of sources that may be among the worst by these needs: all but such as surely aren't."""
    if len(window_needs) <= WORST_SOURCES:
        return np.arange(len(window_needs))
    last = np.lexsort((expiry_needs_us, window_needs))[-WORST_SOURCES]
    window, expiry_us = window_needs[last], expiry_needs_us[last]
    return np.flatnonzero((window_needs > window) | ((window_needs == window) & (expiry_needs_us >= expiry_us)))


def in_order(lines: Iterable[StatusLine]) -> tuple[StatusLine, ...]:
    """Status lines in the order they were logged, those of one time by what they say."""
    return tuple(sorted(lines, key=lambda line: (line.logged_at_us, sorted(line.values.items()))))
