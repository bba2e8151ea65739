"""A rotating log of receipts: batches are written to a journal, and finished files are what becomes of journals.

A journal takes a batch by one plain write, before the batch is committed and again after it, so that a process killed
at any moment leaves every receipt that it committed. Where its journal doesn't say whether a batch was committed, its
store is asked when the same path is recorded to again. Files are finished by whoever wrote the
journal, or by the next one in the same folder.

The lock on a journal shows whether its process still writes or was killed. Windows lets nobody rename or remove a file that is
open, which shows the same.

The files are called segments and named after the time at which they began:

    receipts-20261121T074500.123456Z-4711.jsonl.zst            finished: whole, and never changed again
    .receipts-20261121T074500.123456Z-4711.jsonl.zst.journal   being written, or left by a process that was killed

Ordered by name they stand in the order of time. Readers take finished files for any other log; journals they know by
this name, for globs leave out what begins with a dot.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from receiver.closing import sync_folder
from receiver.logs.columns import SCHEMA
from receiver.logs.journal import JournalHeader, Scanned, beginning, end, frame, rows_in, scanned
from receiver.logs.writer import open_table

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = [
    "AbandonedJournal",
    "RotatingLog",
    "SegmentNames",
    "finished_from",
    "is_journal",
    "journals_in",
    "segment_names",
]

_PIECE_BYTES = 128 << 10
_TICK = timedelta(microseconds=1)
_ENDINGS = (".jsonl.zst", ".parquet")
_IN_A_FOLDER = "receipts.jsonl.zst"
_STAMP = r"-\d{8}T\d{6}\.\d{6}Z-\d+"
_JOURNAL = ".journal"
_PART = ".part"
_ANY_JOURNAL = re.compile(
    rf"\..+{_STAMP}({'|'.join(map(re.escape, _ENDINGS))}){re.escape(_JOURNAL)}", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """The segments that `receipts.jsonl.zst`, say, stands for."""

    folder: Path
    stem: str
    ending: str

    def finished(self) -> list[Path]:
        """The finished segments, oldest first; `OSError` where the folder can't be read."""
        return self._matching(re.escape(self.stem) + _STAMP + re.escape(self.ending))

    def unfinished(self) -> list[Path]:
        """The journals that are being written, by this process or another, or were left behind; oldest first."""
        return self._matching(re.escape(f".{self.stem}") + _STAMP + re.escape(self.ending + _JOURNAL))

    def parts(self) -> list[Path]:
        """Files that are being made of journals, or were left by processes that were killed."""
        return self._matching(re.escape(f".{self.stem}") + _STAMP + re.escape(self.ending + _PART))

    def unfinished_at(self, began: datetime) -> Path:
        """The journal that this process begins at a time in UTC."""
        return self.folder / f".{self.stem}-{began:%Y%m%dT%H%M%S.%f}Z-{os.getpid()}{self.ending}{_JOURNAL}"

    def _matching(self, pattern: str) -> list[Path]:
        return _matching(self.folder, re.compile(pattern, re.ASCII))


def finished_from(journal: Path) -> Path:
    """The file that is made of a journal in the end."""
    return journal.with_name(journal.name.removeprefix(".").removesuffix(_JOURNAL))


def is_journal(path: Path) -> bool:
    return path.name.endswith(_JOURNAL)


def journals_in(folder: Path) -> list[Path]:
    """The journals of all that is recorded in a folder, oldest first of each name."""
    return _matching(folder, _ANY_JOURNAL)


def _matching(folder: Path, known: re.Pattern[str]) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if known.fullmatch(name)]  # noqa: PTH208


def segment_names(path: StrPath) -> SegmentNames | None:
    """What a path names: a folder, or a file whose ending names the format; None for any other ending."""
    text = os.fspath(path)
    if text.endswith(("/", os.sep)) or os.path.isdir(text):  # noqa: PTH112 - False for a path that no file can have
        return segment_names(Path(text) / _IN_A_FOLDER)
    file = Path(text)
    ending = next((file.name[-len(known) :] for known in _ENDINGS if file.name.lower().endswith(known)), None)
    return SegmentNames(file.parent, file.name.removesuffix(ending), ending) if ending else None


