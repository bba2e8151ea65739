"""Opens a file, decompresses it, and chooses the reader of its format.

The file's first bytes decide on compression and format; the ending of its name decides only if these don't show it.
"""

from __future__ import annotations

import io
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

import zstandard

from receiver.errors import LogFormatError, unreadable
from receiver.logs.columns import COLUMNS, LogBatch
from receiver.logs.compacted import STATUS_LINES_BEGIN, read_status_lines
from receiver.logs.correlator import LOG_LINE, read_correlator
from receiver.logs.csv_log import read_csv
from receiver.logs.files import LogFile
from receiver.logs.journal import JOURNAL_BEGINS, finished_from, is_journal, read_journal
from receiver.logs.jsonl import read_jsonl
from receiver.logs.options import ReadOptions, spellings
from receiver.logs.parquet import MAGIC, RowGroups, read_parquet
from receiver.logs.remote import UrlStream
from receiver.logs.source import BOM, LogSource
from receiver.logs.writer import NamedFile

PIECE_BYTES = 128 << 10
_HEAD_BYTES = 64 << 10
_EMPTY_HINT = "a log has a row for each receipt: was this one written, and copied, to its end?"
_COPY_AGAIN = "copy it again from where it came, once it is complete there"

LogReader = Callable[[LogSource, ReadOptions], Iterator[LogBatch]]
"""The reader of a format. Reads a log as a stream and yields its rows in order, or raises `LogFormatError`."""
_READERS: dict[str, LogReader] = {
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".log": read_correlator,
    ".journal": read_journal,
}
_BEGINNINGS: dict[bytes, LogReader] = {
    MAGIC: read_parquet,
    STATUS_LINES_BEGIN: read_status_lines,
    JOURNAL_BEGINS: read_journal,
}
_UTF_16 = ("in UTF-16, not UTF-8", "write it as UTF-8: iconv -f UTF-16 -t UTF-8")
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive, or a workbook of Excel", "unpack it, or save the sheet as CSV"),
    b"SQLite format 3\0": ("a database", 'query it: sqlite:///FILE --query "SELECT ..."'),
    b"BZh91AY&SY": ("packed by bzip2", "unpack it first, or pack it by gzip or zstd"),
    b"\xfd7zXZ\0": ("packed by xz", "unpack it first, or pack it by gzip or zstd"),
    b"Obj\x01": ("in Avro", "write it as Parquet"),
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}
"""Formats that aren't read, by their first bytes: what they are, and what to do."""
_TAR = ("a tar archive", "unpack it by tar xf, and name the folder or its files")
_TAR_MARKS = (b"ustar\x0000", b"ustar  \0")
_TAR_MARK_AT = 257


class Stream(Protocol):
    """The methods of an open file that are used here."""

    def read(self, size: int = -1, /) -> bytes: ...


def read_file(
    file: LogFile,
    options: ReadOptions,
    on_read: Callable[[int], None] = lambda _bytes: None,
    groups: RowGroups | None = None,
) -> Iterator[LogBatch]:
    """The receipts of one file, or of these row groups of a Parquet file.

    `on_read` is called with the number of bytes read since its last call.
    """
    if file.query is not None:
        from receiver.logs.query import read_query  # with SQLAlchemy, which few logs need

        yield from read_query(file.query, options)
        return
    try:
        with _opened(file) as stream:
            yield from _batches(file, stream, options, on_read, groups)
    except OSError as error:
        if file.path is None or not (isinstance(error, FileNotFoundError) and is_journal(file.path)):
            raise unreadable(file.name, error) from error
        finished = finished_from(file.path)
        if finished.exists():  # otherwise it was empty, or removed as one of the oldest files
            yield from read_file(replace(file, path=finished), options, on_read)


def read_content(name: str, content: bytes, options: ReadOptions) -> Iterator[LogBatch]:
    """The receipts of a file whose bytes are in memory."""
    return _batches(LogFile(Path(name), name, None), io.BytesIO(content), options, lambda _bytes: None, None)


def spooled(file: LogFile, path: Path) -> LogFile:
    """Copy a file to `path`. Returns the copy as a log."""
    try:
        with _opened(file) as stream, NamedFile(path, "wb", path) as copy:
            shutil.copyfileobj(stream, copy, PIECE_BYTES)
    except OSError as error:
        raise unreadable(file.name, error) from error
    return replace(file, path=path, size_bytes=path.stat().st_size)


@contextmanager
def _opened(file: LogFile) -> Iterator[Stream]:
    """Open a file; standard input if it has neither a path nor a URL."""
    if file.url is not None:
        with closing(UrlStream(file.url)) as remote:
            yield remote
    elif file.path is None:
        if sys.stdin is None:
            raise LogFormatError(file.name, "standard input is closed", hint="name a file, or pipe a log in")
        # Unbuffered if possible: a thread that waits inside the buffer would keep the interpreter from ending.
        yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    else:
        with file.path.open("rb", buffering=0) as stream:
            yield stream


