"""From pieces of units to chunks of domains: receipts move once, to the bundle of their chunk, and are put in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from receiver.domains import domain_key
from receiver.simulate.limits import check_numbered
from receiver.simulate.numbering import distinct
from receiver.steps.columns import changes, in_one, order_unless_sorted, runs, used
from receiver.steps.rows import Row
from receiver.steps.schemas import Body, Ids, Opening, Piece, Plan, Stretch, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["assembled", "cut", "keys_us", "placing"]


def cut(plan: Plan) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """For `Flow.map`: each `Piece` becomes stretches, one for each bundle that it has receipts of."""
    return partial(_cut_pieces, plan)


def assembled(plan: Plan) -> Callable[[int, Iterator[Row]], Iterator[Row]]:
    """For `Flow.grouped`: the stretches of a bundle become, for each of its chunks, an `Opening`, a `Body` and `Ids`."""
    return partial(_assemble, plan)


class _Cuts(NamedTuple):
    """Where chunks begin that aren't the first of their domain."""

    chunk: npt.NDArray[np.int64]
    key_us: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]

    def positions(self, piece: Piece, key_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many receipts of a piece come before each."""
        own = np.clip(self.row - piece.first_row, 0, len(key_us))
        others = np.where(
            self.unit > piece.unit,
            np.searchsorted(key_us, self.key_us, side="right"),
            np.searchsorted(key_us, self.key_us, side="left"),
        )
        return np.where(self.unit == piece.unit, own, others)


def placing(plan: Plan) -> Callable[[Piece], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """Tells of each receipt of a piece its key and its chunk."""
    name = domain_key(plan.key).name
    numbers = {domain: number for number, domain in enumerate(plan.domains)}
    later = np.flatnonzero(plan.cut_key_us >= 0)
    cuts = _Cuts(later, plan.cut_key_us[later], plan.cut_unit[later], plan.cut_row[later])

    def places(piece: Piece) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        domains = np.array([numbers[name(channel)] for channel in channels_of(piece)], np.int64)
        key_us = keys_us(plan, piece)
        return key_us, _chunks(plan, cuts, domains[piece.channel], cuts.positions(piece, key_us))

    return places


def keys_us(plan: Plan, piece: Piece) -> npt.NDArray[np.int64]:
    """Of each receipt of a piece, the largest time of its file up to it."""
    latest_us = max(piece.latest_us, int(plan.carry_us[piece.unit]))
    keys: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(piece.received_at_us, latest_us))
    return keys


def _cut_pieces(plan: Plan, rows: Iterator[Row]) -> Iterator[Row]:
    places = placing(plan)
    for row in rows:
        for bundle, stretch in _stretches(plan, row.value, *places(row.value)):
            yield Row(bundle, stretch)


def _chunks(
    plan: Plan, cuts: _Cuts, domain: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """The chunk of each receipt of a piece, by its domain and the cuts that the piece lies behind."""
    passed = np.bincount(plan.chunk_domain[cuts.chunk[positions == 0]], minlength=len(plan.domains))
    chunk: npt.NDArray[np.int32] = (np.searchsorted(plan.chunk_domain, np.arange(len(plan.domains))) + passed)[
        domain
    ].astype(np.int32)
    for within in np.flatnonzero((positions > 0) & (positions < len(domain))).tolist():
        position = positions[within]
        chunk[position:] += domain[position:] == plan.chunk_domain[cuts.chunk[within]]
    return chunk


def _stretches(
    plan: Plan, piece: Piece, key_us: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]
) -> Iterator[tuple[int, Stretch]]:
    """Cut a piece by the bundles of its receipts, whose keys and chunks are given."""
    bundles, place = distinct(plan.chunk_bundle[chunk])
    order = order_unless_sorted(place)
    ends = np.cumsum(np.bincount(place)).tolist()
    clock_steps_back = not np.array_equal(key_us, piece.received_at_us)
    columns: dict[str, Any] = {
        "unit_row": piece.first_row + np.arange(len(key_us)),
        "chunk": chunk,
        "key_us": key_us if clock_steps_back else key_us[:0],
        "received_at_us": piece.received_at_us,
        "id_high": piece.id_high,
        "id_low": piece.id_low,
        "source": piece.source,
        "redelivered": piece.redelivered,
        "digest_hash": piece.digest_hash,
        "row_id": piece.row_id,
        "channel": piece.channel if plan.looks_for_crossing else piece.channel[:0],
    }
    if order is not None:
        columns = {name: column[order] if len(column) else column for name, column in columns.items()}
    for bundle, start, end in zip(bundles.tolist(), [0, *ends], ends, strict=False):
        some = {name: column[start:end] for name, column in columns.items()}
        some["source"], sources = used(some["source"], piece.sources)
        some["channel"], channels = used(some["channel"], list(zip(piece.connections, piece.destinations, strict=True)))
        yield (
            bundle,
            Stretch(
                unit=piece.unit,
                sources=sources,
                connections=[connection for connection, _ in channels],
                destinations=[destination for _, destination in channels],
                **some,
            ),
        )


class _Rows(NamedTuple):
    """Receipts of several units. A column that isn't there is empty, as in `Stretch`."""

    chunk: npt.NDArray[np.int32]
    key_us: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int32]
    unit_row: npt.NDArray[np.int64]
    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    redelivered: npt.NDArray[np.bool_]
    digest_hash: npt.NDArray[np.uint64]
    channel: npt.NDArray[np.int32]
    id_high: npt.NDArray[np.int64]
    id_low: npt.NDArray[np.int64]
    row_id: npt.NDArray[np.int64]

    def some(self, rows: npt.NDArray[Any] | slice) -> _Rows:
        return _Rows._make(column[rows] if len(column) else column for column in self)

    def without(self, *names: str) -> _Rows:
        return self._replace(**{name: getattr(self, name)[:0] for name in names})


