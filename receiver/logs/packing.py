"""Packs a batch of receipts into bytes, in which it waits for a recording; and unpacks it into rows of a log.

Packing must cost next to nothing, because a receiver does it in each batch. A thread unpacks.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from receiver.domains import Channel
from receiver.logs.columns import BATCH_ROWS, COLUMNS, SCHEMA, ValueKind, log_rows
from receiver.message import Receipt, ReceiptRow, ReceiptValues

if TYPE_CHECKING:
    import numpy.typing as npt

_id_of, _source_of, _time_of = (
    itemgetter(ReceiptRow._fields.index(name)) for name in ("unique_message_id", "message_source_id", "received_at_us")
)
_MICROSECONDS = np.dtype("<i8")
_LONGEST_TEXT_BYTES = 1 << 20
"""The longest text: no broker carries a longer id, and no reader takes a line of hundreds of MB."""
_LARGEST_BATCH_BYTES = 256 << 20
"""The largest batch: every database takes so much in one value, even in hexadecimal digits."""
_COLUMN_OF_FIELD = {column.attribute: name for name, column in COLUMNS.items()} | {"redelivered": "jms_redelivered"}
"""Field of a `Receipt` -> the column in which it is recorded."""

IndexedReceipt = tuple[int, Receipt]
"""A receipt with more than an id, a source and a time, behind its index in the batch."""


class Packed(NamedTuple):
    receipts: int
    size_bytes: int
    """The size before compression."""
    data: bytes


class UnpackedBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch as it is packed. Receipts with no more than an id, a source and a time are in columns, which cost least."""

    ids: bytes
    """The ids, one on each line: Arrow splits lines without blocking other threads."""
    sources: bytes
    times: bytes
    """The times in microseconds, 8 bytes each."""
    full: list[tuple[int, list[Any]]]
    """The other receipts, or all if a text has a line break, each behind its index in the batch."""
    channel: tuple[str, ...] = ()
    """The parts of a `Channel`; a batch packed by an earlier version may have fewer."""

    @property
    def receipts(self) -> int:
        return len(self.times) // _MICROSECONDS.itemsize + len(self.full)


