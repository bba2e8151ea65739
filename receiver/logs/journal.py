"""Journals: what receivers of earlier versions recorded to. They are read, and those of killed processes finished.

    magic, frame of the header, frames: payload bytes (4), checksum (4), number (8), payload

A frame with a payload is a batch; one without says that the batch of its number is committed. A batch without such a second
frame is *uncertain*: if its writer is dead, only its store knows whether it was committed, by the number that the writer
left there. Whatever comes after the last whole frame was being written as the process was killed, so its batch was never
committed. A journal that was left in order ends with a frame that says so. Its writer holds a lock on it until then.

This module can go, with `_finish_earlier_journals` in `receiver.durable.session` and the journals of `receiver.logs.files`,
once nobody upgrades from a version whose store is older than 0010.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import add
from pathlib import Path
from typing import IO

import msgspec

from receiver.logs.columns import SCHEMA, LogBatch
from receiver.logs.options import ReadOptions, fields_of
from receiver.logs.packing import UnpackedBatch, decoded, rows_of
from receiver.logs.rotating import RecordingFolder, SegmentNames, taken
from receiver.logs.rows import BatchMaker, RawRows
from receiver.logs.source import LogSource

JOURNAL_BEGINS = b"receiver journal 1\n"
_JOURNAL = ".journal"
_ANY_JOURNAL = re.compile(r"\..+-\d{8}T\d{6}\.\d{6}Z-\d+(\.jsonl\.zst|\.parquet)\.journal", re.ASCII | re.IGNORECASE)
_HEAD = struct.Struct("<IIq")
_HEADER, _ENDED = -1, -2
"""Numbers of frames; batches are numbered from 1."""
_BITS = (1 << 32) - 1
_PIECE_BYTES = 128 << 10


class JournalHeader(msgspec.Struct, frozen=True):
    """Which receiver wrote the journal."""

    writer: int
    """The number that the store knows the receiver by."""
    store_id: int | None = msgspec.field(name="incarnation")
    """That of the receiver's domain; None where no store outlived the process."""
    connection_id: str
    destination: str
    receiver_id: str


_decode_header = msgspec.msgpack.Decoder(JournalHeader).decode


def is_journal(path: Path) -> bool:
    return path.name.endswith(_JOURNAL)


def journals_in(folder: Path) -> list[Path]:
    """The journals of all that is recorded in a folder, oldest first of each name."""
    return [folder / name for name in sorted(os.listdir(folder)) if _ANY_JOURNAL.fullmatch(name)]  # noqa: PTH208


def journals_of(names: SegmentNames) -> list[Path]:
    """The journals of one recording, oldest first."""
    return names.hidden(_JOURNAL)


def finished_from(journal: Path) -> Path:
    """The file that is made of a journal in the end; of any other file, itself."""
    return journal.with_name(journal.name.removeprefix(".").removesuffix(_JOURNAL))


def read_journal(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """The receipts of a journal that are certainly committed, as a log. LINE is the receipt of the file, from 1."""
    batches = BatchMaker(source.name, options)
    fields = fields_of(SCHEMA.names, options, source.name)
    before = 0
    for rows in rows_of(_committed(source.pieces, 0)):
        columns = {column: rows.column(index) for column, index in fields.items()}
        yield batches.batch(RawRows(columns, partial(add, before + 1)))
        before += rows.num_rows


def finish_journals(folder: RecordingFolder, store_id: int | None, last_batch: Callable[[int], int]) -> list[int]:
    """Finish the journals that nobody writes; the numbers of their dead writers in the domain that has this `store_id`.

    `last_batch` says how far each of these has committed. A journal of another domain is left alone if only its store knows
    that. One that no store can tell of has committed what it says itself. The writer of one that was left in order may be at
    work on another.
    """
    writers = []
    for path in journals_of(folder.names):
        file = _taken(path)
        if file is None:
            continue
        with file:
            header, uncertain, is_ended = _scanned(_pieces(file))
            is_ours = header is not None and None is not header.store_id == store_id
            if uncertain and header is not None and header.store_id is not None and not is_ours:
                continue
            last = 0
            if header is not None and is_ours and not is_ended:
                writers.append(header.writer)
                last = last_batch(header.writer)
            folder.finish_rows(finished_from(path).name, _committed(_pieces(file), last))
        path.unlink()
    return writers


def _taken(path: Path) -> IO[bytes] | None:
    """A journal that nobody writes, locked; None where somebody does, or has finished it meanwhile."""
    try:
        path.rename(path)  # which fails on Windows while the file is open, by which writers are known there
        file = path.open("r+b")
    except (PermissionError, FileNotFoundError):
        return None
    if taken(file) and os.fstat(file.fileno()).st_nlink:
        return file
    file.close()
    return None


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    yield from iter(partial(file.read, _PIECE_BYTES), b"")


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, (number + 1) & _BITS)  # so that zeros, as a power cut may leave them, are no frame


def _frames_of(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number and payload of the whole frames of a journal, the header's first; nothing if the bytes are no journal."""
    held = bytearray()
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
            yield number, payload
            at = end
        if at > len(JOURNAL_BEGINS):
            del held[:at]
            at = 0


def _scanned(pieces: Iterable[bytes]) -> tuple[JournalHeader | None, set[int], bool]:
    """The header, the numbers of uncertain batches, and whether it was left in order; no receipt is decoded."""
    header: JournalHeader | None = None
    uncertain = set()
    number = 0
    for number, payload in _frames_of(pieces):
        if number == _HEADER:
            header = _decode_header(payload)
        elif payload:
            uncertain.add(number)
        else:
            uncertain.discard(number)
    return header, uncertain, number == _ENDED


def _committed(pieces: Iterable[bytes], last: int) -> Iterator[UnpackedBatch]:
    """The batches that are certainly committed, in their order; then the uncertain ones up to the `last` number."""
    frames = _frames_of(pieces)
    number, payload = next(frames, (0, b""))
    if number != _HEADER:  # the process was killed before it had written that
        return
    header = _decode_header(payload)
    channel = (header.connection_id, header.destination, header.receiver_id)
    uncertain: dict[int, bytes] = {}

    def batch(number: int) -> UnpackedBatch:
        return msgspec.structs.replace(decoded(uncertain.pop(number)), channel=channel)

    for number, payload in frames:
        if payload:
            uncertain[number] = payload
        elif number in uncertain:
            yield batch(number)
    yield from map(batch, sorted(number for number in uncertain if number <= last))
