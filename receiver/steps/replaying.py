"""Replay each chunk from its true starting state, by the kernel of the whole log.

That state is its tails: what earlier chunks hand to it (`tailing`), their receipts that are still remembered when it
begins. Of these the kernel needs no more than it can meet again or must forget:

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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.headroom import Duplicates, grid_and_pairs, source_indexes
from receiver.simulate.kernel import WindowAsked, WindowCounts, is_caught, replay_windows
from receiver.simulate.replays import SourceNeeds
from receiver.simulate.rows import DomainRows, link_rows
from receiver.steps.lookback import Measures, dense_ids
from receiver.steps.rows import Row, by_chunk, changes, column, in_one, stable_order, used, values_in
from receiver.steps.schemas import NEVER, Caught, ChunkCounts, ChunkReplay, CutPlan, Ready, Tail, TopNeeds
from receiver.steps.standings import Depths, Standings, depths_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ReplayRequest",
    "Started",
    "TailPlan",
    "judging",
    "replayed",
    "started",
    "tail_plan",
    "tailing",
    "top_needs",
]


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """As `Replays.replay` takes it, and the sources whose headroom is wanted: `Facts.sources`."""

    windows: Sequence[int]
    expiries_us: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    sources: Sequence[SourceNeeds]
    measures: Measures


class Started(NamedTuple):
    """A chunk behind the receipts that make its starting state."""

    ready: Ready
    label: npt.NDArray[np.int64]
    """Of the receipts before the chunk."""
    rows: DomainRows
    """Those receipts, then the chunk's."""
    counted_from: int

    @property
    def duplicates(self) -> npt.NDArray[np.intp]:
        """The rows of the chunk's duplicates."""
        return np.flatnonzero(self.rows.earlier[self.counted_from :] >= 0) + self.counted_from

    def halves(self, measures: Measures) -> tuple[slice, slice]:
        """Which of the duplicates are in each half of the log."""
        return measures.halves(self.rows.received_at_us[self.duplicates])

    def replay(self, asked: Sequence[WindowAsked]) -> list[WindowCounts]:
        """Each window replayed over the chunk alone, from its starting state."""
        # Other tasks have the other processors.
        return replay_windows(self.rows, asked, counted_from=self.counted_from, threads=1)


def replayed(plan: CutPlan, asked: ReplayRequest) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `Ready`, `Tail` -> `ChunkReplay`."""

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            yield Row(0, _replay(plan, asked, chunk))

    return work


def top_needs(windows: Sequence[int], measures: Measures) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `Ready`, `Tail` -> `TopNeeds`, up to `Measures.most` per window, chunk and half."""

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            counts = chunk.replay([WindowAsked(window, [], with_needs=True) for window in windows])
            for half, duplicates in enumerate(chunk.halves(measures)):
                of_half = (each.needs_us[duplicates] for each in counts)
                tops = [np.sort(needs_us[needs_us >= 0])[-measures.most :] for needs_us in of_half]
                value = TopNeeds(
                    half=half,
                    window=np.repeat(np.arange(len(windows), dtype=np.int32), [len(top) for top in tops]),
                    expiry_us=np.concatenate(tops),
                )
                yield Row(0, value)

    return work


