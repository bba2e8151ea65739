"""The files of a recording: their names, how they are made and removed, and the lock of the process that makes them.

    receipts-20261121T074500.123456Z-4711.jsonl.zst               finished: whole, and never changed again
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.part         being made, or left by a process that was killed
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.unfinished   batches of a process that has no store to keep them
    .receipts.jsonl.zst.lock                                      locked by one process at a time

Files are named after the time at which they began, and the process that began them. So the order of names is that of time.
Readers take finished files like any other log. Files whose names begin with a dot are no logs.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - Arrow loads it with the first array, which fails where the program ends
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from receiver.closing import sync_path, write_all
from receiver.logs.columns import SCHEMA
from receiver.logs.packing import UnpackedBatch, rows_of, unpacked
from receiver.logs.writer import open_table
from receiver.retrying import Patience

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from _typeshed import StrPath

_TICK = timedelta(microseconds=1)
_ENDINGS = (".jsonl.zst", ".parquet")
_IN_A_FOLDER = "receipts.jsonl.zst"
_STAMP = r"-\d{8}T\d{6}\.\d{6}Z-\d+"
_PART, _UNFINISHED = ".part", ".unfinished"
_SIZE = struct.Struct("<I")
_LOOK_SECS = 0.02
"""How often to check whether a lock is free."""
_FAR_BYTES = 1 << 40
"""The position of the byte that is locked on Windows: behind the file's end, because a locked byte can't be read."""


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """The names of a recording's files, for a path such as `receipts.jsonl.zst`."""

    folder: Path
    stem: str
    ending: str

    def __str__(self) -> str:
        return str(self.folder / f"{self.stem}{self.ending}")

    def finished(self) -> list[Path]:
        """The finished files, oldest first; `OSError` if the folder can't be read."""
        return self._matching(re.escape(self.stem) + _STAMP + re.escape(self.ending))

    def hidden(self, more: str) -> list[Path]:
        """The hidden files whose names end with `more`, oldest first."""
        return self._matching(re.escape(f".{self.stem}") + _STAMP + re.escape(self.ending + more))

    def _matching(self, pattern: str) -> list[Path]:
        known = re.compile(pattern, re.ASCII)
        return [self.folder / name for name in sorted(os.listdir(self.folder)) if known.fullmatch(name)]  # noqa: PTH208


def segment_names(path: StrPath) -> SegmentNames | None:
    """The names for a path: a folder, or a file whose ending gives the format; None for any other ending."""
    text = os.fspath(path)
    if text.endswith(("/", os.sep)) or os.path.isdir(text):  # noqa: PTH112 - False for a path that no file can have
        return segment_names(Path(text) / _IN_A_FOLDER)
    file = Path(text)
    ending = next((file.name[-len(known) :] for known in _ENDINGS if file.name.lower().endswith(known)), None)
    return SegmentNames(file.parent, file.name.removesuffix(ending), ending) if ending else None


class RecordingFolder:
    """The folder where the files of a recording are made, by one process at a time, within `locked`."""

    def __init__(self, names: SegmentNames, keep_files: int | None) -> None:
        """`OSError` if the folder can't be written."""
        self.names = names
        self._keep_files = keep_files
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._lock = names.folder / f".{names.stem}{names.ending}.lock"
        self._lock.touch()

    def unfinished(self) -> Unfinished:
        return Unfinished(self)

    def new_name(self) -> str:
        """A name for another file, later than those before even if the clock was set back."""
        while True:
            self._newest = max(datetime.now(UTC), self._newest + _TICK)
            name = f"{self.names.stem}-{self._newest:%Y%m%dT%H%M%S.%f}Z-{os.getpid()}{self.names.ending}"
            if not (self.names.folder / name).exists():
                return name

    @contextmanager
    def locked(self, patience_secs: float) -> Iterator[None]:
        """Lock the folder. `TimeoutError` if others have it locked for `patience_secs`."""
        patience = Patience(patience_secs)
        with self._lock.open("ab") as file:
            while not try_to_lock(file):
                if patience.left_secs < 0:
                    raise TimeoutError("others keep making files there")
                time.sleep(patience.spend(_LOOK_SECS))
            try:
                yield
            finally:
                unlock(file)

    def finish_left(self, on_damage: Callable[[str], None]) -> None:
        """Finish files left by processes without a store. `on_damage` gets the problem if a batch can't be read.

        Files that can't be finished stay for another time; the first error is raised at the end.
        """
        for part in self.names.hidden(_PART):  # left by a killed process, because no other process makes files now
            part.unlink(missing_ok=True)
        failure: Exception | None = None
        for path in self.names.hidden(_UNFINISHED):
            try:
                self._finish_unfinished(path, on_damage)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure

    def _finish_unfinished(self, path: Path, on_damage: Callable[[str], None]) -> None:
        with path.open("r+b") as file:
            if not try_to_lock(file):
                return  # its process is alive
            self.finish(path.name.removeprefix(".").removesuffix(_UNFINISHED), _batches_in(file), on_damage)
            if fcntl is None:  # Windows can't remove an open file
                file.close()
            path.unlink()

    def finish(self, name: str, packed: Iterable[bytes], on_damage: Callable[[str], None]) -> None:
        """Make the file of these batches, unless it exists already. Afterwards the file and its name are synced to the disk."""
        self.finish_rows(name, _unpacked(packed, on_damage))

    def finish_rows(self, name: str, batches: Iterable[UnpackedBatch]) -> None:
        path = self.names.folder / name
        rows = rows_of(batches)
        if not path.exists() and (first := next(rows, None)) is not None:
            with open_table(path, SCHEMA, unfinished=path.with_name(f".{name}{_PART}")) as write:
                for several in chain([first], rows):
                    write(several)
        sync_path(path.parent)  # otherwise a power cut might lose the name, though its batches are deleted next

    def remove_oldest(self) -> None:
        """Remove the oldest files beyond those to keep."""
        if self._keep_files is not None:
            for path in self.names.finished()[: -self._keep_files]:
                path.unlink(missing_ok=True)


