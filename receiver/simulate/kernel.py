"""The sizing kernel: every window and every expiry of a grid in one replay of one domain, exactly.

It is proven equal to `receiver.detector`, whose rules it follows; it differs in what it asks. Four facts make one
replay serve the whole grid:

*Queues nest.* A source's queue of W ids is the front of its queue of any larger W, since a duplicate refreshes its id
in all of them. So each source needs one list of its receipts in order, with a mark for each W on the oldest entry still
held. A new id moves the marks of the full queues on by one entry; each entry passed is spilled under that W. Windows
that have dropped an entry are always the smallest ones, so their number, its *level*, says all.

*State does not depend on E.* The clock of the time queue under W is the newest entry spilled under W. An id whose
newest receipt j is spilled is remembered under E while clock - time(j) <= E. So a duplicate that W misses in the first
tier has a *need*, clock - time(j), and is caught by each E of at least that much.

*Forgotten is a prefix.* Receipts are in order of time, so under (W, E) the receipts too old for the time queue are those
before some row, its *limit*, which only ever moves on. The ids forgotten are the spilled newest receipts before the
limit; ids seen so far minus ids forgotten is ids remembered.

*A peak can be awaited.* A receipt adds at most one remembered id. So a pair of W and E that is n below its peak need not
be looked at for n receipts: its limit moves on later, over all the rows passed at once. Pairs wait in a wheel of slots
for their next turn.

After "one marker per window on one recency list" (stack distances of Mattson et al., 1970, for LRU caches), to which the
time tier and the peaks are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.rows import DomainRows

__all__ = ["GridCounts", "replay_grid"]

_NOTHING = -1
_WHEEL_SLOTS = 4096


class GridCounts(NamedTuple):
    """Figures of one domain for every pair of the grid, indexed [window, expiry]."""

    caught: npt.NDArray[np.int64]
    peak_ids: npt.NDArray[np.int64]
    needs_us: npt.NDArray[np.int64]
    """[duplicate, window] -> the smallest E that catches it, _NOTHING where the first tier does; empty unless asked."""


class _Queues(NamedTuple):
    """Per-source queues under every window, over the rows of one domain."""

    windows: npt.NDArray[np.int64]
    slab: npt.NDArray[np.int32]
    """Rows by source, in order within a source. _NOTHING where a newer receipt of the same id and source replaced
    the entry, -2 - row for an id of several sources."""
    marks: npt.NDArray[np.int32]
    """[source, window] -> place in the slab of the oldest entry held."""
    distinct: npt.NDArray[np.int64]
    """Source -> ids that came from it."""
    level: npt.NDArray[np.int16]
    """Newest receipt of an id -> how many windows have dropped the id. Other rows: _NOTHING."""
    clock: npt.NDArray[np.int64]
    """Window -> the newest row spilled, or _NOTHING."""
    several: npt.NDArray[np.int32]
    """Row -> number of its id among those that several sources sent, else _NOTHING."""
    entry_level: npt.NDArray[np.int16]
    """Row of such an id -> how many windows have dropped this entry."""
    held: npt.NDArray[np.int32]
    """[such id, window] -> in how many queues it is."""
    newest: npt.NDArray[np.int32]
    """Such id -> its newest receipt."""


class _Pairs(NamedTuple):
    """What each pair of window and expiry has forgotten, and the peak of what it remembered."""

    expiries_us: npt.NDArray[np.int64]
    first_timed: int
    """Index of the first expiry above 0."""
    limit: npt.NDArray[np.int64]
    """[window, expiry] -> rows before it are too old for the time queue. May lag behind, never lead."""
    furthest: npt.NDArray[np.int64]
    """Window -> the largest limit of its pairs with E > 0."""
    forgotten: npt.NDArray[np.int64]
    """[window, expiry] -> spilled newest receipts before the limit; all spilled ones for E = 0."""
    peak: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    """The wheel: row modulo its size -> first pair (numbered window by window) whose turn is then."""
    waiting: npt.NDArray[np.int32]
    """Pair -> next pair in the same slot."""


@njit(cache=True, nogil=True)
def _first_not_before(times, start: int, time: int) -> int:
    """The first row from `start` on whose time isn't before `time`; near rows are found fastest."""
    stride = 1
    end = start
    while end < len(times) and times[end] < time:
        start = end + 1
        end += stride
        stride *= 2
    end = min(end, len(times))
    while start < end:
        middle = (start + end) // 2
        if times[middle] < time:
            start = middle + 1
        else:
            end = middle
    return start


