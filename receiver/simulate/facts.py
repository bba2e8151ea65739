"""The facts of a log that don't depend on a setting: the sums of its sections' shares."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.simulate.compiled import Int64s
from receiver.simulate.domain_rows import NeededElsewhere, expiry_need_us
from receiver.simulate.figures import WORST_SOURCES, DomainFigures, Elsewhere, LogFigures, SourceFigures, Timeline
from receiver.simulate.shares import ROUND, IdCounts, Measures, Share

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import StatusLine
    from receiver.simulate.figures import Curve

_T = TypeVar("_T")
PerPart = tuple[_T, ...]
"""A value for the whole log, one for its first half, and one for its second."""
_EXACT_NEEDS = 200
"""How many of the largest needs a curve shows exactly; the largest matter."""


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How often each value came, exactly. It is as large as there are different values."""

    values: Int64s
    """Ascending, without repeats."""
    counts: Int64s

    @classmethod
    def of(cls, values: Int64s, counts: Int64s | None = None) -> ValueCounts:
        """Count values in any order. `counts` of equal values add up; without `counts`, each value counts once."""
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
        """The largest value; 0 if there is none."""
        return int(self.values[-1]) if len(self.values) else 0

    def at(self, rank: int) -> int:
        """The value at a rank, counted from 0, among all values in ascending order."""
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank, side="right")])


@dataclass(frozen=True, slots=True)
class PartNeeds:
    """The needs of the duplicates of a log, or of one half of it."""

    windows: ValueCounts
    """The window need of each: the least W that catches it without the time tier."""
    window: int
    """The least W that, without the time tier, misses no more of them than allowed."""
    expiry_us: int
    """The least E that, without a window, misses no more of them than allowed."""


class LogSeen(NamedTuple):
    """What is known about a log before its ids are compared."""

    log: LogFigures
    """Its figures; `duplicates` and `clock_clamped` come from shares."""
    domains: list[DomainFigures]
    """Ordered by name; their `duplicates` and needs come from shares."""
    lacking: dict[str, int]
    """`Facts.lacking`"""
    has_redelivered: bool
    status_lines: list[StatusLine]
    """In any order."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a log under a KEY, whatever the setting."""

    log: LogFigures
    domains: tuple[DomainFigures, ...]
    """Ordered by name, without settings."""
    max_missed: int
    """How many duplicates a setting may miss; the needs of parts and domains allow for these."""
    firsts: int
    """Receipts with an id that is new in their domain."""
    whole: PartNeeds
    halves: tuple[PartNeeds, PartNeeds]
    """The needs of the duplicates before `LogFigures.middle_us`, by the clamped time, and of the others."""
    bursts: int
    """`figures.Evidence.bursts`"""
    elsewhere: Elsewhere | None
    peak_per_second: int
    """`figures.Analysis.peak_per_second`"""
    from_other_sources: int
    """Duplicates whose id came last from another source."""
    most_repeats: int
    """The most duplicates that one id makes in a domain."""
    most_expiry_need_us: int
    missed_by_window: Curve
    """How many duplicates each window alone misses (E = 0)."""
    missed_by_expiry_us: Curve
    """How many duplicates each expiry alone misses (W = 0)."""
    sources: tuple[SourceFigures, ...]
    """The sources that need most, ordered by window need, expiry need (both descending), domain, source; without headroom."""
    source_window_needs: ValueCounts
    """For each source with duplicates, the window that catches them all."""
    checked_sources: int
    """How many sources sent an id."""
    ended_sources: ValueCounts
    """For each source that sent its last id before `LogFigures.middle_us`, by the clamped time: its receipts with an id."""
    timeline: Timeline | None
    cross_domain: Counter[tuple[str, str]]
    """Receipts whose id came before by the same queue but in another domain, so that the KEY hides the repeat. Counted by
    (connection of the earlier receipt, connection of this one)."""
    lacking: dict[str, int]
    """How many receipts lack a part of their channel, by part."""
    reused: int
    """Duplicates with another digest than the receipt that they repeat, if both have one."""
    has_redelivered: bool
    unmarked_duplicates: int
    """Duplicates without the flag JMSRedelivered."""
    marked_firsts: int
    """Receipts of new ids with the flag JMSRedelivered."""
    same_time_duplicates: int
    """Duplicates at the clamped time of the receipt that they repeat."""
    largest_step_back_us: int
    status_lines: list[StatusLine]
    """Ordered by the time at which they were logged."""

    @property
    def parts(self) -> PerPart[PartNeeds]:
        return self.whole, *self.halves


