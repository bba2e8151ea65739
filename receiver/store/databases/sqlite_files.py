"""SQLite's files: whether one can be a store, how it is opened, and what becomes of it in a process forked off.

SQLite notes its locks per process and file, and a fork inherits the notes, but not the locks: a connection of the
child's own would believe that it holds what it doesn't, and what it commits could be deleted under it ("How To Corrupt An
SQLite Database File", 2.6, on sqlite.org). The notes go with the connections they stand for. So the child first closes
its copies of those that lay idle; they are no good to it, and their locks stay the parent's. A file with a connection
that was in use is refused.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from sqlalchemy import URL

from receiver.errors import StoreCorruptError, StoreError
from receiver.retrying import Backoff, until_done
from receiver.settings import StoreSettings
from receiver.store.databases.database import shown

_File = tuple[int, int]

_INHERITED: set[_File] = set()


class Connection(sqlite3.Connection):
    """A connection that is listed in `_OPEN` as long as it is open."""

    path: str
    file: _File
    is_idle: Callable[[], bool] = staticmethod(lambda: False)
    """Whether it is between transactions, and no thread is waiting in it for one."""

    def watch(self, file: Path) -> None:
        self.path = str(file)
        self.file = _identity_of(self.path)
        _OPEN.add(self)

    def is_replaced(self) -> bool:
        """Whether the name leads to another file by now, so that nobody else would find what is written to this one.

        StoreError if it leads to none.
        """
        try:
            return _identity_of(self.path) != self.file
        except OSError as error:
            raise StoreError(
                f"the file {self.path} is gone: {error.strerror}", hint="put it back, or open it again"
            ) from error

    def close(self) -> None:
        _OPEN.discard(self)
        super().close()


_OPEN: WeakSet[Connection] = WeakSet()


def _check_not_inherited(file: Path) -> None:
    """Raise StoreError if the file was in use when this process was forked off."""
    if _INHERITED and file.exists() and _identity_of(file) in _INHERITED:
        raise StoreError(
            f"{file} was in use when this process was forked, and SQLite's locks don't survive a fork",
            hint="fork between batches, or start processes with 'spawn' or 'forkserver'",
        )


def _identity_of(file: str | Path) -> _File:
    """What distinguishes a file from another of the same name; OSError if there is none."""
    status = os.stat(file)  # noqa: PTH116 - for each batch, and a Path costs as much again
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    for connection in list(_OPEN):
        if connection.is_idle():
            connection.close()
        else:
            _INHERITED.add(connection.file)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_BACKOFF = Backoff(0.01, 0.01)
_LARGEST_IDLE_LOG_BYTES = 16 << 20
"""Of SQLite's write-ahead log once all of it is in the file: what a larger transaction needed is given back."""
_SHORTEST_DATABASE_BYTES = 512


def is_file(url: URL) -> bool:
    """Whether the file is there; StoreError if it can't be a database's."""
    file, address = Path(url.database or ""), shown(url)
    try:
        if not file.parent.is_dir():
            raise StoreError(f"{address}: there is no folder {file.parent}", hint="make it first")
        if not file.exists():
            return False
        if not file.is_file():
            raise StoreError(f"{address}: this isn't a file", hint="name the file itself")
        size = file.stat().st_size
    except OSError as error:
        raise StoreError(f"{address}: it can't be looked at: {error.strerror}", hint="grant the right to") from error
    # SQLite takes the shortest of files for empty ones, and would write over them.
    if 0 < size < _SHORTEST_DATABASE_BYTES:
        raise StoreCorruptError(f"{address}: it isn't a database: too short", hint="name another file")
    return True


def open_to_write(url: URL, settings: StoreSettings) -> sqlite3.Connection:
    """The file is created if need be, and writes ahead from then on."""
    connection = _opened(url, settings, "mode=rwc")
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):
            # Only before the first page is written, so that forgotten rows' pages can be given back.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _write_ahead(connection, settings.lock_timeout_secs)
        connection.execute(f"PRAGMA synchronous = {settings.sqlite_synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_LOG_BYTES}")
        # Some builds overwrite all that is deleted: an empty page would be read and written once more for that alone.
        connection.execute("PRAGMA secure_delete = FAST")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection, patience_secs: float) -> None:
    """Switch the file to a write-ahead log; tried again, for while another does so it fails at once, whatever the timeout."""
    until_done(
        lambda: connection.execute("PRAGMA journal_mode = WAL"),
        is_passing=lambda error: (
            isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        ),
        backoff=_BACKOFF,
        patience_secs=patience_secs,
    )


def open_to_read(url: URL, settings: StoreSettings) -> sqlite3.Connection:
    """Creates and changes nothing."""
    connection = _opened(url, settings, _way_to_read(Path(url.database or "").resolve()))
    connection.execute("PRAGMA query_only = ON")
    return connection


def _way_to_read(file: Path) -> str:
    with suppress(FileNotFoundError):
        if Path(f"{file}-wal").stat().st_size > 0:
            return "mode=ro"  # the last to close a writable file brings it up to date from its log
    if not os.access(file.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return "immutable=1"  # else SQLite needs files beside it
    return "mode=rw"  # which removes those files when it closes; with mode=ro they stay


def _opened(url: URL, settings: StoreSettings, options: str) -> Connection:
    file = Path(url.database or "")
    _check_not_inherited(file)
    connection = sqlite3.connect(
        f"{file.as_uri()}?{options}",
        uri=True,
        factory=Connection,
        timeout=settings.lock_timeout_secs,
        isolation_level=None,  # transactions begin and end where we say
        check_same_thread=False,  # threads wait for each other under a lock of the receiver's
    )
    connection.watch(file)
    return connection
