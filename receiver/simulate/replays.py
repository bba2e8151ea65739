"""What an analysis gets to know of a log: its facts, and the outcomes of its replay.

Whoever replays it, one process that holds it whole or many that hold a chunk each, counts by `shares` and `headroom`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.domains import Channel, destination_name
from receiver.simulate.figures import (
    DomainFigures,
    Elsewhere,
    HeadroomFigures,
    Histogram,
    LogFigures,
    SourceFigures,
    Timeline,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import StatusLine
    from receiver.simulate.figures import Steps

_T = TypeVar("_T")
PerPart = tuple[_T, _T, _T]
"""Something for the whole log, and for its first and second half."""
STEPS = np.array([0, *chain.from_iterable((10**p, 2 * 10**p, 5 * 10**p) for p in range(18))], np.int64)
"""Where the bars of histograms begin: 0, 1, 2, 5, 10, 20, ..."""
WORST_SOURCES = 50
_SLICES = 200
_EXACT_NEEDS = 200
"""How many of the largest needs a curve shows exactly; they are those that matter."""


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How often each value came: exact, and as large as there are different values."""

    values: npt.NDArray[np.int64]
    """Ascending, without repeats."""
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None = None) -> ValueCounts:
        """Count values in any order; the `counts` of equal values add up, and each counts once without them."""
        distinct, index = np.unique(values, return_inverse=True)
        weights = np.ones(len(values), np.int64) if counts is None else counts
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, index, weights)
        return cls(distinct, sums)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def most(self) -> int:
        """The largest value; 0 where there is none."""
        return int(self.values[-1]) if len(self.values) else 0

    def at(self, rank: int) -> int:
        """The value that stands at a rank, from 0, among all in ascending order."""
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank, side="right")])


@dataclass(frozen=True, slots=True)
class PartNeeds:
    """What the duplicates of a log, or of one half of it, need."""

    windows: ValueCounts
    """Of each, the least W that catches it without the time tier."""
    expiry_us: int
    """The least E that, without a window, misses no more of them than allowed."""

    def window(self, max_missed: int) -> int:
        """The least W that, without the time tier, misses no more of them than allowed."""
        return self.windows.at(self.windows.total - 1 - max_missed) if self.windows.total > max_missed else 0


@dataclass(frozen=True, slots=True)
class CrossDomainDuplicates:
    """Receipts that repeat an id of their queue, but of another domain, so that the KEY hides the repeat."""

    receipts: int
    by_connections: dict[tuple[str, str], int]
    """How many by (connection of the receipt before, connection of this one)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a log under a KEY, whatever the setting."""

    log: LogFigures
    domains: tuple[DomainFigures, ...]
    """Ordered by name, without settings."""
    firsts: int
    """Receipts with an id that is new in their domain."""
    whole: PartNeeds
    halves: tuple[PartNeeds, PartNeeds]
    """Of the duplicates before `LogFigures.middle_us`, by the clamped time, and of the others."""
    bursts: int
    """`figures.Evidence.bursts`"""
    elsewhere: Elsewhere | None
    peak_per_second: int
    """`figures.Analysis.peak_per_second`"""
    from_other_sources: int
    """Duplicates whose id came last from another source."""
    expiry_needs: Histogram
    most_expiry_need_us: int
    sources: tuple[SourceFigures, ...]
    """The sources that need most, worst first: by window need, expiry need (both descending), domain, source; without headroom."""
    source_window_needs: ValueCounts
    """Per source with duplicates, the window that catches them all."""
    checked_sources: int
    """How many sources sent an id."""
    ended_sources: ValueCounts
    """Per source that sent its last id before `LogFigures.middle_us`, by the clamped time, its receipts with an id."""
    timeline: Timeline | None
    cross_domain: CrossDomainDuplicates | None
    """None where the KEY can't hide a repeat, or there is none."""
    lacking: dict[str, int]
    """How many receipts lack a part of their channel, by part."""
    has_digest: bool
    reused: int
    """Duplicates whose digest isn't that of the receipt they repeat, both being there."""
    has_redelivered: bool
    unmarked_duplicates: int
    """Duplicates without the flag JMSRedelivered."""
    marked_firsts: int
    """Receipts of new ids with the flag JMSRedelivered."""
    largest_step_back_us: int
    status_lines: tuple[StatusLine, ...]
    """Ordered by the time they were logged at."""

    @property
    def parts(self) -> PerPart[PartNeeds]:
        return self.whole, *self.halves


NONE_CAUGHT = np.iinfo(np.int64).max
"""The least slack of no duplicate."""


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """One pair (W, E) over the whole log."""

    by_source: int
    """Duplicates whose id a source's queue still holds."""
    by_time: int
    """Duplicates whose id only the time queue still holds."""
    caught_in_first_half: int
    peak_ids: int
    """The sum of the domains' peaks."""
    least_window: npt.NDArray[np.int64]
    """The least slack in W of each source of `Facts.sources`, in their order, and last of all others together;
    `NONE_CAUGHT` where nothing is caught.
    """
    least_expiry_us: npt.NDArray[np.int64]
    """The least slack in microseconds of E, of the same sources."""

    @property
    def caught(self) -> int:
        return self.by_source + self.by_time

    def headroom(self) -> HeadroomFigures | None:
        """None where the pair catches nothing."""
        if not self.caught:
            return None
        least = _or_none(self.least_window.min()), _or_none(self.least_expiry_us.min())
        return HeadroomFigures(self.by_source, self.by_time, *least)

    def left(self, source: int) -> tuple[int | None, int | None]:
        """The least headroom in W, and in E (microseconds), of a source of `Facts.sources`."""
        return _or_none(self.least_window[source]), _or_none(self.least_expiry_us[source])


