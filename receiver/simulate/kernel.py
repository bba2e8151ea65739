"""The sizing kernel: all expiries of a grid in one replay of a domain for each window, exactly.

It gives the verdicts of `receiver.detector`; it differs in what it asks. Four facts let it answer for a whole grid:

*A queue is a stretch of its source's receipts.* The entries of one source leave its queue in the order they came, or
because a newer receipt of the id replaced them. So the receipts of a source, in order, need one mark, the place that
the oldest entry held can't lie before; whether an entry after it was replaced is known beforehand.

*What is spilled does not depend on E.* Nor does the clock of the time queue, the newest entry ever spilled. An id whose
newest receipt j is spilled is remembered while clock - time(j) <= E. So a duplicate that the first tier misses has a
*need*, clock - time(j), and is caught by each E of at least that much.

*Forgotten is a prefix.* Receipts are in order of time, so those too old for the time queue of E are the ones before some
row, its *limit*, which only ever moves on. The ids remembered under E are those in queues, and those whose newest
receipt is spilled and not before the limit.

*A limit may lag.* A limit not moved on lets too many ids count as remembered, never too few. While even that count
stays within the peak known so far, the peak stands. Only when it would pass the peak are the limits moved on, over all
the rows passed at once. Per receipt and E there remains one comparison, of the row spilled with the limit.

After the one pass for all cache sizes of Mattson et al. (1970), with the roles changed: there a recency list serves all
sizes, here a replay of one size serves all expiries.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from receiver.simulate.rows import DomainRows

__all__ = ["GridCounts", "replay_grid"]

_NOTHING = -1
_ROWS_WORTH_THREADS = 20_000


class GridCounts(NamedTuple):
    """Figures of one domain for every pair of the grid, indexed [window, expiry]."""

    caught: npt.NDArray[np.int64]
    peak_ids: npt.NDArray[np.int64]
    needs_us: npt.NDArray[np.int64]
    """[duplicate, window] -> the smallest E that catches it, -1 where the first tier does; empty unless asked."""


@njit(cache=True, nogil=True, forceinline=True)
def _first_not_before(times, start, end, time):
    """The first row of [start, end] whose time isn't before `time`, or `end`; near rows are found fastest."""
    stride = 1
    probe = start
    while probe < end and times[probe] < time:
        start = probe + 1
        probe += stride
        stride *= 2
    end = min(probe, end)
    while start < end:
        middle = (start + end) // 2
        if times[middle] < time:
            start = middle + 1
        else:
            end = middle
    return start


@njit(cache=True, nogil=True, forceinline=True)
def _count(spilled, start, end):
    count = 0
    for row in range(start, end):
        count += spilled[row]
    return count


@njit(cache=True, nogil=True, forceinline=True)
def _move_limits(times, spilled, clock, expiries_us, in_queues, limit, room, peak):
    """Move the limits on where a peak seems to be passed; where it really is, raise the peak. -> the least room."""
    least = room[0]
    for e in range(len(room)):
        if in_queues > room[e]:
            if limit[e] < clock and times[limit[e]] < times[clock] - expiries_us[e]:
                moved = _first_not_before(times, limit[e], clock, times[clock] - expiries_us[e])
                room[e] += _count(spilled, limit[e], moved)
                limit[e] = moved
            if in_queues > room[e]:
                peak[e] += in_queues - room[e]
                room[e] = in_queues
    return 0


@njit(cache=True, nogil=True)
def _replay(times, source, earlier, replaced, several, several_ids, first, following, replaced_by,
            window, expiries_us, caught, peak, needs_us):
    n_expiries = len(expiries_us)
    mark = first.copy()
    length = np.zeros(len(mark), np.int64)
    spilled = np.zeros(len(times), np.uint8)
    held = np.zeros(several_ids, np.int32)
    newest = np.zeros(several_ids, np.int32)
    limit = np.zeros(n_expiries, np.int32)
    room = np.zeros(n_expiries, np.int32)
    by_time = np.zeros(n_expiries + 1, np.int64)
    first_timed = 0
    if n_expiries and expiries_us[0] == 0:
        first_timed = 1
        limit[0] = len(times)
    by_source = 0
    duplicates = 0
    clock = _NOTHING
    in_queues = np.int32(0)
    for row in range(len(times)):
        s = source[row]
        previous = earlier[row]
        if previous == _NOTHING:
            in_queues += 1
        else:
            if spilled[previous]:
                spilled[previous] = 0
                in_queues += 1
                for e in range(n_expiries):
                    room[e] += np.int32(previous >= limit[e])
                need_us = times[clock] - times[previous]
                by_time[max(first_timed, np.searchsorted(expiries_us, need_us))] += 1
                if len(needs_us):
                    needs_us[duplicates] = need_us
            else:
                by_source += 1
            duplicates += 1
        old = replaced[row]
        if several_ids and several[row] != _NOTHING:
            newest[several[row]] = row
            held[several[row]] += old == _NOTHING or old < mark[s]
        if old != _NOTHING and old >= mark[s]:
            clock = max(clock, old)
            continue
        length[s] += 1
        gone = _NOTHING
        if length[s] > window:
            length[s] -= 1
            gone = mark[s]
            while replaced_by[gone] <= row:
                gone = following[gone]
            mark[s] = following[gone]
            clock = max(clock, gone)
            if several_ids and several[gone] != _NOTHING:
                number = several[gone]
                held[number] -= 1
                gone = _NOTHING if held[number] else newest[number]
            if gone != _NOTHING:
                spilled[gone] = 1
                in_queues -= 1
        least = in_queues
        for e in range(n_expiries):
            room[e] -= np.int32(gone >= limit[e])
            least = min(least, room[e])
        if in_queues > least:
            _move_limits(times, spilled, clock, expiries_us, in_queues, limit, room, peak)
    caught[:] = by_source
    total = 0
    for e in range(n_expiries):
        total += by_time[e]
        caught[e] += total


def replay_grid(
    rows: DomainRows,
    windows: npt.NDArray[np.int64],
    expiries_us: npt.NDArray[np.int64],
    *,
    with_needs: bool = False,
) -> GridCounts:
    """Replay one domain under every pair of `windows` and `expiries_us`, both ascending without repeats."""
    shape = (len(windows), len(expiries_us))
    caught = np.zeros(shape, np.int64)
    peak_ids = np.zeros(shape, np.int64)
    needs_us = np.full((len(windows), rows.duplicates if with_needs else 0), _NOTHING, np.int64)

    def replay(k: int) -> None:
        _replay(
            rows.received_at_us, rows.source, rows.earlier, rows.replaced, rows.several, rows.several_ids, rows.first, rows.following, rows.replaced_by,
            windows[k],
            expiries_us,
            caught[k],
            peak_ids[k],
            needs_us[k],
        )

    if len(rows.source) < _ROWS_WORTH_THREADS:
        for k in range(len(windows)):
            replay(k)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(replay, range(len(windows))))
    return GridCounts(caught, peak_ids, needs_us.T)
