"""The sizing kernel: a whole grid of windows W and expiries E, exactly, from one replay of a domain for each window.

It follows the rules of `receiver.detector` and gives its verdicts. Four facts let one replay answer for all expiries:

*A queue is a range of its source's receipts.* Entries leave a source's queue in the order they came, or because a newer
receipt of the same id replaced them. Which receipts are replaced is known beforehand. So a queue is represented by its length
and a *mark* on the oldest receipt that may still hold its entry. The mark moves on through the source's slab.

*Spilling does not depend on E.* An entry spills when it leaves a queue. Nor does the clock depend on E: it is the newest entry
that ever spilled. An id that is in no queue any more is remembered while clock - time(its newest receipt) <= E. So a duplicate
that the first tier misses *needs* an expiry of clock - time(earlier receipt), and each E of at least that much catches it.

*Forgotten receipts are a prefix.* Receipts are in order of time, so those too old for the time queue of E are the rows before
a certain row, the *limit* of E, which only ever moves on. The ids remembered under E are those in queues, and those spilled
whose newest receipt isn't before the limit.

*A limit may lag.* Then too many ids count as remembered, never too few. While even this count isn't above the peak so far,
the peak stands. The difference is the *room* of E. Limits move on only when room runs out, past many rows at once. So only one
comparison per receipt and E remains: is the id that spills before the limit?

The kernel is related to the single pass of Mattson et al. (1970) for all sizes of an LRU cache, which has no time. Each window
has a replay of its own, because a single pass for all windows would make counting the peaks expensive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from receiver.simulate.compiled import Int32s, Int64s, compiled, in_threads, ones, prefetch
from receiver.simulate.domain_rows import DomainRows

_NOTHING = -1
_AHEAD = 16
_SPARSE = 32


class WindowAsked(NamedTuple):
    """A window to replay."""

    window: int
    expiries_us: list[int]
    """Ascending, without repeats."""
    with_needs: bool


class WindowCounts(NamedTuple):
    """Figures of one domain under one window."""

    caught: Int64s
    """How many duplicates each expiry catches."""
    peak_ids: Int64s
    needs_us: Int64s
    """For each duplicate: the smallest E that catches it, above 0, or -1 if the first tier catches it; empty unless asked."""


# The steps are forced inline: a call would count references to each array, which costs more than the step.
@compiled(forceinline=True)
def _searched(times: Int64s, start: int, end: int, time: int) -> int:
    """The first row from `start` on whose time isn't before `time`, at most `end`. Near rows are found fastest."""
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


