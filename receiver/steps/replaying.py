"""Each chunk replayed from its true starting state, by the kernel of the whole log.

In: the `MeasuredReceipts` of a task's chunks, and the `Tail`s that earlier chunks hand to them. Out: what is made of each
chunk's replay. A tail holds all that a later chunk can still meet or must forget (see `tails`), so the kernel goes on as if
it had replayed all of the domain before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from receiver.simulate.domain_rows import link_rows
from receiver.simulate.kernel import WindowAsked, is_caught
from receiver.simulate.replays import Section
from receiver.simulate.shares import Measures
from receiver.steps.arrow_rows import Row, by_chunk, changes, column, in_one, values_in
from receiver.steps.measuring import dense_ids
from receiver.steps.schemas import Caught, CutPlan, MeasuredReceipts, Tail


class Started(NamedTuple):
    """A chunk behind the receipts that make its starting state."""

    receipts: MeasuredReceipts
    label: npt.NDArray[np.int64]
    """Of the receipts before the chunk."""
    section: Section


def replaying(
    plan: CutPlan, measures: Measures, work: Callable[[Section], Iterable[Any]]
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.each_key`: `MeasuredReceipts`, `Tail` -> what `work` makes of each chunk."""

    def of_task(_task: int, rows: Iterator[Row]) -> Iterator[Row]:
        for chunk in started(rows, plan, measures):
            yield from (Row(0, value) for value in work(chunk.section))

    return of_task


def judging(
    plan: CutPlan, measures: Measures, window: int, expiry_us: int
) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `RowFlow.grouped`: `MeasuredReceipts`, `Tail` -> `Caught`; the plan keeps rows."""

    def work(task: int, rows: Iterator[Row]) -> Iterator[Row]:
        for receipts, _, section in started(rows, plan, measures):
            (counts,) = section.replay([WindowAsked(window, [], with_needs=True)])
            caught = is_caught(counts.needs_us, expiry_us)
            number = receipts.number[section.duplicates[caught] - section.counted_from]
            yield Row(task, Caught(number, counts.needs_us[caught] >= 0))

    return work


def started(rows: Iterator[Row], plan: CutPlan, measures: Measures) -> Iterator[Started]:
    """Each chunk of a task behind its tails, as replays begin with it."""
    chunks, tails = values_in(rows, MeasuredReceipts, Tail)
    tails_of = by_chunk(tails)
    while chunks:
        receipts = chunks.pop()
        yield _behind(receipts, tails_of.pop(receipts.chunk, []), int(plan.chunk_domain[receipts.chunk]), measures)


def _behind(receipts: MeasuredReceipts, tails: list[Tail], domain: int, measures: Measures) -> Started:
    tail_source, sources = in_one(((tail.source, tail.sources) for tail in tails), first=receipts.sources)
    from_chunk = [np.full(len(tail.row), tail.from_chunk, np.int32) for tail in tails]
    chunk = np.concatenate([receipts.earlier_chunk, *from_chunk])
    row = np.concatenate([receipts.earlier_row, column(tails, "row", np.int32)])
    # A receipt that the chunk refers to may be in a tail too.
    position = (chunk.astype(np.int64) << 32) | row
    order = np.argsort(position, kind="stable")
    chosen = order[changes(position[order])]
    label = np.concatenate([receipts.earlier_label, column(tails, "label", np.int64)])[chosen]
    times_us = np.concatenate([receipts.earlier_received_at_us, column(tails, "received_at_us", np.int64)])[chosen]
    source = np.concatenate([receipts.earlier_source, tail_source])[chosen]
    ids, distinct = dense_ids(label, receipts)
    rows = link_rows(
        np.concatenate([times_us, receipts.received_at_us]),
        np.concatenate([source, receipts.source]),
        ids,
        sources=len(sources),
        distinct_ids=distinct,
    )
    duplicates_us = receipts.received_at_us[rows.earlier[len(chosen) :] >= 0]
    # Other tasks have the other processors.
    return Started(
        receipts,
        label,
        Section(
            domain,
            rows,
            len(chosen),
            sources,
            receipts.window_needs,
            measures.in_first_half(duplicates_us),
            threads=1,
        ),
    )