class _Zstandard(threading.local):
    """Each thread's own compressor: making one takes as long as compressing a batch."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=-1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstandard = _Zstandard()
_encode = msgspec.msgpack.Encoder().encode
decoded = msgspec.msgpack.Decoder(UnpackedBatch).decode
"""Decodes a batch from uncompressed bytes, as in journals of earlier versions."""


def packed(rows: Sequence[ReceiptValues], full: Sequence[IndexedReceipt], channel: Channel) -> Packed:
    """Pack a batch: `full` has its receipts with more than id, source and time, `rows` has the others.

    `ValueError` for a receipt that no log can hold, or a batch that no database takes.
    """
    if any((receipt.received_at_us or 0) < 0 for _, receipt in full):  # a row's time is the domain's, so never negative
        raise ValueError("a time before the epoch")
    ids = "\n".join(list(map(_id_of, rows))).encode()
    sources = "\n".join([_source_of(row) or "" for row in rows]).encode()
    if rows and not ids.count(b"\n") == sources.count(b"\n") == len(rows) - 1:
        return packed((), list(enumerate(receipts_of(rows, full))), channel)
    times = struct.pack(f"<{len(rows)}q", *map(_time_of, rows))
    data = _encode((ids, sources, times, full, channel))
    if len(data) > _LONGEST_TEXT_BYTES:
        texts = chain.from_iterable((*rows, *(receipt for _, receipt in full)))
        if any(isinstance(text, str) and len(text.encode()) > _LONGEST_TEXT_BYTES for text in texts):
            raise ValueError("a text that is too long")
    if len(data) > _LARGEST_BATCH_BYTES:
        raise ValueError(f"a batch of more than {_LARGEST_BATCH_BYTES >> 20} MiB")
    return Packed(len(rows) + len(full), len(data), _zstandard.compress(data))


def unpacked(data: bytes) -> UnpackedBatch:
    """The batch in these bytes; `ValueError` if they are no batch."""
    try:
        return decoded(_zstandard.decompress(data))
    except (msgspec.MsgspecError, zstandard.ZstdError) as error:
        raise ValueError(f"no batch of receipts: {error}") from error


def receipts_of(rows: Sequence[ReceiptValues], full: Sequence[IndexedReceipt]) -> list[Receipt]:
    """All receipts of a batch, in their order."""
    others = dict(full)
    plain = (Receipt(_id_of(row), _source_of(row), _time_of(row)) for row in rows)
    return [others.get(index) or next(plain) for index in range(len(rows) + len(full))]


def rows_of(batches: Iterable[UnpackedBatch]) -> Iterator[pa.RecordBatch]:
    """The receipts of batches as rows of `SCHEMA`, tens of thousands at a time."""
    held: list[UnpackedBatch] = []
    receipts = 0
    for batch in batches:
        held.append(batch)
        receipts += batch.receipts
        if receipts >= BATCH_ROWS:
            yield _rows(held)
            held, receipts = [], 0
    if receipts:
        yield _rows(held)


def _rows(batches: Sequence[UnpackedBatch]) -> pa.RecordBatch:
    by_channel = groupby(batches, key=attrgetter("channel"))
    return _joined([_rows_of(list(several), Channel(*channel)) for channel, several in by_channel])


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).unify_dictionaries().combine_chunks().to_batches()[0]


def _rows_of(batches: Sequence[UnpackedBatch], channel: Channel) -> pa.RecordBatch:
    full: list[Receipt] = []
    full_at: list[int] = []
    receipts = 0
    for batch in batches:
        full += [Receipt(*fields) for _, fields in batch.full]
        full_at += [receipts + index for index, _ in batch.full]
        receipts += batch.receipts
    others = recordable(full, channel)
    plain = [batch for batch in batches if batch.times]
    if not plain:
        return others
    rows = _plain_rows(
        _split(batch.ids for batch in plain),
        _split(batch.sources for batch in plain),
        np.frombuffer(b"".join(batch.times for batch in plain), _MICROSECONDS),
        channel,
    )
    if not full:
        return rows
    plain_at = np.delete(np.arange(receipts), full_at)
    if len(others) < len(full):  # receipts that no log can hold were left out
        full_at = np.delete(full_at, list(problems_of(full, channel))).tolist()
    order = np.argsort(np.concatenate([plain_at, full_at]))
    return _joined([rows, others]).take(pa.array(order))


def _split(joined: Iterable[bytes]) -> pa.Array:
    return pc.split_pattern(pa.array([b"\n".join(joined)], pa.large_string()), "\n").flatten().cast(pa.string())


def recordable(receipts: Sequence[Receipt], channel: Channel) -> pa.RecordBatch:
    """The receipts that readers accept, as rows of `SCHEMA`; the others are left out."""
    try:
        return _checked_rows(receipts, channel)
    except ValueError:
        problems = problems_of(receipts, channel)
        good = [receipt for index, receipt in enumerate(receipts) if index not in problems]
        return _checked_rows(good, channel)


def problems_of(receipts: Sequence[Receipt], channel: Channel) -> dict[int, str]:
    """The problem of each receipt that no log can hold, by its index."""
    return dict(_problems(receipts, 0, channel))


def _problems(receipts: Sequence[Receipt], first: int, channel: Channel) -> Iterator[tuple[int, str]]:
    """Find them by bisection, because usually few receipts are bad. `first` is the index of the first of these receipts."""
    try:
        _checked_rows(receipts, channel)
    except ValueError as refusal:
        if len(receipts) == 1:
            yield first, str(refusal)
            return
        half = len(receipts) // 2
        yield from _problems(receipts[:half], first, channel)
        yield from _problems(receipts[half:], first + half, channel)


def _checked_rows(receipts: Sequence[Receipt], channel: Channel) -> pa.RecordBatch:
    values_of = zip(*receipts, strict=True) if receipts else [()] * len(Receipt._fields)
    columns = _channel_columns(len(receipts), channel)
    for field, values in zip(Receipt._fields, values_of, strict=True):
        columns[_COLUMN_OF_FIELD[field]] = _checked(_COLUMN_OF_FIELD[field], values)
    return log_rows(columns, len(receipts))


def _plain_rows(
    ids: pa.Array, sources: pa.Array, received_at_us: npt.NDArray[np.int64], channel: Channel
) -> pa.RecordBatch:
    """Rows of `SCHEMA` for checked receipts with no more than an id, a source and a time."""
    columns = _channel_columns(len(ids), channel) | {
        "received_at": pa.array(received_at_us, pa.int64()).cast(SCHEMA.field("received_at").type),
        "unique_message_id": ids,
        "message_source_id": sources.dictionary_encode(),
        "jms_redelivered": pa.repeat(False, len(ids)),  # noqa: FBT003 - a value
    }
    return log_rows(columns, len(ids))


def _channel_columns(size: int, channel: Channel) -> dict[str, pa.Array]:
    return {column: pa.repeat(text, size).dictionary_encode() for column, text in channel._asdict().items()}


def _checked(name: str, values: Sequence[Any]) -> pa.Array:
    """A column of `SCHEMA`; `ValueError` if no log can hold one of the values."""
    declared = COLUMNS[name]
    arrow = pa.int64() if declared.kind is ValueKind.TIME else declared.arrow
    try:
        column = pa.array(values, arrow)
    except UnicodeEncodeError:
        raise ValueError(f"a lone surrogate in {name}, which UTF-8 can't hold") from None
    except (TypeError, ValueError, OverflowError):  # Arrow's errors are subclasses of these
        raise ValueError(f"{name} is of a wrong type, or too large") from None
    if declared.kind is ValueKind.TIME and column.null_count:
        raise ValueError(f"{name} is missing")
    if declared.kind.largest:
        ends = pc.min_max(column).as_py()
        if (ends["min"] or 0) < 0 or (ends["max"] or 0) > declared.kind.largest:
            raise ValueError(f"{name} lies before the epoch or beyond the year 9999")
    if declared.kind is ValueKind.TEXT:
        words = column.dictionary if pa.types.is_dictionary(arrow) else column
        if (pc.max(pc.binary_length(words)).as_py() or 0) > _LONGEST_TEXT_BYTES:
            raise ValueError(f"{name} is longer than {_LONGEST_TEXT_BYTES >> 20} MiB")
    return column.cast(declared.arrow)
