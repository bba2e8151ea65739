"""Replays each chunk from its true starting state, by the kernel for whole logs.

`behind_tails`: in, `ChunkReceipts` and the `EarlierReceipts` to which they refer; out, these, and more `EarlierReceipts`, which
chunks hand to later ones as their *tails*. `ChunkedLog`: in, all these; out, the results of each chunk's replay.

What is remembered depends on receipts alone, never on verdicts. So a chunk needs no replay of earlier chunks, only those of
their receipts that can still change a verdict or a count:

- the newest ids of each source, one more than the largest window. They fill its queue. The oldest of them is outside of every
  queue, so it moves the clock of the time queue, as it did in the whole log;
- the newest receipt that was replaced, because it moves the clock too;
- the ids that the time queue may hold: the newest receipts of ids, back to the clock less the largest expiry. Older ones were
  forgotten, unless a source's queue holds them.

A tail may have more receipts than these, never fewer: a source's newer receipts push the others out of its queue, as they did
in the whole log. So a lower bound on the ids that a source has sent since a chunk is enough (`_sent_at_least`). The chunk hands
on the source's newest ids: one more than the largest window, less that bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.closing import Closing
from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled
from receiver.simulate.domain_rows import link_rows
from receiver.simulate.replays import Replays, Section
from receiver.steps.arrow_rows import Row, RowFlow, by_chunk, changes, column, in_one, stable_order, used, values_in
from receiver.steps.measuring import SourceTotals
from receiver.steps.plan import CutPlan
from receiver.steps.schemas import NEVER, Caught, ChunkReceipts, EarlierReceipts

if TYPE_CHECKING:
    from receiver.simulate.facts import Facts
    from receiver.simulate.figures import Pair

_Counts = TypeVar("_Counts")


@dataclass
class ChunkedLog(Replays, Closing):
    """A log in chunks, which are replayed behind their tails. Chunks with tails are kept, and only made anew for a larger window
    or expiry."""

    facts: Facts
    plan: CutPlan
    pieces: RowFlow
    """The pieces, which are freed with the log."""
    measured: RowFlow
    totals: SourceTotals
    _behind: RowFlow | None = None
    """The chunks behind their tails, once they are wanted. The tails are enough for windows and expiries up to `_enough_for`."""
    _enough_for: Pair = (0, 0)

    def in_sections(
        self, what: str, work: Callable[[Section], Iterable[_Counts]], kind: type[_Counts], largest: Pair
    ) -> list[_Counts]:
        plan = self.plan  # not `self`, which can't be sent to a task

        def of_task(_task: int, rows: Iterator[Row]) -> Iterator[Row]:
            for _, section in _sections(rows, plan):
                yield from (Row(0, value) for value in work(section))

        behind = self._behind_tails(*largest)
        if behind is not self._behind:
            if self._behind is not None:
                self._behind.forget()
            behind, _ = behind.kept("Putting chunks behind their tails")
            self._behind, self._enough_for = behind, largest
        return behind.each_key(of_task, kind).collect(what)

    def caught(self, window: int, expiry_us: int) -> RowFlow:
        """`Caught`: all receipts that are duplicates by verdict under one setting. Needs a plan that keeps rows."""
        plan = self.plan

        def of_task(task: int, rows: Iterator[Row]) -> Iterator[Row]:
            for receipts, section in _sections(rows, plan):
                rows_caught, by_time = section.caught(window, expiry_us)
                yield Row(task, Caught(receipts.number[rows_caught - section.counted_from], by_time))

        return self._behind_tails(window, expiry_us).each_key(of_task, Caught)

    def close(self) -> None:
        """Free the kept rows of the log."""
        for flow in (self.pieces, self.measured, self._behind):
            if flow is not None:
                flow.forget()

    def _behind_tails(self, window: int, expiry_us: int) -> RowFlow:
        """The chunks behind their tails, dealt to their tasks: those that are kept, if their tails are enough."""
        if self._behind is not None and self._enough_for[0] >= window and self._enough_for[1] >= expiry_us:
            return self._behind
        return behind_tails(self.measured, self.plan, self.totals, window, expiry_us).dealt(self.plan.tasks)


def behind_tails(measured: RowFlow, plan: CutPlan, totals: SourceTotals, window: int, expiry_us: int) -> RowFlow:
    """`ChunkReceipts` and `EarlierReceipts`, enough for windows and expiries up to these."""
    tails = _tail_plan(plan, totals, window, expiry_us)

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield from _tails(plan, tails, row.value)

    return measured.plus(measured.only(ChunkReceipts).map(work, EarlierReceipts))


@dataclass(frozen=True, slots=True)
class _TailPlan:
    """Which earlier receipts each chunk needs."""

    totals: SourceTotals
    depth: int
    """How many of each source's newest ids a chunk needs."""
    horizon_us: Int64s
    """For each chunk, the time from which on receipts of the time queue matter when the chunk begins."""
    replaced_from: Int32s
    """For each chunk, the newest earlier chunk that surely has a replaced receipt, or its domain's first chunk."""