def facts_of(
    seen: LogSeen,
    measures: Measures,
    domain_of: Sequence[int],
    shares: Sequence[Share],
    *,
    ids: Sequence[IdCounts],
    elsewhere: Iterable[NeededElsewhere],
) -> Facts:
    """Add up a log, by the shares of all of its chunks in order; `domain_of` has the domain of each chunk.

    Each of `ids` counts a part of the ids. A domain may occur several times in `elsewhere`.
    """
    by_source = _by_source(domain_of, shares)
    duplicates = int(by_source.duplicates.sum())
    domains = _domains(seen.domains, measures, domain_of, shares, elsewhere)
    whole, most_expiry_need_us = _part_needs(shares, measures), int(by_source.expiry_need_us.max(initial=0))
    marked_duplicates = sum(share.marked_duplicates for share in shares)
    return Facts(
        log=replace(seen.log, duplicates=duplicates, clock_clamped=sum(share.clock_clamped for share in shares)),
        domains=domains,
        max_missed=measures.max_missed,
        firsts=int(by_source.receipts.sum()) - duplicates,
        whole=whole,
        halves=(_part_needs(shares, measures, 0), _part_needs(shares, measures, 1)),
        bursts=_bursts(domain_of, shares, measures.burst_gap_us),
        elsewhere=Elsewhere.largest(domain.elsewhere for domain in domains),
        peak_per_second=_peak_per_second(by_source, shares),
        from_other_sources=sum(each.from_other_sources for each in ids),
        most_repeats=max((each.most_repeats for each in ids), default=0),
        most_expiry_need_us=most_expiry_need_us,
        missed_by_window=missed_by(whole.windows),
        missed_by_expiry_us=missed_between(
            sum((share.expiry_steps for share in shares), np.zeros(len(ROUND), np.int64)), most_expiry_need_us
        ),
        sources=by_source.worst(seen.domains),
        source_window_needs=ValueCounts.of(by_source.window_need[by_source.duplicates > 0]),
        checked_sources=len(by_source.names),
        ended_sources=ValueCounts.of(by_source.receipts[by_source.last_us < measures.middle_us]),
        timeline=_timeline(shares, measures) if seen.log.receipts else None,
        cross_domain=_cross_domain(ids),
        lacking=seen.lacking,
        reused=sum(each.reused for each in ids),
        has_redelivered=seen.has_redelivered,
        unmarked_duplicates=duplicates - marked_duplicates,
        marked_firsts=sum(share.marked_firsts for share in shares),
        same_time_duplicates=sum(share.same_time_duplicates for share in shares),
        largest_step_back_us=max((share.largest_step_back_us for share in shares), default=0),
        # Lines of equal times are ordered by their values, so that the order of files doesn't matter.
        status_lines=sorted(seen.status_lines, key=lambda line: (line.logged_at_us, sorted(line.values.items()))),
    )


def _domains(
    seen: Sequence[DomainFigures],
    measures: Measures,
    domain_of: Sequence[int],
    shares: Sequence[Share],
    elsewhere: Iterable[NeededElsewhere],
) -> tuple[DomainFigures, ...]:
    """The domains with their duplicates and needs."""
    elsewhere_of: defaultdict[int, list[Elsewhere]] = defaultdict(list)
    for needed in elsewhere:
        elsewhere_of[needed.domain].append(needed)
    domains = []
    for number, own in groupby(shares, lambda share: domain_of[share.section]):
        needs, of_sources = _part_needs(list(own), measures), Elsewhere(sources=seen[number].sources)
        domains.append(
            replace(
                seen[number],
                duplicates=needs.windows.total,
                window_need=needs.window,
                expiry_need_us=needs.expiry_us,
                elsewhere=Elsewhere.largest([*elsewhere_of[number], of_sources]) if needs.windows.total else None,
            )
        )
    return tuple(domains)


class _BySource(NamedTuple):
    """Columns with a value for each source, over all chunks of its domain."""

    names: list[str]
    domain: list[int]
    """The number of each source's domain."""
    of_chunk: list[npt.NDArray[np.intp]]
    """Share -> the numbers of its sources here."""
    receipts: Int64s
    duplicates: Int64s
    last_us: Int64s
    window_need: Int64s
    expiry_need_us: Int64s

    def worst(self, domains: Sequence[DomainFigures]) -> tuple[SourceFigures, ...]:
        """The sources that need most, worst first, and no more than `WORST_SOURCES`."""
        window, expiry_us = self.window_need, self.expiry_need_us
        worst = np.flatnonzero(self.duplicates)
        if len(worst) > WORST_SOURCES:
            last = worst[np.lexsort((expiry_us[worst], window[worst]))[-WORST_SOURCES]]
            # Names decide between equal needs. So all sources that need as much as the last are kept for now.
            is_as_bad = (window > window[last]) | ((window == window[last]) & (expiry_us >= expiry_us[last]))
            worst = worst[is_as_bad[worst]]
        columns = (self.receipts, self.duplicates, window, expiry_us)
        figures = [
            SourceFigures(domains[self.domain[at]].domain, self.names[at], *(int(column[at]) for column in columns))
            for at in worst.tolist()
        ]
        figures.sort(key=lambda each: (-each.window_need, -each.expiry_need_us, each.domain, each.source))
        return tuple(figures[:WORST_SOURCES])


