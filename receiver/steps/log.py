"""All steps in order: read, plan, cut into chunks, link, measure, replay; and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.domains import DomainKey, domain_key
from receiver.settings import ReceiverSettings
from receiver.simulate.analysis import Question
from receiver.simulate.figures import Elsewhere, LogFigures, Timeline
from receiver.simulate.grid import chosen_expiries_us, chosen_windows
from receiver.simulate.headroom import SlackCounts, expiry_need_us, pair_outcome
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.recommend import widest_of
from receiver.simulate.repeats import burst_gap_us
from receiver.simulate.replays import (
    STEPS,
    CrossDomainDuplicates,
    DomainCounts,
    Facts,
    PartNeeds,
    PerPart,
    Replayed,
    SourceNeeds,
    ValueCounts,
    histogram_of,
    in_order,
    worst,
)
from receiver.steps.chunks import assembled
from receiver.steps.link import linked
from receiver.steps.lookback import Measures, arriving, looked_back
from receiver.steps.plan import cut_ids, cut_receipts, names_of, plan_of
from receiver.steps.read import status_lines_of
from receiver.steps.replaying import ReplayRequest, judging, replayed, tail_plan, tailing, top_needs
from receiver.steps.rows import RowFlow, by_chunk, column, joined
from receiver.steps.schemas import (
    Arrivals,
    Caught,
    ChunkCounts,
    ChunkNeeds,
    ChunkReplay,
    CutPlan,
    Departures,
    Ends,
    HalfNeeds,
    Ids,
    Latest,
    Leaving,
    LinkCounts,
    Piece,
    Ready,
    Repeats,
    Spans,
    State,
    Stretch,
    Tail,
    TopNeeds,
    Unit,
    UnitReport,
    channels_of,
)
from receiver.steps.standings import standings_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ChunkedLog", "Sizes", "assembled_chunks", "chunked_log", "linked_ids"]

_LEAST_CHUNK_ROWS = 50_000


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
        tasks=cores,
        keeps_rows=keeps_rows,
    )
    return ChunkedLog(plan, reports, pieces, question=question)


def linked_ids(pieces: RowFlow, plan: CutPlan) -> RowFlow:
    """`Repeats` and `Departures`, `Latest` and `LinkCounts`."""
    ids = pieces.map(cut_ids(plan), Ids, Latest)
    return ids.grouped(linked(plan), plan.partitions, Repeats, Departures, Latest, LinkCounts)


def assembled_chunks(pieces: RowFlow, links: RowFlow, plan: CutPlan, before_us: npt.NDArray[np.int64]) -> RowFlow:
    """`State`, `ChunkCounts`, `Leaving`, `Ends` and `Spans` of each chunk; `before_us` as for `assembled`."""
    receipts = pieces.map(cut_receipts(plan), Stretch).plus(links.only(Repeats, Departures))
    return receipts.grouped(
        assembled(plan, before_us, plan.partitions), plan.bundles, State, ChunkCounts, Leaving, Ends, Spans
    )


class ChunkedLog:
    """The `Replays` of a log whose `pieces` hold every `Piece`. They are forgotten as soon as they aren't needed."""

    def __init__(
        self, plan: CutPlan, reports: Sequence[UnitReport], pieces: RowFlow, *, question: Question | None = None
    ) -> None:
        self._question = question or Question(plan.key)
        self._settings = self._question.settings
        self.plan = plan
        """How it is cut up."""
        self._reports = reports
        self._pieces = pieces.only(Piece)
        self._behind: tuple[int, int, RowFlow] | None = None
        """Chunks behind their tails, and the largest window and expiry that the tails suit."""
        links, counts = linked_ids(self._pieces, plan).kept("Linking ids", Latest, LinkCounts)
        self._link_counts = _only(LinkCounts, counts)
        before_us = _latest_before_us(plan, _only(Latest, counts))
        assembling = assembled_chunks(self._pieces, links, plan, before_us)
        chunks, counts = assembling.kept("Assembling chunks", ChunkCounts, Spans)
        self._tallies = sorted(_only(ChunkCounts, counts), key=lambda tally: tally.chunk)
        self._spans = _only(Spans, counts)
        links.forget()
        if not plan.keeps_rows:
            pieces.forget()
        self._standings = standings_of(plan, self._tallies)
        self._log = self._log_figures()
        self._measures = Measures(self._log.middle_us, burst_gap_us(self._log), self._settings.max_missed + 1)
        leaving = chunks.only(Leaving, Ends)
        arrivals = leaving.grouped(arriving(plan, self._standings), plan.partitions, Arrivals, Spans)
        measuring = looked_back(plan, before_us, self._measures)
        measured = ChunkNeeds, HalfNeeds, Spans
        ready = chunks.only(State).plus(arrivals).grouped(measuring, plan.bundles, Ready, *measured)
        self._ready, counts = ready.kept("Measuring duplicates", *measured)
        self._needs, self._half_needs = _only(ChunkNeeds, counts), _only(HalfNeeds, counts)
        self._spans += _only(Spans, counts)
        chunks.forget()

    def facts(self) -> Facts:
        return self._facts

    def forget(self) -> None:
        """What is kept of the log isn't needed any more."""
        for flow in (self._pieces, self._ready, *(self._behind[2:] if self._behind else ())):
            flow.forget()

    @cached_property
    def _facts(self) -> Facts:
        tallies, needs, log = self._tallies, self._needs, self._log
        first_half, second_half = ([each for each in self._half_needs if each.half == half] for half in (0, 1))
        present = {column for report in self._reports for column in report.columns_present}
        sent = self._sent_by_source()
        sources = self._source_needs(sent)
        ended = [receipts for receipts, last_us in sent.values() if last_us < log.middle_us]
        return Facts(
            log=log,
            domains=tuple(self._domain_counts()),
            firsts=sum(int(tally.receipts.sum()) for tally in tallies) - log.duplicates,
            whole=self._part_needs(self._half_needs),
            halves=(self._part_needs(first_half), self._part_needs(second_half)),
            bursts=self._bursts(),
            elsewhere=self._elsewhere() if log.duplicates else None,
            peak_per_second=self._peak_per_second(),
            from_other_sources=sum(each.from_other_sources for each in self._link_counts),
            expiry_needs=histogram_of(sum((each.expiry_step_counts for each in needs), np.zeros(len(STEPS), np.int64))),
            most_expiry_need_us=max(each.most_expiry_us for each in needs),
            sources=worst(sources),
            source_window_needs=ValueCounts.of(np.array([source.window_need for source in sources], np.int64)),
            checked_sources=len(sent),
            ended_sources=ValueCounts.of(np.array(ended, np.int64)),
            timeline=self._timeline(),
            cross_domain=self._crossing(),
            lacking=self._lacking(),
            has_digest="body_digest" in present,
            reused=sum(each.reused for each in self._link_counts),
            has_redelivered="jms_redelivered" in present,
            unmarked_duplicates=log.duplicates - sum(tally.marked_duplicates for tally in tallies),
            marked_firsts=sum(tally.marked_firsts for tally in tallies),
            largest_step_back_us=max(tally.largest_step_back_us for tally in tallies),
            status_lines=in_order(status_lines_of(self._reports)),
        )

    def _log_figures(self) -> LogFigures:
        reports = self._reports
        return LogFigures(
            receipts=sum(report.receipts for report in reports),
            unchecked=sum(report.unchecked for report in reports),
            skipped=sum(report.skipped for report in reports),
            duplicates=sum(tally.duplicates for tally in self._tallies),
            domains=len(self.plan.domains),
            sources=sum(self._domain_sources.values()),
            first_received_at_us=min(report.first_us for report in reports if report.receipts),
            last_received_at_us=max(report.last_us for report in reports if report.receipts),
            clock_clamped=sum(tally.clock_clamped for tally in self._tallies),
            redelivered=sum(report.redelivered for report in reports),
            max_delivery_secs=max(report.max_delivery_us for report in reports) / 1_000_000,
        )

    @cached_property
    def _domain_sources(self) -> dict[str, int]:
        """Domain -> how many sources it has."""
        sources: dict[str, set[str]] = {name: set() for name in self.plan.domains}
        for names, report in self._domains_by_channel():
            for source, channel in zip(report.sources, report.sources_channel.tolist(), strict=True):
                sources[names[channel]].add(source)
        return {name: len(of_domain) for name, of_domain in sources.items()}

    def _domains_by_channel(self) -> Iterator[tuple[list[str], UnitReport]]:
        """Each report, and the domains of its channels."""
        name_of = names_of(self._reports, domain_key(self.plan.key))
        for report in self._reports:
            yield [name_of[channel] for channel in channels_of(report)], report

    def _domain_counts(self) -> Iterator[DomainCounts]:
        receipts: Counter[str] = Counter()
        for names, report in self._domains_by_channel():
            for name, count in zip(names, report.receipts_by_channel.tolist(), strict=True):
                receipts[name] += count
        needs_of = by_chunk(self._half_needs)
        for number, name in enumerate(self.plan.domains):
            chunks = self.plan.of_domain(number)
            needs = self._part_needs([each for chunk in chunks for each in needs_of[chunk]])
            yield DomainCounts(
                name,
                receipts[name],
                sum(self._tallies[chunk].duplicates for chunk in chunks),
                self._domain_sources[name],
                needs.window(self._settings.max_missed),
                needs.expiry_us,
            )

    def _part_needs(self, needs: Sequence[HalfNeeds]) -> PartNeeds:
        """Of a part of the log, made of the halves of chunks."""
        values, counts, top_us = (
            column(needs, name, np.int64) for name in ("window_values", "window_counts", "top_expiry_us")
        )
        return PartNeeds(ValueCounts.of(values, counts), expiry_need_us(top_us, self._settings.max_missed))

    def _bursts(self) -> int:
        """Those of the chunks, less each that goes on in the next chunk of its domain with a duplicate."""
        needs = sorted((each for each in self._needs if each.bursts), key=lambda each: each.chunk)
        domain = self.plan.chunk_domain
        gap_us = self._measures.burst_gap_us
        return sum(each.bursts for each in needs) - sum(
            bool(domain[before.chunk] == domain[after.chunk]) and after.first_us - before.last_us <= gap_us
            for before, after in pairwise(needs)
        )

    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(max(each.ring for each in self._spans), max(each.ttl_us for each in self._spans))

    def _peak_per_second(self) -> int:
        """Where a source's last second in a chunk goes on in the next chunk that has it, the counts of both add up."""
        peak = 0
        latest: dict[tuple[int, str], tuple[int, int]] = {}
        """(domain, source) -> the last second so far in which it sent ids, and how many."""
        for tally in self._tallies:
            domain = int(self.plan.chunk_domain[tally.chunk])
            columns = (tally.first_second, tally.in_first_second, tally.last_second, tally.in_last_second)
            peak = max(peak, int(tally.most_in_second.max(initial=0)))
            for source, first, in_first, last, in_last in zip(
                tally.sources, *(each.tolist() for each in columns), strict=True
            ):
                second, before = latest.get((domain, source), (-1, 0))
                in_all = in_first + (before if second == first else 0)
                peak = max(peak, in_all)
                latest[domain, source] = last, in_all if first == last else in_last
        return peak

    def _sent_by_source(self) -> dict[tuple[int, str], tuple[int, int]]:
        """(domain, source) -> its receipts with an id, and when the last of them came."""
        sent: dict[tuple[int, str], tuple[int, int]] = {}
        for tally in self._tallies:
            domain = int(self.plan.chunk_domain[tally.chunk])
            columns = (tally.receipts.tolist(), tally.last_us.tolist())
            for source, count, last_us in zip(tally.sources, *columns, strict=True):
                before = sent.get((domain, source), (0, -1))
                sent[domain, source] = before[0] + count, max(before[1], last_us)
        return sent

    def _source_needs(self, sent: dict[tuple[int, str], tuple[int, int]]) -> list[SourceNeeds]:
        """Of all sources with duplicates; `sent` is of all sources."""
        needs: dict[tuple[int, str], tuple[int, int, int]] = {}
        for each in self._needs:
            domain = int(self.plan.chunk_domain[each.chunk])
            columns = (each.duplicates.tolist(), each.window_need.tolist(), each.expiry_need_us.tolist())
            for source, count, window, expiry_us in zip(each.sources, *columns, strict=True):
                before = needs.get((domain, source), (0, 0, 0))
                needs[domain, source] = before[0] + count, max(before[1], window), max(before[2], expiry_us)
        return [
            SourceNeeds(self.plan.domains[domain], source, sent[domain, source][0], *figures)
            for (domain, source), figures in needs.items()
        ]

    def _timeline(self) -> Timeline:
        plan = self.plan
        receipts = sum((each.receipts_by_slice for each in self._tallies), np.zeros(plan.slices, np.int64))
        duplicates = sum((each.duplicates_by_slice for each in self._tallies), np.zeros(plan.slices, np.int64))
        return Timeline(plan.start_us, plan.slice_us, tuple(receipts.tolist()), tuple(duplicates.tolist()))

    def _crossing(self) -> CrossDomainDuplicates | None:
        cross_domain: Counter[tuple[str, str]] = Counter()
        for each in self._link_counts:
            for before, after, count in zip(each.cross_from, each.cross_to, each.cross_count.tolist(), strict=True):
                cross_domain[before, after] += count
        return CrossDomainDuplicates(cross_domain.total(), dict(cross_domain)) if cross_domain else None

    def _lacking(self) -> dict[str, int]:
        lacking: Counter[str] = Counter()
        for report in self._reports:
            lacking.update(lacking_parts(channels_of(report), report.receipts_by_channel.tolist()))
        return dict(lacking)

    def expiry_needs_us(self, tried: PerPart[Sequence[int]], max_missed: int) -> PerPart[list[int]]:
        parts = (self._facts.whole, *self._facts.halves)
        # A window that catches all of a part needs no expiry, and the need without a window is known.
        asked = sorted({w for part, of in zip(parts, tried, strict=True) for w in of if 0 < w < part.windows.most})
        tops: list[TopNeeds] = []
        if asked:
            behind = self._behind_tails(*self._widest(tried))
            tops = behind.each_key(top_needs(asked, self._measures), TopNeeds).collect("Trying windows")

        def need_us(part: int, window: int) -> int:
            if window == 0:
                return parts[part].expiry_us
            if window >= parts[part].windows.most:
                return 0
            of_part = (top for top in tops if part in {0, top.half + 1})
            index = asked.index(window)
            return expiry_need_us(joined(np.int64, (top.expiry_us[top.window == index] for top in of_part)), max_missed)

        whole, first, second = ([need_us(part, window) for window in of] for part, of in enumerate(tried))
        return whole, first, second

    def _widest(self, tried: PerPart[Sequence[int]]) -> tuple[int, int]:
        """The largest window and expiry that replays will ask for, by the windows `tried` for each part."""
        facts, asked = self._facts, self._question
        window, expiry_us = widest_of(facts, tried, self._settings, asked.present or ReceiverSettings().sizes)
        return (
            max(window, *(asked.windows or chosen_windows(facts.whole.windows.most))),
            max(expiry_us, *(asked.expiries_us or chosen_expiries_us(facts.most_expiry_need_us))),
        )

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        sources = self._facts.sources
        asked = ReplayRequest(list(windows), list(expiries_us), list(pairs), sources, self._measures)
        behind = self._behind_tails(
            max([*windows, *(window for window, _ in pairs)]),
            max([*expiries_us, *(expiry_us for _, expiry_us in pairs)]),
        )
        shares = behind.each_key(replayed(self.plan, asked), ChunkReplay).collect("Replaying")
        shape = (len(windows), len(expiries_us))
        caught = np.zeros((len(self.plan.domains), *shape), np.int64)
        peaks = np.zeros((len(self.plan.domains), *shape), np.int64)
        pair_peaks = np.zeros((len(self.plan.domains), len(pairs)), np.int64)
        pair_caught, in_first_half = (np.zeros(len(pairs), np.int64) for _ in range(2))
        for share in shares:
            domain = self.plan.chunk_domain[share.chunk]
            caught[domain] += share.caught.reshape(shape)
            np.maximum(peaks[domain], share.peak_ids.reshape(shape), out=peaks[domain])
            np.maximum(pair_peaks[domain], share.pair_peak_ids, out=pair_peaks[domain])
            pair_caught += share.pair_caught
            in_first_half += share.pair_caught_in_first_half
        figures = zip(pair_caught.tolist(), in_first_half.tolist(), pair_peaks.sum(axis=0).tolist(), strict=True)
        outcomes = [
            pair_outcome(*of_pair, _slack(shares, pair, len(pairs), len(sources)))
            for pair, of_pair in enumerate(figures)
        ]
        return Replayed(tuple(caught), tuple(peaks), tuple(outcomes))

    def caught(self, window: int, expiry_us: int) -> RowFlow:
        """`Caught`: all receipts that are duplicates by verdict under one setting. The plan keeps rows."""
        chunks = self._ready.only(Ready).plus(self._tails(window, expiry_us))
        return chunks.grouped(judging(window, expiry_us), self.plan.bundles, Caught)

    def _tails(self, window: int, expiry_us: int) -> RowFlow:
        tails = tail_plan(self.plan, self._standings, self._tallies, window, expiry_us)
        return self._ready.only(Ready).map(tailing(self.plan, tails), Tail)

    def _behind_tails(self, window: int, expiry_us: int) -> RowFlow:
        if self._behind is not None:
            if self._behind[0] >= window and self._behind[1] >= expiry_us:
                return self._behind[2]
            self._behind[2].forget()
        chunks = self._ready.only(Ready).plus(self._tails(window, expiry_us)).dealt(self.plan.bundles)
        kept, _ = chunks.kept("Putting chunks behind their tails")
        self._behind = window, expiry_us, kept
        return kept


_Count = TypeVar("_Count")


def _only(kind: type[_Count], counts: Iterable[object]) -> list[_Count]:
    return [each for each in counts if isinstance(each, kind)]


def _latest_before_us(plan: CutPlan, latest: Sequence[Latest]) -> npt.NDArray[np.int64]:
    """Per chunk, the largest time of the receipts with an id in its domain's earlier chunks, -1 if none."""
    latest_us = np.full(plan.chunks, -1, np.int64)
    for each in latest:
        latest_us[each.chunk] = np.maximum(latest_us[each.chunk], each.latest_us)
    before_us = np.full(plan.chunks, -1, np.int64)
    for domain in range(len(plan.domains)):
        chunks = plan.of_domain(domain)
        before_us[chunks.start + 1 : chunks.stop] = np.maximum.accumulate(latest_us[chunks.start : chunks.stop - 1])
    return before_us


def _slack(shares: Sequence[ChunkReplay], pair: int, pairs: int, sources: int) -> SlackCounts:
    slack = SlackCounts.none(sources)
    for share in shares:
        least = (values.reshape(pairs, -1)[pair] for values in (share.least_window, share.least_expiry_us))
        slack += SlackCounts(int(share.by_source[pair]), int(share.by_time[pair]), *least)
    return slack
