"""Replay each chunk from its true starting state, by the kernel of the whole log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.headroom import outcomes_of, source_indexes
from receiver.simulate.kernel import GridCounts, is_caught, replay_grid
from receiver.simulate.replays import SourceNeeds
from receiver.simulate.rows import DomainRows, link_rows
from receiver.steps.columns import by_chunk, changes, column, in_one
from receiver.steps.lookback import dense_ids
from receiver.steps.rows import Row, values_in
from receiver.steps.schemas import Caught, ChunkReplay, CutPlan, Ready, Tail, TopNeeds

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ReplayRequest", "Started", "grid_counts", "judging", "replayed", "started", "top_needs"]


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """As `Replays.replay` takes it, and the sources whose headroom is wanted: `Facts.sources`."""

    windows: Sequence[int]
    expiries_us: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    sources: Sequence[SourceNeeds]


class Started(NamedTuple):
    """A chunk behind the receipts that make its starting state."""

    ready: Ready
    label: npt.NDArray[np.int64]
    """Of the receipts before the chunk."""
    rows: DomainRows
    """Those receipts, then the chunk's."""
    counted_from: int


def replayed(plan: CutPlan, asked: ReplayRequest) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `Ready`, `Tail` -> `ChunkReplay`."""

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            yield Row(0, _replay(plan, asked, chunk))

    return work


def top_needs(windows: Sequence[int], most: int) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `Ready`, `Tail` -> `TopNeeds`, up to `most` per window and chunk."""

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            counts = grid_counts(chunk, windows, [0], with_needs=True)
            missed = [np.sort(needs_us[needs_us >= 0]) for needs_us in counts.needs_us.T]
            tops = [needs_us[max(0, len(needs_us) - most) :] for needs_us in missed]
            value = TopNeeds(
                window=np.repeat(np.arange(len(windows), dtype=np.int32), [len(top) for top in tops]),
                expiry_us=np.concatenate(tops),
            )
            yield Row(0, value)

    return work


def judging(window: int, expiry_us: int) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `Ready`, `Tail` -> `Caught`; the plan keeps rows."""

    def work(bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows):
            duplicates = np.flatnonzero(chunk.rows.earlier[chunk.counted_from :] >= 0)
            needs_us = grid_counts(chunk, [window], [expiry_us], with_needs=True).needs_us[:, 0]
            caught = is_caught(needs_us, expiry_us)
            yield Row(bundle, Caught(chunk.ready.number[duplicates[caught]], needs_us[caught] >= 0))

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


def grid_counts(
    started: Started, windows: Sequence[int], expiries_us: Sequence[int], *, with_needs: bool = False
) -> GridCounts:
    """The grid replayed over the chunk alone, from its starting state."""
    return replay_grid(
        started.rows,
        np.array(windows, np.int64),
        np.array(expiries_us, np.int64),
        with_needs=with_needs,
        counted_from=started.counted_from,
        threads=1,  # other tasks have the other processors
    )


def _replay(plan: CutPlan, asked: ReplayRequest, started: Started) -> ChunkReplay:
    grid = grid_counts(started, asked.windows, asked.expiries_us)
    replay = partial(grid_counts, started, with_needs=True)
    source = _source_index(plan, asked, started)
    outcomes = outcomes_of(asked.pairs, replay, started.ready.window_needs, source, len(asked.sources))
    slacks = [slack for _, _, slack in outcomes]
    return ChunkReplay(
        chunk=started.ready.chunk,
        caught=grid.caught.ravel(),
        peak_ids=grid.peak_ids.ravel(),
        pair_caught=np.array([caught for caught, _, _ in outcomes], np.int64),
        pair_peak_ids=np.array([peak_ids for _, peak_ids, _ in outcomes], np.int64),
        window_counts=np.concatenate([slack.window_counts for slack in slacks]),
        expiry_counts=np.concatenate([slack.expiry_counts for slack in slacks]),
        least_window=np.concatenate([slack.least_window for slack in slacks]),
        least_expiry_us=np.concatenate([slack.least_expiry_us for slack in slacks]),
    )


def _source_index(plan: CutPlan, asked: ReplayRequest, started: Started) -> npt.NDArray[np.int32]:
    """Per duplicate, the index of its source among those asked for; how many these are, for another."""
    domain = plan.domains[plan.chunk_domain[started.ready.chunk]]
    rows = started.rows
    duplicates = np.flatnonzero(rows.earlier[started.counted_from :] >= 0) + started.counted_from
    return source_indexes(asked.sources, domain, started.ready.sources)[rows.source[duplicates]]
