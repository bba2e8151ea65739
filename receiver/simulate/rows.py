"""The checked receipts of one domain, in columns, with the links that every replay needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.limits import check_numbered

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
    replaced_by: npt.NDArray[np.int32]
    """The next receipt of the same id from the same source; where there is none, a number above all rows."""
    first: npt.NDArray[np.int32]
    """Source -> its first row."""
    following: npt.NDArray[np.int32]
    """The next receipt from the same source; where there is none, a number above all rows."""
    slab_start: npt.NDArray[np.int64]
    """Source -> its first place among the rows ordered by source, then by receipt."""
    place: npt.NDArray[np.int32]
    """Row -> its place in that order."""
    duplicates: int
    """How many receipts have an earlier one."""


@compiled()
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


@compiled()
def _link_by_source(
    source: npt.NDArray[np.int32],
    first: npt.NDArray[np.int32],
    following: npt.NDArray[np.int32],
    next_place: npt.NDArray[np.int64],
    place: npt.NDArray[np.int32],
) -> None:
    for row in range(len(source) - 1, -1, -1):
        s = source[row]
        following[row] = first[s]
        first[s] = row
    for row in range(len(source)):
        place[row] = next_place[source[row]]
        next_place[source[row]] += 1


@compiled()
def _turn_round(replaced: npt.NDArray[np.int32], replaced_by: npt.NDArray[np.int32]) -> None:
    for row in range(len(replaced)):
        if replaced[row] != _NOTHING:
            replaced_by[replaced[row]] = row


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
    check_numbered(max(len(ids), sources, distinct_ids), "receipts, sources or ids in one domain")
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
    above_all = np.iinfo(np.int32).max
    replaced_by = np.full(len(ids), above_all, np.int32)
    _turn_round(replaced, replaced_by)
    first = np.full(sources, above_all, np.int32)
    following = np.empty(len(ids), np.int32)
    place = np.empty(len(ids), np.int32)
    slab_start = np.zeros(sources, np.int64)
    np.cumsum(np.bincount(source, minlength=sources)[:-1], out=slab_start[1:])
    _link_by_source(source, first, following, slab_start.copy(), place)
    return DomainRows(
        received_at_us,
        source,
        earlier,
        replaced,
        several,
        int(in_several.sum()),
        replaced_by,
        first,
        following,
        slab_start,
        place,
        duplicates,
    )