def _or_none(least: np.int64) -> int | None:
    return None if least == NONE_CAUGHT else int(least)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Figures for every pair of a grid, per domain, indexed [window, expiry]; and the outcomes of the pairs asked for."""

    caught: tuple[npt.NDArray[np.int64], ...]
    """Per domain of `Facts.domains`, in their order."""
    peak_ids: tuple[npt.NDArray[np.int64], ...]
    pairs: tuple[PairOutcome, ...]


def counts_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many values stand between each of the `STEPS` and the next; counts of parts add up."""
    return np.bincount(np.searchsorted(STEPS, values, side="right") - 1, minlength=len(STEPS))


def histogram_of(counts: npt.NDArray[np.int64]) -> Histogram:
    """The histogram of counts between the `STEPS`, cut to the steps that hold a value."""
    filled = np.flatnonzero(counts)
    if not len(filled):
        return Histogram((), ())
    first, last = int(filled[0]), int(filled[-1])
    return Histogram(tuple(STEPS[first : last + 2].tolist()), tuple(counts[first : last + 1].tolist()))


def missed_by(values: ValueCounts) -> Steps:
    """What each setting misses of duplicates with these needs: exact at the largest needs, and between them at round ones."""
    needs = np.union1d(values.values[-_EXACT_NEEDS:], STEPS[values.most > STEPS])
    sums = np.concatenate([[0], np.cumsum(values.counts)])
    missed = values.total - sums[np.searchsorted(values.values, needs, side="right")]
    return tuple(zip(needs.tolist(), missed.tolist(), strict=True))


def missed_between(needs: Histogram, most: int) -> Steps:
    """What `missed_by` gives, from a histogram and the largest need. A duplicate whose need equals an edge counts as missed;
    one that needs 0 is caught from 1 on.
    """
    if not needs.counts:
        return ()
    missed = [sum(needs.counts[index:]) for index in range(len(needs.counts))]
    steps = {0: missed[0]} | {edge - 1: left for edge, left in zip(needs.edges, missed, strict=False) if edge > 1}
    return (*steps.items(), (max(1, most), 0))


def slices_of(first_us: int, last_us: int) -> tuple[int, int]:
    """Slices of a round length for a log's time, at most 201. -> (length in microseconds, how many)"""
    slice_us = int(STEPS[np.searchsorted(STEPS, (last_us - first_us) // _SLICES + 1)])
    return slice_us, (last_us - first_us) // slice_us + 1


def _by_need(source: SourceFigures) -> tuple[int, int, str, str]:
    """A key to sort by, the source that needs most first."""
    return -source.window_need, -source.expiry_need_us, source.domain, source.source


def worst(sources: Iterable[SourceFigures]) -> tuple[SourceFigures, ...]:
    """The sources that need most, worst first, and no more than `WORST_SOURCES`."""
    return tuple(heapq.nsmallest(WORST_SOURCES, sources, _by_need))


def maybe_worst(window_needs: npt.NDArray[np.int64], expiry_needs_us: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The indexes of the sources that may be among the worst by these needs; those left out surely aren't."""
    if len(window_needs) <= WORST_SOURCES:
        return np.arange(len(window_needs))
    last = np.lexsort((expiry_needs_us, window_needs))[-WORST_SOURCES]
    window, expiry_us = window_needs[last], expiry_needs_us[last]
    return np.flatnonzero((window_needs > window) | ((window_needs == window) & (expiry_needs_us >= expiry_us)))


def in_order(lines: Iterable[StatusLine]) -> tuple[StatusLine, ...]:
    """Status lines in the order they were logged; lines of one time are ordered by their values."""
    return tuple(sorted(lines, key=lambda line: (line.logged_at_us, sorted(line.values.items()))))


def queues_of(destinations: Iterable[str]) -> npt.NDArray[np.int32]:
    """Per destination, the number of its queue, or -1.

    Every receiver of a topic gets a copy of its own, so a topic's ids rightly come more than once.
    """
    numbers: dict[str, int] = {}
    names = [destination_name(destination) for destination in destinations]
    return np.array(
        [numbers.setdefault(name, len(numbers)) if name.startswith("queue://") else -1 for name in names], np.int32
    )


def parted_queues(channels: Collection[Channel], domains: Collection[Hashable]) -> npt.NDArray[np.int32]:
    """Per channel, the number of its queue where the queue's channels fall into several `domains`, else -1."""
    queue = queues_of(channel.destination for channel in channels)
    domains_of = Counter(number for number, _ in set(zip(queue.tolist(), domains, strict=True)))
    is_parted = np.array([domains_of[number] > 1 for number in queue.tolist()], np.bool_)
    return np.where(is_parted, queue, np.int32(-1))


def cross_domain_counts(
    queue: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],
    new: npt.NDArray[np.bool_],
    connection: npt.NDArray[np.int32],
    names: Sequence[str],
) -> dict[tuple[str, str], int]:
    """How many receipts are new in their domain, although their queue brought the id before: by (connection of the newest
    such receipt, connection of this one).

    The columns are of receipts in order; those of ids that are new in one domain only may be left out. `connection`
    holds indexes of `names`, which may repeat.
    """
    order = np.lexsort((ids, queue))
    before, after = order[:-1], order[1:]
    again = (queue[before] == queue[after]) & (ids[before] == ids[after]) & new[after]
    pairs = connection[before[again]].astype(np.int64) * len(names) + connection[after[again]]
    counts: Counter[tuple[str, str]] = Counter()
    for pair, count in zip(*(column.tolist() for column in np.unique(pairs, return_counts=True)), strict=True):
        source, target = divmod(pair, len(names))
        counts[names[source], names[target]] += count
    return dict(counts)
