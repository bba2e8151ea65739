"""Journals, to which receivers of earlier versions recorded. They are still read, and those of dead processes are finished.

    magic, frame of the header, frames: payload bytes (4), checksum (4), number (8), payload

A frame with a payload is a batch. A frame without payload says that the batch of its number is committed. A batch without a
second frame is *uncertain*: if its writer is dead, only the store knows whether it was committed, by the number that the writer
left there. Bytes after the last whole frame were being written when the process was killed, so their batch was never committed.
A journal that was closed in order ends with a frame that says so. Its writer holds a lock on it until then.

This module can go, with `_finish_earlier_journals` in `receiver.durable.session` and the journals of `receiver.logs.files`,
once nobody upgrades from a version whose store is older than 0010.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import add
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from receiver.errors import LogFormatError
from receiver.logs.columns import SCHEMA, LogBatch
from receiver.logs.options import ReadOptions, fields_of
from receiver.logs.packing import UnpackedBatch, decoded, rows_of
from receiver.logs.rotating import RecordingFolder, SegmentNames, try_to_lock
from receiver.logs.rows import BatchMaker, RawRows
from receiver.logs.source import LogSource

JOURNAL_BEGINS = b"receiver journal 1\n"
_JOURNAL = ".journal"
_ANY_JOURNAL = re.compile(r"\..+-\d{8}T\d{6}\.\d{6}Z-\d+(\.jsonl\.zst|\.parquet)\.journal", re.ASCII | re.IGNORECASE)
_HEAD = struct.Struct("<IIq")
_HEADER, _ENDED = -1, -2
"""Numbers of frames; batches are numbered from 1."""
_BITS = (1 << 32) - 1
_T = TypeVar("_T")


class JournalHeader(msgspec.Struct, frozen=True):
    """Which receiver wrote the journal."""

    writer: int
    """The receiver's number in the store."""
    store_id: int | None = msgspec.field(name="incarnation")
    """Distinguishes the receiver's domain from others with its number; None if the store was in memory."""
    connection_id: str
    destination: str
    receiver_id: str


_decoded_header = msgspec.msgpack.Decoder(JournalHeader).decode


def is_journal(path: Path) -> bool:
    return path.name.endswith(_JOURNAL)


def journals_in(folder: Path) -> list[Path]:
    """The journals of all recordings in a folder; those of one recording oldest first."""
    return [folder / name for name in sorted(os.listdir(folder)) if _ANY_JOURNAL.fullmatch(name)]  # noqa: PTH208


def journals_of(names: SegmentNames) -> list[Path]:
    """The journals of one recording, oldest first."""
    return names.hidden(_JOURNAL)


def finished_from(journal: Path) -> Path:
    """The path of the finished file that a journal becomes. For any other file, its own path."""
    return journal.with_name(journal.name.removeprefix(".").removesuffix(_JOURNAL))


def read_journal(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """The receipts of a journal that are certainly committed, as a log. LINE is the receipt's number in the file, from 1."""
    maker = BatchMaker(source.name, options)
    fields = fields_of(SCHEMA.names, options, source.name)
    before = 0
    for rows in rows_of(_committed(_journal_of(b"".join(source.pieces), source.name), 0)):
        columns = {column: rows.column(index) for column, index in fields.items()}
        yield maker.batch(RawRows(columns, partial(add, before + 1)))
        before += rows.num_rows


def finish_journals(folder: RecordingFolder, store_id: int | None, last_batch: Callable[[int], int]) -> list[int]:
    """Finish the journals that nobody writes. Returns the numbers of dead writers in the domain with this `store_id`.

    `last_batch` returns the last batch that such a writer has committed. A journal of another domain with uncertain batches is
    left alone, because only its own store knows about them. A journal without a store has only its certain batches. A journal
    that was closed in order doesn't show that its writer is dead.
    """
    writers = []
    for path in journals_of(folder.names):
        file = _locked(path)
        if file is None:
            continue
        with file:
            journal = _journal_of(file.read(), str(path))
            header, last = journal.header, 0
            if header is not None and None is not header.store_id == store_id:
                if not journal.is_ended:
                    writers.append(header.writer)
                    last = last_batch(header.writer)
            elif header is not None and header.store_id is not None and journal.uncertain:
                continue
            folder.finish_rows(finished_from(path).name, _committed(journal, last))
        path.unlink()
    return writers


def _locked(path: Path) -> IO[bytes] | None:
    """Open and lock a journal that nobody writes; None if somebody does, or has finished it meanwhile."""
    try:
        path.rename(path)  # on Windows this fails while a writer has the file open
        file = path.open("r+b")
    except (PermissionError, FileNotFoundError):
        return None
    if try_to_lock(file) and os.fstat(file.fileno()).st_nlink:
        return file
    file.close()
    return None


def _checksum(number: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, (number + 1) & _BITS)  # so that zeros, which a power cut may leave, aren't a frame


@dataclass(slots=True)
class _Journal:
    name: str
    header: JournalHeader | None = None
    committed: list[memoryview] = field(default_factory=list)
    """The batches that are certainly committed, in the order of their commits."""
    uncertain: dict[int, memoryview] = field(default_factory=dict)
    is_ended: bool = False

    def content(self, payload: memoryview, decode: Callable[[memoryview], _T]) -> _T:
        """The decoded content of a frame; `LogFormatError` if it can't be decoded."""
        try:
            return decode(payload)
        except msgspec.DecodeError as error:
            raise LogFormatError(
                self.name, f"a frame can't be read, though its checksum is right: {error}", hint="move the file away"
            ) from error


def _journal_of(data: bytes, name: str) -> _Journal:
    """The whole frames of a journal, with receipts still encoded. Empty if the first frame isn't the header."""
    journal = _Journal(name)
    view, at = memoryview(data), len(JOURNAL_BEGINS)
    while len(view) >= at + _HEAD.size:
        size_bytes, checksum, number = _HEAD.unpack_from(view, at)
        payload = view[at + _HEAD.size :][:size_bytes]
        if len(payload) < size_bytes or _checksum(number, payload) != checksum:
            break
        at += _HEAD.size + size_bytes
        if number == _HEADER:
            journal.header = journal.content(payload, _decoded_header)
        elif journal.header is None:  # the process was killed before it had written the header
            break
        elif payload:
            journal.uncertain[number] = payload
        elif number in journal.uncertain:
            journal.committed.append(journal.uncertain.pop(number))
        journal.is_ended = number == _ENDED
    return journal


def _committed(journal: _Journal, last: int) -> Iterator[UnpackedBatch]:
    """The batches that are certainly committed, then the uncertain batches up to number `last`."""
    if journal.header is not None:
        channel = (journal.header.connection_id, journal.header.destination, journal.header.receiver_id)
        left = (journal.uncertain[number] for number in sorted(journal.uncertain) if number <= last)
        for payload in chain(journal.committed, left):
            yield msgspec.structs.replace(journal.content(payload, decoded), channel=channel)
