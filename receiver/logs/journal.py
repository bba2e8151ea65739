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
_T = TypeVar("_T")


class JournalHeader(msgspec.Struct, frozen=True):
    """Which receiver wrote the journal."""

    writer: int
    """The number that the store knows the receiver by."""
    store_id: int | None = msgspec.field(name="incarnation")
    """What tells the receiver's domain from another of its number; None where no store outlived the process."""
    connection_id: str
    destination: str
    receiver_id: str


_decoded_header = msgspec.msgpack.Decoder(JournalHeader).decode


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
    maker = BatchMaker(source.name, options)
    fields = fields_of(SCHEMA.names, options, source.name)
    before = 0
    for rows in rows_of(_committed(_journal_of(b"".join(source.pieces), source.name), 0)):
        columns = {column: rows.column(index) for column, index in fields.items()}
        yield maker.batch(RawRows(columns, partial(add, before + 1)))
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


def _checksum(number: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, (number + 1) & _BITS)  # so that zeros, as a power cut may leave them, are no frame


@dataclass(slots=True)
class _Journal:
    name: str
    header: JournalHeader | None = None
    committed: list[memoryview] = field(default_factory=list)
    """The batches that certainly are, in the order of their commits."""
    uncertain: dict[int, memoryview] = field(default_factory=dict)
    is_ended: bool = False

    def content(self, payload: memoryview, decode: Callable[[memoryview], _T]) -> _T:
        """What is in a frame; `LogFormatError` where that makes no sense."""
        try:
            return decode(payload)
        except msgspec.DecodeError as error:
            raise LogFormatError(
                self.name, f"a frame can't be read, though its checksum is right: {error}", hint="move the file away"
            ) from error


def _journal_of(data: bytes, name: str) -> _Journal:
    """What the whole frames of a journal say: nothing if the first isn't its header. No receipt is decoded."""
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
        elif journal.header is None:  # the process was killed before it had written that
            break
        elif payload:
            journal.uncertain[number] = payload
        elif number in journal.uncertain:
            journal.committed.append(journal.uncertain.pop(number))
        journal.is_ended = number == _ENDED
    return journal


def _committed(journal: _Journal, last: int) -> Iterator[UnpackedBatch]:
    """The batches that are certainly committed; then the uncertain ones up to the `last` number."""
    if journal.header is not None:
        channel = (journal.header.connection_id, journal.header.destination, journal.header.receiver_id)
        left = (journal.uncertain[number] for number in sorted(journal.uncertain) if number <= last)
        for payload in chain(journal.committed, left):
            yield msgspec.structs.replace(journal.content(payload, decoded), channel=channel)
