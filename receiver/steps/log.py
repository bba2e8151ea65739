"""All steps in order: read, plan, link, assemble, measure, hand on tails, replay.

A step is a function from rows to rows; the module that has it says what goes in, what comes out, and why it is right.
Counts come here and are added up. Receipts never do. Five receipts of one source, cut into two chunks (a test reads this):

    chunk 0: a at 1 s, b at 2 s
    chunk 1: b at 3 s, c at 4 s, a at 5 s

`link`: a and b come again, both from the source that sent them, in chunk 1. So chunk 1 refers to rows 0 and 1 of chunk 0.

`chunks`: of the ids that the source ever sends, 2 come first in chunk 0 (a, b) and 1 in chunk 1 (c); 0 come last in
chunk 0 and 3 in chunk 1 (b, c, a).

`measuring`: after row 0 (a), up to chunk 1, the source sent 2 - 0 - 1 = 1 id: the 2 that it had sent, less 0 that it never
sends after row 0, less 1 that it had last sent by then and sends next in chunk 1 (a itself). It is b. After row 1 (b) it
sent 2 - 0 - 2 = 0 ids. With c, 2 ids are newer than a when that comes again, so a needs W = 3. It needs E = 3 s, from its
time to the clock at 4 s.

`tails`: for windows up to 2, chunk 0 hands on rows 0 and 1, which are among the newest 3 ids of the source.

`replaying`: behind them, chunk 1 catches b and a with W = 3. With W = 2 it misses a, which c pushes out of the queue, unless
E is at least 1 s: the clock then stands at 2 s, the time of the b that the newer b replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.domains import DomainKey, domain_key
from receiver.simulate.analysis import Question
from receiver.simulate.facts import Facts, facts_of
from receiver.simulate.figures import Elsewhere
from receiver.simulate.recommend import widest_of
from receiver.simulate.replays import Replays, Section
from receiver.simulate.shares import IdCounts, Measures, Share
from receiver.steps.arrow_rows import RowFlow, by_kind
from receiver.steps.chunks import assembled
from receiver.steps.link import linked
from receiver.steps.measuring import incoming_refs, measure_distances
from receiver.steps.plan import cut_ids, cut_receipts, latest_before_us, plan_of
from receiver.steps.replaying import judging, replaying
from receiver.steps.reports import seen_of
from receiver.steps.schemas import (
    Caught,
    ChunkReceipts,
    CutPlan,
    IdEnds,
    Ids,
    IncomingRefs,
    Latest,
    Links,
    MeasuredReceipts,
    OutgoingRefs,
    Piece,
    SourceCounts,
    Tail,
    TaskReceipts,
    Unit,
    UnitReport,
)
from receiver.steps.source_totals import source_totals_of
from receiver.steps.tails import tail_plan, tailing

if TYPE_CHECKING:
    import numpy.typing as npt

_LEAST_CHUNK_ROWS = 50_000
_Counts = TypeVar("_Counts")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a task holds at most, in receipts: they bound its memory."""

    chunk_rows: int = 4_000_000
    partition_rows: int = 2_000_000

    def chunks_of(self, receipts: int, cores: int) -> int:
        """The receipts of a chunk: as many chunks as cores, or times as many."""
        rounds = max(1, -(-receipts // (self.chunk_rows * cores)))
        return max(min(_LEAST_CHUNK_ROWS, self.chunk_rows), -(-receipts // (cores * rounds)))


def chunked_log(
    pieces: RowFlow,
    units: Sequence[Unit],
    reports: Sequence[UnitReport],
    key: DomainKey,
    *,
    cores: int,
    sizes: Sizes | None = None,
    keeps_rows: bool = False,
    question: Question | None = None,
) -> ChunkedLog:
    """Cut a log up that was read: `pieces` holds every `Piece`, kept (see `read`); `cores` work at once.

    `keeps_rows` keeps the pieces, and what it takes to know which receipts are duplicates by verdict (`caught`); `question`
    is what will be asked, as far as it is known.
    """
    sizes = sizes or Sizes()
    receipts = sum(report.receipts for report in reports)
    plan = plan_of(
        reports,
        units,
        key,
        chunk_rows=sizes.chunks_of(receipts, cores),
        partition_rows=sizes.partition_rows,
        cores=cores,
        keeps_rows=keeps_rows,
    )
    return ChunkedLog(plan, reports, pieces, question=question)


def linked_ids(pieces: RowFlow, plan: CutPlan) -> RowFlow:
    """`Links`, `Latest` and `IdCounts`."""
    ids = pieces.map(cut_ids(plan), Ids, Latest)
    return ids.grouped(linked(plan), plan.partitions, Links, Latest, IdCounts)


def assembled_chunks(pieces: RowFlow, links: RowFlow, plan: CutPlan, before_us: npt.NDArray[np.int64]) -> RowFlow:
    """`ChunkReceipts`, `SourceCounts`, `OutgoingRefs`, `IdEnds` and `Elsewhere`; `before_us` as for `assembled`."""
    receipts = pieces.map(cut_receipts(plan), TaskReceipts).plus(links.only(Links))
    kinds = ChunkReceipts, SourceCounts, OutgoingRefs, IdEnds, Elsewhere
    return receipts.grouped(assembled(plan, before_us, plan.partitions), plan.tasks, *kinds)


class ChunkedLog(Replays):
    """A log that can be replayed, whose `pieces` hold every `Piece`. They are forgotten as soon as they aren't needed."""

    def __init__(
        self, plan: CutPlan, reports: Sequence[UnitReport], pieces: RowFlow, *, question: Question | None = None
    ) -> None:
        self.plan = plan
        """How it is cut up."""
        self._question = question or Question(plan.key)
        self._pieces = pieces.only(Piece)
        self._seen = seen_of(reports, domain_key(plan.key))
        self._measures = Measures.of(self._seen.log, self._question.settings.max_missed)

        links, counts = linked_ids(self._pieces, plan).kept("Linking ids", Latest, IdCounts)
        latest, self._id_counts = by_kind(counts, Latest, IdCounts)
        before_us = latest_before_us(plan, latest)

        assembling = assembled_chunks(self._pieces, links, plan, before_us)
        chunks, counts = assembling.kept("Assembling chunks", SourceCounts, Elsewhere)
        self._source_counts, self._elsewhere = by_kind(counts, SourceCounts, Elsewhere)
        self._source_counts.sort(key=lambda each: each.chunk)
        links.forget()
        if not plan.keeps_rows:
            pieces.forget()

        self._totals = source_totals_of(plan, self._source_counts)
        outgoing = chunks.only(OutgoingRefs, IdEnds)
        refs = outgoing.grouped(incoming_refs(plan, self._totals), plan.partitions, IncomingRefs, Elsewhere)
        measuring = measure_distances(before_us, self._measures)
        counted = Share, Elsewhere
        measured = chunks.only(ChunkReceipts).plus(refs).grouped(measuring, plan.tasks, MeasuredReceipts, *counted)
        self._measured, counts = measured.kept("Measuring duplicates", *counted)
        self._shares, over_chunks = by_kind(counts, *counted)
        self._shares.sort(key=lambda share: share.chunk)
        self._elsewhere += over_chunks
        chunks.forget()
        self._behind: tuple[int, int, RowFlow] | None = None
        """Chunks behind their tails, and the largest window and expiry that the tails suit."""

    @cached_property
    def facts(self) -> Facts:
        return facts_of(
            self._seen,
            self._measures,
            self.plan.chunk_domain.tolist(),
            self._shares,
            ids=self._id_counts,
            elsewhere=self._elsewhere,
        )

    def in_sections(
        self, what: str, work: Callable[[Section], Iterable[_Counts]], kind: type[_Counts], largest: tuple[int, int], /
    ) -> list[_Counts]:
        behind = self._behind_tails(max(largest[0], self._widest[0]), max(largest[1], self._widest[1]))
        return behind.each_key(replaying(self.plan, self._measures, work), kind).collect(what)

    def caught(self, window: int, expiry_us: int) -> RowFlow:
        """`Caught`: all receipts that are duplicates by verdict under one setting. The plan keeps rows."""
        judge = judging(self.plan, self._measures, window, expiry_us)
        return self._with_tails(window, expiry_us).grouped(judge, self.plan.tasks, Caught)

    def forget(self) -> None:
        """What is kept of the log isn't needed any more."""
        for flow in (self._pieces, self._measured, *(self._behind[2:] if self._behind else ())):
            flow.forget()

    @cached_property
    def _widest(self) -> tuple[int, int]:
        """The largest window and expiry that an analysis will ask for."""
        widest = widest_of(self.facts, self._question.settings, self._question.present)
        windows, expiries_us = self._question.grid(self.facts, widest)
        return max(widest[0], *windows), max(widest[1], *expiries_us)

    def _behind_tails(self, window: int, expiry_us: int) -> RowFlow:
        """The chunks with tails for windows and expiries up to these: kept, and made anew only for larger ones."""
        if self._behind is not None:
            if self._behind[0] >= window and self._behind[1] >= expiry_us:
                return self._behind[2]
            self._behind[2].forget()
        dealt = self._with_tails(window, expiry_us).dealt(self.plan.tasks)
        kept, _ = dealt.kept("Putting chunks behind their tails")
        self._behind = window, expiry_us, kept
        return kept

    def _with_tails(self, window: int, expiry_us: int) -> RowFlow:
        measured = self._measured.only(MeasuredReceipts)
        tails = tail_plan(self.plan, self._totals, self._source_counts, window, expiry_us)
        return measured.plus(measured.map(tailing(self.plan, tails), Tail))
