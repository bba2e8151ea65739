"""What each duplicate of a chunk needs, those that look back to earlier chunks included.

How many ids of its source lie between is added up by source, from the counts of the chunks (`arriving`), and goes to the
chunk. The ids that a source has sent after a receipt of its own, up to the begin of a chunk, are those it had sent before
the chunk less those it last sent at that receipt or earlier. And an id that it last sent so early either never comes from
it again, or comes next in the chunk or later. So three sums (`Standings`) give what would otherwise take a walk through all
of the log between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.headroom import reuse_distances
from receiver.simulate.repeats import bursts
from receiver.simulate.replays import ValueCounts, counts_of
from receiver.simulate.rows import link_rows
from receiver.steps.rows import Row, by_chunk, changes, column, in_one, joined, split_by, stable_order, used, values_in
from receiver.steps.schemas import (
    NEVER,
    Arrivals,
    ChunkNeeds,
    CutPlan,
    Ends,
    HalfNeeds,
    Leaving,
    Ready,
    Spans,
    State,
)
from receiver.steps.standings import Standings

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Measures", "arriving", "dense_ids", "looked_back", "spans_of"]


class Measures(NamedTuple):
    """By what the needs of duplicates are counted, which is known of the log before."""

    middle_us: int
    """`LogFigures.middle_us`"""
    burst_gap_us: int
    most: int
    """How many of the largest expiries needed are wanted."""

    def halves(self, times_us: npt.NDArray[np.int64]) -> tuple[slice, slice]:
        """Which of duplicates at these ascending times are in each half of the log."""
        middle = int(np.searchsorted(times_us, self.middle_us))
        return slice(0, middle), slice(middle, len(times_us))


class _Entries(NamedTuple):
    """The entries of earlier chunks, in order of receipt."""

    chunk: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    label: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    received_at_us: npt.NDArray[np.int64]
    newer_ids: npt.NDArray[np.int64]


class _Needs(NamedTuple):
    """Per duplicate of the chunk."""

    row: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    expiry_us: npt.NDArray[np.int64]


def looked_back(
    plan: CutPlan, before_us: npt.NDArray[np.int64], measures: Measures
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `State`, `Arrivals` -> `Ready`, `ChunkNeeds`, `HalfNeeds`; `Spans` are passed on.

    `before_us` as for `assembled`.
    """

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        states, arrivals, spans = values_in(rows, State, Arrivals, Spans)
        yield from (Row(0, each) for each in spans)
        arrivals_of = by_chunk(arrivals)
        while states:
            state = states.pop()
            sources, entries = _entries(state, arrivals_of.pop(state.chunk, []))
            needs = _needs(state, len(sources), entries, int(before_us[state.chunk]))
            yield Row(int(plan.chunk_bundle[state.chunk]), _ready(state, sources, entries, needs))
            yield Row(0, _counted(state, sources, needs, measures.burst_gap_us))
            yield from _by_half(state, needs, measures)

    return work


def dense_ids(earlier: npt.NDArray[np.int64], state: State) -> tuple[npt.NDArray[np.int32], int]:
    """Numbers from 0 for the ids of earlier receipts, given by their labels, and of a chunk's; and how many there may be."""
    rows = len(state.source)
    labels = np.sort(np.concatenate([earlier, state.label]))
    labels = labels[changes(labels)]
    ids = np.arange(-len(earlier), rows, dtype=np.int32)
    ids[: len(earlier)] = rows + np.searchsorted(labels, earlier)
    ids[len(earlier) + state.repeat_row] = rows + np.searchsorted(labels, state.label)
    return ids, rows + len(labels)


def _entries(state: State, arrivals: list[Arrivals]) -> tuple[list[str], _Entries]:
    source, sources = in_one(((each.source, each.sources) for each in arrivals), first=state.sources)
    entries = _Entries(
        chunk=column(arrivals, "from_chunk", np.int32),
        row=column(arrivals, "from_row", np.int32),
        label=column(arrivals, "label", np.int64),
        source=source,
        received_at_us=column(arrivals, "received_at_us", np.int64),
        newer_ids=column(arrivals, "newer_ids", np.int64),
    )
    order = np.lexsort((entries.row, entries.chunk))
    return sources, _Entries._make(values[order] for values in entries)


