"""What each chunk hands to later ones: its receipts that are still remembered when they begin.

In: `MeasuredReceipts`. Out: the `Tail`s that they leave to later chunks. What is remembered depends on receipts alone, never
on verdicts. So a chunk needs no replay of earlier chunks, only their receipts that can still change a verdict or a count:

- of each source the newest ids, one more than the largest window: the last one is outside of every queue, and so it is
  the clock of the time queue or older;
- what the time queue may hold: the newest receipts of ids, back to the clock less the largest expiry;
- the newest receipt that was replaced, as that moves the clock too;
- where one of these ids came last from another source, that receipt, since it has the age of the id.

More receipts than these would do no harm, as long as each is the newest of its id and source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.steps.arrow_rows import Row, stable_order, used
from receiver.steps.schemas import NEVER, CutPlan, MeasuredReceipts, SourceCounts, Tail
from receiver.steps.source_totals import SourceTotals

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class _TailDepths:
    """How many newest ids of a source each chunk gives to a later one, so that it has `depth` of them when it begins.

    Entries are ordered by the giving chunk.
    """

    chunk: npt.NDArray[np.int32]
    to_chunk: npt.NDArray[np.int32]
    series: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    reached: npt.NDArray[np.int32]
    """Per chunk, the newest chunk in which the `depth`-th newest id of any source lies, seen from the chunk's begin; -1 if none."""


@compiled()
def _walk(  # noqa: PLR0917 - compiled functions take no names
    chunks: int,
    first_chunk: npt.NDArray[np.int32],
    entry_chunk: npt.NDArray[np.int32],
    entry_series: npt.NDArray[np.int64],
    by_chunk: npt.NDArray[np.int64],
    alive: npt.NDArray[np.int64],
    gone_at: npt.NDArray[np.int64],
    gone_in: npt.NDArray[np.int32],
    gone_count: npt.NDArray[np.int64],
    depth: int,
    reached: npt.NDArray[np.int32],
    held: npt.NDArray[np.int64],
) -> int:
    """Fill `held` with (entry, to_chunk, count) as far as it has room; gives how many there are."""
    count = 0
    newest = np.full(int(entry_series.max()) + 1, -1, np.int64)  # series -> its newest entry so far
    seen, gone = 0, 0
    begin, end = 0, 0  # the series of the chunk's domain that have come so far
    for chunk in range(chunks):
        while seen < len(by_chunk) and entry_chunk[by_chunk[seen]] < chunk:
            newest[entry_series[by_chunk[seen]]] = by_chunk[seen]
            end = max(end, entry_series[by_chunk[seen]] + 1)
            seen += 1
        if first_chunk[chunk] == chunk:
            begin = end
        while gone < len(gone_in) and gone_in[gone] < chunk:
            alive[gone_at[gone]] -= gone_count[gone]
            gone += 1
        for s in range(begin, end):
            at, left = newest[s], depth
            while left > 0 and at >= 0 and entry_series[at] == s and entry_chunk[at] >= first_chunk[chunk]:
                ids = min(left, alive[at])
                if ids:
                    if count < len(held):
                        held[count, 0], held[count, 1], held[count, 2] = at, chunk, ids
                    count += 1
                    left -= ids
                if left == 0:
                    reached[chunk] = max(reached[chunk], entry_chunk[at])
                at -= 1
    return count


