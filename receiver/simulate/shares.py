"""Shares: the counts of one section of a log, which is a domain that is held whole, or a chunk of one.

`facts_of` adds the shares of all sections up to the facts of a log. So a new figure is a field of `Share`, and a line in
`share_of` and in `facts_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.domains import Channel, destination_name
from receiver.quantities import SECOND_US
from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.domain_rows import ReuseDistances
    from receiver.simulate.figures import LogFigures

ROUND = np.array([0, *chain.from_iterable((10**p, 2 * 10**p, 5 * 10**p) for p in range(18))], np.int64)
"""Round numbers: 0, 1, 2, 5, 10, 20, ..."""
_SLICES = 200
_NOTHING = -1


class Measures(NamedTuple):
    """The parameters of counting, known before any id of the log is looked at."""

    max_missed: int
    """How many duplicates a recommended setting may miss."""
    middle_us: int
    """`LogFigures.middle_us`"""
    burst_gap_us: int
    """The longest time between two duplicates of one burst: a second, or the longest redelivery if that took longer."""
    start_us: int
    """When the timeline starts."""
    slice_us: int
    """The length of a slice of the timeline: a round time."""
    slices: int
    """The number of slices: at most 201."""

    @classmethod
    def of(cls, log: LogFigures, max_missed: int) -> Measures:
        start_us = log.first_received_at_us or 0
        slice_us = int(ROUND[np.searchsorted(ROUND, log.span_us // _SLICES + 1)])
        slices = log.span_us // slice_us + 1
        return cls(max_missed, log.middle_us, max(SECOND_US, log.delivery_us), start_us, slice_us, slices)


# `steps` makes columns of these receipts and of shares, from these annotations.
@dataclass(frozen=True, slots=True)
class SectionReceipts:
    """The receipts of a section, in order. All columns but `unchecked_us` are of receipts with an id."""

    received_at_us: Int64s
    """Clamped (rule 2)."""
    as_read_us: Int64s
    """The times as read; may be empty if none was clamped."""
    source: Int32s
    """Indices of `sources`."""
    sources: list[str]
    """The sources of these receipts; each has at least one."""
    redelivered_row: Int32s
    """The rows of receipts that are marked as redelivered."""
    unchecked_us: Int64s
    """The times of receipts without an id, as read."""


@dataclass(frozen=True, slots=True)
class Share:
    section: int
    """The chunk's number, or the domain's if domains are held whole. Chunks are numbered domain by domain, in order."""
    clock_clamped: int
    largest_step_back_us: int
    marked_duplicates: int
    """Duplicates with the flag JMSRedelivered."""
    marked_firsts: int
    """Other receipts with the flag."""
    same_time_duplicates: int
    """Duplicates at the clamped time of the receipt that they repeat."""
    filled_slice: Int64s
    """The slices of the timeline that have a receipt, with or without an id, by the time as read."""
    receipts_in_slice: Int64s
    duplicates_in_slice: Int64s
    window_needs: Int64s
    """The different windows that duplicates need."""
    in_first_half: Int64s
    """How many duplicates of the first half of the log need each window of `window_needs`."""
    in_second_half: Int64s
    top_of_first_half_us: Int64s
    """The largest E that duplicates of the first half need without a window. `max_missed` + 1 values are kept: over all
    shares, that is enough to tell the need of the whole log."""
    top_of_second_half_us: Int64s
    expiry_steps: Int64s
    """How many duplicates need an expiry between each of `ROUND` and the next."""
    bursts: int
    """Bursts of duplicates, as if there were no other chunk."""
    first_duplicate_us: int
    """The clamped time of the first duplicate; -1 without any. The next field has that of the last."""
    last_duplicate_us: int
    sources: list[str]
    """The sources; the next five columns have a value for each."""
    receipts: Int64s
    """Receipts with an id."""
    duplicates: Int64s
    last_us: Int64s
    """When its last receipt came, clamped."""
    window_need: Int64s
    """The window need of its duplicates; 0 without any. The next column has the expiry need."""
    expiry_need_us: Int64s
    most_in_second: int
    """The most receipts of one source in one second of the clock."""
    edge_source: Int32s
    """The source of each edge. Edges are the first and the last second of each source, which may go on in other chunks."""
    edge_second: Int64s
    in_edge: Int64s
    """The source's receipts in that second."""

    @property
    def duplicates_in_first_half(self) -> int:
        """How many of its duplicates, from the first on, came in the first half of the log."""
        return int(self.in_first_half.sum())


@dataclass(frozen=True, slots=True)
class IdCounts:
    """The counts that need the ids themselves."""

    reused: int
    """Duplicates with another digest than the id's newest earlier receipt in the domain, if both have one."""
    from_other_sources: int
    """Duplicates whose id came last from another source."""
    most_repeats: int
    """The most duplicates that one id makes in a domain."""
    cross_from: list[str]
    """Cross-domain duplicates, in three parallel lists: connection of the earlier receipt, connection of this one, count."""
    cross_to: list[str]
    cross_count: Int64s

    @classmethod
    def of(
        cls, reused: int, from_other_sources: int, most_repeats: int, cross_domain: dict[tuple[str, str], int]
    ) -> IdCounts:
        cross_from, cross_to = ([pair[side] for pair in cross_domain] for side in (0, 1))
        counts = np.array(list(cross_domain.values()), np.int64)
        return cls(reused, from_other_sources, most_repeats, cross_from, cross_to, counts)


