"""From pieces of units to chunks of domains: receipts move once, to the bundle of their chunk, and are put in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from receiver.chunks.columns import changes, in_one, order_unless_sorted, runs, used
from receiver.chunks.parcels import Parcel, parcel_of, unpack
from receiver.chunks.values import Body, Ids, Opening, Piece, Plan, channels_of
from receiver.domains import domain_key
from receiver.simulate.interning import hash_texts, text_buffers
from receiver.simulate.limits import check_numbered
from receiver.simulate.numbering import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Stretch", "assembled", "chunks_of", "cut", "keys_us", "parts_of", "placing", "stretches_of"]

_MOST_TEXT_BYTES = 64 << 20
"""Of a parcel: Arrow's texts end at 2 GB, and a task shouldn't hold many such."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The receipts of a piece whose chunks are in one bundle, in order. Key: the bundle."""

    unit: int
    unit_row: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int32]
    key_us: npt.NDArray[np.int64]
    """Empty where it is the time, as it is while a clock doesn't step back."""
    received_at_us: npt.NDArray[np.int64]
    unique_message_id: pa.Array
    source: npt.NDArray[np.int32]
    sources: list[str]
    redelivered: npt.NDArray[np.bool_]
    """Empty where the file lacks it, and so is the next."""
    digest_hash: npt.NDArray[np.uint64]
    channel: npt.NDArray[np.int32]
    """Only where the plan keeps channels."""
    connections: list[str]
    destinations: list[str]


def cut(plan: Plan) -> Callable[[Iterator[Parcel]], Iterator[Parcel]]:
    """For `Flow.map`: each `Piece` becomes stretches, one for each bundle that it has receipts of."""
    return partial(_cut_pieces, plan)


def assembled(plan: Plan) -> Callable[[int, Iterator[Parcel]], Iterator[Parcel]]:
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


