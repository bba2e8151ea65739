"""Puts each chunk in order, clamps its times, and counts what each source sent in it.

In: every `Piece`, whose `TaskReceipts` go to the tasks of their chunks, and the `Links`. Out, for each chunk: `ChunkReceipts`,
`References` and `IdEnds`; `SourceCounts` and `NeededElsewhere` for the driver, which adds them up. Chunks are cut in the order
of the log, so sorting the receipts within each gives the order of the whole log. Clamping begins with the latest time before
the chunk, which is known (`before_us`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.simulate.compiled import Flags, Int32s, Int64s, check_numbered, compiled
from receiver.simulate.domain_rows import NeededElsewhere
from receiver.steps.arrow_rows import (
    Row,
    RowFlow,
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
from receiver.steps.plan import CutPlan, cut_pieces, grouped_by
from receiver.steps.schemas import (
    NEVER,
    ChunkReceipts,
    IdEnds,
    Links,
    References,
    SourceCounts,
    TaskReceipts,
)

if TYPE_CHECKING:
    import numpy.typing as npt


def assemble(
    pieces: RowFlow, links: RowFlow, plan: CutPlan, before_us: Int64s
) -> tuple[RowFlow, list[SourceCounts], list[NeededElsewhere]]:
    """Kept `ChunkReceipts`, `References` and `IdEnds`; and the values for the driver.

    `before_us` is for each chunk the latest time of its domain before it, or -1.
    """

    def work(task: int, rows: Iterator[Row]) -> Iterator[Row]:
        of_pieces, links = values_in(rows, TaskReceipts, Links)
        links_of = by_chunk(links)
        for chunk, columns, sources in _chunks(plan, of_pieces):
            receipts, linked = _assembled(chunk, columns, sources, int(before_us[chunk]), links_of.pop(chunk, []))
            yield Row(task, receipts)
            yield Row(0, _source_counts(receipts, linked))
            yield from _id_ends(plan, receipts, linked)
            yield from _references(plan, receipts, linked.again_in)

    kinds = ChunkReceipts, References, IdEnds, SourceCounts, NeededElsewhere
    chunks = cut_receipts(pieces, plan).plus(links).grouped(work, plan.tasks, *kinds)
    kept, (source_counts, elsewhere) = chunks.kept("Assembling chunks", SourceCounts, NeededElsewhere)
    return kept, source_counts, elsewhere


def cut_receipts(pieces: RowFlow, plan: CutPlan) -> RowFlow:
    """`TaskReceipts` by task."""

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for cut in cut_pieces(plan, rows):
            piece, unit_row = cut.piece, cut.unit_row
            clock_steps_back = not np.array_equal(cut.key_us, piece.received_at_us)
            is_unchecked = (piece.id_high | piece.id_low) == 0
            redelivered = np.zeros(len(unit_row), np.bool_)
            redelivered[piece.redelivered_row] = True
            for group in grouped_by(plan.chunk_task[cut.chunk], cut.chunk, np.arange(len(unit_row))):
                source, sources = used(group.of(piece.source), piece.sources)
                numbers = group.of(unit_row)
                receipts = TaskReceipts(
                    unit=piece.unit,
                    chunk=group.chunk,
                    chunk_end=group.chunk_end,
                    first_row=int(numbers[0]),
                    unit_row=numbers[:0] if isinstance(group.rows, slice) else numbers,
                    received_at_us=group.of(piece.received_at_us),
                    key_us=group.of(cut.key_us) if clock_steps_back else cut.key_us[:0],
                    source=source,
                    sources=sources,
                    redelivered_row=np.flatnonzero(group.of(redelivered)).astype(np.int32),
                    row_id=group.of(piece.row_id),
                    unchecked_row=np.flatnonzero(group.of(is_unchecked)).astype(np.int32),
                )
                yield Row(group.key, receipts)

    return pieces.map(work, TaskReceipts)


class _Columns(NamedTuple):
    """Receipts of several units. A missing column is empty."""

    receipt_key: Int64s
    """Unit and row in the unit, as one number of `_receipt_keys`."""
    key_us: Int64s
    received_at_us: Int64s
    source: Int32s
    redelivered: Flags
    number: Int64s
    is_checked: Flags

    def taken(self, rows: npt.NDArray[Any] | slice) -> _Columns:
        return _Columns._make(values[rows] if len(values) else values for values in self)


def _receipt_keys(unit: Int32s | int, row: npt.NDArray[Any]) -> Int64s:
    keys: Int64s = (np.asarray(unit, np.int64) << np.int64(32)) | row
    return keys


def _chunks(plan: CutPlan, pieces: list[TaskReceipts]) -> Iterator[tuple[int, _Columns, list[str]]]:
    """The number of each chunk, its receipts in order, and the names for the numbers of their sources."""
    pieces.sort(key=lambda piece: (piece.unit, piece.first_row))
    chunk = joined(np.int32, (np.repeat(each.chunk, np.diff(each.chunk_end, prepend=0)) for each in pieces))
    receipts, sources = _columns_of(plan, pieces)
    pieces.clear()  # so that no receipt is in memory twice
    order = _order(chunk, receipts.key_us)
    if order is not None:
        chunk, receipts = chunk[order], receipts.taken(order)
    for start, end in runs(changes(chunk)):
        yield int(chunk[start]), receipts.taken(slice(start, end)), sources


def _columns_of(plan: CutPlan, pieces: Sequence[TaskReceipts]) -> tuple[_Columns, list[str]]:
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
        receipt_key=joined(np.int64, (_receipt_keys(each.unit, row) for each, row in zip(pieces, rows, strict=True))),
        key_us=joined(np.int64, (each.key_us if len(each.key_us) else each.received_at_us for each in pieces)),
        received_at_us=column(pieces, "received_at_us", np.int64),
        source=source,
        redelivered=_marks([each.redelivered_row for each in pieces], sizes),
        number=row_id,
        is_checked=~_marks([each.unchecked_row for each in pieces], sizes),
    )
    return receipts, sources


def _marks(rows: Sequence[Int32s], sizes: Sequence[int]) -> Flags:
    """One column of flags for several pieces, from the marked rows of each."""
    begins = np.cumsum([0, *sizes])
    marks = np.zeros(begins[-1], np.bool_)
    marks[joined(np.int64, (begin + each for begin, each in zip(begins, rows, strict=False)))] = True
    return marks


def _order(chunk: Int32s, key_us: Int64s) -> Int64s | None:
    """The stable order by chunk, then key; None if the receipts are in that order."""
    by_key = order_unless_sorted(key_us)
    if by_key is None:
        return order_unless_sorted(chunk)
    then_by_chunk = order_unless_sorted(chunk[by_key])
    return by_key if then_by_chunk is None else by_key[then_by_chunk]


class _Linked(NamedTuple):
    """Columns for `ChunkReceipts.linked_row`: two of `Links`, and `ChunkReceipts.again_in`."""

    is_duplicate: Flags
    replaces: Flags
    again_in: Int32s


def _assembled(
    chunk: int, columns: _Columns, sources: list[str], before_us: int, links: Sequence[Links]
) -> tuple[ChunkReceipts, _Linked]:
    checked = columns if columns.is_checked.all() else columns.taken(columns.is_checked)
    check_numbered(len(checked.source), "receipts in one chunk")
    source, used_sources = used(checked.source, sources)
    received_at_us = np.maximum(np.maximum.accumulate(checked.received_at_us), before_us)
    is_clamped = not np.array_equal(received_at_us, checked.received_at_us)
    linked_row = _rows_of(links, checked.receipt_key)
    by_row = np.argsort(linked_row)
    begins = np.cumsum([0, *(len(each.unit) for each in links)])
    ref_at = joined(np.int64, (begin + each.ref_at for begin, each in zip(begins, links, strict=False)))
    ref_row, ref_to = linked_row[ref_at], column(links, "ref_to", np.int32)
    by_ref = np.lexsort((ref_to, ref_row))
    receipts = ChunkReceipts(
        chunk=chunk,
        received_at_us=received_at_us,
        source=source,
        sources=used_sources,
        number=checked.number,
        linked_row=linked_row[by_row],
        label=column(links, "label", np.int64)[by_row],
        next_in=column(links, "next_in", np.int32)[by_row],
        ref_row=ref_row[by_ref],
        ref_to=ref_to[by_ref],
        as_read_us=checked.received_at_us[: None if is_clamped else 0],
        redelivered_row=np.flatnonzero(checked.redelivered).astype(np.int32),
        unchecked_us=columns.received_at_us[~columns.is_checked],
    )
    is_duplicate, replaces = (column(links, name, np.bool_)[by_row] for name in ("is_duplicate", "replaces"))
    return receipts, _Linked(is_duplicate, replaces, receipts.again_in()[receipts.linked_row])


def _rows_of(links: Sequence[Links], receipt_key: Int64s) -> Int32s:
    """The row in the chunk of each receipt that links name by unit and row. `receipt_key` is the column of the chunk."""
    by_key = order_unless_sorted(receipt_key)
    wanted = joined(np.int64, (_receipt_keys(each.unit, each.unit_row) for each in links))
    rows = np.searchsorted(receipt_key, wanted, sorter=by_key)
    rows = rows if by_key is None else by_key.take(rows, mode="clip")
    if not np.array_equal(receipt_key.take(rows, mode="clip"), wanted):
        raise AssertionError("links are of other receipts than those of their chunk")
    return rows.astype(np.int32)


def _source_counts(receipts: ChunkReceipts, linked: _Linked) -> SourceCounts:
    def by_source(rows: Int32s | slice) -> Int64s:
        return np.bincount(receipts.source[rows], minlength=len(receipts.sources)).astype(np.int64)

    every = by_source(slice(None))
    replaced_here = receipts.linked_row[receipts.next_in == receipts.chunk]
    again_in, again = np.unique(linked.again_in, return_counts=True)
    return SourceCounts(
        chunk=receipts.chunk,
        receipts=len(receipts.source),
        new_ids=len(receipts.source) - int(np.count_nonzero(linked.is_duplicate)),
        first_us=int(receipts.received_at_us[0]) if len(receipts.source) else -1,
        replaced_us=int(receipts.received_at_us[replaced_here[-1]]) if len(replaced_here) else -1,
        sources=receipts.sources,
        firsts=every - by_source(receipts.linked_row[linked.replaces]),
        lasts=every - by_source(receipts.linked_row[receipts.next_in < NEVER]),
        again_in=again_in,
        again=again,
    )


def _id_ends(plan: CutPlan, receipts: ChunkReceipts, linked: _Linked) -> Iterator[Row]:
    """The needs of ids whose first and last receipt are both in this chunk; `IdEnds` of the other ids."""
    is_last = linked.again_in == NEVER
    at = np.flatnonzero(~linked.is_duplicate | is_last)
    # The new receipts before a row are all that aren't duplicates.
    new_before = receipts.linked_row.astype(np.int64) - (np.cumsum(linked.is_duplicate) - linked.is_duplicate)
    label, is_last = receipts.label[at], is_last[at]
    times_us = receipts.received_at_us[receipts.linked_row[at]]
    ring, ttl_us, alone = first_to_last(label, is_last, new_before[at], times_us)
    yield Row(0, NeededElsewhere(ring, ttl_us=ttl_us, domain=int(plan.chunk_domain[receipts.chunk])))
    for partition, chosen in split_by(label[alone] % plan.partitions):
        here = alone[chosen]
        ends = IdEnds(receipts.chunk, label[here], is_last[here], new_before[at[here]], times_us[here])
        yield Row(partition, ends)


def first_to_last(
    label: Int64s, is_last: Flags, new_before: Int64s, received_at_us: Int64s
) -> tuple[int, int, npt.NDArray[np.intp]]:
    """The needs of ids whose first and last receipt are both among these columns of `IdEnds`: the size of a ring, and a time in
    microseconds. Also the rows whose other end isn't here."""
    order = np.lexsort((is_last, label))
    second = np.flatnonzero(~changes(label[order]))
    first, last = order[second - 1], order[second]
    ring, ttl_us = (int((values[last] - values[first]).max(initial=0)) for values in (new_before, received_at_us))
    is_alone = np.ones(len(label), np.bool_)
    is_alone[first] = is_alone[last] = False
    return ring, ttl_us, np.flatnonzero(is_alone)


