"""The files of a recording: how they are named, made and removed, and the lock that whoever makes them has.

    receipts-20261121T074500.123456Z-4711.jsonl.zst               finished: whole, and never changed again
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.part         being made, or left by a process that was killed
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.unfinished   batches of a process that has no store to keep them
    .receipts.jsonl.zst.lock                                      whose lock one process at a time has

Files are named after the time at which they began and the process that began them. Ordered by name they stand in the order
of time. Readers take finished files for any other log. What begins with a dot is none.
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

from receiver.closing import sync_folder
from receiver.logs.columns import SCHEMA
from receiver.logs.packing import UnpackedBatch, rows_of, unpacked
from receiver.logs.writer import open_table

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
"""Who waits for a lock looks this often whether it is free."""
_FAR_BYTES = 1 << 40
"""Where Windows locks a byte, which nobody can read then: behind all there is."""


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """The files that `receipts.jsonl.zst`, say, stands for."""

    folder: Path
    stem: str
    ending: str

    def __str__(self) -> str:
        return str(self.folder / f"{self.stem}{self.ending}")

    def finished(self) -> list[Path]:
        """The finished files, oldest first; `OSError` where the folder can't be read."""
        return self._matching(re.escape(self.stem) + _STAMP + re.escape(self.ending))

    def hidden(self, more: str) -> list[Path]:
        """The hidden files whose names go on with this; oldest first."""
        return self._matching(re.escape(f".{self.stem}") + _STAMP + re.escape(self.ending + more))

    def _matching(self, pattern: str) -> list[Path]:
        known = re.compile(pattern, re.ASCII)
        return [self.folder / name for name in sorted(os.listdir(self.folder)) if known.fullmatch(name)]  # noqa: PTH208


def segment_names(path: StrPath) -> SegmentNames | None:
    """What a path names: a folder, or a file whose ending names the format; None for any other ending."""
    text = os.fspath(path)
    if text.endswith(("/", os.sep)) or os.path.isdir(text):  # noqa: PTH112 - False for a path that no file can have
        return segment_names(Path(text) / _IN_A_FOLDER)
    file = Path(text)
    ending = next((file.name[-len(known) :] for known in _ENDINGS if file.name.lower().endswith(known)), None)
    return SegmentNames(file.parent, file.name.removesuffix(ending), ending) if ending else None


class RecordingFolder:
    """Where the files of a recording are made. One process at a time does so, within `locked`."""

    def __init__(self, names: SegmentNames, keep_files: int | None) -> None:
        """`OSError` where nothing can be written."""
        self.names = names
        self._keep_files = keep_files
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._lock = names.folder / f".{names.stem}{names.ending}.lock"
        self._lock.touch()

    def unfinished(self) -> Unfinished:
        return Unfinished(self)

    def new_name(self) -> str:
        """A name for another file, later than those before even where the clock was set back."""
        while True:
            self._newest = max(datetime.now(UTC), self._newest + _TICK)
            name = f"{self.names.stem}-{self._newest:%Y%m%dT%H%M%S.%f}Z-{os.getpid()}{self.names.ending}"
            if not (self.names.folder / name).exists():
                return name

    @contextmanager
    def locked(self, patience_secs: float) -> Iterator[None]:
        """Have the folder to ourselves. `TimeoutError` if others have it for so long."""
        give_up = time.monotonic() + patience_secs
        with self._lock.open("ab") as file:
            while not taken(file):
                if time.monotonic() > give_up:
                    raise TimeoutError("others keep making files there")
                time.sleep(_LOOK_SECS)
            try:
                yield
            finally:
                _let_go(file)

    def finish_left(self, on_damage: Callable[[str], None]) -> None:
        """Finish what processes without a store have left; `on_damage` gets what is wrong where a batch can't be read.

        What can't be finished stays for another time; the first error is raised in the end.
        """
        for part in self.names.hidden(_PART):  # by a process that was killed, for nobody else makes files now
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
            if not taken(file):
                return  # its process is at work
            self.finish(path.name.removeprefix(".").removesuffix(_UNFINISHED), _batches_in(file), on_damage)
            if fcntl is None:  # Windows removes no file that is open
                file.close()
            path.unlink()

    def finish(self, name: str, packed: Iterable[bytes], on_damage: Callable[[str], None]) -> None:
        """Make the file of these batches, unless it is there already. Afterwards the disk has it, and its name too."""
        self.finish_rows(name, _unpacked(packed, on_damage))

    def finish_rows(self, name: str, batches: Iterable[UnpackedBatch]) -> None:
        path = self.names.folder / name
        rows = rows_of(batches)
        if not path.exists() and (first := next(rows, None)) is not None:
            with open_table(path, SCHEMA, unfinished=path.with_name(f".{name}{_PART}")) as write:
                for several in chain([first], rows):
                    write(several)
        sync_folder(path.parent)  # else a power cut might take the name, and leave what is removed next

    def remove_oldest(self) -> None:
        """Remove the oldest files beyond those to keep."""
        if self._keep_files is not None:
            for path in self.names.finished()[: -self._keep_files]:
                path.unlink(missing_ok=True)


