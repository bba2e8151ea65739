"""Each chunk put in order, its clock clamped, and what each source sent in it.

In: all `TaskReceipts` and `Links` of a task. Out, for each of its chunks: `ChunkReceipts`, `SourceCounts`, `OutgoingRefs`,
`IdEnds` and `Elsewhere`. A chunk's begin is a place in the order of the log, so sorting its receipts gives the
order of the whole log; and it begins with the clock of the latest receipt before, which is known (`before_us`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.simulate.compiled import check_numbered
from receiver.simulate.figures import Elsewhere
from receiver.steps.arrow_rows import (
    Row,
    by_chunk,
    changes,
    column,
    in_one,
    joined,
    order_unless_sorted,
    runs,
    split_by,
    stable_order,
    used,
    values_in,
)
from receiver.steps.schemas import (
    NEVER,
    ChunkReceipts,
    CutPlan,
    IdEnds,
    Links,
    OutgoingRefs,
    SourceCounts,
    TaskReceipts,
)

if TYPE_CHECKING:
    import numpy.typing as npt


def assembled(
    plan: CutPlan, before_us: npt.NDArray[np.int64], source_keys: int
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`. `before_us` is, per chunk, the latest time of its domain before it, -1 if none; `source_keys` is
    how many keys `OutgoingRefs` may have.
    """

    def work(task: int, rows: Iterator[Row]) -> Iterator[Row]:
        pieces, links = values_in(rows, TaskReceipts, Links)
        links_of = by_chunk(links)
        for chunk, columns, sources in _chunks(plan, pieces):
            made = _assembled(chunk, columns, sources, int(before_us[chunk]), links_of.pop(chunk, []))
            yield Row(task, made.receipts)
            yield Row(0, _source_counts(made))
            yield from _id_ends(plan, made)
            yield from _outgoing_refs(int(plan.chunk_domain[chunk]), made.receipts, source_keys)

    return work


class _Columns(NamedTuple):
    """Receipts of several units. A column that isn't there is empty."""

    at: npt.NDArray[np.int64]
    """Unit and row in the unit, of which `_at` makes one number."""
    key_us: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    redelivered: npt.NDArray[np.bool_]
    number: npt.NDArray[np.int64]
    is_checked: npt.NDArray[np.bool_]

    def taken(self, rows: npt.NDArray[Any] | slice) -> _Columns:
        return _Columns._make(values[rows] if len(values) else values for values in self)


class _Assembled(NamedTuple):
    """A chunk, and `Links.is_again`, `replaces` and `is_last` of each `ChunkReceipts.repeat_row`."""

    receipts: ChunkReceipts
    is_again: npt.NDArray[np.bool_]
    replaces: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]