def _tail_depths(plan: CutPlan, totals: SourceTotals, counts: Sequence[SourceCounts], depth: int) -> _TailDepths:
    """Plan which receipts of which chunks the queues hold when each chunk begins, by the counts of all chunks in order."""
    reached = np.full(plan.chunks, -1, np.int32)
    if not len(totals.entry):
        nothing = np.empty(0, np.int32)
        return _TailDepths(nothing, nothing, nothing.astype(np.int64), nothing.astype(np.int64), reached)
    alive = np.zeros(len(totals.entry), np.int64)
    gone: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]] = []
    for each in counts:
        domain = int(plan.chunk_domain[each.chunk])
        if each.sources and (domain, each.sources[0]) in totals.series:
            numbers = np.array([totals.series[domain, source] for source in each.sources], np.int64)
            at = np.searchsorted(totals.entry, (numbers << 32) | each.chunk)
            alive[at] = each.distinct
            gone.append((at[each.replaced_source], each.replaced_in, each.replaced_count))
    gone_at, gone_in, gone_count = (np.concatenate(parts) for parts in zip(*gone, strict=True))
    order = np.argsort(gone_in, kind="stable")
    entry_chunk = (totals.entry & 0xFFFFFFFF).astype(np.int32)
    entry_series = totals.entry >> 32
    by_chunk = np.argsort(entry_chunk, kind="stable")

    def walk(held: npt.NDArray[np.int64]) -> int:
        gone_by_chunk = gone_at[order], gone_in[order], gone_count[order]
        by_entry = entry_chunk, entry_series, by_chunk, alive.copy()
        return _walk(plan.chunks, plan.first_chunk, *by_entry, *gone_by_chunk, depth, reached, held)

    held = np.empty((walk(np.empty((0, 3), np.int64)), 3), np.int64)  # walked twice, to know how many there are
    walk(held)
    held = held[np.argsort(entry_chunk[held[:, 0]], kind="stable")]
    return _TailDepths(
        entry_chunk[held[:, 0]], held[:, 1].astype(np.int32), entry_series[held[:, 0]], held[:, 2], reached
    )


@dataclass(frozen=True, slots=True)
class TailPlan:
    """What each chunk must be given."""

    totals: SourceTotals
    depths: _TailDepths
    depth: int
    horizon_us: npt.NDArray[np.int64]
    """Per chunk, from which time on the time queue's receipts matter when it begins."""
    dead_from: npt.NDArray[np.int32]
    """Per chunk, the newest chunk before it that is known to hold a replaced receipt, or its domain's first."""


def tail_plan(
    plan: CutPlan, totals: SourceTotals, counts: Sequence[SourceCounts], window: int, expiry_us: int
) -> TailPlan:
    """For windows and expiries up to these; `counts` are of all chunks in order."""
    depths = _tail_depths(plan, totals, counts, window + 1)
    first = plan.first_chunk
    horizon_us = np.full(plan.chunks, np.iinfo(np.int64).max)
    dead_from = first.copy()
    clock_us = -1
    for chunk in range(plan.chunks):
        if chunk == first[chunk]:
            clock_us = -1
        else:
            before = counts[chunk - 1]
            dead_from[chunk] = chunk - 1 if before.dead_us >= 0 else dead_from[chunk - 1]
            clock_us = max(clock_us, before.dead_us)
        if expiry_us:
            reached = depths.reached[chunk]
            least_us = max(clock_us, counts[reached].first_us if reached >= 0 else -1)
            horizon_us[chunk] = least_us - expiry_us if least_us >= 0 else -1
    return TailPlan(totals, depths, window + 1, horizon_us, dead_from)


