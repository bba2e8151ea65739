"""The checked receipts of one domain, in columns, with the links that every replay needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DomainRows", "link_rows"]

_NOTHING = -1


class DomainRows(NamedTuple):
    """One domain's receipts with an id, in order of receipt; row numbers are indices into these columns."""

    received_at_us: npt.NDArray[np.int64]
    """Clamped, so never descending (rule 2)."""
    source: npt.NDArray[np.int32]
    """Numbered from 0 within the domain."""
    earlier: npt.NDArray[np.int32]
    """The newest earlier receipt of the same id, or -1: this receipt is a duplicate exactly if there is one."""
    replaced: npt.NDArray[np.int32]
    """The newest earlier receipt of the same id from the same source, or -1."""
    several: npt.NDArray[np.int32]
    """A number for the receipt's id where several sources sent it, else -1."""
    several_ids: int
    """How many such numbers there are."""
    slab: npt.NDArray[np.int32]
    """Rows by source, in order within a source."""
    replaced_by: npt.NDArray[np.int32]
    """Place in the slab -> the next receipt of the same id from the same source; where there is none, more than any row."""
    slab_start: npt.NDArray[np.int64]
    """Source -> its first place in the slab."""
    place: npt.NDArray[np.int32]
    """Row -> its place in the slab."""
    duplicates: int
    """How many receipts have an earlier one."""


@njit(cache=True, nogil=True)
def _link_by_id(
    ids: npt.NDArray[np.int32],
    source: npt.NDArray[np.int32],
    newest: npt.NDArray[np.int32],
    earlier: npt.NDArray[np.int32],
    in_several: npt.NDArray[np.bool_],
) -> int:
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


@njit(cache=True, nogil=True)
def _lay_out_slab(
    source: npt.NDArray[np.int32],
    replaced: npt.NDArray[np.int32],
    start: npt.NDArray[np.int64],
    slab: npt.NDArray[np.int32],
    replaced_by: npt.NDArray[np.int32],
    place: npt.NDArray[np.int32],
) -> None:
    following = start.copy()
    for row in range(len(source)):
        at = following[source[row]]
        following[source[row]] += 1
        place[row] = at
        slab[at] = row
        if replaced[row] != _NOTHING:
            replaced_by[place[replaced[row]]] = row


def _replaced_in_several(
    several: npt.NDArray[np.int32], source: npt.NDArray[np.int32], replaced: npt.NDArray[np.int32]
) -> None:
    rows = np.flatnonzero(several != _NOTHING)
    order = rows[np.lexsort((rows, source[rows], several[rows]))]
    follows = (several[order[1:]] == several[order[:-1]]) & (source[order[1:]] == source[order[:-1]])
    replaced[rows] = _NOTHING
    replaced[order[1:][follows]] = order[:-1][follows]


def link_rows(
    received_at_us: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],
    *,
    sources: int,
    distinct_ids: int,
) -> DomainRows:
    """Link the receipts of one domain, given in order with times that never descend.

    `source` and `ids` are numbers below `sources` and `distinct_ids`.
    """
    earlier = np.empty(len(ids), np.int32)
    in_several = np.zeros(distinct_ids, np.bool_)
    duplicates = _link_by_id(ids, source, np.full(distinct_ids, _NOTHING, np.int32), earlier, in_several)
    replaced = earlier
    several = np.full(len(ids), _NOTHING, np.int32)
    if in_several.any():
        numbers = np.where(in_several, np.cumsum(in_several) - 1, _NOTHING).astype(np.int32)
        several = numbers[ids]
        replaced = earlier.copy()
        _replaced_in_several(several, source, replaced)
    start = np.zeros(sources, np.int64)
    np.cumsum(np.bincount(source, minlength=sources)[:-1], out=start[1:])
    slab = np.empty(len(ids), np.int32)
    replaced_by = np.full(len(ids), np.iinfo(np.int32).max, np.int32)
    place = np.empty(len(ids), np.int32)
    _lay_out_slab(source, replaced, start, slab, replaced_by, place)
    return DomainRows(
        received_at_us,
        source,
        earlier,
        replaced,
        several,
        int(in_several.sum()),
        slab,
        replaced_by,
        start,
        place,
        duplicates,
    )
