"""What an analysis asks of a log, whoever replays it: one process that holds it whole, or many that hold a chunk each.

Everything here adds up over parts of a log. So an engine has to count, and what is said of the counts is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from receiver.simulate.figures import Histogram, LogFigures, Timeline

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import StatusLine

__all__ = [
    "Crossing",
    "DomainCounts",
    "Facts",
    "Lefts",
    "PairOutcome",
    "Replayed",
    "Replays",
    "SourceNeeds",
    "ValueCounts",
]


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How often each value came: exact, and as large as there are different values."""

    values: npt.NDArray[np.int64]
    """Ascending, without repeats."""
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None = None) -> ValueCounts:
        """Of values in any order; of repeated values, the counts add up."""
        distinct, place = np.unique(values, return_inverse=True)
        weights = np.ones(len(values), np.int64) if counts is None else counts
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, place, weights)
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


@dataclass(frozen=True, slots=True)
class SourceNeeds:
    """One source of one domain that has duplicates."""

    domain: str
    source: str
    receipts: int
    """Those with an id."""
    duplicates: int
    window_need: int
    expiry_need_us: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """Receipts that repeat an id of the same queue in another domain."""

    receipts: int
    ways: dict[tuple[str, str], int]
    """How many by (connection of the receipt before, connection of this one)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a log under a KEY, whatever the setting."""

    log: LogFigures
    domains: tuple[DomainCounts, ...]
    """Ordered by name."""
    firsts: int
    """Receipts with an id that is new in their domain."""
    window_needs: ValueCounts
    expiry_needs: Histogram
    most_expiry_need_us: int
    sources: tuple[SourceNeeds, ...]
    """Those that need most, worst first: by window need, expiry need (both descending), domain, source."""
    source_window_needs: ValueCounts
    """Per source with duplicates, the window that catches them all."""
    checked_sources: int
    """Those that sent an id."""
    ended_sources: ValueCounts
    """Per source that sent its last id before `LogFigures.middle_us`, by the clamped time, its receipts with an id."""
    timeline: Timeline | None
    crossing: Crossing | None
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
    """Receipts of new ids with it."""
    largest_step_back_us: int
    status_lines: tuple[StatusLine, ...]
    """In order of the time they were logged at."""


@dataclass(frozen=True, slots=True)
class Lefts:
    """Headroom of duplicates that a setting catches, by tier, as counts between the steps of `summaries.STEPS`."""

    window_counts: npt.NDArray[np.int64]
    expiry_counts: npt.NDArray[np.int64]
    least_window: int | None
    least_expiry_us: int | None


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """One pair (W, E) over the whole log."""

    caught: int
    peak_ids: int
    """The sum of the domains' peaks."""
    lefts: Lefts
    source_lefts: tuple[tuple[int | None, int | None], ...]
    """Per source of `Facts.sources`, in their order: its least headroom in W, and in E (microseconds)."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Figures for every pair of a grid, per domain, indexed [window, expiry]; and for some pairs more."""

    caught: tuple[npt.NDArray[np.int64], ...]
    """Per domain of `Facts.domains`, in their order."""
    peak_ids: tuple[npt.NDArray[np.int64], ...]
    pairs: tuple[PairOutcome, ...]


class Replays(Protocol):
    """A log that can be replayed."""

    def facts(self) -> Facts:
        """Everything that doesn't depend on a setting."""
        ...

    def expiry_needs_us(self, windows: Sequence[int], max_missed: int) -> list[int]:
        """Per window, the smallest E that together with it misses no more than `max_missed`; 0 where none is needed."""
        ...

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        """Replay the grid of `windows` and `expiries_us`, both ascending, and the pairs (window, expiry_us)."""
        ...
