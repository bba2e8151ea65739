"""Messages as lines of JSON in a file, exactly once: the store knows up to which length the file is confirmed.

Bytes beyond that length were written but never confirmed. Before anything else is written, they are cut off, and kept in a file
beside. If the confirmed part doesn't end as it did, it is another file, and nothing is cut.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from itertools import count
from pathlib import Path
from typing import IO

from sqlalchemy import URL

from receiver.bridge.received import Received
from receiver.bridge.targets import Outcome, Target
from receiver.closing import sync_path, write_all
from receiver.errors import ClosedError, OutputError, SettingsError, unwritable
from receiver.retrying import Backoff, until_done
from receiver.store.databases import database_of
from receiver.store.inbox import Lease

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_LOGGER = logging.getLogger("receiver.bridge")
_TAIL_BYTES = 4_096
"""How many of the last confirmed bytes distinguish a file from another."""
_PATIENCE_SECS = 10.0
_BACKOFF = Backoff(0.002, 0.002)


class FileTarget:
    """Appends lines to one file. All bridges of one domain may share the file; nobody else may write to it.

    Another domain of the store is refused. A second store can't be detected: each would cut off what the other wrote.
    """

    def __init__(self, path: Path | str) -> None:
        if "\0" in str(path):
            raise SettingsError(f"{str(path)!r:.200} holds a character that no path can")
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - a link to a file may lead to another one day
        self._path = Path(os.path.realpath(folder), name)
        self.name = f"file:{self._path}"
        if os.path.isdir(self._path):  # noqa: PTH112 - what can't be asked is met by whoever opens it
            raise SettingsError(f"{self._path} is a folder", hint="name a file in it: file:FOLDER/orders.jsonl")
        self._file: FileIO | None = None
        self._length = 0
        """The file's length after this object's last read or write."""
        self._tail = b""
        """Its last bytes, as this object wrote them. Read back at each save, they would hide what another program wrote between."""

    def is_store(self, url: URL) -> bool:
        """Whether the file is the database at that address."""
        return database_of(url).locked_file(url) == self._path.resolve()

    def connect(self) -> None:
        try:
            if not self._path.parent.is_dir():
                raise SettingsError(f"there is no folder {self._path.parent}", hint="make it first")
            if self._path.exists() and not self._path.is_file():
                raise SettingsError(f"{self._path} isn't a file", hint="name one, or write - for standard output")
            self._open()
        except OSError as error:
            raise self._error(error) from error
        self.close()  # only a lease knows the file's confirmed length

    def ready(self, lease: Lease) -> bool:
        try:
            self._lock()
            # Another process may have cut it and written as much, if the store had lost commits of ours.
            stored = lease.target.confirmed_bytes, lease.target.tail_digest
            if self._is_as_left() and stored == (self._length, self._tail_digest()):
                return True
            return self._opened(lease)
        except OSError as error:
            raise self._error(error) from error

    def release(self) -> None:
        if self._file is not None:
            _flock(self._file, "LOCK_UN")

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        lines = b"".join(message.json_line() for message in messages)
        if lease is None:
            return self._delivered_unkept(messages, lines)
        file, before = self._file, self._length
        assert file is not None  # noqa: S101 - it was made ready
        try:
            self._append(lines)
            os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):  # on a full disk, cut off the part that was written
                file.truncate(before)
            raise self._error(error) from error
        self._save(lease)
        return Outcome.all_of(messages)

    def _delivered_unkept(self, messages: Sequence[Received], lines: bytes) -> Outcome:
        """Deliver messages that no store keeps."""
        begun = None
        try:
            if not self._is_as_left():
                self._open()
                if self._ends_in_mid_line():  # a bridge died there, or the disk was full
                    self._append(b"\n")
            begun = self._length
            self._append(lines)
        except OSError as error:
            written = 0 if begun is None else self._length - begun
            delivered = lines[:written].count(b"\n")  # what a full disk has taken isn't written again
            return Outcome(list(range(delivered)), error=self._error(error))
        return Outcome.all_of(messages)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, lines: bytes) -> None:
        write_all(self._write, lines)
        self._tail = (self._tail + lines[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def _write(self, piece: memoryview) -> int:
        assert self._file is not None  # noqa: S101 - it was made ready
        written = self._file.write(piece)
        self._length += written
        return written

    def _is_as_left(self) -> bool:
        """Whether the path still leads to the open file, and nobody else has written to the file."""
        if self._file is None:
            return False
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._file.fileno())
        return os.path.samestat(named, ours) and ours.st_size == self._length

    def _lock(self) -> None:
        """Lock the file until the lease ends.

        It stops a process that doesn't know that the server ended its lease. A previous holder that is committing is waited for.
        """
        file = self._file
        if file is None:
            return
        try:
            until_done(
                lambda: _flock(file, "LOCK_EX", "LOCK_NB"),
                is_passing=lambda error: isinstance(error, BlockingIOError),
                backoff=_BACKOFF,
                patience_secs=_PATIENCE_SECS,
            )
        except BlockingIOError:
            raise OutputError(f"another process is writing to {self._path}") from None

    def _opened(self, lease: Lease) -> bool:
        """Open the file, and cut it at its confirmed length. False if the store must note a new file first."""
        self._open(locked=True)
        lease.look_again()  # the server may have given the lease to another process, which wrote here
        confirmed = lease.target.confirmed_bytes
        if not confirmed and (other := lease.other_domain()) is not None:
            raise SettingsError(
                f"{self._path} is written for another domain, {other}", hint="name a file of its own for each domain"
            )
        if confirmed is not None and self._length == 0 < confirmed:
            _LOGGER.warning("%s is empty or new, so writing begins at its start", self._path)
        elif confirmed is not None:
            self._cut(confirmed, lease.target.tail_digest)
            return True
        elif self._ends_in_mid_line():
            raise OutputError(f"{self._path} exists, and ends in the middle of a line", hint="name another, or mend it")
        self._save(lease)  # before the first write, because this length shows where to cut
        return False

    def _open(self, *, locked: bool = False) -> None:
        self.close()
        is_new = not self._path.exists()
        self._file = FileIO(self._path, "a+b")
        if locked:
            self._lock()
        if is_new:
            sync_path(self._path.parent)
        self._length = os.fstat(self._file.fileno()).st_size
        self._tail = self._tail_at(self._length)

    def _cut(self, confirmed: int, tail_digest: bytes | None) -> None:
        assert self._file is not None  # noqa: S101 - just opened
        tail = self._tail_at(confirmed)
        if self._length < confirmed or hashlib.sha256(tail).digest() != tail_digest:
            raise OutputError(
                f"{self._path} isn't the file that was written to: the first {confirmed:,} bytes no longer end the same way",
                hint="put that file back, or move this one away to begin a new one",
            )
        if self._length > confirmed:
            aside = self._kept_aside(confirmed)
            _LOGGER.warning(
                "%s: %d bytes that weren't confirmed are cut off, and kept in %s",
                self._path,
                self._length - confirmed,
                aside,
            )
            self._file.truncate(confirmed)
            os.fsync(self._file.fileno())
        self._length, self._tail = confirmed, tail

    def _kept_aside(self, start: int) -> Path:
        """Copy the bytes from `start` on to a file beside: a store that lost its last commits may have confirmed them.

        A file with the beginning of these bytes is used again: while the store can't commit, each try leaves the same bytes.
        """
        assert self._file is not None  # noqa: S101 - just opened
        numbers = count(1)
        while True:
            aside = Path(f"{self._path}.unconfirmed-{next(numbers)}")
            with aside.open("a+b") as copy:
                self._file.seek(start)
                copy.seek(0)
                if all(self._file.read(len(piece)) == piece for piece in iter(partial(copy.read, _TAIL_BYTES), b"")):
                    shutil.copyfileobj(self._file, copy)
                    copy.flush()
                    os.fsync(copy.fileno())
                    break
        sync_path(aside.parent)
        return aside

    def _ends_in_mid_line(self) -> bool:
        return not self._tail.endswith(b"\n") and self._length > 0

    def _tail_at(self, length: int) -> bytes:
        assert self._file is not None  # noqa: S101 - just opened
        start = max(0, length - _TAIL_BYTES)
        self._file.seek(start)
        return self._file.read(length - start)

    def _save(self, lease: Lease) -> None:
        lease.save_file(self._length, self._tail_digest())

    def _tail_digest(self) -> bytes:
        return hashlib.sha256(self._tail).digest()

    def _error(self, error: OSError) -> OutputError:
        self.close()  # its length isn't known any more
        return unwritable(str(self._path), error, what="can't write to")


class StandardOutput(Target):
    """Lines of JSON on standard output: at least once, because written lines can't be cut.

    Standard output is left open, because others may write there.
    """

    name = "-"

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        del lease
        try:
            self._stream.write(b"".join(message.json_line() for message in messages))
            self._stream.flush()
        except BrokenPipeError:
            raise ClosedError("nobody reads standard output any more") from None
        except OSError as error:
            raise OutputError(f"can't write to standard output: {error.strerror or error}") from error
        return replace(Outcome.all_of(messages), is_lasting=True)


def _flock(file: FileIO, *how: str) -> None:
    """Lock a file by flock(2), which Windows lacks."""
    if fcntl is not None:
        fcntl.flock(file, sum(getattr(fcntl, word) for word in how))
