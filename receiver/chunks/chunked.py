"""A log that is cut into chunks, and asked as if it were whole: the steps in order, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from receiver.chunks.ingest import status_lines_of
from receiver.chunks.link import linked
from receiver.chunks.lookback import looked_back
from receiver.chunks.parcels import Flow, Parcel, unpack
from receiver.chunks.replaying import Asked, replayed, top_needs
from receiver.chunks.settle import settled
from receiver.chunks.slices import Slices
from receiver.chunks.spans import arriving
from receiver.chunks.standings import standings_of
from receiver.chunks.states import ChunkNeeds, ChunkReplay, Leaving, Ready, State, Tally, TopNeeds
from receiver.chunks.tails import tail_plan, tailing
from receiver.chunks.values import Body, Departures, Ids, Labels, LinkCounts, Opening, Plan, UnitReport, channels_of
from receiver.simulate.figures import LogFigures, Timeline
from receiver.simulate.headroom import LeftCounts, expiry_need_us, pair_outcome
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.replays import Crossing, DomainCounts, Facts, Replayed, SourceNeeds, ValueCounts
from receiver.simulate.summaries import STEPS, histogram_of, in_order, worst

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ChunkedLog"]

_Value = TypeVar("_Value")
_Work = Callable[[int, Iterator[Parcel]], Iterable[Parcel]]


def _collected(flow: Flow, kind: type[_Value], what: str) -> list[_Value]:
    return [unpack(kind, parcel.payload) for parcel in flow.only(kind.__name__).collect(what)]


class ChunkedLog:
    """The `Replays` of a log whose chunks have been assembled: `chunks` holds `Body`, `Ids` and `Opening` parcels."""

    def __init__(
        self, plan: Plan, reports: Sequence[UnitReport], chunks: Flow, *, slices: Slices | None = None
    ) -> None:
        self.slices = slices
        """Where verdicts will be asked for."""
        self._plan = plan
        self._reports = reports
        self._chunks = chunks
        openings = _collected(chunks, Opening, "Cutting into chunks")
        self._openings = sorted(openings, key=lambda opening: opening.chunk)
        before_us = self._latest_before_us()
        links = chunks.only(Ids.__name__).grouped(linked(plan), plan.partitions).kept("Linking ids")
        self._link_counts = _collected(links, LinkCounts, "Linking ids")
        bodies = chunks.only(Body.__name__).plus(links.only(Labels.__name__, Departures.__name__))
        settling = bodies.grouped(settled(plan, before_us, plan.partitions), plan.bundles).kept("Counting")
        self._tallies = sorted(_collected(settling, Tally, "Counting"), key=lambda tally: tally.chunk)
        self._standings = standings_of(plan, self._tallies)
        arrivals = settling.only(Leaving.__name__).grouped(arriving(plan, self._standings), plan.partitions)
        states = settling.only(State.__name__).plus(arrivals)
        self._ready = states.grouped(looked_back(plan, before_us), plan.bundles).kept("Measuring duplicates")
        self._needs = _collected(self._ready, ChunkNeeds, "Measuring duplicates")
        links.forget()
        settling.forget()

    def _latest_before_us(self) -> npt.NDArray[np.int64]:
        before_us = np.full(self._plan.chunks, -1, np.int64)
        for before, opening in zip(self._openings, self._openings[1:], strict=False):
            if self._plan.chunk_domain[before.chunk] == self._plan.chunk_domain[opening.chunk]:
                before_us[opening.chunk] = max(before_us[before.chunk], before.latest_us)
        return before_us

    def facts(self) -> Facts:
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        tallies, needs = self._tallies, self._needs
        window_needs = ValueCounts.of(
            np.concatenate([each.window_values for each in needs]),
            np.concatenate([each.window_counts for each in needs]),
        )
        present = {column for report in self._reports for column in report.columns_present}
        sent = self._sent_by_source()
        sources = self._source_needs(sent)
        domains = tuple(self._domain_counts())
        duplicates = sum(domain.duplicates for domain in domains)
        log = self._log_figures(domains, duplicates)
        ended = [receipts for receipts, last_us in sent.values() if last_us < log.middle_us]
        return Facts(
            log=log,
            domains=domains,
            firsts=sum(int(tally.receipts.sum()) for tally in tallies) - duplicates,
            window_needs=window_needs,
            expiry_needs=histogram_of(sum((each.expiry_step_counts for each in needs), np.zeros(len(STEPS), np.int64))),
            most_expiry_need_us=max(each.most_expiry_us for each in needs),
            sources=worst(sources),
            source_window_needs=ValueCounts.of(np.array([source.window_need for source in sources], np.int64)),
            checked_sources=len(sent),
            ended_sources=ValueCounts.of(np.array(ended, np.int64)),
            timeline=self._timeline(),
            crossing=self._crossing(),
            lacking=self._lacking(),
            has_digest="body_digest" in present,
            reused=sum(each.reused for each in self._link_counts),
            has_redelivered="jms_redelivered" in present,
            unmarked_duplicates=duplicates - sum(tally.marked_duplicates for tally in tallies),
            marked_firsts=sum(tally.marked_firsts for tally in tallies),
            largest_step_back_us=max(tally.largest_step_back_us for tally in tallies),
            status_lines=in_order(status_lines_of(self._reports)),
        )

    def _log_figures(self, domains: Sequence[DomainCounts], duplicates: int) -> LogFigures:
        reports = self._reports
        return LogFigures(
            receipts=sum(report.receipts for report in reports),
            unchecked=sum(report.unchecked for report in reports),
            skipped=sum(report.skipped for report in reports),
            duplicates=duplicates,
            domains=len(domains),
            sources=sum(domain.sources for domain in domains),
            first_received_at_us=min(report.first_us for report in reports if report.receipts),
            last_received_at_us=max(report.last_us for report in reports if report.receipts),
            clock_clamped=sum(tally.clock_clamped for tally in self._tallies),
            redelivered=sum(report.redelivered for report in reports),
            max_delivery_secs=max(report.max_delivery_us for report in reports) / 1_000_000,
        )

    def _domain_counts(self) -> Iterator[DomainCounts]:
        for number, name in enumerate(self._plan.domains):
            chunks = self._plan.of_domain(number)
            yield DomainCounts(
                name=name,
                receipts=sum(self._openings[chunk].receipts for chunk in chunks),
                duplicates=sum(self._tallies[chunk].duplicates for chunk in chunks),
                sources=len({source for chunk in chunks for source in self._openings[chunk].sources}),
            )

    def _sent_by_source(self) -> dict[tuple[int, str], tuple[int, int]]:
        """(domain, source) -> its receipts with an id, and when the last of them came."""
        sent: dict[tuple[int, str], tuple[int, int]] = {}
        for tally in self._tallies:
            domain = int(self._plan.chunk_domain[tally.chunk])
            columns = (tally.receipts.tolist(), tally.last_us.tolist())
            for source, count, last_us in zip(tally.sources, *columns, strict=True):
                before = sent.get((domain, source), (0, -1))
                sent[domain, source] = before[0] + count, max(before[1], last_us)
        return sent

    def _source_needs(self, sent: dict[tuple[int, str], tuple[int, int]]) -> list[SourceNeeds]:
        """Of all sources with duplicates; `sent` is of all sources."""
        found: dict[tuple[int, str], tuple[int, int, int]] = {}
        for each in self._needs:
            domain = int(self._plan.chunk_domain[each.chunk])
            columns = (each.duplicates.tolist(), each.window_need.tolist(), each.expiry_need_us.tolist())
            for source, count, window, expiry_us in zip(each.sources, *columns, strict=True):
                before = found.get((domain, source), (0, 0, 0))
                found[domain, source] = before[0] + count, max(before[1], window), max(before[2], expiry_us)
        return [
            SourceNeeds(self._plan.domains[domain], source, sent[domain, source][0], *figures)
            for (domain, source), figures in found.items()
        ]

    def _timeline(self) -> Timeline:
        plan = self._plan
        receipts = sum((each.receipts_by_slice for each in self._tallies), np.zeros(plan.slices, np.int64))
        duplicates = sum((each.duplicates_by_slice for each in self._tallies), np.zeros(plan.slices, np.int64))
        return Timeline(plan.start_us, plan.slice_us, tuple(receipts.tolist()), tuple(duplicates.tolist()))

    def _crossing(self) -> Crossing | None:
        ways: Counter[tuple[str, str]] = Counter()
        for each in self._link_counts:
            for before, after, count in zip(each.way_from, each.way_to, each.way_count.tolist(), strict=True):
                ways[before, after] += count
        return Crossing(ways.total(), dict(ways)) if ways else None

    def _lacking(self) -> dict[str, int]:
        lacking: Counter[str] = Counter()
        for report in self._reports:
            lacking.update(lacking_parts(channels_of(report), report.receipts_by_channel.tolist()))
        return dict(lacking)

    def expiry_needs_us(self, windows: Sequence[int], max_missed: int) -> list[int]:
        most = self._facts.window_needs.most
        short = [window for window in windows if window < most]  # each of the others misses nothing
        if not short or max_missed >= self._facts.log.duplicates:
            return [0] * len(windows)
        tops = self._replayed(top_needs(short, max_missed + 1), short[-1], 0, TopNeeds, "Trying windows")
        found = {
            window: expiry_need_us(np.concatenate([top.expiry_us[top.window == place] for top in tops]), max_missed)
            for place, window in enumerate(short)
        }
        return [found.get(window, 0) for window in windows]

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        sources = self._facts.sources
        asked = Asked(list(windows), list(expiries_us), list(pairs), sources)
        shares = self._replayed(
            replayed(self._plan, asked),
            max([*windows, *(window for window, _ in pairs)]),
            max([*expiries_us, *(expiry_us for _, expiry_us in pairs)]),
            ChunkReplay,
            "Replaying",
        )
        shape = (len(windows), len(expiries_us))
        caught = np.zeros((len(self._plan.domains), *shape), np.int64)
        peaks = np.zeros((len(self._plan.domains), *shape), np.int64)
        pair_peaks = np.zeros((len(self._plan.domains), len(pairs)), np.int64)
        for share in shares:
            domain = self._plan.chunk_domain[share.chunk]
            caught[domain] += share.caught.reshape(shape)
            np.maximum(peaks[domain], share.peak_ids.reshape(shape), out=peaks[domain])
            np.maximum(pair_peaks[domain], share.pair_peak_ids, out=pair_peaks[domain])
        pair_caught = sum((share.pair_caught for share in shares), np.zeros(len(pairs), np.int64))
        lefts = [_lefts(shares, place, len(pairs), len(sources)) for place in range(len(pairs))]
        outcomes = [
            pair_outcome(int(each), int(peak), left)
            for each, peak, left in zip(pair_caught, pair_peaks.sum(axis=0), lefts, strict=True)
        ]
        return Replayed(tuple(caught), tuple(peaks), tuple(outcomes))

    def _replayed(self, work: _Work, window: int, expiry_us: int, kind: type[_Value], what: str) -> list[_Value]:
        return _collected(self._behind_tails(window, expiry_us).grouped(work, self._plan.bundles), kind, what)

    def judged(self, work: _Work, window: int, expiry_us: int) -> Flow:
        """What `work` makes of each bundle's `Ready`, `Tail` and `Body`, ready to be replayed under one setting."""
        chunks = self._behind_tails(window, expiry_us).plus(self._chunks.only(Body.__name__))
        return chunks.grouped(work, self._plan.bundles)

    def _behind_tails(self, window: int, expiry_us: int) -> Flow:
        chunks = self._ready.only(Ready.__name__)
        tails = tail_plan(self._plan, self._standings, self._tallies, window, expiry_us)
        return chunks.plus(chunks.map(tailing(self._plan, tails)))


def _lefts(shares: Sequence[ChunkReplay], place: int, pairs: int, sources: int) -> LeftCounts:
    lefts = LeftCounts.none(sources)
    for share in shares:
        lefts += LeftCounts(
            *(
                values.reshape(pairs, -1)[place]
                for values in (share.window_counts, share.expiry_counts, share.least_window, share.least_expiry_us)
            )
        )
    return lefts