def _tail_plan(plan: CutPlan, totals: SourceTotals, window: int, expiry_us: int) -> _TailPlan:
    depth, first = window + 1, plan.first_chunk

    def time_of(values_us: Int64s, chunk: Int32s) -> Int64s:
        # Chunks are numbered domain by domain: one before the domain's first is of another domain, or none.
        return np.where(chunk >= first, values_us[chunk], -1)

    has_replaced = np.where(totals.replaced_us >= 0, np.arange(plan.chunks, dtype=np.int32), np.int32(-1))
    newest_replaced = np.maximum.accumulate(np.append(np.int32(-1), has_replaced[:-1]))
    horizon_us = np.full(plan.chunks, np.iinfo(np.int64).max)
    if expiry_us:
        # A source that has sent `depth` ids since a chunk began has pushed one of them out of its queue.
        reached = _reached(totals.entry, totals.firsts, totals.lasts, depth, plan.chunks)
        reached = np.maximum.accumulate(reached)[: plan.chunks]
        clock_us = np.maximum(time_of(totals.replaced_us, newest_replaced), time_of(totals.first_us, reached))
        horizon_us = np.where(clock_us >= 0, clock_us - expiry_us, -1)
    return _TailPlan(totals, depth, horizon_us, np.maximum(newest_replaced, first))


@compiled()
def _reached(entry: Int64s, firsts: Int64s, lasts: Int64s, depth: int, chunks: int) -> Int32s:
    """For each chunk, and for one behind all: the newest chunk from whose begin to that of this one a series has surely sent
    `depth` ids; -1 if none is known.

    Only the chunks right behind an entry (see `SourceTotals`) are looked at; others have -1.
    """
    reached = np.full(chunks + 1, -1, np.int32)
    begin, at = 0, 0
    for end in range(len(entry)):
        if entry[end] >> 32 != entry[begin] >> 32:
            begin = at = end
        # From chunk `at` on, the series isn't known to have sent `depth` ids.
        while at <= end:
            firsts_before = firsts[at - 1] if at > begin else 0
            lasts_before = lasts[at - 1] if at > begin else 0
            if max(firsts[end] - firsts_before, lasts[end] - lasts_before) < depth:
                break
            at += 1
        if at > begin:
            behind = (entry[end] & 0xFFFFFFFF) + 1
            reached[behind] = max(reached[behind], entry[at - 1] & 0xFFFFFFFF)
    return reached


def _sent_at_least(totals: SourceTotals, series: Int64s, from_chunk: int, to_chunk: int) -> Int64s:
    """A lower bound on the number of ids that each of these series has sent from one chunk to before another.

    Ids that the series sent for the first time in between are distinct, and so are those that it sent for the last time. Only
    ids that also came before and come after aren't counted.
    """
    firsts, lasts = (
        totals.before(sums, series, to_chunk) - totals.before(sums, series, from_chunk)
        for sums in (totals.firsts, totals.lasts)
    )
    at_least: Int64s = np.maximum(firsts, lasts)
    return at_least


