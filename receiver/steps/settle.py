"""Each chunk by itself, once it is known which of its receipts repeat an id: clamp the clock, and count."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.steps.columns import by_chunk, column, split_by, stable_order
from receiver.steps.outcomes import Leaving, State, Tally
from receiver.steps.rows import Row, values_in
from receiver.steps.schemas import NEVER, Body, Departures, Labels, Plan, chunk_of, label_of, row_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["settled"]


def settled(
    plan: Plan, before_us: npt.NDArray[np.int64], source_keys: int
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `Body`, `Labels`, `Departures` -> `State`, `Tally`, `Leaving`.

    `before_us` is, per chunk, the latest time of its domain before it, -1 if none; `source_keys` is how many keys
    `Leaving` may have.
    """

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        bodies, labels, departures = values_in(rows, Body, Labels, Departures)
        labels_of, departures_of = by_chunk(labels), by_chunk(departures)
        while bodies:
            body = bodies.pop()
            chunk = body.chunk
            settling = _settling(body, int(before_us[chunk]), labels_of.pop(chunk, []), departures_of.pop(chunk, []))
            yield Row(int(plan.chunk_bundle[chunk]), settling.state)
            yield Row(0, _tally(plan, settling))
            yield from _leaving(int(plan.chunk_domain[chunk]), settling, source_keys)

    return work


class _Settling(NamedTuple):
    body: Body
    state: State
    again: npt.NDArray[np.int32]
    """The receipts whose id came before in the domain."""
    replaces: npt.NDArray[np.bool_]
    """Whether the same source had sent the id before."""
    last: npt.NDArray[np.bool_]
    """Whether the same source never sends the id again."""


def _settling(body: Body, before_us: int, labels: list[Labels], departures: list[Departures]) -> _Settling:
    chunk, rows = body.chunk, len(body.source)
    clamped = np.maximum(np.maximum.accumulate(body.received_at_us), before_us)
    label = label_of(chunk, np.arange(rows, dtype=np.int32))
    again = column(labels, "row", np.int32)
    label[again] = column(labels, "label", np.int64)
    replaces = np.zeros(rows, np.bool_)
    replaces[again] = column(labels, "replaces", np.bool_)
    dead = _replaced_within(chunk, again, label, body.source)
    row, to, replaced_in = (column(departures, name, np.int32) for name in ("row", "to_chunk", "replaced_in"))
    order = np.lexsort((to, row))
    last = ~dead
    last[row[replaced_in < NEVER]] = False
    state = State(chunk, clamped, body.source, body.sources, label, dead, row[order], to[order], replaced_in[order])
    return _Settling(body, state, again, replaces, last)


def _replaced_within(
    chunk: int, again: npt.NDArray[np.int32], label: npt.NDArray[np.int64], source: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Which receipts are followed, in the chunk, by another of the same id and source."""
    first = label[again]
    firsts_here = row_of(first[chunk_of(first) == chunk])
    several = np.union1d(again, firsts_here)
    order = several[np.lexsort((several, source[several], label[several]))]
    same = (label[order[1:]] == label[order[:-1]]) & (source[order[1:]] == source[order[:-1]])
    dead = np.zeros(len(label), np.bool_)
    dead[order[:-1][same]] = True
    return dead


def _tally(plan: Plan, settling: _Settling) -> Tally:
    body, state, again, replaces, last = settling
    steps_back = state.received_at_us - body.received_at_us
    marked = body.redelivered if len(body.redelivered) else np.zeros(len(body.source), np.bool_)
    replaced = np.flatnonzero(state.replaced_in < NEVER)
    replaced = replaced[np.unique(state.leaving_row[replaced], return_index=True)[1]]
    pairs = (state.source[state.leaving_row[replaced]].astype(np.int64) << 32) | state.replaced_in[replaced]
    found, counts = np.unique(pairs, return_counts=True)
    newest_dead = np.flatnonzero(state.dead)[-1:]
    marked_duplicates = int(np.count_nonzero(marked[again]))
    last_us = np.full(len(state.sources), -1, np.int64)
    np.maximum.at(last_us, state.source, state.received_at_us)

    def by_slice(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.bincount((times_us - plan.start_us) // plan.slice_us, minlength=plan.slices).astype(np.int64)

    def by_source(chosen: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
        source = state.source if chosen is None else state.source[chosen]
        return np.bincount(source, minlength=len(state.sources)).astype(np.int64)

    return Tally(
        chunk=state.chunk,
        duplicates=len(again),
        clock_clamped=int(np.count_nonzero(steps_back)),
        largest_step_back_us=int(steps_back.max(initial=0)),
        marked_duplicates=marked_duplicates,
        marked_firsts=int(np.count_nonzero(marked)) - marked_duplicates,
        receipts_by_slice=by_slice(body.received_at_us) + by_slice(body.unchecked_at_us),
        duplicates_by_slice=by_slice(body.received_at_us[again]),
        first_us=int(state.received_at_us[0]) if len(state.source) else -1,
        dead_us=int(state.received_at_us[newest_dead[0]]) if len(newest_dead) else -1,
        sources=state.sources,
        receipts=by_source(),
        last_us=last_us,
        firsts=by_source(~replaces),
        lasts=by_source(last),
        distinct=by_source(~state.dead),
        replaced_source=(found >> 32).astype(np.int32),
        replaced_in=(found & 0xFFFFFFFF).astype(np.int32),
        replaced_count=counts.astype(np.int64),
    )


def _leaving(domain: int, settling: _Settling, source_keys: int) -> Iterator[Row]:
    state, last = settling.state, settling.last
    if not len(state.leaving_row):
        return
    by_source = stable_order(state.source)
    lasts = np.cumsum(last[by_source])
    starts = np.searchsorted(state.source[by_source], np.arange(len(state.sources)))
    before = np.where(starts > 0, lasts[np.minimum(starts, len(lasts)) - 1], 0)
    within = np.empty(len(lasts), np.int64)
    within[by_source] = lasts - before[state.source[by_source]]
    source = state.source[state.leaving_row]
    keys = np.array([zlib.crc32(f"{domain}:{name}".encode()) % source_keys for name in state.sources], np.int64)[source]
    for key, chosen in split_by(keys):
        row = state.leaving_row[chosen]
        leaving = Leaving(
            domain=domain,
            chunk=state.chunk,
            sources=state.sources,
            source=source[chosen],
            row=row,
            label=state.label[row],
            received_at_us=state.received_at_us[row],
            to_chunk=state.leaving_to[chosen],
            replaced_in=state.replaced_in[chosen],
            lasts_within=within[row],
        )
        yield Row(key, leaving)
