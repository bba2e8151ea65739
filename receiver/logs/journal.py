"""The journal of a recording: the receipts of each batch, written before it is committed, and which batches were.

    magic, frame of the header, frames: payload bytes (4), checksum (4), number (8), payload

A frame with a payload is a batch; one without says that the batch of its number is committed. A batch without such a
second frame is *uncertain*: if its writer is dead, only its store knows whether it was committed. A batch that was rolled
back is cut off. Whatever comes after the last whole frame was being written as the process was killed, so its batch was
never committed. A journal that was left in order ends with a frame that says so; without it, its writer is dead, or still
at work.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver.domains import Channel
from receiver.logs.columns import BATCH_ROWS, COLUMNS, SCHEMA, Kind, LogBatch, fields_of, log_rows
from receiver.logs.rows import BatchMaker, RawRows
from receiver.logs.source import LogSource, ReadOptions
from receiver.message import Receipt, ReceiptRow

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "JOURNAL_BEGINS",
    "IndexedReceipt",
    "JournalHeader",
    "Scanned",
    "beginning",
    "columns_of",
    "encoded",
    "end",
    "frame",
    "read_journal",
    "receipts_of",
    "recordable",
    "refused",
    "rows_in",
    "scanned",
]

JOURNAL_BEGINS = b"receiver journal 1\n"
_HEAD = struct.Struct("<IIq")
_HEADER = -1
"""The number of the header's frame; batches are numbered from 1."""
_ENDED = -2
_BITS = (1 << 32) - 1
_TIME = np.dtype("<i8")
_LONGEST_TEXT_BYTES = 1 << 20
"""No broker carries a longer id, and no reader takes a line of hundreds of MB."""
_COLUMN_OF_FIELD = {column.attribute: name for name, column in COLUMNS.items()} | {"redelivered": "jms_redelivered"}
"""Field of a `Receipt` -> the column that it is recorded in."""

Columns = dict[str, list[Any]]
"""The fields of receipts by the columns they are recorded in, all of one length."""

IndexedReceipt = tuple[int, Receipt]
"""A receipt with more than an id, a source and a time, behind its index in the batch."""
_encode = msgspec.msgpack.Encoder().encode


class JournalHeader(msgspec.Struct, frozen=True):
    """Which receiver wrote the journal."""

    writer: int
    """The number that the store knows the receiver by."""
    store_id: int | None = msgspec.field(name="incarnation")  # journals on disk have it by its old name
    """That of the receiver's domain; None where no store outlives the process."""
    connection_id: str
    destination: str
    receiver_id: str

    @property
    def channel(self) -> Channel:
        return Channel(self.connection_id, self.destination, self.receiver_id)


class _Frame(NamedTuple):
    number: int
    payload: bytes
    start_bytes: int
    end_bytes: int


class Scanned(NamedTuple):
    """What can be said of a journal without its receipts."""

    header: JournalHeader | None
    uncertain: dict[int, int]
    """Number of a batch that isn't known to be committed -> the byte at which its frame begins."""
    whole_bytes: int
    """The size up to the end of the last whole frame."""
    is_ended: bool
    """Whether its writer has left it in order, and may be at work on another."""


class _Batch(msgspec.Struct, array_like=True, frozen=True):
    """A batch as it is written. Receipts with no more than an id, a source and a time are in columns, which cost least."""

    ids: bytes
    """One id a line: Arrow splits lines without blocking other threads."""
    sources: bytes
    times: bytes
    """In microseconds, 8 bytes each."""
    full: list[tuple[int, list[Any]]]
    """The other receipts, or all if a text has a line break, each behind its index in the batch."""

    @property
    def receipts(self) -> int:
        return len(self.times) // _TIME.itemsize + len(self.full)


_decode = msgspec.msgpack.Decoder(_Batch).decode
_decode_header = msgspec.msgpack.Decoder(JournalHeader).decode


def beginning(header: JournalHeader) -> bytes:
    """What a journal begins with."""
    return JOURNAL_BEGINS + frame(_HEADER, _encode(header))


