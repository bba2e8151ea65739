"""What each duplicate of a chunk needs, those whose id last came in an earlier chunk included.

The window that a duplicate needs is how many ids its source has sent since the receipt it repeats. If that receipt is in an
earlier chunk, `incoming_refs` adds the ids up by source, without the chunks between. The ids that a source has sent after a
receipt of its own, up to the begin of a chunk, are

    the ids it had sent before the chunk
    less the ids that it never sends after that receipt
    less the ids that it had last sent by then, and sends next in the chunk or later.

Both that are taken away last came at that receipt or earlier, and so aren't newer. Any other id that last came so early
comes again between, and is newer. The first two are in `SourceTotals`, the third is counted from the references
themselves (`_spanning`).

`measure_distances` then puts each chunk behind the receipts that it refers to, each followed by a row that stands for all
newer ids of its source up to the next, and measures it as a domain of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.domain_rows import ReuseDistances, link_rows, reuse_distances
from receiver.simulate.figures import Elsewhere
from receiver.simulate.shares import Counted, Measures, share_of
from receiver.steps.arrow_rows import (
    Row,
    by_chunk,
    changes,
    column,
    in_one,
    joined,
    split_by,
    stable_order,
    values_in,
)
from receiver.steps.chunks import first_to_last
from receiver.steps.schemas import NEVER, ChunkReceipts, CutPlan, IdEnds, IncomingRefs, MeasuredReceipts, OutgoingRefs
from receiver.steps.source_totals import SourceTotals

if TYPE_CHECKING:
    import numpy.typing as npt


class _Earlier(NamedTuple):
    """The receipts of earlier chunks that a chunk refers to, in order."""

    chunk: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    received_at_us: npt.NDArray[np.int64]
    newer_ids: npt.NDArray[np.int64]


def measure_distances(
    before_us: npt.NDArray[np.int64], measures: Measures
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `ChunkReceipts`, `IncomingRefs` -> `MeasuredReceipts`, `Share`; `Elsewhere` are passed on.

    `before_us` as for `assembled`.
    """

    def work(task: int, rows: Iterator[Row]) -> Iterator[Row]:
        chunks, refs, elsewhere = values_in(rows, ChunkReceipts, IncomingRefs, Elsewhere)
        yield from (Row(0, each) for each in elsewhere)
        refs_of = by_chunk(refs)
        while chunks:
            receipts = chunks.pop()
            sources, earlier = _earlier(receipts, refs_of.pop(receipts.chunk, []))
            needs = _needs(receipts, len(sources), earlier, int(before_us[receipts.chunk]))
            yield Row(task, _measured(receipts, sources, earlier, needs))
            yield Row(0, share_of(receipts.chunk, _counted(receipts), needs, measures))

    return work


def dense_ids(
    earlier: npt.NDArray[np.int64], receipts: ChunkReceipts | MeasuredReceipts
) -> tuple[npt.NDArray[np.int32], int]:
    """Numbers from 0 for the ids of earlier receipts, given by their labels, and of a chunk's; and how many there may be."""
    rows = len(receipts.source)
    labels = np.sort(np.concatenate([earlier, receipts.label]))
    labels = labels[changes(labels)]
    ids = np.arange(-len(earlier), rows, dtype=np.int32)
    ids[: len(earlier)] = rows + np.searchsorted(labels, earlier)
    ids[len(earlier) + receipts.repeat_row] = rows + np.searchsorted(labels, receipts.label)
    return ids, rows + len(labels)


def _earlier(receipts: ChunkReceipts, refs: list[IncomingRefs]) -> tuple[list[str], _Earlier]:
    source, sources = in_one(((each.source, each.sources) for each in refs), first=receipts.sources)
    earlier = _Earlier(
        chunk=column(refs, "from_chunk", np.int32),
        row=column(refs, "from_row", np.int32),
        label=column(refs, "label", np.int64),
        source=source,
        received_at_us=column(refs, "received_at_us", np.int64),
        newer_ids=column(refs, "newer_ids", np.int64),
    )
    order = np.lexsort((earlier.row, earlier.chunk))
    return sources, _Earlier._make(values[order] for values in earlier)


def _needs(receipts: ChunkReceipts, sources: int, earlier: _Earlier, before_us: int) -> ReuseDistances:
    """What the chunk's duplicates need; `sources` is how many sources the chunk and the earlier receipts have."""
    count = len(earlier.row)
    weights = np.ones(2 * count, np.int64)
    weights[1::2] = _between(earlier)
    ids, distinct = dense_ids(earlier.label, receipts)
    newer = np.arange(distinct, distinct + count, dtype=np.int32)
    rows = link_rows(
        np.concatenate([np.repeat(earlier.received_at_us, 2), receipts.received_at_us]),
        np.concatenate([np.repeat(earlier.source, 2), receipts.source]),
        np.concatenate([np.stack([ids[:count], newer], axis=1).ravel(), ids[count:]]),
        sources=sources,
        distinct_ids=distinct + count,
    )
    needs = reuse_distances(rows, weights)
    here = needs.row >= len(weights)
    row = needs.row[here]
    # With W = 0 the clock is the receipt before, which isn't the row before where the chunk begins.
    clock_us = np.where(row > len(weights), rows.received_at_us[row - 1], before_us)
    expiry_us = clock_us - rows.received_at_us[rows.earlier[row]]
    return ReuseDistances(row - np.int32(len(weights)), needs.window[here], expiry_us)


