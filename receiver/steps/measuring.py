"""Measures the needs of each duplicate of a chunk, even if its id last came in an earlier chunk.

In: `ChunkReceipts`, `References` and `IdEnds`. Out: `ChunkReceipts` with the needs of their duplicates, and the
`EarlierReceipts` to which they refer; the `Share` of each chunk and `NeededElsewhere` for the driver.

The window that a duplicate needs is the number of ids that its source has sent since the receipt that it repeats. If that
receipt is in an earlier chunk, `earlier_receipts` counts these ids by source, without reading the chunks between. The number of
ids that a source has sent after one of its receipts, up to the begin of a chunk, is

    the ids that it had sent before the chunk
    less the ids that it never sends after that receipt
    less the ids that it sent up to that receipt, and sends next in the chunk or later.

An id counts if it comes between that receipt and the chunk. So the ids are subtracted whose last receipt before the chunk is
that receipt or an earlier one: they never come again (second line), or only in the chunk or later (third). The first two lines
are in `SourceTotals`. The third is counted from the references themselves (`_replaced_later`): a chunk refers to each receipt
that it replaces.

`_distances` then puts each chunk behind the receipts to which it refers, and measures it as a domain of its own. Each of these
receipts is followed by a row that stands for all ids of its source up to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled
from receiver.simulate.domain_rows import (
    DomainRows,
    NeededElsewhere,
    ReuseDistances,
    link_rows,
    lru_size,
    reuse_distances,
)
from receiver.simulate.shares import Measures, Share, share_of
from receiver.steps.arrow_rows import (
    Row,
    RowFlow,
    by_chunk,
    changes,
    column,
    in_one,
    joined,
    split_by,
    stable_order,
    used,
    values_in,
)
from receiver.steps.chunks import first_to_last
from receiver.steps.plan import CutPlan
from receiver.steps.schemas import (
    NEVER,
    ChunkReceipts,
    EarlierReceipts,
    IdEnds,
    References,
    SourceCounts,
)

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """How many ids each source has sent by each chunk.

    A chunk counts an id only if its source sends it there first, or last, in the whole log. So a sum counts no id twice. A
    *series* is one source of one domain. An *entry* is a chunk in which a series has receipts; entries are ordered by series,
    then chunk.
    """

    series: dict[tuple[int, str], int]
    """(domain, source) -> number of the series; only for domains of several chunks."""
    entry: Int64s
    """series << 32 | chunk."""
    firsts: Int64s
    """Ids that the source sent first in this chunk or before."""
    lasts: Int64s
    """Ids that the source sent last in this chunk or before."""
    new_before: Int64s
    """For each chunk, the receipts of all chunks before it whose ids were new in their domain."""
    first_us: Int64s
    """For each chunk, `SourceCounts.first_us`."""
    replaced_us: Int64s
    """For each chunk, `SourceCounts.replaced_us`."""
    receipts: Int64s
    """For each chunk, its receipts with an id."""
    again_from: Int64s
    """Three columns, ordered by the first: `again` ids of the chunk `again_from` come next in the chunk `again_in`. Only for
    domains of several chunks."""
    again_in: Int64s
    again: Int64s

    @classmethod
    def of(cls, plan: CutPlan, unordered: Sequence[SourceCounts]) -> SourceTotals:
        """Add up the counts of all chunks."""
        counts = sorted(unordered, key=lambda each: each.chunk)
        new_ids, first_us, replaced_us, receipts = (
            np.array([getattr(each, name) for each in counts], np.int64)
            for name in ("new_ids", "first_us", "replaced_us", "receipts")
        )
        several = np.bincount(plan.chunk_domain, minlength=len(plan.domains)) > 1
        counts = [each for each in counts if several[plan.chunk_domain[each.chunk]]]
        series: dict[tuple[int, str], int] = {}
        entries = [np.empty(0, np.int64)]
        for each in counts:
            domain = int(plan.chunk_domain[each.chunk])
            numbers = [series.setdefault((domain, source), len(series)) for source in each.sources]
            entries.append((np.array(numbers, np.int64) << 32) | each.chunk)
        entry = np.concatenate(entries)
        order = np.argsort(entry)
        entry = entry[order]
        begins = np.flatnonzero(changes(entry >> 32))
        firsts, lasts = (_running(column(counts, name, np.int64)[order], begins) for name in ("firsts", "lasts"))
        again_from = joined(np.int64, (np.full(len(each.again_in), each.chunk, np.int64) for each in counts))
        again_in, again = column(counts, "again_in", np.int32).astype(np.int64), column(counts, "again", np.int64)
        new_before = np.cumsum(new_ids) - new_ids
        return cls(
            series, entry, firsts, lasts, new_before, first_us, replaced_us, receipts, again_from, again_in, again
        )

    def before(self, sums: Int64s, series: Int64s, chunk: Int32s | int) -> Int64s:
        """For each series, its running sum before a chunk. `sums` is `firsts` or `lasts`."""
        at = np.searchsorted(self.entry, (series << 32) | chunk) - 1
        same = (at >= 0) & (self.entry[at] >> 32 == series)
        return np.where(same, sums[at], 0)

    def alive_from(self, first: int, chunk: int) -> Int64s:
        """For each chunk of a domain from `first` to before `chunk`: how many different ids the domain has received from that
        chunk's begin to the begin of `chunk`. These are the receipts whose ids don't come again before `chunk`."""
        alive = self.receipts[first:chunk].copy()
        begin, end = np.searchsorted(self.again_from, (first, chunk))
        come_before = np.flatnonzero(self.again_in[begin:end] < chunk) + begin
        np.subtract.at(alive, self.again_from[come_before] - first, self.again[come_before])
        return alive[::-1].cumsum()[::-1]


def _running(counts: Int64s, begins: npt.NDArray[np.intp]) -> Int64s:
    """Running sums that start again at these indices."""
    sums = np.cumsum(counts)
    before = np.concatenate([[0], sums])[begins]
    running: Int64s = sums - np.repeat(before, np.diff(begins, append=len(sums)))
    return running


def measure(
    chunks: RowFlow, plan: CutPlan, counts: Sequence[SourceCounts], before_us: Int64s, measures: Measures
) -> tuple[RowFlow, SourceTotals, list[Share], list[NeededElsewhere]]:
    """Kept `ChunkReceipts` and `EarlierReceipts`; and the values for the driver, among them a `Share` of each chunk in order.

    `counts` is as `assemble` returns it, `before_us` as `assemble` takes it.
    """
    totals = SourceTotals.of(plan, counts)

    def work(task: int, rows: Iterator[Row]) -> Iterator[Row]:
        chunks, earlier, needs = values_in(rows, ChunkReceipts, EarlierReceipts, NeededElsewhere)
        yield from (Row(0, each) for each in needs)
        earlier_of = by_chunk(earlier)
        while chunks:
            receipts = chunks.pop()
            referred = earlier_of.pop(receipts.chunk, [])
            distances = _distances(receipts, referred, int(before_us[receipts.chunk]))
            share = share_of(receipts.chunk, receipts, distances, measures)
            yield Row(0, share)
            in_first_half = share.duplicates_in_first_half
            yield Row(task, replace(receipts, window_needs=distances.window, duplicates_in_first_half=in_first_half))
            yield from (Row(task, each) for each in referred)
            domain = int(plan.chunk_domain[receipts.chunk])
            alive_from = totals.alive_from(plan.of_domain(domain).start, receipts.chunk)
            yield Row(0, NeededElsewhere(lru_size=_lru_size(receipts, referred, alive_from), domain=domain))

    earlier = earlier_receipts(chunks, plan, totals)
    flow = chunks.only(ChunkReceipts).plus(earlier)
    flow = flow.grouped(work, plan.tasks, ChunkReceipts, EarlierReceipts, Share, NeededElsewhere)
    kept, (shares, needs) = flow.kept("Measuring duplicates", Share, NeededElsewhere)
    return kept.only(ChunkReceipts, EarlierReceipts), totals, sorted(shares, key=lambda share: share.section), needs


def earlier_receipts(chunks: RowFlow, plan: CutPlan, totals: SourceTotals) -> RowFlow:
    """`References`, `IdEnds` -> `EarlierReceipts`, `NeededElsewhere`."""

    def work(_key: int, rows: Iterator[Row]) -> Iterator[Row]:
        references, ends = values_in(rows, References, IdEnds)
        if references:
            yield from _earlier_receipts(plan, totals, references)
        of_domain = defaultdict(list)
        for each in ends:
            of_domain[int(plan.chunk_domain[each.chunk])].append(each)
        for domain, own in of_domain.items():
            label, received_at_us = (column(own, name, np.int64) for name in ("label", "received_at_us"))
            new_before = joined(np.int64, (each.new_before + totals.new_before[each.chunk] for each in own))
            ring, ttl_us, _ = first_to_last(label, column(own, "is_last", np.bool_), new_before, received_at_us)
            yield Row(0, NeededElsewhere(ring, ttl_us=ttl_us, domain=domain))

    return chunks.only(References, IdEnds).grouped(work, plan.partitions, EarlierReceipts, NeededElsewhere)


def _series_of(totals: SourceTotals, references: References) -> Int64s:
    # Only sources with references are sure to be known here.
    source, sources = used(references.source, references.sources)
    return np.array([totals.series[references.domain, name] for name in sources], np.int64)[source]


def _earlier_receipts(plan: CutPlan, totals: SourceTotals, references: list[References]) -> Iterator[Row]:
    series = np.concatenate([_series_of(totals, each) for each in references])
    chunk = np.concatenate([np.full(len(each.row), each.chunk, np.int32) for each in references])
    row, to_chunk, next_in = (column(references, name, np.int32) for name in ("row", "to_chunk", "next_in"))
    order = np.lexsort((to_chunk, row, chunk, series))
    series, chunk = series[order], chunk[order]
    row, to_chunk, next_in = row[order], to_chunk[order], next_in[order]
    is_first = changes(row) | changes(chunk) | changes(series)
    newer_ids = (
        totals.before(totals.firsts, series, to_chunk)
        - totals.before(totals.lasts, series, chunk)
        - column(references, "lasts_within", np.int64)[order]
        - _replaced_later(series, is_first, to_chunk, next_in, plan.chunks)
    )
    label, received_at_us, alive_within = (
        column(references, name, np.int64)[order] for name in ("label", "received_at_us", "alive_within")
    )
    names = {number: name for (_, name), number in totals.series.items()}
    for to, chosen in split_by(to_chunk):
        numbers, source = np.unique(series[chosen], return_inverse=True)
        earlier = EarlierReceipts(
            chunk=to,
            from_chunk=chunk[chosen],
            row=row[chosen],
            label=label[chosen],
            received_at_us=received_at_us[chosen],
            source=source.astype(np.int32),
            sources=[names[number] for number in numbers.tolist()],
            newer_ids=newer_ids[chosen],
            alive_within=alive_within[chosen],
        )
        yield Row(int(plan.chunk_task[to]), earlier)


@compiled()
def _replaced_later(series: Int64s, is_first: Flags, to_chunk: Int32s, next_in: Int32s, chunks: int) -> Int64s:
    """For each reference: how many receipts of its series, up to its own, are replaced in the chunk that refers, or later.

    References are ordered by series, then by receipt; each receipt counts once, at its first reference (`is_first`).
    """
    waiting = np.zeros(chunks, np.int64)  # for each chunk, how many receipts of the series so far are replaced there
    replaced_later = np.zeros(len(series), np.int64)
    begin = 0
    while begin < len(series):
        end, newest = begin, -1
        while end < len(series) and series[end] == series[begin]:
            if is_first[end] and next_in[end] < NEVER:
                waiting[next_in[end]] += 1
                newest = max(newest, next_in[end])
            # Chunks are large, so a domain has few of them: a plain sum is as fast as a tree would be.
            for chunk in range(to_chunk[end], newest + 1):
                replaced_later[end] += waiting[chunk]
            end += 1
        for at in range(begin, end):
            if next_in[at] < NEVER:
                waiting[next_in[at]] = 0
        begin = end
    return replaced_later


def _distances(receipts: ChunkReceipts, referred: Sequence[EarlierReceipts], before_us: int) -> ReuseDistances:
    source, sources = in_one(((each.source, each.sources) for each in referred), first=receipts.sources)
    order = np.lexsort((column(referred, "row", np.int32), column(referred, "from_chunk", np.int32)))
    label, times_us, newer_ids = (
        column(referred, name, np.int64)[order] for name in ("label", "received_at_us", "newer_ids")
    )
    source = np.concatenate([source[order], receipts.source])
    rows, weights = _behind(receipts, label, times_us, newer_ids, source=source, sources=len(sources))
    distances = reuse_distances(rows, weights)
    begin = len(weights)  # the row at which the chunk begins
    is_of_chunk = distances.row >= begin
    duplicate = distances.row[is_of_chunk]
    # With W = 0 the clock is the receipt before: for the chunk's first receipt, that isn't the row before.
    clock_us = np.where(duplicate > begin, rows.received_at_us[duplicate - 1], before_us)
    return ReuseDistances(
        row=duplicate - np.int32(begin),
        window=distances.window[is_of_chunk],
        expiry_us=clock_us - rows.received_at_us[rows.earlier[duplicate]],
        age_us=distances.age_us[is_of_chunk],
    )


def _lru_size(receipts: ChunkReceipts, referred: Sequence[EarlierReceipts], alive_from: Int64s) -> int:
    """The need of the chunk's duplicates in an LRU memory of the domain's ids, which all count as one source's.

    Each id was last received by its newest earlier receipt. The ids since that are those since the begin of the receipt's chunk
    (`alive_from`: the `SourceTotals.alive_from` of this chunk), less those that last came up to it (`alive_within`).
    """
    from_chunk, row = (column(referred, name, np.int32) for name in ("from_chunk", "row"))
    label, times_us, alive_within = (
        column(referred, name, np.int64) for name in ("label", "received_at_us", "alive_within")
    )
    order = np.lexsort((row, from_chunk))
    _, from_the_end = np.unique(label[order][::-1], return_index=True)
    newest = order[np.sort(len(order) - 1 - from_the_end)]
    first_chunk = receipts.chunk - len(alive_from)
    newer_ids = alive_from[from_chunk[newest] - first_chunk] - alive_within[newest]
    one_source = np.zeros(len(newest) + len(receipts.source), np.int32)
    rows, weights = _behind(receipts, label[newest], times_us[newest], newer_ids, source=one_source, sources=1)
    return lru_size(rows.earlier, weights)


def _behind(
    receipts: ChunkReceipts, label: Int64s, times_us: Int64s, newer_ids: Int64s, *, source: Int32s, sources: int
) -> tuple[DomainRows, Int64s]:
    """The chunk behind earlier receipts, as a domain of its own; and for each row before the chunk, for how many ids it stands.

    After each earlier receipt follows a row of the same source and time, for the ids between it and the source's next. `label`,
    `times_us` and `newer_ids` are of the earlier receipts, in order; `source` is of these, then of the chunk's.
    """
    earlier = len(label)
    weights = np.ones(2 * earlier, np.int64)
    weights[1::2] = _between(source[:earlier], newer_ids)
    ids, distinct = receipts.dense_ids(label)
    row = np.concatenate([np.arange(earlier).repeat(2), np.arange(earlier, len(source))])
    ids = ids[row]
    ids[1 : 2 * earlier : 2] = np.arange(distinct, distinct + earlier)
    rows = link_rows(
        np.concatenate([times_us, receipts.received_at_us])[row],
        source[row],
        ids,
        sources=sources,
        distinct_ids=distinct + earlier,
    )
    return rows, weights


def _between(source: Int32s, newer_ids: Int64s) -> Int64s:
    """For each earlier receipt, the ids between it and the next one of its source, or the begin of the chunk."""
    order = stable_order(source)
    newer = newer_ids[order]
    between = newer.copy()
    same = source[order[:-1]] == source[order[1:]]
    between[:-1][same] -= newer[1:][same] + 1
    in_order = np.empty(len(order), np.int64)
    in_order[order] = between
    return in_order
