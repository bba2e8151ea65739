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

from collections.abc import Sequence
from typing import TYPE_CHECKING

from receiver.domains import domain_key
from receiver.simulate.facts import facts_of
from receiver.simulate.figures import Elsewhere
from receiver.simulate.shares import Measures
from receiver.steps.arrow_rows import RowFlow
from receiver.steps.chunks import assemble
from receiver.steps.link import link
from receiver.steps.measuring import measure
from receiver.steps.plan import CutPlan, plan_of
from receiver.steps.read import seen_of
from receiver.steps.replaying import ChunkedLog
from receiver.steps.schemas import Piece, Unit, UnitReport

if TYPE_CHECKING:
    from receiver.simulate.question import Question

_CHUNK_ROWS, _PARTITION_ROWS = 4_000_000, 2_000_000
"""The most receipts that a task holds, of a chunk or of the ids of a partition: they bound its memory."""
_LEAST_CHUNK_ROWS = 50_000


def chunked_log(
    pieces: RowFlow,
    units: Sequence[Unit],
    reports: Sequence[UnitReport],
    question: Question,
    *,
    cores: int,
    keeps_rows: bool = False,
) -> ChunkedLog:
    """Cut a log up that was read: `pieces` holds every `Piece`, kept (see `read`); `cores` work at once.

    `keeps_rows` keeps the pieces, and what it takes to know which receipts are duplicates by verdict (`ChunkedLog.caught`).
    """
    receipts, key = sum(report.receipts for report in reports), domain_key(question.key)
    # As many chunks as cores, or twice as many, and so on: then all cores end at about the same time.
    rounds = max(1, -(-receipts // (_CHUNK_ROWS * cores)))
    chunk_rows = max(_LEAST_CHUNK_ROWS, -(-receipts // (cores * rounds)))
    plan = plan_of(
        reports, units, key, chunk_rows=chunk_rows, partition_rows=_PARTITION_ROWS, cores=cores, keeps_rows=keeps_rows
    )
    return cut_log(pieces, reports, plan, max_missed=question.settings.max_missed)


def cut_log(pieces: RowFlow, reports: Sequence[UnitReport], plan: CutPlan, *, max_missed: int = 0) -> ChunkedLog:
    """The log, cut up by a plan. `max_missed` is how many duplicates a recommended setting may miss."""
    seen = seen_of(reports, domain_key(plan.key))
    measures = Measures.of(seen.log, max_missed)
    receipts = pieces.only(Piece)

    links, before_us, id_counts = link(receipts, plan)
    chunks, counts, elsewhere = assemble(receipts, links, plan, before_us)
    links.forget()
    if not plan.keeps_rows:
        pieces.forget()
    measured, totals, shares, over_chunks = measure(chunks, plan, counts, before_us, measures)
    chunks.forget()

    needed = [
        (each.domain, Elsewhere(each.artemis_id_cache_size, each.lru_size, each.ttl_us))
        for each in elsewhere + over_chunks
    ]
    facts = facts_of(seen, measures, plan.chunk_domain.tolist(), shares, ids=id_counts, elsewhere=needed)
    return ChunkedLog(facts, plan, receipts, measured, totals, measures)