def _by_source(domain_of: Sequence[int], shares: Sequence[Share]) -> _BySource:
    names: list[str] = []
    domains: list[int] = []
    of_chunk = []
    for domain, own in groupby(shares, lambda share: domain_of[share.section]):
        numbers: dict[str, int] = {}
        for share in own:
            numbers_here = [numbers.setdefault(source, len(names) + len(numbers)) for source in share.sources]
            of_chunk.append(np.array(numbers_here, np.intp))
        names += numbers
        domains += [domain] * len(numbers)
    added, largest = np.zeros((2, len(names)), np.int64), np.zeros((3, len(names)), np.int64)
    for share, at in zip(shares, of_chunk, strict=True):
        added[:, at] += np.array([share.receipts, share.duplicates])
        needs = np.array([share.last_us, share.window_need, share.expiry_need_us])
        largest[:, at] = np.maximum(largest[:, at], needs)
    return _BySource(names, domains, of_chunk, *added, *largest)


def _part_needs(shares: Sequence[Share], measures: Measures, half: int | None = None) -> PartNeeds:
    """The needs of all duplicates of these shares, or of those in one half of the log."""
    halves = (0, 1) if half is None else (half,)
    counts = _all([(share.in_first_half, share.in_second_half)[of] for of in halves for share in shares])
    tops_us = _all([(share.top_of_first_half_us, share.top_of_second_half_us)[of] for of in halves for share in shares])
    values = _all([share.window_needs for _ in halves for share in shares])
    is_needed = counts > 0
    windows, max_missed = ValueCounts.of(values[is_needed], counts[is_needed]), measures.max_missed
    window = windows.at(windows.total - 1 - max_missed) if windows.total > max_missed else 0
    return PartNeeds(windows, window, expiry_need_us(tops_us, max_missed))


def _all(columns: Sequence[Int64s]) -> Int64s:
    """The columns as one; empty for no columns."""
    return np.concatenate([np.empty(0, np.int64), *columns])


def _bursts(domain_of: Sequence[int], shares: Sequence[Share], gap_us: int) -> int:
    """The bursts of all chunks. A burst that crosses a cut was counted twice, so it is subtracted once."""
    return sum(share.bursts for share in shares) - sum(
        domain_of[before.section] == domain_of[after.section]
        and after.first_duplicate_us - before.last_duplicate_us <= gap_us
        for before, after in pairwise(share for share in shares if share.bursts)
    )


def _peak_per_second(by_source: _BySource, shares: Sequence[Share]) -> int:
    """The most receipts of a source in one second; if a second goes on in another chunk, the counts of both add up."""
    source = _all([at[share.edge_source] for share, at in zip(shares, by_source.of_chunk, strict=True)])
    second, count = (_all([getattr(share, name) for share in shares]) for name in ("edge_second", "in_edge"))
    order = np.lexsort((second, source))
    begins = np.flatnonzero((np.diff(second[order], prepend=-1) != 0) | (np.diff(source[order], prepend=-1) != 0))
    at_edges = np.add.reduceat(count[order], begins) if len(begins) else count
    return max([int(at_edges.max(initial=0)), *(share.most_in_second for share in shares)])


def _timeline(shares: Sequence[Share], measures: Measures) -> Timeline:
    counts = np.zeros((2, measures.slices), np.int64)
    for share in shares:
        counts[:, share.filled_slice] += share.receipts_in_slice, share.duplicates_in_slice
    receipts, duplicates = counts.tolist()
    return Timeline(measures.start_us, measures.slice_us, tuple(receipts), tuple(duplicates))


def _cross_domain(ids: Iterable[IdCounts]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for each in ids:
        for before, after, count in zip(each.cross_from, each.cross_to, each.cross_count.tolist(), strict=True):
            counts[before, after] += count
    return counts


def missed_by(values: ValueCounts) -> Curve:
    """How many duplicates with these needs each setting misses: exactly at the largest needs, and at round ones below."""
    needs = np.union1d(values.values[-_EXACT_NEEDS:], ROUND[values.most > ROUND])
    sums = np.concatenate([[0], np.cumsum(values.counts)])
    missed = values.total - sums[np.searchsorted(values.values, needs, side="right")]
    return tuple(zip(needs.tolist(), missed.tolist(), strict=True))


def missed_between(steps: Int64s, most: int) -> Curve:
    """The curve of `missed_by` from a histogram: `steps` counts the needs from each number of `ROUND` to before the next, and
    `most` is the largest need.

    What is missed is known just below each number. So a duplicate that needs exactly this number counts as missed there. One
    that needs 0 is caught from 1 on, because 0 catches nothing.
    """
    filled = np.flatnonzero(steps)
    if not len(filled):
        return ()
    missed = np.cumsum(steps[::-1])[::-1].tolist()
    curve = {0: missed[0]}
    for index in range(int(filled[0]), int(filled[-1]) + 1):
        if ROUND[index] > 1:
            curve[int(ROUND[index]) - 1] = missed[index]
    return (*curve.items(), (max(1, most), 0))
