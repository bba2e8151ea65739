"""Which receipts repeat an id of their domain, and which receipts of a chunk later chunks look back to for it.

Ids are dealt to parts by their hash, so a part has all receipts of its ids, of all domains and chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.crossing import crossing_ways, queues_of
from receiver.steps.columns import changes, column, in_one, joined, split_by, used
from receiver.steps.digests import numbered
from receiver.steps.rows import Row
from receiver.steps.schemas import NEVER, Departures, Ids, Labels, LinkCounts, Plan, label_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["linked"]


class _Repeated(NamedTuple):
    """What repeats of some ids of a chunk."""

    ids: Ids
    at: npt.NDArray[np.intp]
    """Where in `ids` the receipts are whose id comes more than once in the part, in whatever domain."""
    id: npt.NDArray[np.int32]
    """The numbers of their ids in the part."""


class _Rows(NamedTuple):
    """Receipts of ids that repeat, ordered by id, domain, and receipt: those of one id and domain, a *run*, stand
    together.
    """

    place: npt.NDArray[np.intp]
    """Where each stands among what `_repeated` found."""
    chunk: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    digest_hash: npt.NDArray[np.uint64]
    first: npt.NDArray[np.bool_]
    """Whether its run begins here."""
    run: npt.NDArray[np.intp]
    by_source: npt.NDArray[np.intp]
    """The same rows ordered by run, source, and receipt."""
    same_source: npt.NDArray[np.bool_]
    """In that order: whether the one before is of the same run and source."""


def linked(plan: Plan) -> Callable[[int, Iterator[Row]], Iterator[Row]]:
    """For `Flow.grouped`: all `Ids` of a part become `Labels`, `Departures` and one `LinkCounts`."""
    return partial(_link, plan)


def _link(plan: Plan, _part: int, rows: Iterator[Row]) -> Iterator[Row]:
    found = _repeated([row.value for row in rows])
    repeats = _rows(found, plan)
    yield from _labels(repeats, plan)
    yield from _departures(repeats, plan)
    ways = _ways(found, repeats.place[repeats.first]) if plan.looks_for_crossing else {}
    yield Row(0, _counts(repeats, ways))


def _repeated(read: Sequence[Ids]) -> list[_Repeated]:
    """The receipts of ids that come more than once: few in most logs, and all that links have to look at."""
    numbers, count = numbered(*(column(read, half, np.int64) for half in ("id_high", "id_low")))
    several = np.bincount(numbers, minlength=count) > 1
    found, begin = [], 0
    for ids in read:
        own = numbers[begin : begin + len(ids.row)]
        at = np.flatnonzero(several[own])
        found.append(_Repeated(ids, at, own[at]))
        begin += len(own)
    return found


def _rows(found: Sequence[_Repeated], plan: Plan) -> _Rows:
    id_ = joined(np.int32, (some.id for some in found))
    chunk = joined(np.int32, (np.full(len(some.at), some.ids.chunk, np.int32) for some in found))
    row = joined(np.int32, (some.ids.row[some.at] for some in found))
    source, sources = in_one(used(some.ids.source[some.at], some.ids.sources) for some in found)
    digest_hash = joined(np.uint64, (_digests(some) for some in found))
    by_id = np.lexsort((row, chunk, id_))
    first = changes(id_[by_id]) | changes(plan.chunk_domain[chunk[by_id]])
    run = np.cumsum(first) - 1
    run_and_source = run * len(sources) + source[by_id]
    by_source = np.argsort(run_and_source, kind="stable")
    return _Rows(
        place=by_id,
        chunk=chunk[by_id],
        row=row[by_id],
        digest_hash=digest_hash[by_id],
        first=first,
        run=run,
        by_source=by_source,
        same_source=~changes(run_and_source[by_source]),
    )


def _digests(some: _Repeated) -> npt.NDArray[np.uint64]:
    digests = some.ids.digest_hash
    return digests[some.at] if len(digests) else np.zeros(len(some.at), np.uint64)


def _labels(rows: _Rows, plan: Plan) -> Iterator[Row]:
    replaces = np.empty(len(rows.row), np.bool_)
    replaces[rows.by_source] = rows.same_source
    labels = label_of(rows.chunk[rows.first], rows.row[rows.first])[rows.run]
    again = np.flatnonzero(~rows.first)
    for chunk, places in split_by(rows.chunk[again], rows.row[again]):
        at = again[places]
        yield Row(int(plan.chunk_bundle[chunk]), Labels(chunk, rows.row[at], labels[at], replaces[at]))


def _departures(rows: _Rows, plan: Plan) -> Iterator[Row]:
    # A stop is a stretch of rows of one chunk. Where a run ends and the next begins in that chunk, they share it.
    stops = changes(rows.chunk)
    stop_chunk = rows.chunk[stops]
    stop_number = np.cumsum(stops) - 1
    last_stop = stop_number[np.roll(rows.first, -1)]
    chunk, row, stop = rows.chunk[rows.by_source], rows.row[rows.by_source], stop_number[rows.by_source]
    replaced = np.roll(rows.same_source, -1)
    replaced_in = np.where(replaced, np.roll(chunk, -1), np.int32(NEVER))
    # All stops after its own look back to it, up to the one where its source sends the id again: maybe its own already.
    looks = np.where(replaced, np.roll(stop, -1), last_stop[rows.run[rows.by_source]]) - stop
    leaves = np.repeat(np.arange(len(looks)), looks)
    to_stop = stop[leaves] + _counted_up(looks)
    for number, at in split_by(chunk[leaves], row[leaves], stop_chunk[to_stop]):
        departing = Departures(number, row[leaves[at]], stop_chunk[to_stop[at]], replaced_in[leaves[at]])
        yield Row(int(plan.chunk_bundle[number]), departing)


def _counted_up(lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """1, 2, ... up to each length in turn."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(1, 1 + int(lengths.sum())) - np.repeat(begins, lengths)


def _counts(rows: _Rows, ways: dict[tuple[str, str], int]) -> LinkCounts:
    now, before = rows.digest_hash[1:], rows.digest_hash[:-1]
    reused = ~rows.first[1:] & (now != before) & (now != 0) & (before != 0)
    return LinkCounts(
        reused=int(np.count_nonzero(reused)),
        way_from=[source for source, _ in ways],
        way_to=[target for _, target in ways],
        way_count=np.array(list(ways.values()), np.int64),
    )


def _ways(found: Sequence[_Repeated], firsts: npt.NDArray[np.intp]) -> dict[tuple[str, str], int]:
    """Repeats that the domain KEY hides: ids of one queue that are new in several domains.

    `firsts` are the places, among all of `found`, of the receipts that are new in their domain.
    """
    id_ = joined(np.int32, (some.id for some in found))
    destination, destinations = in_one(used(some.ids.channel[some.at], some.ids.destinations) for some in found)
    connection, connections = in_one(used(some.ids.channel[some.at], some.ids.connections) for some in found)
    queue = queues_of(destinations)[destination]
    new = np.zeros(len(id_), np.bool_)
    new[firsts] = True
    in_several = np.bincount(id_[new]) > 1
    rows = np.flatnonzero(in_several[id_] & (queue >= 0))
    key_us = joined(np.int64, (some.ids.key_us[some.at] for some in found))
    unit = joined(np.int32, (some.ids.unit[some.at] for some in found))
    unit_row = joined(np.int64, (some.ids.unit_row[some.at] for some in found))
    rows = rows[np.lexsort([column[rows] for column in (unit_row, unit, key_us)])]
    return crossing_ways(queue[rows], id_[rows], new[rows], connection[rows], connections)
