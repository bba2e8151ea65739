"""Which receipts repeat an id of their domain, and which receipts of a chunk later chunks look back to for it.

Ids are dealt to parts by their hash, so a part has all receipts of its ids, of all domains and chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.chunks.columns import changes, in_one, joined, split_by, used
from receiver.chunks.crossing import ways_among
from receiver.chunks.parcels import Parcel, parcel_of
from receiver.chunks.repeats import Repeated, repeated
from receiver.chunks.values import NEVER, Departures, Labels, LinkCounts, Plan, label_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["linked"]


class _Rows(NamedTuple):
    """Receipts of ids that repeat, ordered by id, domain, and receipt: those of one id and domain, a *run*, stand
    together.
    """

    place: npt.NDArray[np.intp]
    """Where each stands among what `repeated` found."""
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


def linked(plan: Plan) -> Callable[[int, Iterator[Parcel]], Iterator[Parcel]]:
    """For `Flow.grouped`: all `Ids` of a part become `Labels`, `Departures` and one `LinkCounts`."""
    return partial(_link, plan)


def _link(plan: Plan, _part: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    found = repeated(parcels)
    rows = _rows(found, plan)
    yield from _labels(rows, plan)
    yield from _departures(rows, plan)
    ways = ways_among(found, rows.place[rows.first]) if plan.looks_for_crossing else {}
    yield parcel_of(0, _counts(rows, ways))


def _rows(found: Sequence[Repeated], plan: Plan) -> _Rows:
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


def _digests(some: Repeated) -> npt.NDArray[np.uint64]:
    digests = some.ids.digest_hash
    return digests[some.at] if len(digests) else np.zeros(len(some.at), np.uint64)


def _labels(rows: _Rows, plan: Plan) -> Iterator[Parcel]:
    replaces = np.empty(len(rows.row), np.bool_)
    replaces[rows.by_source] = rows.same_source
    labels = label_of(rows.chunk[rows.first], rows.row[rows.first])[rows.run]
    again = np.flatnonzero(~rows.first)
    for chunk, places in split_by(rows.chunk[again], rows.row[again]):
        at = again[places]
        yield parcel_of(int(plan.chunk_bundle[chunk]), Labels(chunk, rows.row[at], labels[at], replaces[at]))


def _departures(rows: _Rows, plan: Plan) -> Iterator[Parcel]:
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
        yield parcel_of(int(plan.chunk_bundle[number]), departing)


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
