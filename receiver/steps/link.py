"""Which receipts repeat an id of their domain, and which receipts of a chunk later chunks refer to.

In: the `Ids` of one partition, which has all receipts of its ids, of all domains and chunks. Out: the `Links` of each
chunk, and one `IdCounts`. A receipt is a duplicate exactly if its id came before in its domain. All receipts of the id are
here, so that is seen here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.shares import IdCounts, cross_domain_counts, queues_of
from receiver.steps.arrow_rows import Row, changes, column, in_one, joined, split_by, used, values_in
from receiver.steps.digests import numbered
from receiver.steps.schemas import NEVER, CutPlan, Ids, Latest, Links

if TYPE_CHECKING:
    import numpy.typing as npt


class _Several(NamedTuple):
    """Receipts whose id comes more than once, in whatever domain: few in most logs, and all that links have to look at."""

    id: npt.NDArray[np.int32]
    """Numbered in the partition."""
    chunk: npt.NDArray[np.int32]
    key_us: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int32]
    unit_row: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    digest_hash: npt.NDArray[np.uint64]

    def taken(self, rows: npt.NDArray[np.intp]) -> _Several:
        return _Several._make(values[rows] for values in self)


class _Runs(NamedTuple):
    """`_Several`, ordered by id, domain and receipt. Receipts of one id and domain, a *run*, stand together."""

    receipts: _Several
    first: npt.NDArray[np.bool_]
    """Whether its run begins here."""
    run: npt.NDArray[np.intp]
    by_source: npt.NDArray[np.intp]
    """The rows ordered by run, source, and receipt."""
    same_source: npt.NDArray[np.bool_]
    """In that order: whether the one before is of the same run and source."""
    next_in: npt.NDArray[np.int32]
    """In that order: `Links.next_in`."""


def linked(plan: CutPlan) -> Callable[[int, Iterator[Row]], Iterator[Row]]:
    """For `RowFlow.grouped`: all `Ids` of a partition become `Links` and one `IdCounts`; `Latest` is passed on."""
    return partial(_link, plan)


def _link(plan: CutPlan, partition: int, rows: Iterator[Row]) -> Iterator[Row]:
    ids, latest = values_in(rows, Ids, Latest)
    yield from (Row(0, each) for each in latest)
    at, several = _several(ids)
    runs = _runs(plan, several)
    yield from _links(plan, partition, runs)
    cross_domain = _cross_domain(plan, ids, at, several) if plan.looks_across_domains else {}
    yield Row(0, _counts(runs, cross_domain))


def _several(ids: Sequence[Ids]) -> tuple[list[npt.NDArray[np.intp]], _Several]:
    """The receipts, and which they are of each `Ids`."""
    number, count = numbered(*(column(ids, half, np.int64) for half in ("id_high", "id_low")))
    comes_again = np.bincount(number, minlength=count) > 1
    ends = np.cumsum([len(each.unit_row) for each in ids]).tolist()
    numbers = [number[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    at = [np.flatnonzero(comes_again[own]) for own in numbers]
    rows = list(zip(ids, at, strict=True))
    return at, _Several(
        id=joined(np.int32, (own[here] for own, here in zip(numbers, at, strict=True))),
        chunk=joined(
            np.int32, (each.chunk[np.searchsorted(each.chunk_end, here, side="right")] for each, here in rows)
        ),
        key_us=joined(np.int64, (each.key_us[here] for each, here in rows)),
        unit=joined(np.int32, (np.full(len(here), each.unit, np.int32) for each, here in rows)),
        unit_row=joined(np.int32, (each.unit_row[here] for each, here in rows)),
        source=in_one(used(each.source[here], each.sources) for each, here in rows)[0],
        digest_hash=joined(
            np.uint64,
            (
                each.digest_hash[here] if len(each.digest_hash) else np.zeros(len(here), np.uint64)
                for each, here in rows
            ),
        ),
    )


def _runs(plan: CutPlan, several: _Several) -> _Runs:
    order = np.lexsort((several.unit_row, several.unit, several.key_us, several.chunk, several.id))
    receipts = several.taken(order)
    first = changes(receipts.id) | changes(plan.chunk_domain[receipts.chunk])
    run = np.cumsum(first) - 1
    run_and_source = (run << 32) | receipts.source
    by_source = np.argsort(run_and_source, kind="stable")
    same_source = ~changes(run_and_source[by_source])
    next_in = np.where(np.roll(same_source, -1), np.roll(receipts.chunk[by_source], -1), np.int32(NEVER))
    return _Runs(receipts, first, run, by_source, same_source, next_in)


def _links(plan: CutPlan, partition: int, runs: _Runs) -> Iterator[Row]:
    receipts = runs.receipts
    replaces = np.empty(len(receipts.id), np.bool_)
    replaces[runs.by_source] = runs.same_source
    is_last = np.roll(runs.first, -1)
    next_in = np.empty(len(receipts.id), np.int32)
    next_in[runs.by_source] = runs.next_in
    rows = np.flatnonzero(np.bincount(runs.run)[runs.run] > 1) if len(runs.run) else runs.run
    ref_row, ref_to = _refs(runs)
    refs_of = dict(split_by(receipts.chunk[ref_row]))
    for chunk, at in split_by(receipts.chunk[rows]):
        here, refs = rows[at], refs_of.get(chunk, np.empty(0, np.int64))
        links = Links(
            chunk=chunk,
            unit=receipts.unit[here],
            unit_row=receipts.unit_row[here],
            label=runs.run[here] * plan.partitions + partition,
            is_again=~runs.first[here],
            replaces=replaces[here],
            is_last=is_last[here],
            next_in=next_in[here],
            ref_at=np.searchsorted(here, ref_row[refs]).astype(np.int32),
            ref_to=ref_to[refs],
        )
        yield Row(int(plan.chunk_task[chunk]), links)


def _refs(runs: _Runs) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """The receipts that later chunks refer to, once for each such chunk; and those chunks."""
    # A stop is rows of one chunk that follow each other. Where a run ends and the next begins in that chunk, they share it.
    receipts, by_source = runs.receipts, runs.by_source
    stops = changes(receipts.chunk)
    stop_chunk = receipts.chunk[stops]
    stop_number = np.cumsum(stops) - 1
    last_stop = stop_number[np.roll(runs.first, -1)]
    stop = stop_number[by_source]
    # All stops after its own refer to it, up to the one where its source sends the id again: maybe its own already.
    refs = np.where(runs.next_in < NEVER, np.roll(stop, -1), last_stop[runs.run[by_source]]) - stop
    each = np.repeat(np.arange(len(refs)), refs)
    return by_source[each], stop_chunk[stop[each] + _counted_up(refs)]


def _counted_up(lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """1, 2, ... up to each length in turn."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(1, 1 + int(lengths.sum())) - np.repeat(begins, lengths)