def encoded(rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt]) -> bytes:
    """The payload of a batch: `full` has its receipts with more than id, source and time, `rows` has the others.

    `ValueError` for a receipt that no log can hold.
    """
    if any((receipt.received_at_us or 0) < 0 for _, receipt in full):  # a row's time is the domain's, and never is
        raise ValueError("a time before the epoch")
    ids = "\n".join([row.unique_message_id for row in rows]).encode()
    sources = "\n".join([row.message_source_id or "" for row in rows]).encode()
    if rows and not ids.count(b"\n") == sources.count(b"\n") == len(rows) - 1:
        return encoded((), list(enumerate(receipts_of(rows, full))))
    times = struct.pack(f"<{len(rows)}q", *[row.received_at_us for row in rows])
    payload = _encode((ids, sources, times, full))
    if len(payload) > _LONGEST_TEXT_BYTES:
        texts = chain.from_iterable((*rows, *(receipt for _, receipt in full)))
        if any(isinstance(text, str) and len(text.encode()) > _LONGEST_TEXT_BYTES for text in texts):
            raise ValueError("a text that is too long")
    return payload


def receipts_of(rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt]) -> list[Receipt]:
    """All receipts of a batch, in their order."""
    others = dict(full)
    plain = (Receipt(row.unique_message_id, row.message_source_id, row.received_at_us) for row in rows)
    return [others.get(index) or next(plain) for index in range(len(rows) + len(full))]


def end() -> bytes:
    """What a journal ends with."""
    return frame(_ENDED)


def frame(number: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload), _checksum(number, payload), number) + payload


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, (number + 1) & _BITS)  # so that zeros, as a power cut may leave them, are no frame


def _frames_of(pieces: Iterable[bytes]) -> Iterator[_Frame]:
    """The whole frames of a journal, the header's first; nothing if the bytes are no journal."""
    held = bytearray()
    before = 0
    """Bytes that are no longer held."""
    at = len(JOURNAL_BEGINS)
    for piece in pieces:
        held += piece
        while len(held) >= at + _HEAD.size:
            size_bytes, checksum, number = _HEAD.unpack_from(held, at)
            end = at + _HEAD.size + size_bytes
            if len(held) < end:
                break
            payload = bytes(held[at + _HEAD.size : end])
            if _checksum(number, payload) != checksum:
                return
            yield _Frame(number, payload, before + at, before + end)
            at = end
        if before + at > len(JOURNAL_BEGINS):
            del held[:at]
            before, at = before + at, 0


def _header_of(frames: Iterator[_Frame]) -> JournalHeader | None:
    """Take the first frame, which has the header; None where the process was killed before it had written that."""
    first = next(frames, None)
    return None if first is None or first.number != _HEADER else _decode_header(first.payload)


def _certain(frames: Iterable[_Frame], uncertain: dict[int, _Frame]) -> Iterator[_Frame]:
    """The batches known to be committed, in their order; the others are left in `uncertain` at the end."""
    for each in frames:
        if each.payload:
            uncertain[each.number] = each
        elif each.number in uncertain:
            yield uncertain.pop(each.number)


def scanned(pieces: Iterable[bytes]) -> Scanned:
    """Read a journal to its end without decoding receipts."""
    header: JournalHeader | None = None
    uncertain: dict[int, int] = {}
    whole_bytes, last = 0, 0
    for each in _frames_of(pieces):
        whole_bytes, last = each.end_bytes, each.number
        if each.number == _HEADER:
            header = _decode_header(each.payload)
        elif each.payload:
            uncertain[each.number] = each.start_bytes
        else:
            uncertain.pop(each.number, None)
    return Scanned(header, uncertain, whole_bytes, is_ended=last == _ENDED)