@compiled(forceinline=True)
def _first_not_before(times: Int64s, sparse_times: Int64s, start: int, end: int, time: int) -> int:
    """The first row whose time isn't before `time`, as by `_searched`. It searches every 32nd time, then the 32 between: this has
    fewer cache misses."""
    near = _searched(sparse_times, start // _SPARSE, end // _SPARSE, time)
    return _searched(times, max(start, _SPARSE * (near - 1)), end, time)


# A set of rows has a bit for each row, so that it stays in the processor's cache and is counted by the word.
@compiled(forceinline=True)
def _is_in(rows: Int64s, row: int) -> bool:
    return bool(rows[row >> 6] >> (row & 63) & 1)


@compiled(forceinline=True)
def _add(rows: Int64s, row: int) -> None:
    rows[row >> 6] |= 1 << (row & 63)


@compiled(forceinline=True)
def _remove(rows: Int64s, row: int) -> None:
    rows[row >> 6] &= ~(1 << (row & 63))


@compiled(forceinline=True)
def _count(rows: Int64s, start: int, end: int) -> int:
    """The number of rows of the set from `start` to before `end`."""
    first, last = start >> 6, end >> 6
    count = ones(rows[last] & ((1 << (end & 63)) - 1)) - ones(rows[first] & ((1 << (start & 63)) - 1))
    for word in range(first, last):
        count += ones(rows[word])
    return count


@compiled(forceinline=True)
def _take_oldest(row: int, queue: int, mark: Int32s, replaced_by: Int32s, slab_row: Int32s) -> int:
    """Remove the oldest entry of a queue, and return its row."""
    oldest = mark[queue]
    while replaced_by[oldest] <= row:
        oldest += 1
    mark[queue] = oldest + 1
    prefetch(replaced_by, oldest + _AHEAD)  # the processor prefetches few streams by itself, and each queue is one
    prefetch(slab_row, oldest + _AHEAD)
    return int(slab_row[oldest])


@compiled(forceinline=True)
def _last_of_id(gone: int, several: Int32s, held: Int32s, newest: Int32s) -> int:
    """The newest receipt of the id whose entry has left a queue, or _NOTHING while another queue holds the id."""
    if not len(held):
        return gone
    number = several[gone]
    if number == _NOTHING:
        return gone
    held[number] -= 1
    return _NOTHING if held[number] else int(newest[number])


@compiled(forceinline=True)
def _give_room(recalled: int, limit: Int32s, room: Int32s) -> None:
    for e in range(len(room)):
        room[e] += recalled >= limit[e]


@compiled(forceinline=True)
def _take_room(spilled: int, in_queues: int, limit: Int32s, room: Int32s) -> bool:
    """Count the spilled id under each E that doesn't forget it at once. Returns whether room is short under any E."""
    least = np.int32(in_queues)
    for e in range(len(room)):  # of 32 bits and without a branch, for wide vector instructions
        left = np.int32(room[e] - np.int32(np.int32(spilled) >= limit[e]))
        room[e] = left
        least = min(least, left)
    return bool(least < np.int32(in_queues))


@compiled(forceinline=True)
def _is_any_due(clock_us: int, in_queues: int, due_us: Int64s, room: Int32s) -> bool:
    """Whether forgetting would give room under any E that has none."""
    is_due = np.int32(0)
    for e in range(len(room)):
        is_due |= np.int32(room[e] < np.int32(in_queues)) & np.int32(due_us[e] < clock_us)
    return bool(is_due)


@compiled(forceinline=True)
def _move_limits(
    times: Int64s,
    sparse_times: Int64s,
    clock: int,
    expiries_us: Int64s,
    spilled: Int64s,
    in_queues: int,
    limit: Int32s,
    due_us: Int64s,
    room: Int32s,
) -> None:
    """Forget ids that are too old, under each E that has no room."""
    if clock == _NOTHING or not _is_any_due(times[clock], in_queues, due_us, room):
        return
    for e in range(len(room)):
        if room[e] < in_queues and due_us[e] < times[clock]:
            moved = _first_not_before(times, sparse_times, limit[e], clock, times[clock] - expiries_us[e])
            room[e] += _count(spilled, limit[e], moved)
            limit[e] = moved
            due_us[e] = times[moved] + expiries_us[e]


@compiled(forceinline=True)
def _raise_peaks(in_queues: int, room: Int32s, peak_ids: Int32s) -> None:
    for e in range(len(room)):
        more = np.int32(max(np.int32(0), np.int32(np.int32(in_queues) - room[e])))
        peak_ids[e] = np.int32(peak_ids[e] + more)
        room[e] = np.int32(room[e] + more)


@compiled(forceinline=True)
def _note_need(need_us: int, duplicate: int, expiries_us: Int64s, needing: Int64s, needs_us: Int64s) -> None:
    needing[np.searchsorted(expiries_us, need_us)] += 1
    if len(needs_us):
        needs_us[duplicate] = need_us


@compiled(forceinline=True)
def _limits(times: Int64s, expiries_us: Int64s, spilled: Int64s, start: int) -> tuple[Int32s, Int64s, Int32s, Int32s]:
    """Limits, the clocks after which they move, room and peaks, as of row `start`, before any id is counted."""
    limit = np.zeros(len(expiries_us), np.int32)
    due_us = np.full(len(expiries_us), np.iinfo(np.int64).max)
    room = np.zeros(len(expiries_us), np.int32)
    for e in range(len(expiries_us)):
        if expiries_us[e] == 0:
            limit[e] = len(times)  # remembers no id that spilled
            continue
        due_us[e] = times[0] + expiries_us[e]
        room[e] -= _count(spilled, 0, start)
    return limit, due_us, room, np.zeros_like(room)


@compiled()
def _replay(
    rows: DomainRows,
    sparse_times: Int64s,
    counted_from: int,
    window: int,
    expiries_us: Int64s,
    caught: Int64s,
    peak_ids: Int64s,
    needs_us: Int64s,
) -> None:
    """Replay a domain under one window, into one row of each result."""
    # Numba is slow to reach arrays within a tuple.
    times, source, earlier, replaced = rows.received_at_us, rows.source, rows.earlier, rows.replaced
    several, slab_row, replaced_by = rows.several, rows.slab_row, rows.replaced_by
    mark = rows.slab_start.astype(np.int32)
    length = np.zeros(len(mark), np.int32)
    held = np.zeros(rows.several_ids, np.int32)  # for each id of several sources, how many queues hold it
    newest = np.zeros(rows.several_ids, np.int32)  # for each id of several sources, its newest receipt
    spilled = np.zeros(len(times) // 64 + 1, np.int64)  # set of the newest receipts of ids that are in no queue
    in_queues = 0  # distinct ids
    clock = _NOTHING
    duplicates = 0
    needing = np.zeros(len(expiries_us) + 1, np.int64)  # duplicates, by the first E that catches them
    for counting in (False, True):  # rows before the counted ones are replayed only for the state of the queues
        start, end = (counted_from, len(times)) if counting else (0, counted_from)
        asked_us = expiries_us if counting else expiries_us[:0]
        # Room is how many ids queues may hold before a peak may be exceeded.
        limit, due_us, room, peaks = _limits(times, asked_us, spilled, start)
        needing[:] = 0
        for row in range(start, end):
            queue, number, previous, old = source[row], several[row], earlier[row], replaced[row]
            if previous == _NOTHING:
                in_queues += 1
            elif _is_in(spilled, previous):
                _remove(spilled, previous)
                in_queues += 1
                _give_room(previous, limit, room)
                need_us = max(1, times[clock] - times[previous])  # E = 0 catches nothing
                _note_need(need_us, duplicates, asked_us, needing, needs_us)
            duplicates += previous != _NOTHING

            replaces = old != _NOTHING and old >= slab_row[mark[queue]]
            if number != _NOTHING:
                newest[number] = row
                held[number] += not replaces
            if replaces:
                clock = max(clock, old)
                continue  # the queues hold the same ids as before

            spilling = _NOTHING
            if length[queue] < window:
                length[queue] += 1
            else:
                gone = _take_oldest(row, queue, mark, replaced_by, slab_row)
                clock = max(clock, gone)
                spilling = _last_of_id(gone, several, held, newest)
            if spilling != _NOTHING:
                _add(spilled, spilling)
                in_queues -= 1
            if _take_room(spilling, in_queues, limit, room):
                _move_limits(times, sparse_times, clock, asked_us, spilled, in_queues, limit, due_us, room)
                _raise_peaks(in_queues, room, peaks)
    peak_ids[:] = peaks
    counted = np.count_nonzero(earlier[counted_from:] != _NOTHING)
    caught[:] = counted - needing.sum() + np.cumsum(needing[:-1])


def replay_windows(
    rows: DomainRows, asked: Sequence[WindowAsked], *, counted_from: int = 0, threads: int | None = None
) -> list[WindowCounts]:
    """Replay one domain under each window, with its own expiries.

    The rows before `counted_from` are replayed for the state that they leave, but not counted. Uses `threads` threads, by
    default one for each processor.
    """

    def replay(each: WindowAsked) -> WindowCounts:
        expiries_us = np.array(each.expiries_us, np.int64)
        caught, peak_ids = np.zeros((2, len(expiries_us)), np.int64)
        needs_us = np.full(rows.duplicates if each.with_needs else 0, _NOTHING, np.int64)
        if counted_from < len(rows.source):
            _replay(rows, sparse_times, counted_from, each.window, expiries_us, caught, peak_ids, needs_us)
        return WindowCounts(caught, peak_ids, needs_us[uncounted:])

    sparse_times = rows.received_at_us[::_SPARSE].copy()
    uncounted = np.count_nonzero(rows.earlier[:counted_from] != _NOTHING)
    return in_threads(replay, asked, rows=len(rows.source), threads=threads)