def _tails(plan: CutPlan, tails: _TailPlan, receipts: ChunkReceipts) -> Iterator[Row]:
    domain = int(plan.chunk_domain[receipts.chunk])
    later = range(receipts.chunk + 1, plan.of_domain(domain).stop)
    if not later or not len(receipts.source):
        return
    giver = _Giver(domain, tails, receipts)
    # The id of a receipt that isn't linked is in no other receipt: it gets a negative label of its own.
    label = -1 - ((np.int64(receipts.chunk) << np.int64(32)) | np.arange(len(receipts.source)))
    label[receipts.linked_row] = receipts.label
    for to_chunk in later:
        row = giver.rows_for(to_chunk)
        if len(row):
            source, sources = used(receipts.source[row], receipts.sources)
            tail = EarlierReceipts(
                chunk=to_chunk,
                from_chunk=np.full(len(row), receipts.chunk, np.int32),
                row=row.astype(np.int32),
                label=label[row],
                received_at_us=receipts.received_at_us[row],
                source=source,
                sources=sources,
                newer_ids=np.zeros(0, np.int64),
                alive_within=np.zeros(0, np.int64),
            )
            yield Row(int(plan.chunk_task[to_chunk]), tail)


class _Giver:
    """One chunk, and which of its receipts later chunks need."""

    def __init__(self, domain: int, tails: _TailPlan, receipts: ChunkReceipts) -> None:
        self._tails, self._receipts = tails, receipts
        self._replaced_in = np.full(len(receipts.source), NEVER, np.int32)
        self._replaced_in[receipts.linked_row] = receipts.next_in
        self._again_in = receipts.again_in()
        self._by_source = stable_order(receipts.source)
        self._series = np.array([tails.totals.series[domain, source] for source in receipts.sources], np.int64)

    def rows_for(self, to_chunk: int) -> Int64s:
        """The rows that a later chunk needs."""
        receipts, tails = self._receipts, self._tails
        due = tails.depth - _sent_at_least(tails.totals, self._series, receipts.chunk + 1, to_chunk)
        is_in_time = receipts.received_at_us[-1] >= tails.horizon_us[to_chunk]
        gives_replaced = receipts.chunk >= tails.replaced_from[to_chunk]
        if not ((due > 0).any() or is_in_time or gives_replaced):
            return np.empty(0, np.int64)
        is_current = self._replaced_in >= to_chunk
        wanted = (self._again_in >= to_chunk) & (receipts.received_at_us >= tails.horizon_us[to_chunk])
        wanted[self._newest_of_sources(due, is_current)] = True
        if gives_replaced:
            wanted[np.flatnonzero(~is_current)[-1:]] = True
        return np.flatnonzero(wanted)

    def _newest_of_sources(self, due: Int64s, is_current: Flags) -> Int64s:
        """The newest `due` of each source's current receipts."""
        is_wanted = is_current & (due > 0)[self._receipts.source]
        rows = self._by_source[is_wanted[self._by_source]]
        source = self._receipts.source[rows]
        ends = np.searchsorted(source, np.arange(len(due)), side="right")
        return rows[ends[source] - np.arange(len(rows)) <= due[source]]


def _sections(rows: Iterator[Row], plan: CutPlan) -> Iterator[tuple[ChunkReceipts, Section]]:
    """Each chunk of a task behind its starting state."""
    chunks, earlier = values_in(rows, ChunkReceipts, EarlierReceipts)
    earlier_of = by_chunk(earlier)
    while chunks:
        receipts = chunks.pop()
        yield receipts, section_of(plan, receipts, earlier_of.pop(receipts.chunk, []))


def section_of(plan: CutPlan, receipts: ChunkReceipts, earlier: Sequence[EarlierReceipts]) -> Section:
    """A chunk behind the receipts to which it refers, and those of its tails. Some receipts are both."""
    source, sources = in_one(((each.source, each.sources) for each in earlier), first=receipts.sources)
    position = (column(earlier, "from_chunk", np.int32).astype(np.int64) << 32) | column(earlier, "row", np.int32)
    order = np.argsort(position, kind="stable")
    chosen = order[changes(position[order])]
    label, times_us = (column(earlier, name, np.int64)[chosen] for name in ("label", "received_at_us"))
    ids, distinct = receipts.dense_ids(label)
    rows = link_rows(
        np.concatenate([times_us, receipts.received_at_us]),
        np.concatenate([source[chosen], receipts.source]),
        ids,
        sources=len(sources),
        distinct_ids=distinct,
    )
    return Section(
        int(plan.chunk_domain[receipts.chunk]),
        rows,
        len(chosen),
        sources,
        receipts.window_needs,
        receipts.duplicates_in_first_half,
        threads=1,  # other tasks use the other processors
    )
