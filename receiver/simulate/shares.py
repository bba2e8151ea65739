"""What is counted of a log, and the facts that it adds up to.

A `Share` is what is counted of one section: of a domain that is held whole, or of a chunk of one. `share_of` counts it, and
`facts_of` adds shares up. So a new figure is a field of `Share`, and a line in each of the two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.distances import expiry_need_us
from receiver.simulate.figures import DomainFigures, Elsewhere, SourceFigures, Timeline
from receiver.simulate.replays import (
    STEPS,
    CrossDomainDuplicates,
    Facts,
    PartNeeds,
    ValueCounts,
    counts_of,
    histogram_of,
    in_order,
    maybe_worst,
    slices_of,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Sized

    import numpy.typing as npt

    from receiver.logs import StatusLine
    from receiver.simulate.distances import ReuseDistances
    from receiver.simulate.domain_rows import DomainRows
    from receiver.simulate.figures import LogFigures

_NOTHING = -1
_SECOND_US = 1_000_000


class Measures(NamedTuple):
    """By what a log is counted: known before any of its ids is looked at."""

    max_missed: int
    """How many duplicates a recommended setting may miss."""
    middle_us: int
    """`LogFigures.middle_us`"""
    burst_gap_us: int
    """The longest time between two duplicates of one burst: a second, or the longest redelivery if that took longer."""
    start_us: int
    """Where the timeline starts, how long a slice of it is, and how many there are."""
    slice_us: int
    slices: int

    @classmethod
    def of(cls, log: LogFigures, max_missed: int) -> Measures:
        start_us = log.first_received_at_us or 0
        slices = slices_of(start_us, start_us + log.span_us)
        return cls(max_missed, log.middle_us, max(_SECOND_US, log.delivery_us), start_us, *slices)

    def in_first_half(self, times_us: npt.NDArray[np.int64]) -> int:
        """How many of these ascending times are in the first half of the log."""
        return int(np.searchsorted(times_us, self.middle_us))


class Counted(NamedTuple):
    """The receipts of a section, in order: columns of those with an id, but for `unchecked_us`."""

    as_read_us: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    """Clamped (rule 2)."""
    source: npt.NDArray[np.int32]
    """Indices of `sources`, each of which sent at least one of them."""
    sources: list[str]
    redelivered_row: npt.NDArray[np.integer[Any]]
    """Which of them are marked as redelivered."""
    unchecked_us: npt.NDArray[np.int64]
    """When receipts without an id came, as read."""


@dataclass(frozen=True, slots=True)
class Share:
    """What is counted of one section."""

    chunk: int
    """The chunk's number, or the domain's where domains are held whole. Chunks are numbered domain by domain, in order."""
    clock_clamped: int
    largest_step_back_us: int
    marked_duplicates: int
    marked_firsts: int
    filled_slice: npt.NDArray[np.int64]
    """The slices of the timeline with a receipt, be it without an id, by the time as read."""
    receipts_in_slice: npt.NDArray[np.int64]
    duplicates_in_slice: npt.NDArray[np.int64]
    window_needs: npt.NDArray[np.int64]
    """The different windows that duplicates need."""
    in_first_half: npt.NDArray[np.int64]
    """How many duplicates of the first half of the log need each, and how many of the second."""
    in_second_half: npt.NDArray[np.int64]
    top_of_first_half_us: npt.NDArray[np.int64]
    """The largest expiries that duplicates of each half need without a window: one more than may be missed."""
    top_of_second_half_us: npt.NDArray[np.int64]
    expiry_steps: npt.NDArray[np.int64]
    """How many duplicates need an expiry between each of the `STEPS` and the next."""
    bursts: int
    """Of duplicates, as if there were no other chunk."""
    first_duplicate_us: int
    """When the first duplicate came, clamped, and when the last one; -1 without any."""
    last_duplicate_us: int
    sources: list[str]
    receipts: npt.NDArray[np.int64]
    """Receipts with an id, by source."""
    duplicates: npt.NDArray[np.int64]
    """By source, as are the next three."""
    last_us: npt.NDArray[np.int64]
    """When its last receipt came, clamped."""
    window_need: npt.NDArray[np.int64]
    """What its duplicates need, each tier alone; 0 without any."""
    expiry_need_us: npt.NDArray[np.int64]
    most_in_second: int
    """The most receipts of one source in one second of the clock."""
    edge_source: npt.NDArray[np.int32]
    """The first and the last second of each source, which may go on in other chunks, and its receipts in that second."""
    edge_second: npt.NDArray[np.int64]
    in_edge: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IdCounts:
    """What only a look at the ids can count."""

    reused: int
    """Duplicates whose digest isn't that of the id's newest earlier receipt in the domain, both being there."""
    from_other_sources: int
    """Duplicates whose id came last from another source."""
    cross_from: list[str]
    """Cross-domain duplicates by the connection of the receipt before and that of this one: three parallel lists."""
    cross_to: list[str]
    cross_count: npt.NDArray[np.int64]

    @classmethod
    def of(cls, reused: int, from_other_sources: int, cross_domain: dict[tuple[str, str], int]) -> IdCounts:
        cross_from, cross_to = ([pair[side] for pair in cross_domain] for side in (0, 1))
        return cls(reused, from_other_sources, cross_from, cross_to, np.array(list(cross_domain.values()), np.int64))


class DomainSeen(NamedTuple):
    """What is known of a domain before its ids are looked at."""

    name: str
    receipts: int
    sources: int
    """Sources of receipts without an id included."""


class LogSeen(NamedTuple):
    """What is known of a log before its ids are looked at."""

    log: LogFigures
    """Its figures; `duplicates` and `clock_clamped` come from shares."""
    domains: list[DomainSeen]
    """Ordered by name."""
    lacking: dict[str, int]
    """`Facts.lacking`"""
    has_digest: bool
    has_redelivered: bool
    status_lines: Iterable[StatusLine]


def share_of(chunk: int, counted: Counted, needs: ReuseDistances, measures: Measures) -> Share:
    """Count a section; `needs` is what its duplicates need, whose ids may have come before the chunk."""
    received_at_us, source, sources = counted.received_at_us, counted.source, counted.sources
    steps_back_us = received_at_us - counted.as_read_us
    is_duplicate = np.zeros(len(source), np.bool_)
    is_duplicate[needs.row] = True
    marked_duplicates = int(np.count_nonzero(is_duplicate[counted.redelivered_row]))
    times_us, of_source = received_at_us[needs.row], source[needs.row]
    middle = measures.in_first_half(times_us)
    window_needs, need = np.unique(needs.window, return_inverse=True)
    filled_slice, receipts_in_slice, duplicates_in_slice = _by_slice(counted, needs.row, measures)
    most_in_second, edge_source, edge_second, in_edge = _by_second(source, received_at_us, len(sources))

    def top_us(expiries_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.sort(expiries_us)[-measures.max_missed - 1 :]

    def count(numbers: npt.NDArray[Any], names: Sized) -> npt.NDArray[np.int64]:
        return np.bincount(numbers, minlength=len(names)).astype(np.int64)

    def most(of: npt.NDArray[np.int32], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        largest = np.zeros(len(sources), np.int64)
        np.maximum.at(largest, of, values)
        return largest

    return Share(
        chunk=chunk,
        clock_clamped=int(np.count_nonzero(steps_back_us)),
        largest_step_back_us=int(steps_back_us.max(initial=0)),
        marked_duplicates=marked_duplicates,
        marked_firsts=len(counted.redelivered_row) - marked_duplicates,
        filled_slice=filled_slice,
        receipts_in_slice=receipts_in_slice,
        duplicates_in_slice=duplicates_in_slice,
        window_needs=window_needs,
        in_first_half=count(need[:middle], window_needs),
        in_second_half=count(need[middle:], window_needs),
        top_of_first_half_us=top_us(needs.expiry_us[:middle]),
        top_of_second_half_us=top_us(needs.expiry_us[middle:]),
        expiry_steps=counts_of(needs.expiry_us),
        bursts=int(np.count_nonzero(np.diff(times_us) > measures.burst_gap_us)) + (len(times_us) > 0),
        first_duplicate_us=int(times_us[0]) if len(times_us) else -1,
        last_duplicate_us=int(times_us[-1]) if len(times_us) else -1,
        sources=sources,
        receipts=count(source, sources),
        duplicates=count(of_source, sources),
        last_us=most(source, received_at_us),
        window_need=most(of_source, needs.window),
        expiry_need_us=most(of_source, needs.expiry_us),
        most_in_second=most_in_second,
        edge_source=edge_source,
        edge_second=edge_second,
        in_edge=in_edge,
    )


def _by_slice(
    counted: Counted, duplicates: npt.NDArray[np.int32], measures: Measures
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`Share.filled_slice`, and how many receipts and duplicates are in each."""

    def counts(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        return np.bincount((times_us - measures.start_us) // measures.slice_us, minlength=measures.slices)

    receipts = counts(counted.as_read_us) + counts(counted.unchecked_us)
    filled = np.flatnonzero(receipts)
    return filled, receipts[filled], counts(counted.as_read_us[duplicates])[filled]


def facts_of(
    seen: LogSeen,
    measures: Measures,
    domain_of: Sequence[int],
    shares: Sequence[Share],
    *,
    ids: Sequence[IdCounts],
    firsts: Sequence[FirstReceiptNeeds],
) -> Facts:
    """Add up a log, by the shares of all of its chunks in order; `domain_of` has the domain of each chunk.

    Each of `ids` and `firsts` is of a part of the ids.
    """
    by_source = _by_source(domain_of, shares)
    duplicates = int(by_source.duplicates.sum())
    halves = _part_needs(shares, measures, 0), _part_needs(shares, measures, 1)
    of_domain = groupby(shares, lambda share: domain_of[share.chunk])
    marked_duplicates = sum(share.marked_duplicates for share in shares)
    return Facts(
        log=replace(seen.log, duplicates=duplicates, clock_clamped=sum(share.clock_clamped for share in shares)),
        domains=tuple(_domain_figures(seen.domains[number], list(own), measures) for number, own in of_domain),
        firsts=int(by_source.receipts.sum()) - duplicates,
        whole=_part_needs(shares, measures),
        halves=halves,
        bursts=_bursts(domain_of, shares, measures.burst_gap_us),
        elsewhere=_elsewhere(firsts) if duplicates else None,
        peak_per_second=_peak_per_second(by_source, shares),
        from_other_sources=sum(each.from_other_sources for each in ids),
        expiry_needs=histogram_of(sum((share.expiry_steps for share in shares), np.zeros(len(STEPS), np.int64))),
        most_expiry_need_us=int(by_source.expiry_need_us.max(initial=0)),
        sources=worst(by_source.figures(seen.domains)),
        source_window_needs=ValueCounts.of(by_source.window_need[by_source.duplicates > 0]),
        checked_sources=len(by_source.names),
        ended_sources=ValueCounts.of(by_source.receipts[by_source.last_us < measures.middle_us]),
        timeline=_timeline(shares, measures) if seen.log.receipts else None,
        cross_domain=_cross_domain(ids),
        lacking=seen.lacking,
        has_digest=seen.has_digest,
        reused=sum(each.reused for each in ids),
        has_redelivered=seen.has_redelivered,
        unmarked_duplicates=duplicates - marked_duplicates,
        marked_firsts=sum(share.marked_firsts for share in shares),
        largest_step_back_us=max((share.largest_step_back_us for share in shares), default=0),
        status_lines=in_order(seen.status_lines),
    )


class _BySource(NamedTuple):
    """Columns by source, over all chunks of its domain."""

    names: list[str]
    domain: list[int]
    """The number of each source's domain."""
    of_chunk: list[npt.NDArray[np.intp]]
    """Share -> the numbers of its sources here."""
    receipts: npt.NDArray[np.int64]
    duplicates: npt.NDArray[np.int64]
    last_us: npt.NDArray[np.int64]
    window_need: npt.NDArray[np.int64]
    expiry_need_us: npt.NDArray[np.int64]

    def figures(self, domains: Sequence[DomainSeen]) -> Iterator[SourceFigures]:
        """Of the sources that may be among the worst."""
        repeating = np.flatnonzero(self.duplicates)
        for at in repeating[maybe_worst(self.window_need[repeating], self.expiry_need_us[repeating])].tolist():
            columns = (self.receipts, self.duplicates, self.window_need, self.expiry_need_us)
            yield SourceFigures(domains[self.domain[at]].name, self.names[at], *(int(column[at]) for column in columns))


def _by_source(domain_of: Sequence[int], shares: Sequence[Share]) -> _BySource:
    names: list[str] = []
    domains: list[int] = []
    of_chunk = []
    for domain, own in groupby(shares, lambda share: domain_of[share.chunk]):
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


def _domain_figures(seen: DomainSeen, shares: Sequence[Share], measures: Measures) -> DomainFigures:
    needs = _part_needs(shares, measures)
    return DomainFigures(
        seen.name, seen.receipts, needs.windows.total, seen.sources, needs.window(measures.max_missed), needs.expiry_us
    )


def _part_needs(shares: Sequence[Share], measures: Measures, half: int | None = None) -> PartNeeds:
    """Of all duplicates of these shares, or of those in one half of the log."""
    halves = (0, 1) if half is None else (half,)
    counts = _all([(share.in_first_half, share.in_second_half)[of] for of in halves for share in shares])
    tops_us = _all([(share.top_of_first_half_us, share.top_of_second_half_us)[of] for of in halves for share in shares])
    values = _all([share.window_needs for _ in halves for share in shares])
    is_needed = counts > 0
    return PartNeeds(ValueCounts.of(values[is_needed], counts[is_needed]), expiry_need_us(tops_us, measures.max_missed))


def _all(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """One column of several; of none, too."""
    return np.concatenate([np.empty(0, np.int64), *columns])


def _bursts(domain_of: Sequence[int], shares: Sequence[Share], gap_us: int) -> int:
    """Bursts of all chunks. A burst that crosses a cut was counted twice, so it is subtracted once."""
    return sum(share.bursts for share in shares) - sum(
        domain_of[before.chunk] == domain_of[after.chunk]
        and after.first_duplicate_us - before.last_duplicate_us <= gap_us
        for before, after in pairwise(share for share in shares if share.bursts)
    )


def _elsewhere(firsts: Sequence[FirstReceiptNeeds]) -> Elsewhere:
    return Elsewhere(max(each.ring for each in firsts), max(each.ttl_us for each in firsts))


def _peak_per_second(by_source: _BySource, shares: Sequence[Share]) -> int:
    """The most receipts of a source in one second; where a second goes on in another chunk, the counts of both add up."""
    if not shares:
        return 0
    source = np.concatenate([at[share.edge_source] for share, at in zip(shares, by_source.of_chunk, strict=True)])
    second, count = (_all([getattr(share, name) for share in shares]) for name in ("edge_second", "in_edge"))
    order = np.lexsort((second, source))
    begins = np.flatnonzero((np.diff(second[order], prepend=-1) != 0) | (np.diff(source[order], prepend=-1) != 0))
    at_edges = np.add.reduceat(count[order], begins) if len(begins) else count
    return max(int(at_edges.max(initial=0)), *(share.most_in_second for share in shares))


def _timeline(shares: Sequence[Share], measures: Measures) -> Timeline:
    counts = np.zeros((2, measures.slices), np.int64)
    for share in shares:
        counts[:, share.filled_slice] += share.receipts_in_slice, share.duplicates_in_slice
    receipts, duplicates = counts.tolist()
    return Timeline(measures.start_us, measures.slice_us, tuple(receipts), tuple(duplicates))


def _cross_domain(ids: Iterable[IdCounts]) -> CrossDomainDuplicates | None:
    counts: Counter[tuple[str, str]] = Counter()
    for each in ids:
        for before, after, count in zip(each.cross_from, each.cross_to, each.cross_count.tolist(), strict=True):
            counts[before, after] += count
    return CrossDomainDuplicates(counts.total(), dict(counts)) if counts else None


@dataclass(frozen=True, slots=True)
class FirstReceiptNeeds:
    """What a domain's duplicates need of memories that go by an id's first receipt."""

    ring: int
    """New ids since the first receipt of an id, with that one, up to a repeat of it; the most of them."""
    ttl_us: int
    """The longest time from the first receipt of an id to a repeat."""


@compiled()
def _first_receipt_needs(
    earlier: npt.NDArray[np.int32], times: npt.NDArray[np.int64], first: npt.NDArray[np.int32]
) -> tuple[int, int]:
    ring, ttl_us = 0, 0
    new_before = np.zeros(len(earlier), np.int32)  # of the first receipt of an id
    new_ids = 0
    for row in range(len(earlier)):
        if earlier[row] == _NOTHING:
            first[row] = row
            new_before[row] = new_ids
            new_ids += 1
        else:
            began = first[earlier[row]]
            first[row] = began
            ring = max(ring, new_ids - new_before[began])
            ttl_us = max(ttl_us, times[row] - times[began])
    return ring, ttl_us


def first_receipt_needs(rows: DomainRows) -> FirstReceiptNeeds:
    """Over all of a domain."""
    if not rows.duplicates:
        return FirstReceiptNeeds(0, 0)
    first = np.empty(len(rows.earlier), np.int32)
    return FirstReceiptNeeds(*_first_receipt_needs(rows.earlier, rows.received_at_us, first))


@compiled()
def _second_counts(  # noqa: PLR0917 - compiled functions take no names
    source: npt.NDArray[np.int32],
    times: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    in_first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    in_last: npt.NDArray[np.int64],
    most: npt.NDArray[np.int64],
) -> None:
    second, ends_us = np.int64(0), np.int64(0)
    for row in range(len(source)):
        if times[row] >= ends_us:
            second = times[row] // _SECOND_US
            ends_us = (second + 1) * _SECOND_US
        s = source[row]
        if last[s] != second:
            last[s] = second
            in_last[s] = 0
            if first[s] == _NOTHING:
                first[s] = second
        in_last[s] += 1
        in_first[s] += first[s] == second
        most[s] = max(most[s], in_last[s])


def _by_second(
    source: npt.NDArray[np.int32], times_us: npt.NDArray[np.int64], sources: int
) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`Share.most_in_second`, and the three columns of edges, of receipts in order."""
    none, zeros = np.full((2, sources), _NOTHING, np.int64), np.zeros((3, sources), np.int64)
    (first, last), (in_first, in_last, most) = none, zeros
    _second_counts(source, times_us, first, in_first, last, in_last, most)
    every, goes_on = np.arange(sources, dtype=np.int32), np.flatnonzero(last != first)
    edge_source = np.concatenate([every, every[goes_on]])
    edges = np.concatenate([first, last[goes_on]]), np.concatenate([in_first, in_last[goes_on]])
    return int(most.max(initial=0)), edge_source, *edges
