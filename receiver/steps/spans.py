"""How many ids a source has sent between an entry of an earlier chunk and the begin of a later one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.steps.columns import changes, column, split_by
from receiver.steps.rows import Row, values_in
from receiver.steps.schemas import NEVER, Arrivals, Leaving, Plan
from receiver.steps.standings import Standings

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["arriving"]


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
    """Per departure, the entries of its series up to it that are replaced in the chunk it goes to, or later.

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


def arriving(plan: Plan, standings: Standings) -> Callable[[int, Iterator[Row]], Iterable[Row]]:
    """For `Flow.grouped`: `Leaving` -> `Arrivals`."""

    def work(_key: int, rows: Iterator[Row]) -> Iterator[Row]:
        (leaving,) = values_in(rows, Leaving)
        if leaving:
            yield from _arrivals(plan, standings, leaving)

    return work


def _series_of(standings: Standings, some: Leaving) -> npt.NDArray[np.int64]:
    # Only those that leave are sure to be known here.
    numbers = np.full(len(some.sources), -1, np.int64)
    for source in np.unique(some.source).tolist():
        numbers[source] = standings.series[some.domain, some.sources[source]]
    return numbers[some.source]


def _arrivals(plan: Plan, standings: Standings, leaving: list[Leaving]) -> Iterator[Row]:
    series = np.concatenate([_series_of(standings, some) for some in leaving])
    chunk = np.repeat(np.array([some.chunk for some in leaving], np.int32), [len(some.row) for some in leaving])
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