def _between(earlier: _Earlier) -> npt.NDArray[np.int64]:
    """Per earlier receipt, the ids between it and the next one of its source, or the begin of the chunk."""
    order = stable_order(earlier.source)
    newer = earlier.newer_ids[order]
    between = newer.copy()
    same = earlier.source[order[:-1]] == earlier.source[order[1:]]
    between[:-1][same] -= newer[1:][same] + 1
    in_order = np.empty(len(order), np.int64)
    in_order[order] = between
    return in_order


def _measured(
    receipts: ChunkReceipts, sources: list[str], earlier: _Earlier, needs: ReuseDistances
) -> MeasuredReceipts:
    own = {name: getattr(receipts, name) for each in fields(MeasuredReceipts) if hasattr(receipts, name := each.name)}
    return MeasuredReceipts(
        **own | {"sources": sources},
        earlier_chunk=earlier.chunk,
        earlier_row=earlier.row,
        earlier_label=earlier.label,
        earlier_source=earlier.source,
        earlier_received_at_us=earlier.received_at_us,
        window_needs=needs.window,
    )


def _counted(receipts: ChunkReceipts) -> Counted:
    as_read_us = receipts.as_read_us if len(receipts.as_read_us) else receipts.received_at_us
    return Counted(
        as_read_us=as_read_us,
        received_at_us=receipts.received_at_us,
        source=receipts.source,
        sources=receipts.sources,
        redelivered_row=receipts.redelivered_row,
        unchecked_us=receipts.unchecked_us,
    )


@compiled(forceinline=True)
def _add(sums: npt.NDArray[np.int64], chunk: int, amount: int) -> None:
    at = chunk + 1
    while at < len(sums):
        sums[at] += amount
        at += at & -at


@compiled(forceinline=True)
def _sum_before(sums: npt.NDArray[np.int64], chunk: int) -> int:
    total = 0
    at = chunk
    while at > 0:
        total += sums[at]
        at -= at & -at
    return total


@compiled()
def _spanning(
    series: npt.NDArray[np.int64],
    is_first: npt.NDArray[np.bool_],
    to_chunk: npt.NDArray[np.int32],
    next_in: npt.NDArray[np.int32],
    sums: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """For each reference: how many receipts of its series, up to its own, are replaced in the chunk that refers, or later.

    Only receipts that are referred to count, and each once: `is_first` marks its first reference. References are ordered
    by series, then by receipt. `sums` is a Fenwick tree over the chunks, all 0 and left so.
    """
    spanning = np.zeros(len(series), np.int64)
    begin = 0
    while begin < len(series):
        end, entered = begin, 0
        while end < len(series) and series[end] == series[begin]:
            if is_first[end] and next_in[end] < NEVER:
                _add(sums, int(next_in[end]), 1)
                entered += 1
            spanning[end] = entered - _sum_before(sums, int(to_chunk[end]))
            end += 1
        for row in range(begin, end):
            if is_first[row] and next_in[row] < NEVER:
                _add(sums, int(next_in[row]), -1)
        begin = end
    return spanning


def incoming_refs(plan: CutPlan, totals: SourceTotals) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `OutgoingRefs`, `IdEnds` -> `IncomingRefs`, `Elsewhere`."""

    def work(_key: int, rows: Iterator[Row]) -> Iterator[Row]:
        refs, ends = values_in(rows, OutgoingRefs, IdEnds)
        if refs:
            yield from _incoming(plan, totals, refs)
        if ends:
            label, received_at_us = (column(ends, name, np.int64) for name in ("label", "received_at_us"))
            new_before = joined(np.int64, (each.new_before + totals.new_before[each.chunk] for each in ends))
            yield Row(0, first_to_last(label, column(ends, "is_last", np.bool_), new_before, received_at_us)[0])

    return work


def _series_of(totals: SourceTotals, refs: OutgoingRefs) -> npt.NDArray[np.int64]:
    # Only sources that are referred to are sure to be known here.
    numbers = np.full(len(refs.sources), -1, np.int64)
    for source in np.unique(refs.source).tolist():
        numbers[source] = totals.series[refs.domain, refs.sources[source]]
    return numbers[refs.source]


def _incoming(plan: CutPlan, totals: SourceTotals, refs: list[OutgoingRefs]) -> Iterator[Row]:
    series = np.concatenate([_series_of(totals, each) for each in refs])
    chunk = np.repeat(np.array([each.chunk for each in refs], np.int32), [len(each.row) for each in refs])
    row, to_chunk, next_in = (column(refs, name, np.int32) for name in ("row", "to_chunk", "next_in"))
    order = np.lexsort((to_chunk, row, chunk, series))
    series, chunk = series[order], chunk[order]
    row, to_chunk, next_in = row[order], to_chunk[order], next_in[order]
    is_first = changes(row) | changes(chunk) | changes(series)
    newer_ids = (
        totals.firsts_before(series, to_chunk)
        - totals.lasts_before(series, chunk)
        - column(refs, "lasts_within", np.int64)[order]
        - _spanning(series, is_first, to_chunk, next_in, np.zeros(plan.chunks + 1, np.int64))
    )
    label, received_at_us = (column(refs, name, np.int64)[order] for name in ("label", "received_at_us"))
    names = {number: name for (_, name), number in totals.series.items()}
    for to, chosen in split_by(to_chunk):
        numbers, source = np.unique(series[chosen], return_inverse=True)
        incoming = IncomingRefs(
            chunk=to,
            label=label[chosen],
            source=source.astype(np.int32),
            sources=[names[number] for number in numbers.tolist()],
            from_chunk=chunk[chosen],
            from_row=row[chosen],
            received_at_us=received_at_us[chosen],
            newer_ids=newer_ids[chosen],
        )
        yield Row(int(plan.chunk_task[to]), incoming)
