"""What each duplicate of a chunk needs, those that look back to earlier chunks included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.needs import needs_of
from receiver.simulate.replays import ValueCounts
from receiver.simulate.rows import link_rows
from receiver.simulate.summaries import counts_of
from receiver.steps.columns import by_chunk, changes, column, in_one, stable_order, used
from receiver.steps.rows import Row, values_in
from receiver.steps.schemas import Arrivals, ChunkNeeds, Plan, Ready, State

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["dense_ids", "looked_back"]


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
    plan: Plan, before_us: npt.NDArray[np.int64], most: int
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `State`, `Arrivals` -> `Ready`, `ChunkNeeds` with up to `most` of the largest expiries needed.

    `before_us` as for `settled`.
    """

    def work(_bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        states, arrivals = values_in(rows, State, Arrivals)
        arrivals_of = by_chunk(arrivals)
        while states:
            state = states.pop()
            sources, entries = _entries(state, arrivals_of.pop(state.chunk, []))
            needs = _needs(state, len(sources), entries, int(before_us[state.chunk]))
            yield Row(int(plan.chunk_bundle[state.chunk]), _ready(state, sources, entries, needs))
            yield Row(0, _counted(state, sources, needs, most))

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
    source, sources = in_one(((some.source, some.sources) for some in arrivals), first=state.sources)
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
    needs = needs_of(rows, weights)
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
    found = np.empty(len(order), np.int64)
    found[order] = between
    return found


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


def _counted(state: State, sources: list[str], needs: _Needs, most: int) -> ChunkNeeds:
    windows = ValueCounts.of(needs.window)
    place, with_duplicates = used(state.source[needs.row], sources)
    largest = np.zeros((2, len(with_duplicates)), np.int64)
    np.maximum.at(largest[0], place, needs.window)
    np.maximum.at(largest[1], place, needs.expiry_us)
    return ChunkNeeds(
        chunk=state.chunk,
        window_values=windows.values,
        window_counts=windows.counts,
        expiry_step_counts=counts_of(needs.expiry_us),
        most_expiry_us=int(needs.expiry_us.max(initial=0)),
        top_expiry_us=np.sort(needs.expiry_us)[-most:],
        sources=with_duplicates,
        duplicates=np.bincount(place, minlength=len(with_duplicates)).astype(np.int64),
        window_need=largest[0],
        expiry_need_us=largest[1],
    )
