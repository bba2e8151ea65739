"""A log's receipts, domain by domain: columns of the checked ones, with the links that every replay needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.simulate.compiled import check_numbered, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

_NOTHING = -1
_Value = TypeVar("_Value", np.int32, np.int64)


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
    slab_start: npt.NDArray[np.int64]
    """Source -> the index of its first row, where rows are ordered by source, then by receipt: a slab for each source."""
    slab_index: npt.NDArray[np.int32]
    """Row -> its index in that order."""
    slab_row: npt.NDArray[np.int32]
    """Index in that order -> row."""
    replaced_by: npt.NDArray[np.int32]
    """Index in that order -> the next receipt of the same id from the same source; where there is none, a number above all
    rows. A queue loses its entries in that order, so what it reads lies together however quiet its source is."""
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
    next_index: npt.NDArray[np.int64],
    slab_index: npt.NDArray[np.int32],
    slab_row: npt.NDArray[np.int32],
) -> None:
    for row in range(len(source)):
        at = next_index[source[row]]
        slab_index[row] = at
        slab_row[at] = row
        next_index[source[row]] += 1


@compiled()
def _link_replacing(
    replaced: npt.NDArray[np.int32], slab_index: npt.NDArray[np.int32], replaced_by: npt.NDArray[np.int32]
) -> None:
    for row in range(len(replaced)):
        if replaced[row] != _NOTHING:
            replaced_by[slab_index[replaced[row]]] = row


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
    slab_index = np.empty(len(ids), np.int32)
    slab_row = np.empty(len(ids), np.int32)
    slab_start = np.zeros(sources, np.int64)
    np.cumsum(np.bincount(source, minlength=sources)[:-1], out=slab_start[1:])
    _link_by_source(source, slab_start.copy(), slab_index, slab_row)
    replaced_by = np.full(len(ids), np.iinfo(np.int32).max, np.int32)
    _link_replacing(replaced, slab_index, replaced_by)
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
class Domain:
    """One domain of a log."""

    name: str
    receipts: int
    """Unchecked ones included."""
    rows: DomainRows
    log_rows: npt.NDArray[np.int64]
    """Row of the domain -> row of the log."""
    unchecked_rows: npt.NDArray[np.int64]
    """The rows of the log that are of this domain and have no id."""
    source_numbers: npt.NDArray[np.int32]
    """Source of the domain -> its number in the log; checked receipts only."""
    sources: int
    """Distinct sources, those of unchecked receipts included."""


@compiled()
def _number_densely(
    numbers: npt.NDArray[np.int32], seen: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number anew from 0 in the order of first coming; `seen` is all -1 and is left so. Also gives new -> old."""
    dense = np.empty_like(numbers)
    count = 0
    for row in range(len(numbers)):
        if seen[numbers[row]] == _NOTHING:
            seen[numbers[row]] = count
            count += 1
        dense[row] = seen[numbers[row]]
    old = np.empty(count, np.int32)
    for row in range(len(numbers)):
        old[dense[row]] = numbers[row]
    for number in old:
        seen[number] = _NOTHING
    return dense, old


def split_domains(receipts: Receipts) -> Iterator[Domain]:
    """The domains of a log, ordered by name."""
    domain = receipts.domain_number
    few = len(receipts.domains) <= 1 << 16  # numbers of 16 bits are sorted many times faster
    order = np.argsort(domain.astype(np.uint16) if few else domain, kind="stable")
    ends = np.cumsum(np.bincount(domain, minlength=len(receipts.domains)))
    ids_seen = np.full(receipts.ids.count, _NOTHING, np.int32)
    sources_seen = np.full(len(receipts.sources), _NOTHING, np.int32)
    for number in sorted(range(len(receipts.domains)), key=receipts.domains.__getitem__):
        log_rows = order[ends[number - 1] if number else 0 : ends[number]]
        yield _domain(receipts, receipts.domains[number], log_rows, ids_seen, sources_seen)


def taken(column: npt.NDArray[_Value], log_rows: npt.NDArray[np.int64]) -> npt.NDArray[_Value]:
    """The column's values at these ascending rows; no copy where they are all rows."""
    return column if len(log_rows) == len(column) else column[log_rows]


def _domain(
    receipts: Receipts,
    name: str,
    log_rows: npt.NDArray[np.int64],
    ids_seen: npt.NDArray[np.int32],
    sources_seen: npt.NDArray[np.int32],
) -> Domain:
    has_id = taken(receipts.id_number, log_rows) != 0
    checked, unchecked = (log_rows, log_rows[:0]) if has_id.all() else (log_rows[has_id], log_rows[~has_id])
    ids, distinct_ids = taken(receipts.id_number, checked), receipts.ids.count
    if 2 * len(ids) < distinct_ids:  # else numbers of the whole log will do, and tables by them are hardly larger
        ids, numbers = _number_densely(ids, ids_seen)
        distinct_ids = len(numbers)
    source, source_numbers = _number_densely(taken(receipts.source_number, checked), sources_seen)
    sources = len(source_numbers)
    if len(unchecked):
        sources = len(_number_densely(taken(receipts.source_number, log_rows), sources_seen)[1])
    received_at_us = np.maximum.accumulate(taken(receipts.received_at_us, checked))
    return Domain(
        name=name,
        receipts=len(log_rows),
        rows=link_rows(received_at_us, source, ids, sources=len(source_numbers), distinct_ids=distinct_ids),
        log_rows=checked,
        unchecked_rows=unchecked,
        source_numbers=source_numbers,
        sources=sources,
    )
