"""The receipts of one domain as columns, with the links that every replay follows; and the needs of its duplicates.

The *reuse distances* of a duplicate are the least W, and the least E, that catch it by themselves: its *needs*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from receiver.simulate.compiled import Flags, Int32s, Int64s, check_numbered, compiled
from receiver.simulate.figures import Elsewhere

_NOTHING = -1
_BLOCK_BITS = 12


class DomainRows(NamedTuple):
    """One domain's receipts with an id, in order of receipt; row numbers are indices into these columns."""

    received_at_us: Int64s
    """Clamped, so never descending (rule 2)."""
    source: Int32s
    """Numbered from 0 within the domain."""
    earlier: Int32s
    """The newest earlier receipt of the same id, or -1: this receipt is a duplicate exactly if there is one."""
    replaced: Int32s
    """The newest earlier receipt of the same id from the same source, or -1."""
    several: Int32s
    """A number for the receipt's id if several sources sent the id, else -1."""
    several_ids: int
    """How many ids have such a number."""
    slab_start: Int64s
    """Source -> the index of its first row, where rows are ordered by source, then by receipt: a slab for each source."""
    slab_index: Int32s
    """Row -> its index in that order."""
    slab_row: Int32s
    """Index in that order -> row."""
    replaced_by: Int32s
    """Index in that order -> the next receipt of the same id from the same source; if there is none, a number above all
    rows. Entries leave a queue in that order, so reads are adjacent, however quiet the source."""
    duplicates: int
    """How many receipts have an earlier one."""


@compiled()
def _link_by_id(ids: Int32s, source: Int32s, newest: Int32s, earlier: Int32s, in_several: Flags) -> int:
    duplicates = 0
    for row in range(len(ids)):
        previous = newest[ids[row]]
        newest[ids[row]] = row
        earlier[row] = previous
        if previous != _NOTHING:
            duplicates += 1
            if source[previous] != source[row]:
                in_several[ids[row]] = True
    return duplicates


@compiled()
def _link_by_source(  # noqa: PLR0917 - compiled functions take no names
    source: Int32s, replaced: Int32s, next_index: Int64s, slab_index: Int32s, slab_row: Int32s, replaced_by: Int32s
) -> None:
    for row in range(len(source)):
        at = next_index[source[row]]
        slab_index[row] = at
        slab_row[at] = row
        next_index[source[row]] += 1
        if replaced[row] != _NOTHING:  # an earlier row, whose index is known by now
            replaced_by[slab_index[replaced[row]]] = row


def _replaced_in_several(several: Int32s, source: Int32s, replaced: Int32s) -> None:
    rows = np.flatnonzero(several != _NOTHING)
    order = rows[np.lexsort((rows, source[rows], several[rows]))]
    follows = (several[order[1:]] == several[order[:-1]]) & (source[order[1:]] == source[order[:-1]])
    replaced[rows] = _NOTHING
    replaced[order[1:][follows]] = order[:-1][follows]


def link_rows(received_at_us: Int64s, source: Int32s, ids: Int32s, *, sources: int, distinct_ids: int) -> DomainRows:
    """Link the receipts of one domain, given in order with times that never descend.

    `source` and `ids` are numbers below `sources` and `distinct_ids`.
    """
    check_numbered(max(len(ids), sources, distinct_ids), "receipts, sources or ids in one domain")
    earlier = np.empty(len(ids), np.int32)
    in_several = np.zeros(distinct_ids, np.bool_)
    duplicates = _link_by_id(ids, source, np.full(distinct_ids, _NOTHING, np.int32), earlier, in_several)
    replaced = earlier
    several = np.full(len(ids), _NOTHING, np.int32)
    # Few ids are sent by several sources. Only for these, the receipt that each receipt replaces must be searched.
    if in_several.any():
        numbers = np.where(in_several, np.cumsum(in_several) - 1, _NOTHING).astype(np.int32)
        several = numbers[ids]
        replaced = earlier.copy()
        _replaced_in_several(several, source, replaced)
    slab_index = np.empty(len(ids), np.int32)
    slab_row = np.empty(len(ids), np.int32)
    slab_start = np.zeros(sources, np.int64)
    np.cumsum(np.bincount(source, minlength=sources)[:-1], out=slab_start[1:])
    replaced_by = np.full(len(ids), np.iinfo(np.int32).max, np.int32)
    _link_by_source(source, replaced, slab_start.copy(), slab_index, slab_row, replaced_by)
    return DomainRows(
        received_at_us,
        source,
        earlier,
        replaced,
        several,
        int(in_several.sum()),
        slab_start,
        slab_index,
        slab_row,
        replaced_by,
        duplicates,
    )


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """The reuse distances of a domain's duplicates, as columns in order of receipt."""

    row: Int32s
    """The duplicate's row in the domain."""
    window: Int64s
    """The smallest W whose per-source tier catches it: distinct newer ids of the source that holds it, plus 1."""
    expiry_us: Int64s
    """The smallest E that catches it with W = 0. It may be 0 here, though an expiry of 0 catches nothing."""
    age_us: Int64s
    """The time since the receipt that it repeats."""


