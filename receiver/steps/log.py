"""All steps in order: read, plan, link, assemble, measure, hand on tails, replay.

A step is a function from rows to rows, in the module of its name, which says what goes in, what comes out, and why it is right.
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

`replaying`: for windows up to 2, chunk 0 hands on rows 0 and 1, which are among the newest 3 ids of the source. Behind them,
chunk 1 catches b and a with W = 3. With W = 2 it misses a, which c pushes out of the queue, unless E is at least 1 s: the
clock then stands at 2 s, the time of the b that the newer b replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from receiver.domains import DomainKey, domain_key
from receiver.simulate.analysis import Question
from receiver.simulate.facts import Facts, facts_of
from receiver.simulate.recommend import widest_of
from receiver.simulate.replays import Replays, Section
from receiver.simulate.shares import Measures
from receiver.steps.arrow_rows import RowFlow
from receiver.steps.chunks import assemble
from receiver.steps.link import link
from receiver.steps.measuring import SourceTotals, measure
from receiver.steps.plan import CutPlan, latest_before_us, plan_of
from receiver.steps.read import seen_of
from receiver.steps.replaying import behind_tails, judging, replaying, tail_plan
from receiver.steps.schemas import Caught, Piece, Unit, UnitReport

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


class ChunkedLog(Replays):
    """A log that can be replayed, whose `pieces` hold every `Piece`. They are forgotten as soon as they aren't needed."""

    def __init__(
        self, plan: CutPlan, reports: Sequence[UnitReport], pieces: RowFlow, *, question: Question | None = None
    ) -> None:
        self.plan = plan
        """How it is cut up."""
        self._question = question or Question(plan.key)
        self._pieces = pieces.only(Piece)
        seen = seen_of(reports, domain_key(plan.key))
        self._measures = Measures.of(seen.log, self._question.settings.max_missed)

        links, latest, id_counts = link(self._pieces, plan)
        before_us = latest_before_us(plan, latest)

        chunks, self._source_counts, elsewhere = assemble(self._pieces, links, plan, before_us)
        links.forget()
        if not plan.keeps_rows:
            pieces.forget()

        self._totals = SourceTotals.of(plan, self._source_counts)
        self._measured, shares, over_chunks = measure(chunks, plan, self._totals, before_us, self._measures)
        chunks.forget()

        domain_of = plan.chunk_domain.tolist()
        self._facts = facts_of(
            seen, self._measures, domain_of, shares, ids=id_counts, elsewhere=elsewhere + over_chunks
        )
        self._behind: tuple[int, int, RowFlow] | None = None
        """Chunks behind their tails, and the largest window and expiry that the tails suit."""

    @property
    def facts(self) -> Facts:
        return self._facts

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
        tails = tail_plan(self.plan, self._totals, self._source_counts, window, expiry_us)
        return behind_tails(self._measured, self.plan, tails)