def rows_in(pieces: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The receipts of the batches that are known to be committed, as rows of `SCHEMA`, tens of thousands at a time."""
    frames = _frames_of(pieces)
    header = _header_of(frames)
    if header is not None:
        for batches in _gathered(_decode(committed.payload) for committed in _certain(frames, {})):
            yield _rows(batches, header.channel)


def _gathered(batches: Iterable[_Batch]) -> Iterator[list[_Batch]]:
    held: list[_Batch] = []
    receipts = 0
    for batch in batches:
        held.append(batch)
        receipts += batch.receipts
        if receipts >= BATCH_ROWS:
            yield held
            held, receipts = [], 0
    if held:
        yield held


def _rows(batches: Sequence[_Batch], channel: Channel) -> pa.RecordBatch:
    full: list[Receipt] = []
    full_at: list[int] = []
    receipts = 0
    for batch in batches:
        full += [Receipt(*fields) for _, fields in batch.full]
        full_at += [receipts + index for index, _ in batch.full]
        receipts += batch.receipts
    others = recordable(columns_of(full), channel)
    plain = [batch for batch in batches if batch.times]
    if not plain:
        return others
    rows = plain_rows(
        _split(batch.ids for batch in plain),
        _split(batch.sources for batch in plain),
        np.frombuffer(b"".join(batch.times for batch in plain), _TIME),
        channel,
    )
    if not full:
        return rows
    # Back into the order in which they came.
    order = np.empty(receipts, np.int64)
    is_full = np.zeros(receipts, dtype=bool)
    is_full[full_at] = True
    order[~is_full] = np.arange(len(rows))
    order[is_full] = len(rows) + np.arange(len(full))
    both = pa.Table.from_batches([rows, others]).unify_dictionaries().take(order)
    return both.combine_chunks().to_batches()[0]


def _split(joined: Iterable[bytes]) -> pa.Array:
    return pc.split_pattern(pa.array([b"\n".join(joined)], pa.large_string()), "\n").flatten().cast(pa.string())


def read_journal(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """The committed receipts of a journal, as a log. LINE is the receipt of the file, from 1."""
    batches = BatchMaker(source.name, options)
    fields = fields_of(SCHEMA.names, options, source.name)
    before = 0
    for rows in rows_in(source.pieces):
        columns = {column: rows.column(index) for column, index in fields.items()}
        yield batches.batch(RawRows(columns, partial(add, before + 1)))
        before += rows.num_rows


def columns_of(receipts: Sequence[Receipt]) -> Columns:
    """Receipts in columns."""
    fields = zip(*receipts, strict=True) if receipts else [()] * len(Receipt._fields)
    return {_COLUMN_OF_FIELD[name]: list(values) for name, values in zip(Receipt._fields, fields, strict=True)}


def recordable(columns: Columns, channel: Channel) -> pa.RecordBatch:
    """The receipts that every reader takes, as rows of `SCHEMA`; the others are left out."""
    try:
        return _checked_rows(columns, channel)
    except ValueError:
        bad = refused(columns, channel)
        good = [index for index in range(_size(columns)) if index not in bad]
        return _checked_rows(_selected(columns, good), channel)


def refused(columns: Columns, channel: Channel) -> dict[int, str]:
    """What is wrong with each receipt that no log can hold, by its index."""
    return dict(_refused(columns, range(_size(columns)), channel))


def _refused(columns: Columns, indexes: Sequence[int], channel: Channel) -> Iterator[tuple[int, str]]:
    """Search by halves, since as a rule few of many receipts are bad."""
    try:
        _checked_rows(_selected(columns, indexes), channel)
    except ValueError as refusal:
        if len(indexes) == 1:
            yield indexes[0], str(refusal)
            return
        half = len(indexes) // 2
        for part in (indexes[:half], indexes[half:]):
            yield from _refused(columns, part, channel)


def _selected(columns: Columns, indexes: Sequence[int]) -> Columns:
    return {column: [values[index] for index in indexes] for column, values in columns.items()}


def _size(columns: Columns) -> int:
    return len(columns["unique_message_id"])


def _checked_rows(columns: Columns, channel: Channel) -> pa.RecordBatch:
    checked = {name: _checked(name, values) for name, values in columns.items()}
    return log_rows(_channel_columns(_size(columns), channel) | checked, _size(columns))


def plain_rows(
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
    """A column of `SCHEMA`; `ValueError` where a value is what no log can hold."""
    declared = COLUMNS[name]
    arrow = pa.int64() if declared.kind is Kind.TIME else declared.arrow
    try:
        column = pa.array(values, arrow)
    except UnicodeEncodeError:
        raise ValueError(f"a lone surrogate in {name}, which UTF-8 can't hold") from None
    except (TypeError, ValueError, OverflowError):  # what Arrow raises is one of these too
        raise ValueError(f"{name} is of a wrong type, or too large") from None
    if declared.kind is Kind.TIME and column.null_count:
        raise ValueError(f"{name} is missing")
    if declared.kind.largest:
        ends = pc.min_max(column).as_py()
        if (ends["min"] or 0) < 0 or (ends["max"] or 0) > declared.kind.largest:
            raise ValueError(f"{name} lies {declared.kind.outside}")
    if declared.kind is Kind.TEXT:
        words = column.dictionary if pa.types.is_dictionary(arrow) else column
        if (pc.max(pc.binary_length(words)).as_py() or 0) > _LONGEST_TEXT_BYTES:
            raise ValueError(f"{name} is longer than {_LONGEST_TEXT_BYTES >> 20} MiB")
    return column.cast(declared.arrow)