@compiled()
def _count_live(live: npt.NDArray[Any], in_block: Int64s, start: int, end: int) -> int:
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
def _window_distances(rows: DomainRows, weights: npt.NDArray[Any], windows: Int64s) -> None:
    # Numba is slow to reach arrays within a tuple.
    earlier, replaced, several = rows.earlier, rows.replaced, rows.several
    source, slab_index = rows.source, rows.slab_index
    # A live row is its id's newest from its source. So the live rows behind a row are the ids that came since.
    live = np.zeros(len(earlier) + 1, weights.dtype)
    in_block = np.zeros((len(earlier) >> _BLOCK_BITS) + 1, np.int64)
    following = rows.slab_start.copy()  # for each source, the index behind its latest row
    # The entries of an id of several sources are a heap, by the ids that had come behind each when it was last counted. As more
    # only come, few entries are counted again, however many sources sent the id.
    sent = np.flatnonzero(several != _NOTHING).astype(np.int32)  # the row of each entry
    counted = np.zeros(len(sent), np.int64)
    left, right = np.full(len(sent), _NOTHING, np.int32), np.full(len(sent), _NOTHING, np.int32)
    top = np.full(rows.several_ids, _NOTHING, np.int32)
    duplicate, entry = 0, 0
    for row in range(len(earlier)):
        holder, number = earlier[row], several[row]
        if holder != _NOTHING:
            if number == _NOTHING:
                behind = _count_live(live, in_block, slab_index[holder] + 1, following[source[holder]])
            else:
                first = _NOTHING
                while top[number] != first:  # until the entry counted last stays on top
                    first = top[number]
                    at = slab_index[sent[first]]
                    top[number] = _melded(left[first], right[first], left, right, counted)
                    if live[at] > 0:  # otherwise its source has sent the id again
                        counted[first] = _count_live(live, in_block, at + 1, following[source[sent[first]]])
                        left[first] = right[first] = _NOTHING
                        top[number] = _melded(first, top[number], left, right, counted)
                behind = counted[first]
            windows[duplicate] = behind + 1
            duplicate += 1
        if replaced[row] != _NOTHING:
            at = slab_index[replaced[row]]
            in_block[at >> _BLOCK_BITS] -= live[at]
            live[at] = 0
        if number != _NOTHING:
            top[number] = _melded(top[number], entry, left, right, counted)
            entry += 1
        weight = int(weights[row]) if row < len(weights) else 1
        live[slab_index[row]] = weight
        in_block[slab_index[row] >> _BLOCK_BITS] += weight
        following[source[row]] = slab_index[row] + 1


@compiled()
def _melded(first: int, second: int, left: Int32s, right: Int32s, counted: Int64s) -> int:
    """The top of two skew heaps made one: each node on the way changes its two sides, which keeps the ways short.

    If the tops have equal counts, that of the first heap is the top: the search for the nearest entry ends by that.
    """
    top = last = _NOTHING
    while first >= 0 and second >= 0:
        if counted[second] < counted[first]:
            first, second = second, first
        if last == _NOTHING:
            top = first
        else:
            left[last] = first
        last = first
        first, right[last] = right[last], left[last]
    rest = second if first == _NOTHING else first
    if last == _NOTHING:
        return rest
    left[last] = rest
    return top


