"""What an analysis asks of a log, whoever replays it: one process that holds it whole, or many that hold a chunk each.

Everything here adds up over parts of a log. So an engine has to count, and what turns counts into facts is written once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from receiver.domains import Channel, destination_name
from receiver.simulate.figures import Elsewhere, Histogram, LogFigures, Timeline

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import StatusLine
    from receiver.simulate.figures import Steps

__all__ = [
    "STEPS",
    "WORST_SOURCES",
    "CrossDomainDuplicates",
    "DomainCounts",
    "Facts",
    "PairOutcome",
    "PartNeeds",
    "PerPart",
    "Replayed",
    "Replays",
    "Slack",
    "SourceNeeds",
    "ValueCounts",
    "counts_of",
    "cross_domain_counts",
    "histogram_of",
    "in_order",
    "maybe_worst",
    "missed_between",
    "missed_by",
    "parted_queues",
    "queues_of",
    "slices_of",
    "worst",
]

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
class DomainCounts:
    name: str
    receipts: int
    duplicates: int
    sources: int
    window_need: int
    expiry_need_us: int


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
class SourceNeeds:
    """One source of one domain that has duplicates."""

    domain: str
    source: str
    receipts: int
    """Receipts with an id."""
    duplicates: int
    window_need: int
    expiry_need_us: int


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
    domains: tuple[DomainCounts, ...]
    """Ordered by name."""
    firsts: int
    """Receipts with an id that is new in their domain."""
    whole: PartNeeds
    halves: tuple[PartNeeds, PartNeeds]
    """Of the duplicates before `LogFigures.middle_us`, by the clamped time, and of the others."""
    bursts: int
    """As `figures.Evidence` has them."""
    elsewhere: Elsewhere | None
    peak_per_second: int
    """As `figures.Analysis` has it."""
    from_other_sources: int
    """Duplicates whose id came last from another source."""
    expiry_needs: Histogram
    most_expiry_need_us: int
    sources: tuple[SourceNeeds, ...]
    """Those that need most, worst first: by window need, expiry need (both descending), domain, source."""
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


@dataclass(frozen=True, slots=True)
class Slack:
    """The slack of all duplicates that a setting catches, by tier: how many these are, and the least slack."""

    by_source: int
    by_time: int
    least_window: int | None
    least_expiry_us: int | None


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """One pair (W, E) over the whole log."""

    caught: int
    caught_in_first_half: int
    peak_ids: int
    """The sum of the domains' peaks."""
    slack: Slack
    source_slack: tuple[tuple[int | None, int | None], ...]
    """Per source of `Facts.sources`, in their order: its least headroom in W, and in E (microseconds)."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Figures for every pair of a grid, per domain, indexed [window, expiry]; and the outcomes of the pairs asked for."""

    caught: tuple[npt.NDArray[np.int64], ...]
    """Per domain of `Facts.domains`, in their order."""
    peak_ids: tuple[npt.NDArray[np.int64], ...]
    pairs: tuple[PairOutcome, ...]


class Replays(Protocol):
    """A log that can be replayed."""

    def facts(self) -> Facts:
        """Everything that doesn't depend on a setting."""
        ...

    def expiry_needs_us(self, tried: PerPart[Sequence[int]], max_missed: int) -> PerPart[list[int]]:
        """Per window tried for each part, the smallest E that together with it misses no more than `max_missed` of the
        part's duplicates; 0 where none is needed. `max_missed` is that of the facts.
        """
        ...

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        """Replay the grid of `windows` and `expiries_us`, both ascending, and the pairs (window, expiry_us)."""
        ...


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
    """The same where the needs are known between steps alone, and the largest one: what needs a step itself counts as missed.
    What needs 0 is caught from 1 on.
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


def _by_need(source: SourceNeeds) -> tuple[int, int, str, str]:
    """A key to sort by, the source that needs most first."""
    return -source.window_need, -source.expiry_need_us, source.domain, source.source


def worst(sources: Iterable[SourceNeeds]) -> tuple[SourceNeeds, ...]:
    """Those that need most, worst first, and no more than `WORST_SOURCES`."""
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