def _at(unit: npt.NDArray[np.int32] | int, row: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    at: npt.NDArray[np.int64] = (np.asarray(unit, np.int64) << np.int64(32)) | row
    return at


def _chunks(plan: CutPlan, pieces: list[TaskReceipts]) -> Iterator[tuple[int, _Columns, list[str]]]:
    """The receipts of each chunk in order, and what the numbers of their sources stand for."""
    if not pieces:
        return
    pieces.sort(key=lambda piece: (piece.unit, piece.first_row))
    chunk = joined(np.int32, (np.repeat(each.chunk, np.diff(each.chunk_end, prepend=0)) for each in pieces))
    receipts, sources = _joined(plan, pieces)
    pieces.clear()
    order = _order(chunk, receipts.key_us)
    if order is not None:
        chunk, receipts = chunk[order], receipts.taken(order)
    for start, end in runs(changes(chunk)):
        yield int(chunk[start]), receipts.taken(slice(start, end)), sources


def _joined(plan: CutPlan, pieces: Sequence[TaskReceipts]) -> tuple[_Columns, list[str]]:
    """All receipts by unit, then chunk, then row."""
    source, sources = in_one((each.source, each.sources) for each in pieces)
    sizes = [len(each.received_at_us) for each in pieces]
    rows = [
        each.unit_row.astype(np.int64) if len(each.unit_row) else each.first_row + np.arange(size)
        for each, size in zip(pieces, sizes, strict=True)
    ]
    row_id = column(pieces, "row_id", np.int64)
    if plan.keeps_rows and not len(row_id):
        begins = (int(plan.unit_number[each.unit]) for each in pieces)
        row_id = joined(np.int64, (begin + row for begin, row in zip(begins, rows, strict=True)))
    receipts = _Columns(
        at=joined(np.int64, (_at(each.unit, row) for each, row in zip(pieces, rows, strict=True))),
        key_us=joined(np.int64, (each.key_us if len(each.key_us) else each.received_at_us for each in pieces)),
        received_at_us=column(pieces, "received_at_us", np.int64),
        source=source,
        redelivered=_marks([each.redelivered_row for each in pieces], sizes),
        number=row_id,
        is_checked=~_marks([each.unchecked_row for each in pieces], sizes),
    )
    return receipts, sources


def _marks(rows: Sequence[npt.NDArray[np.int32]], sizes: Sequence[int]) -> npt.NDArray[np.bool_]:
    """One column of marks for several pieces, given which rows of each are marked."""
    begins = np.cumsum([0, *sizes])
    marks = np.zeros(begins[-1], np.bool_)
    marks[joined(np.int64, (begin + each for begin, each in zip(begins, rows, strict=False)))] = True
    return marks


def _order(chunk: npt.NDArray[np.int32], key_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """By chunk, then key, then as they stand; None where they stand so."""
    by_key = order_unless_sorted(key_us)
    by_chunk_ = order_unless_sorted(chunk if by_key is None else chunk[by_key])
    if by_key is None or by_chunk_ is None:
        return by_chunk_ if by_key is None else by_key
    return by_key[by_chunk_]


def _assembled(chunk: int, columns: _Columns, sources: list[str], before_us: int, links: Sequence[Links]) -> _Assembled:
    checked = columns if columns.is_checked.all() else columns.taken(columns.is_checked)
    check_numbered(len(checked.source), "receipts in one chunk")
    source, used_sources = used(checked.source, sources)
    received_at_us = np.maximum(np.maximum.accumulate(checked.received_at_us), before_us)
    is_clamped = not np.array_equal(received_at_us, checked.received_at_us)
    repeat_row = _rows_of(links, checked.at)
    by_row = np.argsort(repeat_row)
    begins = np.cumsum([0, *(len(each.unit) for each in links)])
    ref_at = joined(np.int64, (begin + each.ref_at for begin, each in zip(begins, links, strict=False)))
    ref_row, ref_to = repeat_row[ref_at], column(links, "ref_to", np.int32)
    by_ref = np.lexsort((ref_to, ref_row))
    receipts = ChunkReceipts(
        chunk=chunk,
        received_at_us=received_at_us,
        source=source,
        sources=used_sources,
        number=checked.number,
        repeat_row=repeat_row[by_row],
        label=column(links, "label", np.int64)[by_row],
        next_in=column(links, "next_in", np.int32)[by_row],
        ref_row=ref_row[by_ref],
        ref_to=ref_to[by_ref],
        as_read_us=checked.received_at_us[: None if is_clamped else 0],
        redelivered_row=np.flatnonzero(checked.redelivered).astype(np.int32),
        unchecked_us=columns.received_at_us[~columns.is_checked],
    )
    flags = (column(links, name, np.bool_)[by_row] for name in ("is_again", "replaces", "is_last"))
    return _Assembled(receipts, *flags)


def _rows_of(links: Sequence[Links], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The row in the chunk of each receipt that links name by unit and row; `at` is that of the chunk's receipts."""
    by_at = order_unless_sorted(at)
    wanted = joined(np.int64, (_at(each.unit, each.unit_row) for each in links))
    rows = np.searchsorted(at, wanted, sorter=by_at)
    rows = rows if by_at is None else by_at.take(rows, mode="clip")
    if not np.array_equal(at.take(rows, mode="clip"), wanted):
        raise AssertionError("links are of other receipts than those of their chunk")
    return rows.astype(np.int32)


def _id_ends(plan: CutPlan, made: _Assembled) -> Iterator[Row]:
    """`Elsewhere` of the ids of which both ends are here, and `IdEnds` of others."""
    receipts = made.receipts
    at = np.flatnonzero(~made.is_again | made.is_last)
    # All receipts before it that aren't marked as coming again are new.
    new_before = receipts.repeat_row.astype(np.int64) - (np.cumsum(made.is_again) - made.is_again)
    label, is_last = receipts.label[at], made.is_last[at]
    times_us = receipts.received_at_us[receipts.repeat_row[at]]
    needs, alone = first_to_last(label, is_last, new_before[at], times_us)
    yield Row(0, needs)
    for partition, chosen in split_by(label[alone] % plan.partitions):
        here = alone[chosen]
        ends = IdEnds(receipts.chunk, label[here], is_last[here], new_before[at[here]], times_us[here])
        yield Row(partition, ends)


def first_to_last(
    label: npt.NDArray[np.int64],
    is_last: npt.NDArray[np.bool_],
    new_before: npt.NDArray[np.int64],
    received_at_us: npt.NDArray[np.int64],
) -> tuple[Elsewhere, npt.NDArray[np.intp]]:
    """What ids need of which both ends are here, by the columns of `IdEnds`; and the rows whose ids lack the other end."""
    order = np.lexsort((is_last, label))
    second = np.flatnonzero(~changes(label[order]))
    first, last = order[second - 1], order[second]
    ring, ttl_us = (int((values[last] - values[first]).max(initial=0)) for values in (new_before, received_at_us))
    is_alone = np.ones(len(label), np.bool_)
    is_alone[first] = is_alone[last] = False
    return Elsewhere(ring, ttl_us), np.flatnonzero(is_alone)


def _source_counts(made: _Assembled) -> SourceCounts:
    receipts = made.receipts
    is_dead = receipts.next_in == receipts.chunk
    dead = receipts.repeat_row[is_dead]
    replaced = (receipts.next_in < NEVER) & ~is_dead
    pairs = (receipts.source[receipts.repeat_row[replaced]].astype(np.int64) << 32) | receipts.next_in[replaced]
    replacing, counts = np.unique(pairs, return_counts=True)

    def by_source(rows: npt.NDArray[np.int32] | slice) -> npt.NDArray[np.int64]:
        return np.bincount(receipts.source[rows], minlength=len(receipts.sources)).astype(np.int64)

    every = by_source(slice(None))
    return SourceCounts(
        chunk=receipts.chunk,
        new_ids=len(receipts.source) - int(np.count_nonzero(made.is_again)),
        first_us=int(receipts.received_at_us[0]) if len(receipts.source) else -1,
        dead_us=int(receipts.received_at_us[dead[-1]]) if len(dead) else -1,
        sources=receipts.sources,
        firsts=every - by_source(receipts.repeat_row[made.replaces]),
        lasts=every - by_source(receipts.repeat_row[receipts.next_in < NEVER]),
        distinct=every - by_source(dead),
        replaced_source=(replacing >> 32).astype(np.int32),
        replaced_in=(replacing & 0xFFFFFFFF).astype(np.int32),
        replaced_count=counts.astype(np.int64),
    )


def _outgoing_refs(domain: int, receipts: ChunkReceipts, source_keys: int) -> Iterator[Row]:
    if not len(receipts.ref_row):
        return
    source = receipts.source[receipts.ref_row]
    repeat = np.searchsorted(receipts.repeat_row, receipts.ref_row)
    lasts_within = _lasts_within(receipts)
    keys = np.array([zlib.crc32(f"{domain}:{name}".encode()) % source_keys for name in receipts.sources], np.int64)
    for key, chosen in split_by(keys[source]):
        row = receipts.ref_row[chosen]
        refs = OutgoingRefs(
            domain=domain,
            chunk=receipts.chunk,
            sources=receipts.sources,
            source=source[chosen],
            row=row,
            label=receipts.label[repeat[chosen]],
            received_at_us=receipts.received_at_us[row],
            to_chunk=receipts.ref_to[chosen],
            next_in=receipts.next_in[repeat[chosen]],
            lasts_within=lasts_within[row],
        )
        yield Row(key, refs)


def _lasts_within(receipts: ChunkReceipts) -> npt.NDArray[np.int64]:
    """Per receipt, how many of its source's receipts up to it have ids that the source never sends again."""
    is_last = np.ones(len(receipts.source), np.bool_)
    is_last[receipts.repeat_row[receipts.next_in < NEVER]] = False
    by_source = stable_order(receipts.source)
    lasts = np.cumsum(is_last[by_source])
    starts = np.searchsorted(receipts.source[by_source], np.arange(len(receipts.sources)))
    before = np.where(starts > 0, lasts[np.minimum(starts, len(lasts)) - 1], 0)
    within = np.empty(len(lasts), np.int64)
    within[by_source] = lasts - before[receipts.source[by_source]]
    return within