def judging(window: int, expiry_us: int) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `Ready`, `Tail` -> `Caught`; the plan keeps rows."""

    def work(bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            (counts,) = chunk.replay([WindowAsked(window, [], with_needs=True)])
            caught = is_caught(counts.needs_us, expiry_us)
            number = chunk.ready.number[chunk.duplicates[caught] - chunk.counted_from]
            yield Row(bundle, Caught(number, counts.needs_us[caught] >= 0))

    return work


def started(rows: Iterator[Row]) -> Iterator[Started]:
    """Each chunk of a bundle with its tails, as replays begin with it."""
    readies, tails = values_in(rows, Ready, Tail)
    tails_of = by_chunk(tails)
    while readies:
        ready = readies.pop()
        yield _behind(ready, tails_of.pop(ready.chunk, []))


def _behind(ready: Ready, tails: list[Tail]) -> Started:
    given_source, sources = in_one(((tail.source, tail.sources) for tail in tails), first=ready.sources)
    given = [np.full(len(tail.row), tail.from_chunk, np.int32) for tail in tails]
    chunk = np.concatenate([ready.entry_chunk, *given])
    row = np.concatenate([ready.entry_row, column(tails, "row", np.int32)])
    # An entry may be given by a tail too.
    receipt = (chunk.astype(np.int64) << 32) | row
    order = np.argsort(receipt, kind="stable")
    chosen = order[changes(receipt[order])]
    label = np.concatenate([ready.entry_label, column(tails, "label", np.int64)])[chosen]
    times = np.concatenate([ready.entry_received_at_us, column(tails, "received_at_us", np.int64)])[chosen]
    source = np.concatenate([ready.entry_source, given_source])[chosen]
    ids, distinct = dense_ids(label, ready)
    rows = link_rows(
        np.concatenate([times, ready.received_at_us]),
        np.concatenate([source, ready.source]),
        ids,
        sources=len(sources),
        distinct_ids=distinct,
    )
    return Started(ready, label, rows, len(chosen))


def _replay(plan: CutPlan, asked: ReplayRequest, started: Started) -> ChunkReplay:
    duplicates = Duplicates(
        started.ready.window_needs,
        _source_index(plan, asked, started),
        len(asked.sources),
        started.halves(asked.measures)[0].stop,
    )
    caught, peak_ids, outcomes = grid_and_pairs(
        started.replay, asked.windows, asked.expiries_us, asked.pairs, duplicates
    )
    slacks = [outcome.slack for outcome in outcomes]
    return ChunkReplay(
        chunk=started.ready.chunk,
        caught=caught.ravel(),
        peak_ids=peak_ids.ravel(),
        pair_caught=np.array([outcome.caught for outcome in outcomes], np.int64),
        pair_caught_in_first_half=np.array([outcome.caught_in_first_half for outcome in outcomes], np.int64),
        pair_peak_ids=np.array([outcome.peak_ids for outcome in outcomes], np.int64),
        by_source=np.array([slack.by_source for slack in slacks], np.int64),
        by_time=np.array([slack.by_time for slack in slacks], np.int64),
        least_window=np.concatenate([slack.least_window for slack in slacks]),
        least_expiry_us=np.concatenate([slack.least_expiry_us for slack in slacks]),
    )


def _source_index(plan: CutPlan, asked: ReplayRequest, started: Started) -> npt.NDArray[np.int32]:
    """Per duplicate, the index of its source among those asked for; how many these are, for another."""
    domain = plan.domains[plan.chunk_domain[started.ready.chunk]]
    return source_indexes(asked.sources, domain, started.ready.sources)[started.rows.source[started.duplicates]]


@dataclass(frozen=True, slots=True)
class TailPlan:
    """What each chunk must be given."""

    standings: Standings
    depths: Depths
    depth: int
    horizon_us: npt.NDArray[np.int64]
    """Per chunk, from which time on the time queue's receipts matter when it begins."""
    dead_from: npt.NDArray[np.int32]
    """Per chunk, the newest chunk before it that is known to hold a replaced receipt, or its domain's first."""


def tail_plan(
    plan: CutPlan, standings: Standings, tallies: Sequence[ChunkCounts], window: int, expiry_us: int
) -> TailPlan:
    """For windows and expiries up to these."""
    by_chunk = sorted(tallies, key=lambda tally: tally.chunk)
    depths = depths_of(plan, standings, by_chunk, window + 1)
    first = plan.first_chunk
    horizon_us = np.full(plan.chunks, np.iinfo(np.int64).max)
    dead_from = first.copy()
    clock_us = -1
    for tally in by_chunk:
        chunk = tally.chunk
        if chunk == first[chunk]:
            clock_us = -1
        else:
            before = by_chunk[chunk - 1]
            dead_from[chunk] = chunk - 1 if before.dead_us >= 0 else dead_from[chunk - 1]
            clock_us = max(clock_us, before.dead_us)
        if expiry_us:
            reached = depths.reached[chunk]
            least_us = max(clock_us, by_chunk[reached].first_us if reached >= 0 else -1)
            horizon_us[chunk] = least_us - expiry_us if least_us >= 0 else -1
    return TailPlan(standings, depths, window + 1, horizon_us, dead_from)