@njit(cache=True, nogil=True)
def _count_above(level, start: int, end: int, k: int) -> int:
    count = 0
    for row in range(start, end):
        count += level[row] > k
    return count


@njit(cache=True, nogil=True)
def _below(ring, start, end, limit):
    count = 0
    lim = np.int32(limit)
    for i in range(start, end):
        count += ring[i] < lim
    return count


@njit(cache=True, nogil=True)
def _replay(rows, queues, pairs, tallies, least_wait):
    times, source, earlier, replaced, several, place = (rows.received_at_us, rows.source, rows.earlier, rows.replaced, rows.several, rows.place)
    windows, slab, marks, distinct, level, clock, entry_level, held, newest = (
        queues.windows, queues.slab, queues.marks, queues.distinct, queues.level, queues.clock, queues.entry_level, queues.held, queues.newest)
    expiries_us, first_timed, limit, furthest, forgotten, peak, slots, waiting = (
        pairs.expiries_us, pairs.first_timed, pairs.limit, pairs.furthest, pairs.forgotten, pairs.peak, pairs.slots, pairs.waiting)
    by_source, by_time, needs_us = tallies
    n_windows, n_expiries = limit.shape
    seen = 0
    visits = 0
    duplicates = 0
    full_of = np.zeros(len(distinct), np.int64)
    spilled_now = np.zeros(n_windows, np.int64)
    spills = np.full((n_windows, _WHEEL_SLOTS+48), 2147483647, np.int32)
    looked = np.full(limit.shape, -1, np.int64)
    for pair in range(len(waiting)):
        waiting[pair] = slots[0]
        slots[0] = pair
    for row in range(len(times)):
        s = source[row]
        number = several[row]
        previous = earlier[row]
        if previous == _NOTHING:
            seen += 1
        else:
            without = level[previous]
            by_source[without] += 1
            for k in range(without):
                need_us = times[clock[k]] - times[previous]
                by_time[k, max(first_timed, np.searchsorted(expiries_us, need_us))] += 1
                spilled_now[k] -= 1
                for e in range(first_timed, n_expiries):
                    forgotten[k, e] -= previous < limit[k, e]
                if len(needs_us):
                    needs_us[duplicates, k] = need_us
            duplicates += 1
        level[row] = 0
        if number != _NOTHING:
            newest[number] = row
            entry_level[row] = 0
        old = replaced[row]
        if old == _NOTHING:
            distinct[s] += 1
            without = n_windows
            full = full_of[s]
            while full < n_windows and windows[full] < distinct[s]:
                full += 1
            full_of[s] = full
        else:
            without = level[old] if number == _NOTHING else entry_level[old]
            full = without
            at = place[old]
            slab[at] = _NOTHING
            for k in range(without, n_windows):
                clock[k] = max(clock[k], old)
                if marks[s, k] == at:
                    while slab[marks[s, k]] == _NOTHING:
                        marks[s, k] += 1
        if number != _NOTHING:
            for k in range(without):
                held[number, k] += 1
        turn = row % _WHEEL_SLOTS
        for k in range(n_windows): spills[k, turn] = 2147483647
        for k in range(full):
            at = marks[s, k]
            gone = slab[at]
            at += 1
            while slab[at] == _NOTHING:
                at += 1
            marks[s, k] = at
            if gone >= 0:
                clock[k] = max(clock[k], gone)
            else:
                gone = -2 - gone
                clock[k] = max(clock[k], gone)
                entry_level[gone] = k + 1
                held[several[gone], k] -= 1
                if held[several[gone], k]:
                    continue
                gone = newest[several[gone]]
            level[gone] = k + 1
            spilled_now[k] += 1
            spills[k, turn] = gone
        if previous != _NOTHING:
            level[previous] = _NOTHING
        if first_timed:
            for k in range(0 if len(held) else full, n_windows):
                peak[k, 0] = max(peak[k, 0], seen - spilled_now[k])
        pair = slots[turn]
        slots[turn] = _NOTHING
        while pair != _NOTHING:
            following = waiting[pair]
            k = pair // n_expiries
            e = pair - k * n_expiries
            visits += 1
            if e < first_timed:
                pair = following
                continue
            before = limit[k, e]
            frm = looked[k, e] + 1
            looked[k, e] = row
            f = forgotten[k, e]
            ring = spills[k]
            a0 = frm % _WHEEL_SLOTS
            if a0 <= turn:
                f += _below(ring, a0, turn + 1, before)
            else:
                f += _below(ring, a0, _WHEEL_SLOTS, before) + _below(ring, 0, turn + 1, before)
            if clock[k] != _NOTHING:
                moved = _first_not_before(times, before, times[clock[k]] - expiries_us[e])
                f += _count_above(level, before, moved, k)
                limit[k, e] = moved
            forgotten[k, e] = f
            remembered = seen - forgotten[k, e]
            peak[k, e] = max(peak[k, e], remembered)
            wait = max(least_wait, peak[k, e] - remembered + 1)
            slot = (row + min(wait, _WHEEL_SLOTS - 1)) % _WHEEL_SLOTS
            waiting[pair] = slots[slot]
            slots[slot] = pair
            pair = following