class Unfinished:
    """Batches that no store keeps, appended to a file. If the process dies, another makes a finished file of it."""

    def __init__(self, folder: RecordingFolder) -> None:
        self.size_bytes = 0
        """The size of the batches in the file, before packing."""
        self.began_us = 0
        """When its first batch came; 0 before that."""
        self._folder = folder
        self._file: IO[bytes] | None = None

    def append(self, packed: bytes, size_bytes: int) -> None:
        """Write a batch, all or nothing. It isn't synced to the disk."""
        if self._file is None or os.fstat(self._file.fileno()).st_nlink == 0:  # the file was removed
            self.leave()
            self._file, self.began_us = self._begun(), time.time_ns() // 1000
        begins = self._file.tell()
        try:
            write_all(self._file.write, _SIZE.pack(len(packed)) + packed)
        except BaseException:  # an interrupt too: otherwise half a batch would stand before the next one
            with suppress(OSError):
                self._file.seek(begins)
                self._file.truncate()
            raise
        self.size_bytes += size_bytes

    def leave(self) -> None:
        """Leave the file to be finished. The next batch begins another."""
        file, self._file = self._file, None
        self.size_bytes = self.began_us = 0
        if file is not None:
            unlock(file)
            file.close()

    def _begun(self) -> IO[bytes]:
        folder = self._folder.names.folder
        while True:
            path = folder / f".{self._folder.new_name()}{_UNFINISHED}"
            with suppress(FileExistsError):
                file = path.open("xb", buffering=0)
                # Between making and locking it, another process may have finished it as a left one.
                if try_to_lock(file) and os.fstat(file.fileno()).st_nlink:
                    return file
                file.close()


def _batches_in(file: IO[bytes]) -> Iterator[bytes]:
    """The whole batches of an unfinished file. A killed process may leave half a batch at the end."""
    while len(head := file.read(_SIZE.size)) == _SIZE.size:
        (size_bytes,) = _SIZE.unpack(head)
        data = file.read(size_bytes)
        if not size_bytes or len(data) < size_bytes:  # zeros, which a power cut may leave, are no batch
            return
        yield data


def _unpacked(packed: Iterable[bytes], on_damage: Callable[[str], None]) -> Iterator[UnpackedBatch]:
    for data in packed:
        try:
            yield unpacked(data)
        except ValueError as error:
            on_damage(str(error))


def try_to_lock(file: IO[bytes]) -> bool:
    """Lock a file, until the process releases the lock or dies. False if another process has it locked."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _lock_on_windows(file, "LK_NBLCK")
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(file: IO[bytes]) -> None:
    """Release the lock, also for a process forked meanwhile, which shares it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        _lock_on_windows(file, "LK_UNLCK")


def _lock_on_windows(file: IO[bytes], mode: str) -> None:
    import msvcrt

    at = file.tell()
    file.seek(_FAR_BYTES)
    msvcrt.locking(file.fileno(), getattr(msvcrt, mode), 1)  # type: ignore[attr-defined]
    file.seek(at)