def _counts(runs: _Runs, cross_domain: dict[tuple[str, str], int]) -> IdCounts:
    is_again, source = ~runs.first[1:], runs.receipts.source
    now, before = runs.receipts.digest_hash[1:], runs.receipts.digest_hash[:-1]
    reused = is_again & (now != before) & (now != 0) & (before != 0)
    from_other_sources = is_again & (source[1:] != source[:-1])
    return IdCounts.of(int(np.count_nonzero(reused)), int(np.count_nonzero(from_other_sources)), cross_domain)


def _cross_domain(
    plan: CutPlan, ids: Sequence[Ids], at: Sequence[npt.NDArray[np.intp]], several: _Several
) -> dict[tuple[str, str], int]:
    """Repeats that the domain KEY hides: ids of one queue that are new in several domains."""
    rows = list(zip(ids, at, strict=True))
    destination, destinations = in_one(used(each.channel[here], each.destinations) for each, here in rows)
    connection, connections = in_one(used(each.channel[here], each.connections) for each, here in rows)
    queue = queues_of(destinations)[destination]
    order = np.lexsort((several.unit_row, several.unit, several.key_us))
    domain = plan.chunk_domain[several.chunk[order]]
    _, first = np.unique((several.id[order].astype(np.int64) << 32) | domain, return_index=True)
    new = np.zeros(len(order), np.bool_)
    new[order[first]] = True
    in_several = np.bincount(several.id[new]) > 1
    order = order[in_several[several.id[order]] & (queue[order] >= 0)]
    return cross_domain_counts(queue[order], several.id[order], new[order], connection[order], connections)