def _needs(state: State, sources: int, entries: _Entries, before_us: int) -> _Needs:
    """Replay the chunk behind its entries, each followed by a row that stands for the newer ids up to the next."""
    count = len(entries.row)
    weights = np.ones(2 * count, np.int64)
    weights[1::2] = _between(entries)
    ids, distinct = dense_ids(entries.label, state)
    behind = np.arange(distinct, distinct + count, dtype=np.int32)
    rows = link_rows(
        np.concatenate([np.repeat(entries.received_at_us, 2), state.received_at_us]),
        np.concatenate([np.repeat(entries.source, 2), state.source]),
        np.concatenate([np.stack([ids[:count], behind], axis=1).ravel(), ids[count:]]),
        sources=sources,
        distinct_ids=distinct + count,
    )
    needs = reuse_distances(rows, weights)
    here = needs.row >= len(weights)
    row = needs.row[here].astype(np.int64)
    # With W = 0 the clock is the receipt before, which isn't the row before where the chunk begins.
    clock_us = np.where(row > len(weights), rows.received_at_us[row - 1], before_us)
    return _Needs(row - len(weights), needs.window[here], clock_us - rows.received_at_us[rows.earlier[row]])


def _between(entries: _Entries) -> npt.NDArray[np.int64]:
    """Per entry, the ids between it and the next entry of its source, or the begin of the chunk."""
    order = stable_order(entries.source)
    newer = entries.newer_ids[order]
    between = newer.copy()
    same = entries.source[order[:-1]] == entries.source[order[1:]]
    between[:-1][same] -= newer[1:][same] + 1
    in_order = np.empty(len(order), np.int64)
    in_order[order] = between
    return in_order


def _ready(state: State, sources: list[str], entries: _Entries, needs: _Needs) -> Ready:
    kept = {field.name: getattr(state, field.name) for field in fields(State)}
    return Ready(
        **kept | {"sources": sources},
        entry_chunk=entries.chunk,
        entry_row=entries.row,
        entry_label=entries.label,
        entry_source=entries.source,
        entry_received_at_us=entries.received_at_us,
        window_needs=needs.window,
    )


def _counted(state: State, sources: list[str], needs: _Needs, burst_gap_us: int) -> ChunkNeeds:
    times_us = state.received_at_us[needs.row]
    source_index, with_duplicates = used(state.source[needs.row], sources)
    largest = np.zeros((2, len(with_duplicates)), np.int64)
    np.maximum.at(largest[0], source_index, needs.window)
    np.maximum.at(largest[1], source_index, needs.expiry_us)
    return ChunkNeeds(
        chunk=state.chunk,
        expiry_step_counts=counts_of(needs.expiry_us),
        most_expiry_us=int(needs.expiry_us.max(initial=0)),
        bursts=bursts(times_us, burst_gap_us),
        first_us=int(times_us[0]) if len(times_us) else -1,
        last_us=int(times_us[-1]) if len(times_us) else -1,
        sources=with_duplicates,
        duplicates=np.bincount(source_index, minlength=len(with_duplicates)).astype(np.int64),
        window_need=largest[0],
        expiry_need_us=largest[1],
    )


def _by_half(state: State, needs: _Needs, measures: Measures) -> Iterator[Row]:
    for half, duplicates in enumerate(measures.halves(state.received_at_us[needs.row])):
        windows = ValueCounts.of(needs.window[duplicates])
        top_us = np.sort(needs.expiry_us[duplicates])[-measures.most :]
        if len(top_us):
            yield Row(0, HalfNeeds(state.chunk, half, windows.values, windows.counts, top_us))


@compiled(forceinline=True)
def _add(sums: npt.NDArray[np.int64], chunk: int, amount: int) -> None:
    at = chunk + 1
    while at < len(sums):
        sums[at] += amount
        at += at & -at


@compiled(forceinline=True)
def _sum_before(sums: npt.NDArray[np.int64], chunk: int) -> int:
    total = 0
    at = chunk
    while at > 0:
        total += sums[at]
        at -= at & -at
    return total


