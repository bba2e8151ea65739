"""Reuse distances: the least W, and the least E, that catch a duplicate by themselves. It is what the duplicate *needs*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from receiver.simulate.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.domain_rows import DomainRows

_NOTHING = -1
_BLOCK_BITS = 12


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """The reuse distance of each duplicate of a domain, as its needs: columns, in order of receipt."""

    row: npt.NDArray[np.int32]
    """The duplicate's row in the domain."""
    window: npt.NDArray[np.int64]
    """The smallest W whose per-source tier catches it: distinct newer ids of the source that holds it, plus 1."""
    expiry_us: npt.NDArray[np.int64]
    """The smallest E that catches it with W = 0; an expiry of 0 catches nothing, whatever this says."""


@compiled()
def _count_live(live: npt.NDArray[Any], in_block: npt.NDArray[np.int64], start: int, end: int) -> int:
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
def _window_distances(  # noqa: PLR0917 - compiled functions take no names
    earlier: npt.NDArray[np.int32],
    replaced: npt.NDArray[np.int32],
    several: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    slab_index: npt.NDArray[np.int32],
    following: npt.NDArray[np.int64],
    several_ids: int,
    weights: npt.NDArray[Any],
    windows: npt.NDArray[np.int64],
) -> None:
    live = np.zeros(len(earlier) + 1, weights.dtype)
    in_block = np.zeros((len(earlier) >> _BLOCK_BITS) + 1, np.int64)
    # The entries of an id of several sources, newest first: a chain of rows.
    newest = np.full(several_ids, _NOTHING, np.int32)
    older = np.full(len(earlier) if several_ids else 0, _NOTHING, np.int32)
    duplicate = 0
    for row in range(len(earlier)):
        number = several[row]
        if earlier[row] != _NOTHING:
            entry = earlier[row] if number == _NOTHING else newest[number]
            least = np.iinfo(np.int64).max
            while entry != _NOTHING:
                least = min(least, _count_live(live, in_block, slab_index[entry] + 1, following[source[entry]]))
                entry = _NOTHING if number == _NOTHING else older[entry]
            windows[duplicate] = least + 1
            duplicate += 1
        if replaced[row] != _NOTHING:
            at = slab_index[replaced[row]]
            in_block[at >> _BLOCK_BITS] -= live[at]
            live[at] = 0
            if number != _NOTHING:
                _unchain(newest, older, number, replaced[row])
        if number != _NOTHING:
            older[row] = newest[number]
            newest[number] = row
        weight = np.int64(weights[row]) if row < len(weights) else 1
        live[slab_index[row]] = weight
        in_block[slab_index[row] >> _BLOCK_BITS] += weight
        following[source[row]] = slab_index[row] + 1


@compiled()
def _unchain(newest: npt.NDArray[np.int32], older: npt.NDArray[np.int32], number: int, row: int) -> None:
    if newest[number] == row:
        newest[number] = older[row]
        return
    entry = newest[number]
    while older[entry] != row:
        entry = older[entry]
    older[entry] = older[row]


def reuse_distances(rows: DomainRows, weights: npt.NDArray[np.int64] | None = None) -> ReuseDistances:
    """The reuse distances of a domain's duplicates.

    The first rows may each stand for several ids, none of which occurs in another row: row i for `weights[i]` ids.
    """
    duplicates = np.flatnonzero(rows.earlier != _NOTHING).astype(np.int32)
    windows = np.zeros(len(duplicates), np.int64)
    _window_distances(
        rows.earlier,
        rows.replaced,
        rows.several,
        rows.source,
        rows.slab_index,
        rows.slab_start.copy(),
        rows.several_ids,
        np.empty(0, np.uint8) if weights is None else weights,
        windows,
    )
    # With W = 0 every receipt enters the time queue at once, so the clock is the receipt before.
    expiry_us = rows.received_at_us[duplicates - 1] - rows.received_at_us[rows.earlier[duplicates]]
    return ReuseDistances(duplicates, windows, expiry_us)


def expiry_need_us(needs_us: npt.NDArray[np.int64], max_missed: int) -> int:
    """The smallest E in microseconds that leaves no more than `max_missed` duplicates uncaught.

    `needs_us` has the expiry need of each duplicate, -1 where a window catches it. The `max_missed` + 1 largest needs are
    enough.
    """
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))