class _Names(NamedTuple):
    """What numbers in `_Rows` stand for."""

    sources: list[str]
    channels: list[tuple[str, str]]
    """Connection and destination."""


def _assemble(plan: Plan, bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
    found, names = _joined([row.value for row in rows])
    order = _order(found)
    if order is not None:
        found = found.some(order)
    for start, end in runs(changes(found.chunk)):
        in_chunk = found.some(slice(start, end))
        has_id = (in_chunk.id_high != 0) | (in_chunk.id_low != 0)
        checked = in_chunk if has_id.all() else in_chunk.some(has_id)
        chunk = int(in_chunk.chunk[0])
        yield Row(bundle, _opening(chunk, in_chunk, checked, names))
        yield Row(bundle, _body(plan, chunk, in_chunk.received_at_us[~has_id], checked, names))
        yield from _ids(plan, chunk, checked, names)


def _joined(stretches: list[Stretch]) -> tuple[_Rows, _Names]:
    """All receipts by unit, then row."""
    stretches.sort(key=lambda stretch: (stretch.unit, stretch.unit_row[0]))
    sizes = [len(stretch.received_at_us) for stretch in stretches]
    source, sources = in_one((each.source, each.sources) for each in stretches)
    channel, channels = in_one(
        (each.channel, list(zip(each.connections, each.destinations, strict=True))) for each in stretches
    )
    rows = _Rows(
        chunk=np.concatenate([stretch.chunk for stretch in stretches]),
        key_us=np.concatenate(
            [stretch.key_us if len(stretch.key_us) else stretch.received_at_us for stretch in stretches]
        ),
        unit=np.repeat(np.array([stretch.unit for stretch in stretches], np.int32), sizes),
        unit_row=np.concatenate([stretch.unit_row for stretch in stretches]),
        received_at_us=np.concatenate([stretch.received_at_us for stretch in stretches]),
        source=source,
        redelivered=_filled([stretch.redelivered for stretch in stretches], sizes),
        digest_hash=_filled([stretch.digest_hash for stretch in stretches], sizes),
        channel=channel,
        id_high=np.concatenate([stretch.id_high for stretch in stretches]),
        id_low=np.concatenate([stretch.id_low for stretch in stretches]),
        row_id=np.concatenate([stretch.row_id for stretch in stretches]),
    )
    return rows, _Names(sources, channels)


def _filled(columns: Sequence[npt.NDArray[Any]], sizes: Sequence[int]) -> npt.NDArray[Any]:
    """One column of several, with zeros for those that aren't there; empty where none is."""
    if not any(len(column) for column in columns):
        return columns[0]
    kind = columns[0].dtype
    return np.concatenate(
        [column if len(column) else np.zeros(size, kind) for column, size in zip(columns, sizes, strict=True)]
    )


def _parts(plan: Plan, chunk: int, id_low: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Where ids of a chunk go: equal ones to the same part.

    A small domain stays together where only ids of one domain are compared: of many small domains, each would
    otherwise be torn into as many rows as it has ids.
    """
    domain = plan.chunk_domain[chunk]
    if plan.is_whole[domain]:
        return np.full(len(id_low), domain % plan.partitions, np.int32)
    return (id_low.view(np.uint64) % np.uint64(plan.partitions)).astype(np.int32)


def _order(rows: _Rows) -> npt.NDArray[np.int64] | None:
    """By (chunk, key, unit, row), given by (unit, row); None where they stand so."""
    by_key = order_unless_sorted(rows.key_us)
    by_chunk = order_unless_sorted(rows.chunk if by_key is None else rows.chunk[by_key])
    if by_key is None or by_chunk is None:
        return by_chunk if by_key is None else by_key
    return by_key[by_chunk]


def _opening(chunk: int, rows: _Rows, checked: _Rows, names: _Names) -> Opening:
    return Opening(
        chunk=chunk,
        receipts=len(rows.chunk),
        latest_us=int(checked.received_at_us.max(initial=-1)),
        sources=used(rows.source, names.sources)[1],
    )


def _body(plan: Plan, chunk: int, unchecked_at_us: npt.NDArray[np.int64], checked: _Rows, names: _Names) -> Body:
    source, sources = used(checked.source, names.sources)
    return Body(
        chunk=chunk,
        received_at_us=checked.received_at_us,
        source=source,
        sources=sources,
        redelivered=checked.redelivered,
        number=_numbers(plan, checked) if plan.keeps_rows else checked.row_id[:0],
        unchecked_at_us=unchecked_at_us,
    )


def _numbers(plan: Plan, rows: _Rows) -> npt.NDArray[np.int64]:
    return rows.row_id if len(rows.row_id) else plan.unit_number[rows.unit] + rows.unit_row


def _ids(plan: Plan, chunk: int, checked: _Rows, names: _Names) -> Iterator[Row]:
    check_numbered(len(checked.source), "receipts in one chunk")
    row = np.arange(len(checked.source), dtype=np.int32)
    part = _parts(plan, chunk, checked.id_low)
    dealt = checked.without("chunk", "received_at_us", "redelivered", "row_id")
    if not plan.looks_for_crossing:
        dealt = dealt.without("key_us", "unit", "unit_row", "channel")
    by_part = order_unless_sorted(part)
    if by_part is not None:
        row, part, dealt = row[by_part], part[by_part], dealt.some(by_part)
    for first, last in runs(changes(part)):
        yield Row(int(part[first]), _ids_of(chunk, row[first:last], dealt.some(slice(first, last)), names))


def _ids_of(chunk: int, row: npt.NDArray[np.int32], rows: _Rows, names: _Names) -> Ids:
    source, sources = used(rows.source, names.sources)
    channel, channels = used(rows.channel, names.channels)
    return Ids(
        chunk=chunk,
        row=row,
        id_high=rows.id_high,
        id_low=rows.id_low,
        source=source,
        sources=sources,
        digest_hash=rows.digest_hash,
        key_us=rows.key_us,
        unit=rows.unit,
        unit_row=rows.unit_row,
        channel=channel,
        connections=[connection for connection, _ in channels],
        destinations=[destination for _, destination in channels],
    )