@compiled()
def _spanning(
    series: npt.NDArray[np.int64],
    first_of_entry: npt.NDArray[np.bool_],
    to_chunk: npt.NDArray[np.int32],
    next_in: npt.NDArray[np.int32],
    sums: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """For each departure: how many entries of its series, up to itself, are replaced only in its target chunk or later.

    Departures are ordered by series, then by entry. `sums` is a Fenwick tree over the chunks, all 0 and left so.
    """
    spanning = np.zeros(len(series), np.int64)
    begin = 0
    while begin < len(series):
        end, entered = begin, 0
        while end < len(series) and series[end] == series[begin]:
            if first_of_entry[end] and next_in[end] < NEVER:
                _add(sums, int(next_in[end]), 1)
                entered += 1
            spanning[end] = entered - _sum_before(sums, int(to_chunk[end]))
            end += 1
        for row in range(begin, end):
            if first_of_entry[row] and next_in[row] < NEVER:
                _add(sums, int(next_in[row]), -1)
        begin = end
    return spanning


def arriving(plan: CutPlan, standings: Standings) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `Leaving`, `Ends` -> `Arrivals`, `Spans`."""

    def work(_key: int, rows: Iterator[Row]) -> Iterator[Row]:
        leaving, ends = values_in(rows, Leaving, Ends)
        if leaving:
            yield from _arrivals(plan, standings, leaving)
        if ends:
            yield Row(0, _spans(standings, ends))

    return work


def spans_of(
    label: npt.NDArray[np.int64],
    is_last: npt.NDArray[np.bool_],
    new_before: npt.NDArray[np.int64],
    received_at_us: npt.NDArray[np.int64],
) -> tuple[Spans, npt.NDArray[np.intp]]:
    """What ids need of which both ends are here, by the columns of `Ends`; and the rows whose ids lack the other end."""
    order = np.lexsort((is_last, label))
    second = np.flatnonzero(~changes(label[order]))
    first, last = order[second - 1], order[second]
    ring, ttl_us = (int((values[last] - values[first]).max(initial=0)) for values in (new_before, received_at_us))
    is_alone = np.ones(len(label), np.bool_)
    is_alone[first] = is_alone[last] = False
    return Spans(ring, ttl_us), np.flatnonzero(is_alone)


def _spans(standings: Standings, ends: list[Ends]) -> Spans:
    """Of ids all of whose ends are here."""
    label, received_at_us = (column(ends, name, np.int64) for name in ("label", "received_at_us"))
    new_before = joined(np.int64, (each.new_before + standings.new_before[each.chunk] for each in ends))
    return spans_of(label, column(ends, "is_last", np.bool_), new_before, received_at_us)[0]


def _series_of(standings: Standings, leaving: Leaving) -> npt.NDArray[np.int64]:
    # Only those that leave are sure to be known here.
    numbers = np.full(len(leaving.sources), -1, np.int64)
    for source in np.unique(leaving.source).tolist():
        numbers[source] = standings.series[leaving.domain, leaving.sources[source]]
    return numbers[leaving.source]


def _arrivals(plan: CutPlan, standings: Standings, leaving: list[Leaving]) -> Iterator[Row]:
    series = np.concatenate([_series_of(standings, each) for each in leaving])
    chunk = np.repeat(np.array([each.chunk for each in leaving], np.int32), [len(each.row) for each in leaving])
    row, to_chunk, next_in = (column(leaving, name, np.int32) for name in ("row", "to_chunk", "next_in"))
    order = np.lexsort((to_chunk, row, chunk, series))
    series, chunk = series[order], chunk[order]
    row, to_chunk, next_in = row[order], to_chunk[order], next_in[order]
    first_of_entry = changes(row) | changes(chunk) | changes(series)
    sums = np.zeros(plan.chunks + 1, np.int64)
    newer_ids = (
        standings.firsts_before(series, to_chunk)
        - standings.lasts_before(series, chunk)
        - column(leaving, "lasts_within", np.int64)[order]
        - _spanning(series, first_of_entry, to_chunk, next_in, sums)
    )
    label, received_at_us = (column(leaving, name, np.int64)[order] for name in ("label", "received_at_us"))
    names = {number: name for (_, name), number in standings.series.items()}
    for to, chosen in split_by(to_chunk):
        numbers, source = np.unique(series[chosen], return_inverse=True)
        arrivals = Arrivals(
            chunk=to,
            label=label[chosen],
            source=source.astype(np.int32),
            sources=[names[number] for number in numbers.tolist()],
            from_chunk=chunk[chosen],
            from_row=row[chosen],
            received_at_us=received_at_us[chosen],
            newer_ids=newer_ids[chosen],
        )
        yield Row(int(plan.chunk_bundle[to]), arrivals)