def reuse_distances(rows: DomainRows, weights: Int64s | None = None) -> ReuseDistances:
    """The reuse distances of a domain's duplicates.

    Each of the first rows may stand for several ids, none of which occurs in another row: row i for `weights[i]` ids.
    """
    duplicates = np.flatnonzero(rows.earlier != _NOTHING).astype(np.int32)
    windows = np.zeros(len(duplicates), np.int64)
    _window_distances(rows, np.empty(0, np.uint8) if weights is None else weights, windows)
    # With W = 0 every receipt enters the time queue at once, so the clock is the receipt before.
    times_us, earlier_us = rows.received_at_us, rows.received_at_us[rows.earlier[duplicates]]
    return ReuseDistances(duplicates, windows, times_us[duplicates - 1] - earlier_us, times_us[duplicates] - earlier_us)


def expiry_need_us(needs_us: Int64s, max_missed: int) -> int:
    """The smallest E in microseconds that leaves no more than `max_missed` duplicates uncaught.

    `needs_us` has the expiry need of each duplicate, -1 where a window catches it. The `max_missed` + 1 largest needs are
    enough.
    """
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))


@compiled()
def _first_receipts_need(rows: DomainRows) -> tuple[int, int]:
    """The needs of a ring and of a time-out that go by an id's first receipt: ids, and microseconds."""
    earlier, times = rows.earlier, rows.received_at_us
    first = np.empty(len(earlier), np.int32)  # of each row's id
    new_before = np.zeros(len(earlier), np.int32)  # of the first receipt of an id
    new_ids, ring, ttl_us = 0, 0, 0
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


@compiled()
def lru_size(earlier: Int32s, weights: Int64s) -> int:
    """The least LRU memory in ids that misses no duplicate of a domain; 0 without any. Columns as in `DomainRows`.

    An LRU memory of N ids holds the ids of the N newest rows that are their id's newest. So a duplicate needs as many ids as
    there are such rows from its earlier receipt on: its window need if the domain were one source. Only the largest need is
    wanted, so the memory grows only when it misses an id: then it walks back over rows that it had dropped. All walks together
    have no more steps than its final size. The first rows may stand for several ids each, as in `reuse_distances`.
    """
    # A linked list of the rows that are their id's newest so far. A row before all is the last element: its index is -1.
    older = np.arange(-1, len(earlier), dtype=np.int32)
    newer = np.arange(1, len(earlier) + 2, dtype=np.int32)
    size, held, oldest = 0, 0, 0  # `held`: how many ids the memory holds, whose oldest row is `oldest`
    for row in range(len(earlier)):
        previous = earlier[row]
        if previous == _NOTHING:
            held += int(weights[row]) if row < len(weights) else 1
        else:
            while oldest > previous:
                oldest = older[oldest]
                held += int(weights[oldest]) if oldest < len(weights) else 1
            size = max(size, held)
            before, after = older[previous], newer[previous]
            newer[before] = after
            older[after] = before
            if oldest == previous:
                oldest = after
        while held > size:
            held -= int(weights[oldest]) if oldest < len(weights) else 1
            oldest = newer[oldest]
    return size


@dataclass(frozen=True, slots=True)
class NeededElsewhere(Elsewhere):
    """What a domain's duplicates, or a part of them, need in other systems' memories."""

    domain: int = -1
    """The domain's number."""


def needed_elsewhere(domain: int, rows: DomainRows) -> NeededElsewhere:
    """What a domain's duplicates need in other systems' memories."""
    if not rows.duplicates:
        return NeededElsewhere(domain=domain)
    ring, ttl_us = _first_receipts_need(rows)
    return NeededElsewhere(ring, lru_size(rows.earlier, np.empty(0, np.int64)), ttl_us, domain=domain)
