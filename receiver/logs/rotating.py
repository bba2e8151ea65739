"""A rotating log of receipts: rows are appended to a segment, and finished segments are what readers see.

A segment is written as JSON Lines, each `append` a zstd frame of its own, so that a process killed at any moment
loses nothing that `append` returned for. What may stand behind the last whole frame is cut off when the segment is
finished: by its writer, or by the next one in the same folder. Parquet, which can't be read before its end is
written, is made of a segment when that is finished.

The lock on a segment's file tells a killed process from one that writes. Windows lets nobody rename or remove a file
that is open, which tells the same.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import pyarrow as pa
import zstandard

from receiver.logs import ReadOptions, read_logs
from receiver.logs.columns import SCHEMA
from receiver.logs.receipts import rows_of_batch
from receiver.logs.segments import SegmentNames
from receiver.logs.writer import json_lines, open_table

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

__all__ = ["RotatingLog"]

_PIECE_BYTES = 128 << 10
_TICK = timedelta(microseconds=1)


class _Segment:
    """The segment being written, unless others have removed it: the system would go on writing to it all the same."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.size_bytes = 0
        self.began_secs = 0.0
        """On the monotonic clock, when the first rows came."""
        self._path = path
        self._file = file

    @property
    def is_there(self) -> bool:
        return _is_at(self._file, self._path)

    def append(self, frames: bytes) -> None:
        if not self.size_bytes:
            self.began_secs = time.monotonic()
        try:
            self._file.seek(self.size_bytes)  # over what a write that failed may have left
            rest = memoryview(frames)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):  # the space may help others; what went wrong first is what to tell
                self._file.truncate(self.size_bytes)
            raise
        self.size_bytes += len(frames)

    def close(self) -> None:
        self._file.close()


class RotatingLog:
    """Appends rows, for one thread. Its methods raise `OSError` or `ReceiverError` and may be called again after that."""

    def __init__(self, names: SegmentNames, *, rotate_bytes: int, rotate_secs: float, keep_files: int | None) -> None:
        self._names = names
        self._rotate_bytes = rotate_bytes
        self._rotate_secs = rotate_secs
        self._keep_files = keep_files
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._compressor = zstandard.ZstdCompressor(write_checksum=True)
        self._segment: _Segment | None = self._begun()

    def append(self, rows: pa.RecordBatch) -> None:
        """Write rows of `SCHEMA`, all or none."""
        frames = b"".join(map(self._compressor.compress, json_lines(rows)))
        if self._segment is None or not self._segment.is_there:
            self._leave()
            self._segment = self._begun()
        self._segment.append(frames)

    def secs_to_rotation(self) -> float:
        """How long the segment may still grow; without end while it is empty."""
        if self._segment is None or not self._segment.size_bytes:
            return math.inf
        if self._segment.size_bytes >= self._rotate_bytes:
            return 0.0
        return max(0.0, self._segment.began_secs + self._rotate_secs - time.monotonic())

    def rotate(self) -> None:
        """Finish the segment; the next `append` begins another."""
        self._leave()
        self.finish_abandoned()

    def finish_abandoned(self) -> None:
        """Finish every segment that nobody writes, and remove the oldest beyond those to keep.

        A segment that can't be finished stays as it is, for another time; the first error is raised in the end.
        """
        failure: Exception | None = None
        for path in self._names.unfinished():
            try:
                self._finish(path)
            except FileNotFoundError:
                continue  # another process finished it
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
        if self._keep_files is not None:
            for path in self._names.finished()[: -self._keep_files]:
                path.unlink(missing_ok=True)

    def _leave(self) -> None:
        left, self._segment = self._segment, None
        if left is not None:
            left.close()

    def _begun(self) -> _Segment:
        while True:
            # Later than the one before even where the clock was set back, so that the names keep the order.
            self._newest = max(datetime.now(UTC), self._newest + _TICK)
            path = self._names.unfinished_at(self._newest)
            if self._names.finished_from(path).exists():
                continue
            with suppress(FileExistsError):
                file = path.open("xb", buffering=0)
                # Between the two, another process may have taken it for abandoned.
                if _locked(file) and _is_at(file, path):
                    return _Segment(path, file)
                file.close()

    def _finish(self, path: Path) -> None:
        finished = self._names.finished_from(path)
        if not _closed_on_windows(path):
            return
        with path.open("r+b", buffering=0) as file:
            if not _locked(file) or not _is_at(file, path):
                return
            whole_bytes = _whole_bytes(file)
            file.truncate(whole_bytes)
            os.fsync(file.fileno())
            if whole_bytes and self._names.is_parquet:
                _write_parquet(path, finished)
            if fcntl is None:
                file.close()
            if whole_bytes and not self._names.is_parquet:
                path.rename(finished)
            else:
                path.unlink()


def _locked(file: IO[bytes]) -> bool:
    """Take the lock on a segment, which its process holds for as long as it lives; False where another has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _closed_on_windows(path: Path) -> bool:
    if fcntl is None:
        try:
            path.rename(path)
        except PermissionError:
            return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _whole_bytes(file: IO[bytes]) -> int:
    """Where the last whole frame ends."""
    decompressor = zstandard.ZstdDecompressor()
    whole_bytes = 0
    frame = None
    while piece := file.read(_PIECE_BYTES):
        while piece:
            frame = frame or decompressor.decompressobj()
            try:
                frame.decompress(piece)
            except zstandard.ZstdError:
                return whole_bytes
            piece = b""
            if frame.eof:
                piece, frame = frame.unused_data, None
                whole_bytes = file.tell() - len(piece)
    return whole_bytes


def _write_parquet(segment: Path, finished: Path) -> None:
    # Under the segment's lock, and by the segment's name, so that a killed process leaves no file that nobody removes.
    with open_table(finished, SCHEMA, unfinished=segment.with_suffix(".part")) as table:
        for batch in read_logs([str(segment)], ReadOptions()):
            table.write(rows_of_batch(batch))