def _references(plan: CutPlan, receipts: ChunkReceipts, again_in: Int32s) -> Iterable[Row]:
    if not len(receipts.ref_row):
        return
    domain = int(plan.chunk_domain[receipts.chunk])
    source = receipts.source[receipts.ref_row]
    linked = np.searchsorted(receipts.linked_row, receipts.ref_row)
    lasts_within = _lasts_within(receipts)
    again = again_in - np.int32(receipts.chunk)
    ref_to, later = receipts.ref_to - receipts.chunk, plan.chunks - receipts.chunk
    alive_within = _alive_within(receipts.linked_row, again, receipts.ref_row, ref_to, later)
    # Not Python's own hash: it differs from process to process.
    keys = [zlib.crc32(f"{domain}:{name}".encode()) % plan.partitions for name in receipts.sources]
    for key, chosen in split_by(np.array(keys, np.int64)[source]):
        row = receipts.ref_row[chosen]
        references = References(
            domain=domain,
            chunk=receipts.chunk,
            sources=receipts.sources,
            source=source[chosen],
            row=row,
            label=receipts.label[linked[chosen]],
            received_at_us=receipts.received_at_us[row],
            to_chunk=receipts.ref_to[chosen],
            next_in=receipts.next_in[linked[chosen]],
            lasts_within=lasts_within[row],
            alive_within=alive_within[chosen],
        )
        yield Row(key, references)