def tailing(plan: CutPlan, tails: TailPlan) -> Callable[[Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.map`: `MeasuredReceipts` -> `Tail`."""

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield from _tails(plan, tails, row.value)

    return work


def _tails(plan: CutPlan, tails: TailPlan, receipts: MeasuredReceipts) -> Iterator[Row]:
    domain = int(plan.chunk_domain[receipts.chunk])
    later = range(receipts.chunk + 1, plan.of_domain(domain).stop)
    if not later or not len(receipts.source):
        return
    giving, label = _Giving(domain, tails, receipts), _labels(receipts)
    for to_chunk in later:
        row = giving.rows_for(to_chunk)
        if len(row):
            source, sources = used(receipts.source[row], receipts.sources)
            tail = Tail(
                chunk=to_chunk,
                from_chunk=receipts.chunk,
                row=row.astype(np.int32),
                label=label[row],
                received_at_us=receipts.received_at_us[row],
                source=source,
                sources=sources,
            )
            yield Row(int(plan.chunk_task[to_chunk]), tail)


class _Giving:
    """One chunk as it looks from later ones: which of its receipts are still the newest of something."""

    def __init__(self, domain: int, tails: TailPlan, receipts: MeasuredReceipts) -> None:
        self._tails, self._receipts = tails, receipts
        rows = len(receipts.source)
        self._gone_in = np.full(rows, NEVER, np.int32)
        """Receipt -> the chunk in which its source sends its id again."""
        self._gone_in[receipts.repeat_row] = receipts.next_in
        self._by_label = np.argsort(receipts.label, kind="stable")
        self._newest, self._next_in = _newest_of_ids(receipts, self._by_label)
        self._by_source = stable_order(receipts.source)
        self._ends = np.searchsorted(receipts.source[self._by_source], np.arange(len(receipts.sources)), side="right")
        series = np.array([tails.totals.series.get((domain, name), -1) for name in receipts.sources], np.int64)
        self._source_of = {number: source for source, number in enumerate(series.tolist()) if number >= 0}
        self._entry_series = series[receipts.earlier_source]
        mine = slice(*np.searchsorted(tails.depths.chunk, [receipts.chunk, receipts.chunk + 1]))
        self._to_chunk, self._series = tails.depths.to_chunk[mine], tails.depths.series[mine]
        self._count = tails.depths.count[mine]

    def rows_for(self, to_chunk: int) -> npt.NDArray[np.int64]:
        receipts, tails = self._receipts, self._tails
        asked = np.flatnonzero(self._to_chunk == to_chunk)
        others = self._rows_of_others(to_chunk)
        is_in_time = receipts.received_at_us[-1] >= tails.horizon_us[to_chunk]
        gives_dead = receipts.chunk >= tails.dead_from[to_chunk]
        if not (len(asked) or len(others) or is_in_time or gives_dead):
            return others
        alive = self._gone_in >= to_chunk
        is_newest = self._next_in >= to_chunk
        wanted = is_newest & (receipts.received_at_us >= tails.horizon_us[to_chunk])
        for which in asked.tolist():
            wanted[self._newest_of_source(int(self._series[which]), int(self._count[which]), alive)] = True
        of_same_ids = self._newest[np.flatnonzero(wanted)]
        wanted[of_same_ids[is_newest[of_same_ids]]] = True
        wanted[others[is_newest[others]]] = True
        if gives_dead:
            wanted[np.flatnonzero(~alive)[-1:]] = True
        return np.flatnonzero(wanted)

    def _newest_of_source(self, series: int, count: int, alive: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        source = self._source_of[series]
        rows = self._by_source[self._ends[source - 1] if source else 0 : self._ends[source]]
        return rows[alive[rows]][-count:]

    def _rows_of_others(self, to_chunk: int) -> npt.NDArray[np.int64]:
        """Newest receipts of ids that an earlier chunk may give to `to_chunk` from another source's queue."""
        receipts, totals = self._receipts, self._tails.totals
        if not len(receipts.earlier_label):
            return np.empty(0, np.int64)
        here = np.full(len(self._entry_series), receipts.chunk, np.int32)
        there = np.full(len(self._entry_series), to_chunk, np.int32)
        since = totals.lasts_before(self._entry_series, there) - totals.lasts_before(self._entry_series, here)
        return self._newest_by_label(receipts.earlier_label[since < self._tails.depth])

    def _newest_by_label(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        receipts, by_label = self._receipts, self._by_label
        rows: npt.NDArray[np.int64] = receipts.repeat_row[
            by_label[np.searchsorted(receipts.label, labels, side="right", sorter=by_label) - 1]
        ].astype(np.int64)
        return rows


def _labels(receipts: MeasuredReceipts) -> npt.NDArray[np.int64]:
    """Per receipt the label of its id; a negative number of its own where the id never comes again."""
    labels = -1 - ((np.int64(receipts.chunk) << np.int64(32)) | np.arange(len(receipts.source)))
    labels[receipts.repeat_row] = receipts.label
    return labels


def _newest_of_ids(
    receipts: MeasuredReceipts, by_label: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Per receipt, the newest one of its id in the chunk; and the chunk in which the id comes next after it."""
    row, label = receipts.repeat_row[by_label], receipts.label[by_label]
    last = np.flatnonzero(np.diff(label, append=-1))
    newest = np.arange(len(receipts.source))
    newest[row] = np.repeat(row[last], np.diff(last, prepend=-1))
    next_in = np.full(len(newest), NEVER, np.int32)
    np.minimum.at(next_in, receipts.ref_row, receipts.ref_to)
    next_in[newest != np.arange(len(newest))] = receipts.chunk
    return newest, next_in