class _Journal:
    """The journal being written."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.size_bytes = 0
        self.began_secs = 0.0
        """On the monotonic clock, when the first batch came; 0 before."""
        self.uncertain: dict[int, int] = {}
        """Number of a batch that is neither known to be committed nor cut off -> the byte at which it begins."""
        self.owed = b""
        """Frames of committed batches that the disk had no room for."""
        self._file = file

    @property
    def is_there(self) -> bool:
        """Whether nobody has removed the file, to which the system would go on writing all the same."""
        return os.fstat(self._file.fileno()).st_nlink > 0

    def append(self, frames: bytes) -> None:
        try:
            _write_all(self._file, frames)
        except BaseException:  # an interrupt too, or half a frame would stand before the next one
            with suppress(OSError):  # the space may help others; the first error is the one to report
                self._cut_to(self.size_bytes)
            raise
        self.size_bytes += len(frames)

    def cut(self, number: int) -> None:
        """Take a batch off, and those behind it."""
        start = self.uncertain[number]
        self._cut_to(start)
        # Else a power cut could bring it back once the store has the number of a later batch.
        self.sync()
        self.size_bytes = start
        self.uncertain = {other: began for other, began in self.uncertain.items() if began < start}

    def _cut_to(self, size_bytes: int) -> None:
        self._file.seek(size_bytes)
        self._file.truncate()

    def sync(self) -> None:
        """Have the disk keep what is written."""
        os.fsync(self._file.fileno())

    def pay(self) -> None:
        """Write the frames that are owed."""
        if self.owed:
            self.append(self.owed)
            self.owed = b""

    def end(self) -> None:
        """Say that it is left in order."""
        self.pay()
        if self.size_bytes and not self.uncertain:
            self.append(end())

    def close(self) -> None:
        self._file.close()


class AbandonedJournal:
    """A journal of a process that was killed, perhaps with batches of which only its store knows whether they are committed."""

    def __init__(self, file: IO[bytes], writer: int, scan: Scanned) -> None:
        self.writer = writer
        self._file = file
        self._scan = scan

    def settle(self, last: int | None) -> None:
        """Keep the batches up to the last one that its writer has committed; None: it has committed none of them.

        Afterwards the disk has that, so the store may forget the writer's number.
        """
        starts = self._scan.uncertain
        committed = sorted(number for number in starts if last is not None and number <= last)
        lost = (start for number, start in starts.items() if number not in committed)
        self._file.truncate(min(lost, default=self._scan.whole_bytes))
        self._file.seek(0, os.SEEK_END)
        _write_all(self._file, b"".join(map(frame, committed)))
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release it, so that it can be finished."""
        self._file.close()


