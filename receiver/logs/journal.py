"""The journal of a recording: the receipts of each batch, written before it is committed, and which batches were.

    magic, frame of the header, frames: payload bytes (4), checksum (4), number (8), payload

A frame with a payload is a batch, one without says that the batch of its number is committed. What a dead process left
without that is uncertain: only its store can tell. A batch that was rolled back is cut off. Whatever stands behind the
last whole frame was being written as the process was killed, so that its batch was never committed. A journal without a
last frame that says so was not left in order: its writer is dead, or still at work.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import add
from typing import Any, NamedTuple

import msgspec

from receiver.domains import Channel
from receiver.logs.batch import BATCH_ROWS, Batch, LogSource, ReadOptions
from receiver.logs.columns import SCHEMA, fields_of
from receiver.logs.receipts import LONGEST_TEXT_BYTES, RECEIPT_COLUMNS, Columns, columns_of, recordable
from receiver.logs.rows import BatchMaker, RawRows
from receiver.message import Receipt
from receiver.store.log import Row

__all__ = [
    "JOURNAL_BEGINS",
    "JournalHeader",
    "Scanned",
    "Told",
    "beginning",
    "encoded",
    "end",
    "frame",
    "read_journal",
    "receipts_of",
    "scanned",
]

JOURNAL_BEGINS = b"receiver journal 1\n"
_HEAD = struct.Struct("<IIq")
_HEADER = -1
"""The number of the header's frame; batches are numbered from 1."""
_ENDED = -2
_BITS = (1 << 32) - 1

Told = tuple[int, Receipt]
"""A receipt that tells more than id, source and time, and its index in the batch."""
_encode = msgspec.msgpack.Encoder().encode


class JournalHeader(msgspec.Struct, frozen=True):
    """Whose batches these are."""

    writer: int
    """The number that the store knows the receiver by."""
    incarnation: int | None
    """Of the receiver's domain; None where no store outlives the process."""
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
    """Where the frame of each batch begins of which it isn't known whether it was committed."""
    whole_bytes: int
    """Up to the end of the last whole frame."""
    is_ended: bool
    """Whether its writer has left it in order, and may be at work on another."""


_Payload = tuple[list[Any], list[Any], list[Any], list[tuple[int, list[Any]]]]
"""Ids, sources and times of the receipts that tell no more, in columns, which are the fastest to write; the others."""
_decode = msgspec.msgpack.Decoder(_Payload).decode
_decode_header = msgspec.msgpack.Decoder(JournalHeader).decode


def beginning(header: JournalHeader) -> bytes:
    """What a journal begins with."""
    return JOURNAL_BEGINS + frame(_HEADER, _encode(header))


def encoded(rows: Sequence[Row], told: Sequence[Told]) -> bytes:
    """The payload of a batch, of whose receipts `told` has those that tell more than a row; `rows` are of the others.

    `ValueError` where one of them is what no log can hold.
    """
    payload = _encode(([row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], told))
    if any((receipt.received_at_us or 0) < 0 for _, receipt in told):  # a row's time is the domain's, and never is
        raise ValueError("a time before the epoch")
    if len(payload) > LONGEST_TEXT_BYTES and any(map(_is_too_long, chain.from_iterable((*rows, *_fields(told))))):
        raise ValueError("a text that is too long")
    return payload


def _fields(told: Sequence[Told]) -> Iterator[Receipt]:
    return (receipt for _, receipt in told)


def _is_too_long(field: object) -> bool:
    return isinstance(field, str) and len(field.encode()) > LONGEST_TEXT_BYTES


def receipts_of(rows: Sequence[Row], told: Sequence[Told]) -> list[Receipt]:
    """The same receipts, in their order."""
    others = dict(told)
    plain = (Receipt(*row[1:4]) for row in rows)
    return [others.get(index) or next(plain) for index in range(len(rows) + len(told))]


def end() -> bytes:
    """What a journal ends with."""
    return frame(_ENDED)


def frame(number: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload), _checksum(number, payload), number) + payload


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, (number + 1) & _BITS)  # so that zeros, as a power cut may leave them, are no frame


def _frames_of(pieces: Iterable[bytes]) -> Iterator[_Frame]:
    """The whole frames of a journal, the header's first; none of what is no journal."""
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
    """The header, and with it the first frame taken; None where a process was killed before it had written it."""
    first = next(frames, None)
    return None if first is None or first.number != _HEADER else _decode_header(first.payload)


def _certain(frames: Iterable[_Frame], uncertain: dict[int, _Frame]) -> Iterator[_Frame]:
    """The committed batches in their order; in the end `uncertain` holds those of which it isn't known."""
    for found in frames:
        if found.payload:
            uncertain[found.number] = found
        elif found.number in uncertain:
            yield uncertain.pop(found.number)


def scanned(pieces: Iterable[bytes]) -> Scanned:
    frames = _frames_of(pieces)
    header = _header_of(frames)
    uncertain: dict[int, int] = {}
    whole_bytes, last = 0, 0
    for found in frames:
        whole_bytes, last = found.end_bytes, found.number
        if found.payload:
            uncertain[found.number] = found.start_bytes
        else:
            uncertain.pop(found.number, None)
    return Scanned(header, uncertain, whole_bytes, is_ended=last == _ENDED)


def _columns_in(payload: bytes) -> Columns:
    """The receipts of a batch, in their order."""
    ids, sources, times, told = _decode(payload)
    plain = len(ids)
    values = (ids, sources, times, [False] * plain, [None] * plain, [None] * plain)
    for index, receipt in told:
        for column, value in zip(values, receipt, strict=True):
            column.insert(index, value)
    return dict(zip(RECEIPT_COLUMNS, values, strict=True))


def read_journal(source: LogSource, options: ReadOptions) -> Iterator[Batch]:
    """The receipts of the batches that are known to be committed. LINE is the receipt of the file, from 1."""
    frames = _frames_of(source.pieces)
    header = _header_of(frames)
    if header is None:
        return
    batches = BatchMaker(source.name, options)
    fields = fields_of(SCHEMA.names, options, source.name)
    before = 0
    for columns in _gathered(_columns_in(committed.payload) for committed in _certain(frames, {})):
        rows = recordable(columns, header.channel)
        raw = RawRows({column: rows.column(place) for column, place in fields.items()}, partial(add, before + 1))
        yield batches.batch(raw)
        before += rows.num_rows


def _gathered(batches: Iterable[Columns]) -> Iterator[Columns]:
    held = columns_of([])
    for batch in batches:
        for column, values in batch.items():
            held[column] += values
        if len(held["received_at"]) >= BATCH_ROWS:
            yield held
            held = columns_of([])
    if held["received_at"]:
        yield held
