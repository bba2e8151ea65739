"""Each chunk by itself, once it is known which of its receipts repeat an id: put it in order, clamp the clock, and count."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.simulate.compiled import check_numbered
from receiver.simulate.repeats import second_counts
from receiver.steps.lookback import spans_of
from receiver.steps.rows import (
    Row,
    by_chunk,
    changes,
    column,
    in_one,
    joined,
    order_unless_sorted,
    runs,
    split_by,
    stable_order,
    used,
    values_in,
)
from receiver.steps.schemas import NEVER, ChunkCounts, CutPlan, Departures, Ends, Leaving, Repeats, State, Stretch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["assembled"]


def assembled(
    plan: CutPlan, before_us: npt.NDArray[np.int64], source_keys: int
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `Stretch`, `Repeats`, `Departures` -> `State`, `ChunkCounts`, `Leaving`, `Ends`, `Spans`.

    `before_us` is, per chunk, the latest time of its domain before it, -1 if none; `source_keys` is how many keys
    `Leaving` may have.
    """

    def work(bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
        stretches, repeats, departures = values_in(rows, Stretch, Repeats, Departures)
        repeats_of, departures_of = by_chunk(repeats), by_chunk(departures)
        for chunk, receipts, sources in _chunks(plan, stretches):
            made = _assembled(
                chunk,
                receipts,
                sources,
                int(before_us[chunk]),
                repeats_of.pop(chunk, []),
                departures_of.pop(chunk, []),
            )
            yield Row(bundle, made.state)
            yield Row(0, _tally(plan, made))
            yield from _ends(plan, made)
            yield from _leaving(int(plan.chunk_domain[chunk]), made.state, source_keys)

    return work


class _Receipts(NamedTuple):
    """Receipts of several units. A column that isn't there is empty."""

    at: npt.NDArray[np.int64]
    """Unit and row in the unit, as `_at` makes one number of them."""
    key_us: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    redelivered: npt.NDArray[np.bool_]
    number: npt.NDArray[np.int64]
    is_checked: npt.NDArray[np.bool_]

    def taken(self, rows: npt.NDArray[Any] | slice) -> _Receipts:
        return _Receipts._make(values[rows] if len(values) else values for values in self)


class _Assembled(NamedTuple):
    state: State
    checked: _Receipts
    unchecked_at_us: npt.NDArray[np.int64]
    is_again: npt.NDArray[np.bool_]
    """This and the next two as in `Repeats`, of each `State.repeat_row`."""
    replaces: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]