class RotatingLog:
    """A log to record to. One thread at a time writes batches, while another may finish files.

    Its methods raise `OSError` or `ReceiverError` and may be called again after that.
    """

    def __init__(
        self,
        names: SegmentNames,
        header: JournalHeader,
        *,
        rotate_bytes: int,
        rotate_secs: float,
        keep_files: int | None,
    ) -> None:
        self._names = names
        self._header = header
        self._rotate_bytes = rotate_bytes
        self._rotate_secs = rotate_secs
        self._keep_files = keep_files
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._journal: _Journal | None = self._begun()

    def write(self, number: int, payload: bytes) -> None:
        """Write a batch, all or nothing, before it is committed. Numbers ascend."""
        if self._journal is None or not self._journal.is_there:
            self.close()
            self._journal = self._begun()
        journal = self._journal
        if not journal.size_bytes:
            journal.append(beginning(self._header))
        journal.pay()
        journal.began_secs = journal.began_secs or time.monotonic()
        journal.uncertain[number] = journal.size_bytes  # before, for an interrupt may come at any moment
        try:
            journal.append(frame(number, payload))
        except OSError:
            del journal.uncertain[number]
            raise

    def commit(self, number: int) -> None:
        """Say that a batch is committed. Where the disk is too full for that, it is said before the next one."""
        journal = self._journal
        if journal is not None and journal.uncertain.pop(number, None) is not None:
            journal.owed += frame(number)
            with suppress(OSError):
                journal.pay()

    def cut(self, number: int) -> None:
        """Take off a batch that wasn't committed, the last one."""
        if self._journal is not None and number in self._journal.uncertain:
            self._journal.cut(number)

    @property
    def is_settled(self) -> bool:
        """Whether the journal says of each batch that it was committed."""
        return self._journal is None or not (self._journal.uncertain or self._journal.owed)

    def sync(self) -> None:
        """Have the disk keep what the journal says, before the store forgets the number that would say the same."""
        if self._journal is not None:
            self._journal.sync()

    def secs_to_rotation(self) -> float:
        """How long the journal may still grow; without end while it is empty, or not settled."""
        if self._journal is None or not self._journal.began_secs or not self.is_settled:
            return math.inf
        if self._journal.size_bytes >= self._rotate_bytes:
            return 0.0
        return max(0.0, self._journal.began_secs + self._rotate_secs - time.monotonic())

    def leave(self) -> None:
        """End the journal and begin another. Where the disk is too full for that, it goes on."""
        if self._journal is not None:
            self._journal.end()
            self.close()
            # At once, so that there is always a journal that says whose batch number the store keeps.
            with suppress(OSError):  # the next batch tries again
                self._journal = self._begun()
                self._journal.append(beginning(self._header))

    def close(self) -> None:
        """Leave the journal as it is, for others to finish."""
        left, self._journal = self._journal, None
        if left is not None:
            with suppress(OSError):  # then the store is asked
                left.pay()
            left.close()

    def finish_abandoned(self) -> None:
        """Finish every journal that nobody writes, and remove the oldest files beyond those to keep.

        A journal that can't be finished stays as it is, for another time; the first error is raised in the end.
        """
        failure: Exception | None = None
        self._remove_left_parts()
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

    def _remove_left_parts(self) -> None:
        """Remove unfinished files whose journals are gone: a part is written under the lock of its journal alone."""
        for part in self._names.parts():
            if not part.with_suffix(_JOURNAL).exists():
                part.unlink(missing_ok=True)

    def abandoned(self) -> list[AbandonedJournal]:
        """The journals of the same domain whose writers are dead, locked until they are closed."""
        if self._header.store_id is None:
            return []
        kept = []
        for path in self._names.unfinished():
            with suppress(OSError):  # another process finished it; or whoever tries to finish it reports it
                file = _taken(path)
                if file is None:
                    continue
                scan = scanned(_pieces(file))
                header = scan.header
                if header is None or header.store_id != self._header.store_id or scan.is_ended:
                    file.close()
                else:
                    kept.append(AbandonedJournal(file, header.writer, scan))
        return kept

    def _begun(self) -> _Journal:
        while True:
            # Later than the one before even where the clock was set back, so that the names keep the order.
            self._newest = max(datetime.now(UTC), self._newest + _TICK)
            path = self._names.unfinished_at(self._newest)
            if finished_from(path).exists():
                continue
            with suppress(FileExistsError):
                file = path.open("xb", buffering=0)
                # Between the two, another process may have taken it for abandoned.
                if _locked(file) and _is_at(file, path):
                    return _Journal(path, file)
                file.close()

    def _finish(self, path: Path) -> None:
        file = _taken(path)
        if file is None:
            return
        with file:
            scan = scanned(_pieces(file))
            if scan.uncertain and scan.header and scan.header.store_id is not None:
                return  # only its store knows
            # One that is there was synced before it got its name. The journal may be torn by now.
            if not finished_from(path).exists():
                _write_finished(path, file)
            if fcntl is None:
                file.close()
            sync_folder(path.parent)  # else a power cut might take the file's name, and leave the journal's removal
            path.unlink()


def _write_finished(path: Path, file: IO[bytes]) -> None:
    """Make the file of a journal's certain receipts, if there are any."""
    batches = (rows for rows in rows_in(_pieces(file)) if rows.num_rows)
    first = next(batches, None)
    if first is None:
        return
    # Under the journal's lock, and by the journal's name, so that a killed process leaves no file that nobody removes.
    with open_table(finished_from(path), SCHEMA, unfinished=path.with_suffix(_PART)) as table:
        for rows in chain([first], batches):
            table.write(rows)


def _write_all(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # the system may take less than it was given
        rest = rest[file.write(rest) :]


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    yield from iter(partial(file.read, _PIECE_BYTES), b"")


def _taken(path: Path) -> IO[bytes] | None:
    """A journal that nobody writes, locked; None where somebody does."""
    if not _closed_on_windows(path):
        return None
    file = path.open("r+b", buffering=0)
    if _locked(file) and _is_at(file, path):
        return file
    file.close()
    return None


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