def share_of(section: int, receipts: SectionReceipts, needs: ReuseDistances, measures: Measures) -> Share:
    """Count a section. `needs` has the needs of its duplicates, whose ids may have come before the chunk."""
    received_at_us, source, sources = receipts.received_at_us, receipts.source, receipts.sources
    as_read_us = receipts.as_read_us if len(receipts.as_read_us) else received_at_us
    steps_back_us = received_at_us - as_read_us
    is_duplicate = np.zeros(len(source), np.bool_)
    is_duplicate[needs.row] = True
    marked_duplicates = int(np.count_nonzero(is_duplicate[receipts.redelivered_row]))
    times_us, of_source = received_at_us[needs.row], source[needs.row]
    middle = np.searchsorted(times_us, measures.middle_us)
    window_needs, need = np.unique(needs.window, return_inverse=True)
    filled_slice, receipts_in_slice, duplicates_in_slice = _by_slice(
        as_read_us, receipts.unchecked_us, needs.row, measures
    )
    most_in_second, edge_source, edge_second, in_edge = _by_second(source, received_at_us, len(sources))

    def top_us(expiries_us: Int64s) -> Int64s:
        return np.sort(expiries_us)[-measures.max_missed - 1 :]

    def count(numbers: npt.NDArray[Any], names: Sized) -> Int64s:
        return np.bincount(numbers, minlength=len(names)).astype(np.int64)

    def most(of: Int32s, values: Int64s) -> Int64s:
        largest = np.zeros(len(sources), np.int64)
        np.maximum.at(largest, of, values)
        return largest

    return Share(
        section=section,
        clock_clamped=int(np.count_nonzero(steps_back_us)),
        largest_step_back_us=int(steps_back_us.max(initial=0)),
        marked_duplicates=marked_duplicates,
        marked_firsts=len(receipts.redelivered_row) - marked_duplicates,
        same_time_duplicates=int(np.count_nonzero(needs.age_us == 0)),
        filled_slice=filled_slice,
        receipts_in_slice=receipts_in_slice,
        duplicates_in_slice=duplicates_in_slice,
        window_needs=window_needs,
        in_first_half=count(need[:middle], window_needs),
        in_second_half=count(need[middle:], window_needs),
        top_of_first_half_us=top_us(needs.expiry_us[:middle]),
        top_of_second_half_us=top_us(needs.expiry_us[middle:]),
        expiry_steps=count(np.searchsorted(ROUND, needs.expiry_us, side="right") - 1, ROUND),
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
    as_read_us: Int64s, unchecked_us: Int64s, duplicates: Int32s, measures: Measures
) -> tuple[Int64s, Int64s, Int64s]:
    """`Share.filled_slice`, and the number of receipts and of duplicates in each of these slices."""

    def counts(times_us: Int64s) -> npt.NDArray[np.intp]:
        return np.bincount((times_us - measures.start_us) // measures.slice_us, minlength=measures.slices)

    receipts = counts(as_read_us) + counts(unchecked_us)
    # A log may have very many sections, most of them with receipts in a few slices.
    filled = np.flatnonzero(receipts)
    return filled, receipts[filled], counts(as_read_us[duplicates])[filled]


@compiled()
def _second_counts(source: Int32s, times: Int64s, sources: int) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """For each source: the most receipts in a second, the first second and its receipts, the last second and its receipts."""
    most, in_first, in_last = np.zeros(sources, np.int64), np.zeros(sources, np.int64), np.zeros(sources, np.int64)
    first, last = np.full(sources, _NOTHING, np.int64), np.full(sources, _NOTHING, np.int64)
    second, ends_us = np.int64(0), np.int64(0)
    for row in range(len(source)):
        if times[row] >= ends_us:  # divide only once a second: a division takes as long as all else
            second = times[row] // SECOND_US
            ends_us = (second + 1) * SECOND_US
        s = source[row]
        if last[s] != second:
            last[s] = second
            in_last[s] = 0
            if first[s] == _NOTHING:
                first[s] = second
        in_last[s] += 1
        in_first[s] += first[s] == second
        most[s] = max(most[s], in_last[s])
    return most, first, in_first, last, in_last


def _by_second(source: Int32s, times_us: Int64s, sources: int) -> tuple[int, Int32s, Int64s, Int64s]:
    """`Share.most_in_second`, and its three columns of edges."""
    most, first, in_first, last, in_last = _second_counts(source, times_us, sources)
    every, goes_on = np.arange(sources, dtype=np.int32), np.flatnonzero(last != first)
    edge_source = np.concatenate([every, every[goes_on]])
    edges = np.concatenate([first, last[goes_on]]), np.concatenate([in_first, in_last[goes_on]])
    return int(most.max(initial=0)), edge_source, *edges


def queues_of(destinations: Iterable[str]) -> Int32s:
    """For each destination the number of its queue, or -1 for a topic.

    Every receiver of a topic gets a copy of each message, so a topic's ids rightly come more than once.
    """
    numbers: dict[str, int] = {}
    names = [destination_name(destination) for destination in destinations]
    return np.array(
        [numbers.setdefault(name, len(numbers)) if name.startswith("queue://") else -1 for name in names], np.int32
    )


def parted_queues(channels: Collection[Channel], domains: Collection[Hashable]) -> Int32s:
    """For each channel the number of its queue if the queue's channels are in several `domains`, else -1."""
    queue = queues_of(channel.destination for channel in channels)
    domains_of = Counter(number for number, _ in set(zip(queue.tolist(), domains, strict=True)))
    is_parted = np.array([domains_of[number] > 1 for number in queue.tolist()], np.bool_)
    return np.where(is_parted, queue, np.int32(-1))


def cross_domain_counts(
    queue: Int32s, ids: Int32s, new: Flags, connection: Int32s, names: Sequence[str]
) -> dict[tuple[str, str], int]:
    """How many receipts are new in their domain although their queue brought the id before, by (connection of the newest such
    receipt, connection of this one).

    The columns are of receipts in order. Receipts of ids that are new in only one domain may be left out. `connection` holds
    indexes of `names`; names may repeat.
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