def tailing(plan: CutPlan, tails: TailPlan) -> Callable[[Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.map`: `Ready` -> `Tail`."""

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield from _tails(plan, tails, row.value)

    return work


def _tails(plan: CutPlan, tails: TailPlan, ready: Ready) -> Iterator[Row]:
    domain = int(plan.chunk_domain[ready.chunk])
    later = range(ready.chunk + 1, plan.of_domain(domain).stop)
    if not later or not len(ready.source):
        return
    giving, label = _Giving(domain, tails, ready), _labels(ready)
    for to_chunk in later:
        row = giving.rows_for(to_chunk)
        if len(row):
            source, sources = used(ready.source[row], ready.sources)
            tail = Tail(
                chunk=to_chunk,
                from_chunk=ready.chunk,
                row=row.astype(np.int32),
                label=label[row],
                received_at_us=ready.received_at_us[row],
                source=source,
                sources=sources,
            )
            yield Row(int(plan.chunk_bundle[to_chunk]), tail)


class _Giving:
    """One chunk as it looks from later ones: which of its receipts are still the newest of something."""

    def __init__(self, domain: int, tails: TailPlan, ready: Ready) -> None:
        self._tails, self._ready = tails, ready
        rows = len(ready.source)
        self._gone_in = np.full(rows, NEVER, np.int32)
        """Receipt -> the chunk in which its source sends its id again."""
        self._gone_in[ready.repeat_row] = ready.next_in
        self._by_label = np.argsort(ready.label, kind="stable")
        self._newest, self._next_in = _newest_of_ids(ready, self._by_label)
        self._by_source = stable_order(ready.source)
        self._ends = np.searchsorted(ready.source[self._by_source], np.arange(len(ready.sources)), side="right")
        series = np.array([tails.standings.series.get((domain, name), -1) for name in ready.sources], np.int64)
        self._source_of = {number: source for source, number in enumerate(series.tolist()) if number >= 0}
        self._entry_series = series[ready.entry_source]
        mine = slice(*np.searchsorted(tails.depths.chunk, [ready.chunk, ready.chunk + 1]))
        self._to_chunk, self._series = tails.depths.to_chunk[mine], tails.depths.series[mine]
        self._count = tails.depths.count[mine]

    def rows_for(self, to_chunk: int) -> npt.NDArray[np.int64]:
        ready, tails = self._ready, self._tails
        asked = np.flatnonzero(self._to_chunk == to_chunk)
        others = self._rows_of_others(to_chunk)
        is_in_time = ready.received_at_us[-1] >= tails.horizon_us[to_chunk]
        gives_dead = ready.chunk >= tails.dead_from[to_chunk]
        if not (len(asked) or len(others) or is_in_time or gives_dead):
            return others
        alive = self._gone_in >= to_chunk
        is_newest = self._next_in >= to_chunk
        wanted = is_newest & (ready.received_at_us >= tails.horizon_us[to_chunk])
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
        ready, standings = self._ready, self._tails.standings
        if not len(ready.entry_label):
            return np.empty(0, np.int64)
        here = np.full(len(self._entry_series), ready.chunk, np.int32)
        there = np.full(len(self._entry_series), to_chunk, np.int32)
        since = standings.lasts_before(self._entry_series, there) - standings.lasts_before(self._entry_series, here)
        return self._newest_by_label(ready.entry_label[since < self._tails.depth])

    def _newest_by_label(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        ready, by_label = self._ready, self._by_label
        rows: npt.NDArray[np.int64] = ready.repeat_row[
            by_label[np.searchsorted(ready.label, labels, side="right", sorter=by_label) - 1]
        ].astype(np.int64)
        return rows


def _labels(ready: Ready) -> npt.NDArray[np.int64]:
    """Per receipt the label of its id; a negative number of its own where the id never comes again."""
    labels = -1 - ((np.int64(ready.chunk) << np.int64(32)) | np.arange(len(ready.source)))
    labels[ready.repeat_row] = ready.label
    return labels


def _newest_of_ids(ready: Ready, by_label: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Per receipt, the newest one of its id in the chunk; and the chunk in which the id comes next after it."""
    row, label = ready.repeat_row[by_label], ready.label[by_label]
    last = np.flatnonzero(np.diff(label, append=-1))
    newest = np.arange(len(ready.source))
    newest[row] = np.repeat(row[last], np.diff(last, prepend=-1))
    next_in = np.full(len(newest), NEVER, np.int32)
    np.minimum.at(next_in, ready.leaving_row, ready.leaving_to)
    next_in[newest != np.arange(len(newest))] = ready.chunk
    return newest, next_in
