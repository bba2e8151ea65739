"""Joins the reports of a log's units, then runs all steps in order: plan, link, assemble, measure, hand on tails, replay.

A step is a function from rows to rows. The module of its name says what goes in, what comes out, and why it is right. Counts
come here to be added up; receipts never do. An example: five receipts of one source, cut into two chunks (a test reads this):

    chunk 0: a at 1 s, b at 2 s
    chunk 1: b at 3 s, c at 4 s, a at 5 s

`link`: a and b come again, both from the source that sent them, in chunk 1. So chunk 1 refers to rows 0 and 1 of chunk 0.

`chunks`: of the ids that the source ever sends, 2 come first in chunk 0 (a, b) and 1 in chunk 1 (c); 0 come last in
chunk 0 and 3 in chunk 1 (b, c, a).

`measuring`: after row 0 (a), up to chunk 1, the source sent 2 - 0 - 1 = 1 id: the 2 that it had sent, less 0 that it never
sends after row 0, less 1 that it sent up to row 0 and sends next in chunk 1 (a itself). It is b. After row 1 (b) it
sent 2 - 0 - 2 = 0 ids. With c, 2 ids are newer than a when that comes again, so a needs W = 3. It needs E = 3 s, from its
time to the clock at 4 s.

`replaying`: for windows up to 2, chunk 0 hands on rows 0 and 1, which are among the newest 3 ids of the source. Behind them,
chunk 1 catches b and a with W = 3. With W = 2 it misses a, which c pushes out of the queue, unless E is at least 1 s: the
clock then stands at 2 s, the time of the b that the newer b replaced.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from receiver.domains import DomainKey, domain_key
from receiver.logs import no_receipt
from receiver.logs.columns import TimeUnit
from receiver.logs.rows import two_units
from receiver.simulate import numbering
from receiver.simulate.facts import LogSeen, facts_of
from receiver.simulate.figures import DomainFigures, LogFigures
from receiver.simulate.shares import Measures
from receiver.steps.arrow_rows import RowFlow
from receiver.steps.chunks import assemble
from receiver.steps.link import link
from receiver.steps.measuring import measure
from receiver.steps.plan import CutPlan, names_of, plan_of
from receiver.steps.read import status_lines_of
from receiver.steps.replaying import ChunkedLog
from receiver.steps.schemas import Piece, Unit, UnitReport, channels_of

if TYPE_CHECKING:
    from receiver.simulate.question import Question

_CHUNK_ROWS, _PARTITION_ROWS = 4_000_000, 2_000_000
"""The most receipts that a task holds, of a chunk and of the ids of a partition. They bound a task's memory."""
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
    """Cut up a log that was read. `LogFormatError` for an error in the log.

    `pieces` has every `Piece`, kept; `reports` are in any order; `cores` work at once. `keeps_rows` keeps the pieces, and what
    `ChunkedLog.caught` needs to know which receipts are duplicates by verdict.
    """
    key = domain_key(question.key)
    reports = reports_of(reports, units, key)
    receipts = sum(report.receipts for report in reports)
    # A multiple of the number of cores, so that all cores end at about the same time.
    rounds = max(1, -(-receipts // (_CHUNK_ROWS * cores)))
    chunk_rows = max(_LEAST_CHUNK_ROWS, -(-receipts // (cores * rounds)))
    plan = plan_of(
        reports, units, key, chunk_rows=chunk_rows, partition_rows=_PARTITION_ROWS, cores=cores, keeps_rows=keeps_rows
    )
    return cut_log(pieces, reports, plan, max_missed=question.settings.max_missed)


def cut_log(pieces: RowFlow, reports: Sequence[UnitReport], plan: CutPlan, *, max_missed: int = 0) -> ChunkedLog:
    """The log, cut up by a plan. `max_missed`: how many duplicates a recommended setting may miss."""
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

    domain_of = plan.chunk_domain.tolist()
    facts = facts_of(seen, measures, domain_of, shares, ids=id_counts, elsewhere=elsewhere + over_chunks)
    return ChunkedLog(facts, plan, receipts, measured, totals)


def reports_of(unordered: Iterable[UnitReport], units: Sequence[Unit], key: DomainKey) -> list[UnitReport]:
    """The reports by unit; `LogFormatError` for an error in the log, as a single process that reads it would raise."""
    reports = sorted(unordered, key=lambda report: report.unit)
    first_units: dict[int, TimeUnit] = {}
    for report, unit in zip(reports, units, strict=True):
        if report.time_unit:
            time_unit = TimeUnit(report.time_unit, report.time_unit_line)
            first = first_units.setdefault(unit.file, time_unit)
            if first.unit != time_unit.unit:
                raise two_units(unit.name, first, time_unit)
        if report.problem:
            raise pickle.loads(report.problem)  # noqa: S301 - our own task's
    if not any(report.receipts for report in reports):
        names = list({unit.file: unit.name for unit in units}.values())
        raise no_receipt(names, sum(report.skipped for report in reports))
    numbering.check_columns({column for report in reports for column in report.columns_present}, key)
    return reports


def seen_of(reports: Sequence[UnitReport], key: DomainKey) -> LogSeen:
    """What is known about the log before its ids are compared."""
    domains = _domains(reports, key)
    lacking: Counter[str] = Counter()
    for report in reports:
        lacking.update(numbering.lacking_parts(channels_of(report), report.receipts_by_channel.tolist()))
    return LogSeen(
        log=LogFigures(
            receipts=sum(report.receipts for report in reports),
            unchecked=sum(report.unchecked for report in reports),
            skipped=sum(report.skipped for report in reports),
            duplicates=0,
            domains=len(domains),
            sources=sum(domain.sources for domain in domains),
            first_received_at_us=min(report.first_us for report in reports if report.receipts),
            last_received_at_us=max(report.last_us for report in reports if report.receipts),
            clock_clamped=0,
            redelivered=sum(report.redelivered for report in reports),
            max_delivery_secs=max(report.max_delivery_us for report in reports) / 1_000_000,
        ),
        domains=domains,
        lacking=dict(lacking),
        has_redelivered=any("jms_redelivered" in report.columns_present for report in reports),
        status_lines=list(status_lines_of(reports)),
    )


def _domains(reports: Sequence[UnitReport], key: DomainKey) -> list[DomainFigures]:
    name_of = names_of(reports, key)
    sources: dict[str, set[str]] = {name: set() for name in sorted(set(name_of.values()))}
    receipts: Counter[str] = Counter()
    for report in reports:
        names = [name_of[channel] for channel in channels_of(report)]
        for source, channel in zip(report.sources, report.sources_channel.tolist(), strict=True):
            sources[names[channel]].add(source)
        for name, count in zip(names, report.receipts_by_channel.tolist(), strict=True):
            receipts[name] += count
    return [DomainFigures(name, receipts[name], sources=len(of_domain)) for name, of_domain in sources.items()]