@compiled()
def _alive_within(linked_row: Int32s, again_in: Int32s, ref_row: Int32s, ref_to: Int32s, chunks: int) -> Int64s:
    """`References.alive_within`. Chunks are counted from the references' own."""
    gone = np.zeros(chunks, np.int64)
    alive_within = np.empty(len(ref_row), np.int64)
    linked = 0
    for ref in range(len(ref_row)):
        while linked < len(linked_row) and linked_row[linked] <= ref_row[ref]:
            if again_in[linked] < len(gone):  # otherwise the id never comes again
                gone[again_in[linked]] += 1
            linked += 1
        alive_within[ref] = ref_row[ref] + 1 - gone[: ref_to[ref]].sum()
    return alive_within


def _lasts_within(receipts: ChunkReceipts) -> Int64s:
    """For each receipt, how many of its source's receipts up to and including it are never replaced."""
    is_last = np.ones(len(receipts.source), np.bool_)
    is_last[receipts.linked_row[receipts.next_in < NEVER]] = False
    by_source = stable_order(receipts.source)
    lasts = np.cumsum(is_last[by_source])
    starts = np.searchsorted(receipts.source[by_source], np.arange(len(receipts.sources)))
    before = np.where(starts > 0, lasts[np.minimum(starts, len(lasts)) - 1], 0)
    within = np.empty(len(lasts), np.int64)
    within[by_source] = lasts - before[receipts.source[by_source]]
    return within