def _batches(
    file: LogFile, stream: Stream, options: ReadOptions, on_read: Callable[[int], None], groups: RowGroups | None
) -> Iterator[LogBatch]:
    head, pieces = _with_head(_pieces(stream, on_read))
    if not head:
        raise LogFormatError(file.name, "the file is empty", hint=_EMPTY_HINT)
    compression = next((each for magic, each in _COMPRESSIONS.items() if head.startswith(magic)), None)
    if compression is not None:
        head, pieces = _with_head(_decompressed(pieces, compression, file.name))
        if not head:
            raise LogFormatError(file.name, "there is nothing in the compressed file", hint=_EMPTY_HINT)
    if (foreign := _foreign(head)) is not None:
        what, hint = foreign
        raise LogFormatError(file.name, f"it is {what}, no log of receipts", hint=hint)
    source = LogSource(file.name, pieces)
    reader = _reader_by_content(head, options) or _reader_by_name(file, compressed=compression is not None)
    if reader is not read_parquet:
        yield from reader(source, options)
        return
    if compression is None and file.can_reopen and file.path is not None:
        left_bytes = max(0, (file.size_bytes or 0) - PIECE_BYTES)  # one piece was read to know the format
        source = replace(source, path=file.path, advanced=lambda share: on_read(int(share * left_bytes)))
    yield from read_parquet(source, options, groups)


def _foreign(head: bytes) -> tuple[str, str] | None:
    """A format that isn't read: what it is, and what to do; None for a log."""
    if head.startswith(_TAR_MARKS, _TAR_MARK_AT):
        return _TAR
    return next((each for begins, each in _FOREIGN.items() if head.startswith(begins)), None)


def _reader_by_content(head: bytes, options: ReadOptions) -> LogReader | None:
    for begins, reader in _BEGINNINGS.items():
        if head.startswith(begins):
            return reader
    text = head.removeprefix(BOM).lstrip(b" \t\r\n")
    if text.startswith((b"{", b"[")):
        return read_jsonl
    lines = text.decode(errors="replace").split("\n")
    known = {field for column in COLUMNS for field in spellings(column, options)}
    if known & {name.strip().strip('"') for name in lines[0].split(",")}:
        return read_csv
    if any(LOG_LINE.match(line) for line in lines):
        return read_correlator
    return None


def _reader_by_name(file: LogFile, *, compressed: bool) -> LogReader:
    endings = [ending.lower() for ending in PurePath(file.name).suffixes]
    last = endings[-1] if endings else ""
    if last in {".gz", ".zst"}:
        if not compressed:
            kind = "gzip" if last == ".gz" else "zstd"
            raise LogFormatError(
                file.name,
                f"not {kind} data, and no log of receipts either",
                hint=f"copy it again from where it came, or leave out {last} if it isn't compressed",
            )
        endings.pop()
    return _READERS.get(endings[-1] if endings else "", read_csv)


def _pieces(stream: Stream, on_read: Callable[[int], None]) -> Iterator[bytes]:
    while piece := stream.read(PIECE_BYTES):
        on_read(len(piece))
        yield piece


def _with_head(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, and all pieces again from the start."""
    taken: list[bytes] = []
    taken_bytes = 0
    for piece in pieces:
        taken.append(piece)
        taken_bytes += len(piece)
        if taken_bytes >= _HEAD_BYTES:
            break
    head = b"".join(taken)
    return head[:_HEAD_BYTES], chain([head] if head else [], pieces)


class _Compression(NamedTuple):
    name: str
    new: Callable[[], Any]
    """Makes a decompressor for a gzip member or a zstd frame, with the interface that zlib and zstandard share."""
    padding: bytes
    """Bytes that may stand between and after the members."""


_COMPRESSIONS = {
    b"\x1f\x8b": _Compression("gzip", lambda: zlib.decompressobj(wbits=31), padding=b"\0"),
    b"\x28\xb5\x2f\xfd": _Compression(
        "zstd", lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(), padding=b""
    ),
}
_COMPRESSIONS[b"\x50\x2a\x4d\x18"] = _COMPRESSIONS[b"\x28\xb5\x2f\xfd"]  # a frame to skip, with which pzstd begins


def _decompressed(pieces: Iterator[bytes], compression: _Compression, name: str) -> Iterator[bytes]:
    """The bytes of all members or frames in order; `LogFormatError` if one is broken or ends too soon."""
    member = None
    for piece in pieces:
        left = piece
        while left:
            if member is None:
                left = left.lstrip(compression.padding)
                if not left:
                    break
                member = compression.new()
            try:
                out = member.decompress(left)
            except (zlib.error, zstandard.ZstdError) as error:
                raise LogFormatError(name, f"broken {compression.name} data: {error}", hint=_COPY_AGAIN) from error
            if out:
                yield out
            left = member.unused_data if member.eof else b""
            if member.eof:
                member = None
    if member is not None:
        raise LogFormatError(name, f"truncated {compression.name} data: the file ends inside of it", hint=_COPY_AGAIN)