def _at(unit: npt.NDArray[np.int32] | int, row: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    at: npt.NDArray[np.int64] = (np.asarray(unit, np.int64) << np.int64(32)) | row
    return at


def _chunks(plan: CutPlan, stretches: list[Stretch]) -> Iterator[tuple[int, _Receipts, list[str]]]:
    """The receipts of each chunk in order, and what the numbers of their sources stand for."""
    if not stretches:
        return
    stretches.sort(key=lambda stretch: (stretch.unit, stretch.first_row))
    chunk = joined(np.int32, (np.repeat(each.chunk, np.diff(each.chunk_end, prepend=0)) for each in stretches))
    receipts, sources = _joined(plan, stretches)
    stretches.clear()
    order = _order(chunk, receipts.key_us)
    if order is not None:
        chunk, receipts = chunk[order], receipts.taken(order)
    for start, end in runs(changes(chunk)):
        yield int(chunk[start]), receipts.taken(slice(start, end)), sources


def _joined(plan: CutPlan, stretches: Sequence[Stretch]) -> tuple[_Receipts, list[str]]:
    """All receipts by unit, then chunk, then row."""
    source, sources = in_one((each.source, each.sources) for each in stretches)
    sizes = [len(each.received_at_us) for each in stretches]
    rows = [
        each.unit_row.astype(np.int64) if len(each.unit_row) else each.first_row + np.arange(size)
        for each, size in zip(stretches, sizes, strict=True)
    ]
    row_id = column(stretches, "row_id", np.int64)
    if plan.keeps_rows and not len(row_id):
        begins = (int(plan.unit_number[each.unit]) for each in stretches)
        row_id = joined(np.int64, (begin + row for begin, row in zip(begins, rows, strict=True)))
    receipts = _Receipts(
        at=joined(np.int64, (_at(each.unit, row) for each, row in zip(stretches, rows, strict=True))),
        key_us=joined(np.int64, (each.key_us if len(each.key_us) else each.received_at_us for each in stretches)),
        received_at_us=column(stretches, "received_at_us", np.int64),
        source=source,
        redelivered=_marks([each.redelivered_row for each in stretches], sizes),
        number=row_id,
        is_checked=~_marks([each.unchecked_row for each in stretches], sizes),
    )
    return receipts, sources


def _marks(rows: Sequence[npt.NDArray[np.int32]], sizes: Sequence[int]) -> npt.NDArray[np.bool_]:
    """One column of marks for several stretches, given which rows of each are marked."""
    begins = np.cumsum([0, *sizes])
    marks = np.zeros(begins[-1], np.bool_)
    marks[joined(np.int64, (begin + each for begin, each in zip(begins, rows, strict=False)))] = True
    return marks


def _order(chunk: npt.NDArray[np.int32], key_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """By chunk, then key, then as they stand; None where they stand so."""
    by_key = order_unless_sorted(key_us)
    by_chunk_ = order_unless_sorted(chunk if by_key is None else chunk[by_key])
    if by_key is None or by_chunk_ is None:
        return by_chunk_ if by_key is None else by_key
    return by_key[by_chunk_]


def _assembled(  # noqa: PLR0917 - one chunk's values
    chunk: int,
    receipts: _Receipts,
    sources: list[str],
    before_us: int,
    repeats: list[Repeats],
    departures: list[Departures],
) -> _Assembled:
    checked = receipts if receipts.is_checked.all() else receipts.taken(receipts.is_checked)
    check_numbered(len(checked.source), "receipts in one chunk")
    source, used_sources = used(checked.source, sources)
    by_at = order_unless_sorted(checked.at)

    def rows_of(values: Sequence[Repeats] | Sequence[Departures]) -> npt.NDArray[np.int32]:
        wanted = joined(np.int64, (_at(each.unit, each.unit_row) for each in values))
        rows = np.searchsorted(checked.at, wanted, sorter=by_at)
        rows = rows if by_at is None else by_at.take(rows, mode="clip")
        if not np.array_equal(checked.at.take(rows, mode="clip"), wanted):
            raise AssertionError("links are of other receipts than those of their chunk")
        return rows.astype(np.int32)

    repeat_row, leaving_row = rows_of(repeats), rows_of(departures)
    leaving_to = column(departures, "to_chunk", np.int32)
    by_row, leaving = np.argsort(repeat_row), np.lexsort((leaving_to, leaving_row))
    state = State(
        chunk=chunk,
        received_at_us=np.maximum(np.maximum.accumulate(checked.received_at_us), before_us),
        source=source,
        sources=used_sources,
        number=checked.number,
        repeat_row=repeat_row[by_row],
        label=column(repeats, "label", np.int64)[by_row],
        next_in=column(repeats, "next_in", np.int32)[by_row],
        leaving_row=leaving_row[leaving],
        leaving_to=leaving_to[leaving],
    )
    return _Assembled(
        state,
        checked,
        receipts.received_at_us[~receipts.is_checked],
        column(repeats, "is_again", np.bool_)[by_row],
        column(repeats, "replaces", np.bool_)[by_row],
        column(repeats, "is_last", np.bool_)[by_row],
    )


def _ends(plan: CutPlan, made: _Assembled) -> Iterator[Row]:
    """`Spans` of the ids of which both ends are here, and `Ends` of others."""
    state = made.state
    at = np.flatnonzero(~made.is_again | made.is_last)
    # All receipts before it that aren't marked as coming again are new.
    new_before = state.repeat_row.astype(np.int64) - (np.cumsum(made.is_again) - made.is_again)
    label, is_last, times_us = state.label[at], made.is_last[at], state.received_at_us[state.repeat_row[at]]
    spans, alone = spans_of(label, is_last, new_before[at], times_us)
    yield Row(0, spans)
    for part, chosen in split_by(label[alone] % plan.partitions):
        here = alone[chosen]
        yield Row(part, Ends(state.chunk, label[here], is_last[here], new_before[at[here]], times_us[here]))


def _tally(plan: CutPlan, made: _Assembled) -> ChunkCounts:
    state, checked = made.state, made.checked
    steps_back = state.received_at_us - checked.received_at_us
    again = state.repeat_row[made.is_again]
    marked = int(np.count_nonzero(checked.redelivered))
    marked_duplicates = int(np.count_nonzero(checked.redelivered[again]))
    is_dead = state.next_in == state.chunk
    dead = state.repeat_row[is_dead]
    replaced = (state.next_in < NEVER) & ~is_dead
    pairs = (state.source[state.repeat_row[replaced]].astype(np.int64) << 32) | state.next_in[replaced]
    replacing, counts = np.unique(pairs, return_counts=True)
    last_us = np.full(len(state.sources), -1, np.int64)
    np.maximum.at(last_us, state.source, state.received_at_us)

    def by_slice(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.bincount((times_us - plan.start_us) // plan.slice_us, minlength=plan.slices).astype(np.int64)

    def by_source(rows: npt.NDArray[np.int32] | slice) -> npt.NDArray[np.int64]:
        return np.bincount(state.source[rows], minlength=len(state.sources)).astype(np.int64)

    receipts = by_source(slice(None))
    seconds = second_counts(state.source, state.received_at_us, len(state.sources))
    return ChunkCounts(
        chunk=state.chunk,
        duplicates=len(again),
        clock_clamped=int(np.count_nonzero(steps_back)),
        largest_step_back_us=int(steps_back.max(initial=0)),
        marked_duplicates=marked_duplicates,
        marked_firsts=marked - marked_duplicates,
        receipts_by_slice=by_slice(checked.received_at_us) + by_slice(made.unchecked_at_us),
        duplicates_by_slice=by_slice(checked.received_at_us[again]),
        first_us=int(state.received_at_us[0]) if len(state.source) else -1,
        dead_us=int(state.received_at_us[dead[-1]]) if len(dead) else -1,
        sources=state.sources,
        receipts=receipts,
        last_us=last_us,
        first_second=seconds.first,
        in_first_second=seconds.in_first,
        last_second=seconds.last,
        in_last_second=seconds.in_last,
        most_in_second=seconds.most,
        firsts=receipts - by_source(state.repeat_row[made.replaces]),
        lasts=receipts - by_source(state.repeat_row[state.next_in < NEVER]),
        distinct=receipts - by_source(dead),
        replaced_source=(replacing >> 32).astype(np.int32),
        replaced_in=(replacing & 0xFFFFFFFF).astype(np.int32),
        replaced_count=counts.astype(np.int64),
    )


def _leaving(domain: int, state: State, source_keys: int) -> Iterator[Row]:
    if not len(state.leaving_row):
        return
    is_last = np.ones(len(state.source), np.bool_)
    is_last[state.repeat_row[state.next_in < NEVER]] = False
    by_source = stable_order(state.source)
    lasts = np.cumsum(is_last[by_source])
    starts = np.searchsorted(state.source[by_source], np.arange(len(state.sources)))
    before = np.where(starts > 0, lasts[np.minimum(starts, len(lasts)) - 1], 0)
    within = np.empty(len(lasts), np.int64)
    within[by_source] = lasts - before[state.source[by_source]]
    source = state.source[state.leaving_row]
    repeat = np.searchsorted(state.repeat_row, state.leaving_row)
    keys = np.array([zlib.crc32(f"{domain}:{name}".encode()) % source_keys for name in state.sources], np.int64)
    for key, chosen in split_by(keys[source]):
        row = state.leaving_row[chosen]
        leaving = Leaving(
            domain=domain,
            chunk=state.chunk,
            sources=state.sources,
            source=source[chosen],
            row=row,
            label=state.label[repeat[chosen]],
            received_at_us=state.received_at_us[row],
            to_chunk=state.leaving_to[chosen],
            next_in=state.next_in[repeat[chosen]],
            lasts_within=within[row],
        )
        yield Row(key, leaving)