def replay_grid(
    rows: DomainRows,
    windows: npt.NDArray[np.int64],
    expiries_us: npt.NDArray[np.int64],
    *,
    floors: npt.NDArray[np.int64] | None = None,
    least_wait: int = 1,
    with_needs: bool = False,
) -> GridCounts:
    """Replay one domain under every pair of `windows` and `expiries_us`, both ascending without repeats.

    `floors` are known lower bounds of the peaks, which save looks. With a `least_wait` above 1 pairs are looked at less
    often than exactness asks: then `peak_ids` are lower bounds themselves.
    """
    shape = (len(windows), len(expiries_us))
    several_ids = int(rows.several.max(initial=_NOTHING)) + 1
    queues = _Queues(
        windows=windows,
        slab=rows.slab.copy(),
        marks=np.repeat(rows.slab_start.astype(np.int32)[:, None], len(windows), axis=1),
        distinct=np.zeros(len(rows.slab_start), np.int64),
        level=np.full(len(rows.source), _NOTHING, np.int16),
        clock=np.full(len(windows), _NOTHING, np.int64),
        several=rows.several,
        entry_level=np.zeros(len(rows.source) if several_ids else 0, np.int16),
        held=np.zeros((several_ids, len(windows)), np.int32),
        newest=np.zeros(several_ids, np.int32),
    )
    pairs = _Pairs(
        expiries_us=expiries_us,
        first_timed=int(expiries_us[0] == 0) if len(expiries_us) else 0,
        limit=np.zeros(shape, np.int64),
        furthest=np.zeros(len(windows), np.int64),
        forgotten=np.zeros(shape, np.int64),
        peak=np.zeros(shape, np.int64) if floors is None else floors.copy(),
        slots=np.full(_WHEEL_SLOTS, _NOTHING, np.int32),
        waiting=np.full(shape[0] * shape[1], _NOTHING, np.int32),
    )
    by_source = np.zeros(len(windows) + 1, np.int64)
    by_time = np.zeros((len(windows), len(expiries_us) + 1), np.int64)
    needs_us = np.full((rows.duplicates if with_needs else 0, len(windows)), _NOTHING, np.int64)
    _replay(rows, queues, pairs, (by_source, by_time, needs_us), least_wait)
    caught = np.cumsum(by_source[:-1])[:, None] + np.cumsum(by_time[:, :-1], axis=1)
    return GridCounts(caught, pairs.peak, needs_us)