class Unfinished:
    """Batches that no store keeps, one behind the other in a file; another process makes a finished file of it if need be."""

    def __init__(self, folder: RecordingFolder) -> None:
        self.size_bytes = 0
        """The size of the batches in the file, before they were packed."""
        self.began_us = 0
        """When its first batch came; 0 before."""
        self._folder = folder
        self._file: IO[bytes] | None = None

    def append(self, packed: bytes, size_bytes: int) -> None:
        """Write a batch, all or nothing. It goes to the system's memory, to no disk."""
        if self._file is None or os.fstat(self._file.fileno()).st_nlink == 0:  # somebody has removed it
            self.leave()
            self._file, self.began_us = self._begun(), time.time_ns() // 1000
        begins = self._file.tell()
        try:
            rest = memoryview(_SIZE.pack(len(packed)) + packed)
            while rest:  # the system may take less than it was given
                rest = rest[self._file.write(rest) :]
        except BaseException:  # an interrupt too, or half a batch would stand before the next one
            with suppress(OSError):
                self._file.seek(begins)
                self._file.truncate()
            raise
        self.size_bytes += size_bytes

    def leave(self) -> None:
        """Leave the file to whoever finishes it; the next batch begins another."""
        file, self._file = self._file, None
        self.size_bytes = self.began_us = 0
        if file is not None:
            _let_go(file)
            file.close()

    def _begun(self) -> IO[bytes]:
        folder = self._folder.names.folder
        while True:
            path = folder / f".{self._folder.new_name()}{_UNFINISHED}"
            with suppress(FileExistsError):
                file = path.open("xb", buffering=0)
                # Between the two, another process may have finished it as one that was left.
                if taken(file) and os.fstat(file.fileno()).st_nlink:
                    return file
                file.close()


def _batches_in(file: IO[bytes]) -> Iterator[bytes]:
    """The whole batches of an unfinished file. A process that is killed leaves half a batch at the end."""
    while len(head := file.read(_SIZE.size)) == _SIZE.size:
        (size_bytes,) = _SIZE.unpack(head)
        data = file.read(size_bytes)
        if not size_bytes or len(data) < size_bytes:  # zeros, as a power cut may leave them, are no batch
            return
        yield data


def _unpacked(packed: Iterable[bytes], on_damage: Callable[[str], None]) -> Iterator[UnpackedBatch]:
    for data in packed:
        try:
            yield unpacked(data)
        except ValueError as error:
            on_damage(str(error))


def taken(file: IO[bytes]) -> bool:
    """Take the lock on a file, which its process holds until it lets go or dies; False where another has it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _lock_on_windows(file, "LK_NBLCK")
    except (BlockingIOError, PermissionError):
        return False
    return True


def _let_go(file: IO[bytes]) -> None:
    """Release the lock also for a process forked off meanwhile, which has a copy of it."""
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