def _cut_pieces(plan: Plan, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    places = placing(plan)
    for parcel in parcels:
        piece = unpack(Piece, parcel.payload)
        for bundle, stretch in stretches_of(plan, piece, *places(piece)):
            yield parcel_of(bundle, stretch)


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


def stretches_of(
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
        "unique_message_id": piece.unique_message_id,
        "source": piece.source,
        "redelivered": piece.redelivered,
        "digest_hash": piece.digest_hash,
        "channel": piece.channel if plan.keeps_channels else piece.channel[:0],
    }
    if order is not None:
        columns = {name: _taken(column, order) for name, column in columns.items()}
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


def _taken(column: Any, rows: npt.NDArray[np.int64]) -> Any:
    if not len(column):
        return column  # one that isn't there
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


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
    part: npt.NDArray[np.int32]
    id_bytes: npt.NDArray[np.int32]
    id_place: npt.NDArray[np.int64]
    """Of the id among the texts, which stay as they came."""

    def some(self, rows: npt.NDArray[Any] | slice) -> _Rows:
        return _Rows._make(column[rows] if len(column) else column for column in self)

    def without(self, *names: str) -> _Rows:
        return self._replace(**{name: getattr(self, name)[:0] for name in names})


class _Texts(NamedTuple):
    """What numbers in `_Rows` stand for."""

    ids: pa.Array
    """`large_string`, as a bundle of long ids may have more than 2 GB."""
    sources: list[str]
    channels: list[tuple[str, str]]
    """Connection and destination."""


def _assemble(plan: Plan, bundle: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    yield from chunks_of(plan, bundle, (unpack(Stretch, parcel.payload) for parcel in parcels))


def chunks_of(plan: Plan, bundle: int, stretches: Iterable[Stretch]) -> Iterator[Parcel]:
    """Of each chunk of a bundle that some stretch has receipts of, the `Opening`, the `Body` and `Ids`."""
    rows, texts = _joined(plan, list(stretches))
    order = _order(rows)
    if order is not None:
        rows = rows.some(order)
    for start, end in runs(changes(rows.chunk)):
        in_chunk = rows.some(slice(start, end))
        checked = in_chunk if in_chunk.id_bytes.all() else in_chunk.some(in_chunk.id_bytes > 0)
        chunk = int(in_chunk.chunk[0])
        yield parcel_of(bundle, _opening(chunk, in_chunk, checked, texts))
        yield parcel_of(bundle, _body(chunk, in_chunk, checked, texts))
        yield from _ids(chunk, checked, texts)


def _joined(plan: Plan, stretches: list[Stretch]) -> tuple[_Rows, _Texts]:
    """All receipts by unit, then row."""
    stretches.sort(key=lambda stretch: (stretch.unit, stretch.unit_row[0]))
    sizes = [len(stretch.received_at_us) for stretch in stretches]
    source, sources = in_one((each.source, each.sources) for each in stretches)
    channel, channels = in_one(
        (each.channel, list(zip(each.connections, each.destinations, strict=True))) for each in stretches
    )
    ids = [stretch.unique_message_id for stretch in stretches]
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
        part=np.concatenate([parts_of(plan, stretch.chunk, stretch.unique_message_id) for stretch in stretches]),
        id_bytes=np.concatenate([np.diff(text_buffers(texts)[0]) for texts in ids]),
        id_place=np.arange(sum(sizes)),
    )
    joined = pa.concat_arrays([texts.cast(pa.large_string()) for texts in ids])
    return rows, _Texts(joined, sources, channels)


def _filled(columns: Sequence[npt.NDArray[Any]], sizes: Sequence[int]) -> npt.NDArray[Any]:
    """One column of several, with zeros for those that aren't there; empty where none is."""
    if not any(len(column) for column in columns):
        return columns[0]
    kind = columns[0].dtype
    return np.concatenate(
        [column if len(column) else np.zeros(size, kind) for column, size in zip(columns, sizes, strict=True)]
    )


def parts_of(plan: Plan, chunk: npt.NDArray[np.int32], ids: pa.Array) -> npt.NDArray[np.int32]:
    """Where ids go, each of a receipt in some chunk: those that may be equal to the same part.

    A small domain stays together where only ids of one domain are compared: of many small domains, each would
    otherwise be torn into as many parcels as it has ids.
    """
    domain = plan.chunk_domain[chunk]
    of_domain = domain % np.int32(plan.partitions)
    whole = plan.is_whole[domain]
    if whole.all():
        return of_domain
    hashes = np.empty(len(chunk), np.uint64)
    hash_texts(*text_buffers(ids), np.uint64(plan.hash_seed), hashes)
    return np.where(whole, of_domain, (hashes % np.uint64(plan.partitions)).astype(np.int32))


def _order(rows: _Rows) -> npt.NDArray[np.int64] | None:
    """By (chunk, key, unit, row), given by (unit, row); None where they stand so."""
    by_key = order_unless_sorted(rows.key_us)
    by_chunk = order_unless_sorted(rows.chunk if by_key is None else rows.chunk[by_key])
    if by_key is None or by_chunk is None:
        return by_chunk if by_key is None else by_key
    return by_key[by_chunk]


def _opening(chunk: int, rows: _Rows, checked: _Rows, texts: _Texts) -> Opening:
    return Opening(
        chunk=chunk,
        receipts=len(rows.chunk),
        latest_us=int(checked.received_at_us.max(initial=-1)),
        sources=used(rows.source, texts.sources)[1],
    )


def _body(chunk: int, rows: _Rows, checked: _Rows, texts: _Texts) -> Body:
    source, sources = used(checked.source, texts.sources)
    return Body(
        chunk=chunk,
        received_at_us=checked.received_at_us,
        source=source,
        sources=sources,
        redelivered=checked.redelivered,
        unit=checked.unit,
        unit_row=checked.unit_row,
        unchecked_at_us=rows.received_at_us[rows.id_bytes == 0],
    )


def _ids(chunk: int, checked: _Rows, texts: _Texts) -> Iterator[Parcel]:
    check_numbered(len(checked.part), "receipts in one chunk")
    row = np.arange(len(checked.part), dtype=np.int32)
    dealt = checked.without("chunk", "received_at_us", "redelivered")
    if not len(checked.channel):
        dealt = dealt.without("key_us", "unit", "unit_row")
    by_part = order_unless_sorted(checked.part)
    if by_part is not None:
        row, dealt = row[by_part], dealt.some(by_part)
    for first, last in runs(changes(dealt.part)):
        size_bytes = np.cumsum(dealt.id_bytes[first:last], dtype=np.int64)
        for start, end in runs(changes(size_bytes // _MOST_TEXT_BYTES)):
            some = slice(first + start, first + end)
            yield parcel_of(int(dealt.part[first]), _ids_of(chunk, row[some], dealt.some(some), texts))


def _ids_of(chunk: int, row: npt.NDArray[np.int32], rows: _Rows, texts: _Texts) -> Ids:
    source, sources = used(rows.source, texts.sources)
    channel, channels = used(rows.channel, texts.channels)
    return Ids(
        chunk=chunk,
        row=row,
        text=texts.ids.take(pa.array(rows.id_place)).cast(pa.string()),
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
