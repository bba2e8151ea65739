"""What each duplicate needed: the smallest window and the smallest expiry that catch it on their own, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from receiver.simulate.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.rows import DomainRows

__all__ = ["Needs", "needs_of"]

_NOTHING = -1
_BLOCK_BITS = 12


@dataclass(frozen=True, slots=True)
class Needs:
    """Per duplicate of a domain, in order of receipt."""

    row: npt.NDArray[np.int32]
    window: npt.NDArray[np.int64]
    """The smallest W whose per-source tier catches it: distinct newer ids of the source that holds it, plus 1."""
    expiry_us: npt.NDArray[np.int64]
    """The smallest E that catches it with W = 0; an expiry of 0 catches nothing, whatever this says."""


@compiled()
def _count_live(live: npt.NDArray[Any], in_block: npt.NDArray[np.int64], start: int, end: int) -> int:
    """Live places from `start` to before `end`: whole blocks by their sums, the rest one by one."""
    count = 0
    first_block = (start >> _BLOCK_BITS) + 1
    last_block = end >> _BLOCK_BITS
    if first_block >= last_block:
        for place in range(start, end):
            count += live[place]
        return count
    for place in range(start, first_block << _BLOCK_BITS):
        count += live[place]
    for block in range(first_block, last_block):
        count += in_block[block]
    for place in range(last_block << _BLOCK_BITS, end):
        count += live[place]
    return count


@compiled()
def _window_needs(  # noqa: PLR0917 - compiled functions take no names
    earlier: npt.NDArray[np.int32],
    replaced: npt.NDArray[np.int32],
    several: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    place: npt.NDArray[np.int32],
    following: npt.NDArray[np.int64],
    several_ids: int,
    weights: npt.NDArray[Any],
    needs: npt.NDArray[np.int64],
) -> None:
    live = np.zeros(len(earlier) + 1, weights.dtype)
    in_block = np.zeros((len(earlier) >> _BLOCK_BITS) + 1, np.int64)
    # The entries of an id of several sources, newest first: a chain of rows.
    newest = np.full(several_ids, _NOTHING, np.int32)
    older = np.full(len(earlier) if several_ids else 0, _NOTHING, np.int32)
    found = 0
    for row in range(len(earlier)):
        number = several[row]
        if earlier[row] != _NOTHING:
            entry = earlier[row] if number == _NOTHING else newest[number]
            least = np.iinfo(np.int64).max
            while entry != _NOTHING:
                least = min(least, _count_live(live, in_block, place[entry] + 1, following[source[entry]]))
                entry = _NOTHING if number == _NOTHING else older[entry]
            needs[found] = least + 1
            found += 1
        if replaced[row] != _NOTHING:
            at = place[replaced[row]]
            in_block[at >> _BLOCK_BITS] -= live[at]
            live[at] = 0
            if number != _NOTHING:
                _unchain(newest, older, number, replaced[row])
        if number != _NOTHING:
            older[row] = newest[number]
            newest[number] = row
        weight = np.int64(weights[row]) if row < len(weights) else 1
        live[place[row]] = weight
        in_block[place[row] >> _BLOCK_BITS] += weight
        following[source[row]] = place[row] + 1


@compiled()
def _unchain(newest: npt.NDArray[np.int32], older: npt.NDArray[np.int32], number: int, row: int) -> None:
    if newest[number] == row:
        newest[number] = older[row]
        return
    entry = newest[number]
    while older[entry] != row:
        entry = older[entry]
    older[entry] = older[row]


def needs_of(rows: DomainRows, weights: npt.NDArray[np.int64] | None = None) -> Needs:
    """What each duplicate of a domain needed.

    The first rows may stand for as many ids each as their `weights` say, ids that none of these rows repeats.
    """
    duplicates = np.flatnonzero(rows.earlier != _NOTHING).astype(np.int32)
    windows = np.zeros(len(duplicates), np.int64)
    _window_needs(
        rows.earlier,
        rows.replaced,
        rows.several,
        rows.source,
        rows.place,
        rows.slab_start.copy(),
        rows.several_ids,
        np.empty(0, np.uint8) if weights is None else weights,
        windows,
    )
    # With W = 0 every receipt enters the time queue at once, so the clock is the receipt before.
    expiry_us = rows.received_at_us[duplicates - 1] - rows.received_at_us[rows.earlier[duplicates]]
    return Needs(duplicates, windows, expiry_us)
