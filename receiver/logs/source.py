"""The bytes of one log: opened, decompressed, and as a reader is given them, in pieces of any size or in blocks of whole lines."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import zstandard

from receiver.errors import LogFormatError
from receiver.logs.remote import UrlStream

PIECE_BYTES = 128 << 10
_HEAD_BYTES = 64 << 10

BLOCK_BYTES = 2 << 20
"""Large enough that the cost per block vanishes, small enough that a few of them are no matter."""
FIRST_BLOCK_BYTES = 64 << 10
"""Blocks start small, so that the first receipts are there at once."""
MAX_LINE_BYTES = 256 << 20
"""A longer line is no row of any log; holding it would only fill the memory."""
_LINE_FEED = ord("\n")
BOM = b"\xef\xbb\xbf"
_COPY_AGAIN = "copy it again from where it came, once it is complete there"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One opened log."""

    name: str
    """As errors name it: the path, or `-` for standard input."""
    pieces: Iterator[bytes]
    """The decompressed bytes, in pieces of any size."""
    path: Path | None = None
    """A plain file with the same bytes, for readers that seek; None where there is none."""
    advanced: Callable[[float], None] = lambda _share: None
    """For a reader that takes `path` instead of `pieces`: called with the share of the file read since the last call."""


class Block(NamedTuple):
    data: bytes
    """Whole lines; only the file's last may lack its line break."""
    line: int
    """The physical line, from 1, that the block begins with."""


def blocks_of(pieces: Iterator[bytes], name: str) -> Iterator[Block]:
    """Cut a log at line breaks into blocks of at most a few MB, without the byte order mark that it may begin with."""
    held: list[bytes] = []
    held_bytes = 0
    wanted = FIRST_BLOCK_BYTES
    line = 1
    fresh = True
    for piece in pieces:
        held.append(piece)
        held_bytes += len(piece)
        if held_bytes < wanted:
            continue
        data = b"".join(held)
        if fresh:
            data, fresh = data.removeprefix(BOM), False
        end = data.rfind(b"\n") + 1
        if end:
            block = Block(data[:end], line)
            # A quarter of the time of `bytes.count`.
            line += int(np.count_nonzero(np.frombuffer(block.data, np.uint8) == _LINE_FEED))
            held = [data[end:]]
            yield block
            wanted = min(2 * wanted, BLOCK_BYTES)
        else:
            held = [data]
        held_bytes = len(held[0])
        if held_bytes > MAX_LINE_BYTES:
            raise LogFormatError(f"{name}:{line}", f"a line of more than {MAX_LINE_BYTES >> 20} MB")
        wanted = max(wanted, 2 * held_bytes)  # a long line is joined a few times only
    last = b"".join(held)
    if fresh:
        last = last.removeprefix(BOM)
    if last:
        yield Block(last, line)


class Stream(Protocol):
    """An open file, as far as it is used here."""

    def read(self, size: int = -1, /) -> bytes: ...


@contextmanager
def opened(path: Path | None, url: str | None) -> Iterator[Stream]:
    """A file, or one at a URL; standard input where both are None."""
    if url is not None:
        with closing(UrlStream(url)) as remote:
            yield remote
    elif path is None:
        # Unbuffered where it can be: a thread that waits inside of the buffer would keep the interpreter from ending.
        yield getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    else:
        with path.open("rb", buffering=0) as stream:
            yield stream


class Content(NamedTuple):
    """The bytes of a log."""

    head: bytes
    """The first of them."""
    pieces: Iterator[bytes]
    """All of them."""
    was_compressed: bool


def content_of(stream: Stream, name: str, on_read: Callable[[int], None]) -> Content:
    """Decompress what a stream gives. `on_read` is called with the number of bytes that were read since its last call."""
    head, pieces = _with_head(_read(stream, on_read))
    if not head:
        raise LogFormatError(name, "the file is empty", hint="even a log without receipts has a header")
    packed = next((packed for magic, packed in _COMPRESSIONS.items() if head.startswith(magic)), None)
    if packed is None:
        return Content(head, pieces, was_compressed=False)
    head, pieces = _with_head(_decompressed(pieces, packed, name))
    if not head:
        raise LogFormatError(name, "there is nothing in the compressed file")
    return Content(head, pieces, was_compressed=True)


def _read(stream: Stream, on_read: Callable[[int], None]) -> Iterator[bytes]:
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


class _Decompressor(Protocol):
    """What zlib and zstandard have in common: an object per gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Compression:
    name: str
    new: Callable[[], _Decompressor]
    padding: bytes
    """May stand between and after the members."""


_COMPRESSIONS = {
    b"\x1f\x8b": _Compression("gzip", lambda: zlib.decompressobj(wbits=31), padding=b"\0"),
    b"\x28\xb5\x2f\xfd": _Compression(
        "zstd", lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(), padding=b""
    ),
}


def _decompressed(pieces: Iterator[bytes], packed: _Compression, name: str) -> Iterator[bytes]:
    """All members or frames, one after the other; `LogFormatError` where one is broken or ends too soon."""
    member: _Decompressor | None = None
    for piece in pieces:
        left = piece
        while left:
            if member is None:
                left = left.lstrip(packed.padding)
                if not left:
                    break
                member = packed.new()
            try:
                out = member.decompress(left)
            except (zlib.error, zstandard.ZstdError) as error:
                raise LogFormatError(name, f"broken {packed.name} data: {error}", hint=_COPY_AGAIN) from error
            if out:
                yield out
            left = member.unused_data if member.eof else b""
            if member.eof:
                member = None
    if member is not None:
        raise LogFormatError(name, f"truncated {packed.name} data: the file ends inside of it", hint=_COPY_AGAIN)
