"""A file of SQLite: opens it, and refuses it if other processes wouldn't see its commits, or might delete them.

SQLite keeps a record of its locks per process and file. A fork inherits the record, but not the locks: a connection that the
child opens would rely on locks that it doesn't hold, and its commits could be deleted under it ("How To Corrupt An SQLite
Database File", 2.6, on sqlite.org). The record goes when the connections are closed. So the child first closes its copies of
idle connections; that leaves the parent's locks alone. It refuses a file with a connection that was in use.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import URL

from receiver.errors import StoreCorruptError, StoreError
from receiver.retrying import Backoff, until_done
from receiver.settings import StoreSettings
from receiver.store.databases.database import shown

_File = tuple[int, int]

_INHERITED: set[_File] = set()


class FileConnection(sqlite3.Connection):
    """A connection that is in `_OPEN` while it is open."""

    path: str
    file: _File
    log_path: str
    log: _File | None = None
    """The file's write-ahead log, which stays the same file while a connection that writes is open."""
    is_idle: Callable[[], bool] = staticmethod(lambda: False)
    """Whether it is between transactions, and no thread is waiting in it for one."""
    end_if_idle: Callable[[], None] = staticmethod(lambda: None)
    """Ends it unless a thread uses it. Does nothing if its owner may still need it."""

    def watch(self, file: Path) -> None:
        self.path = str(file)
        self.file = identity_of(self.path)
        self.log_path = f"{file.resolve()}-wal"
        _OPEN.add(self)

    def log_now(self) -> _File | None:
        with suppress(FileNotFoundError):
            return identity_of(self.log_path)
        return None

    def header_at(self, descriptor: str) -> bytes | None:
        """What the file says of its log, if this descriptor of the process is the file's.

        Not by opening the file: closing it again would drop the locks that the process has.
        """
        is_ours = identity_of(descriptor) == self.file
        return os.pread(int(descriptor.rpartition("/")[2]), 2, _HEADER_AT) if is_ours else None

    def is_replaced(self) -> bool:
        """Whether the file's name, or that of its log, leads to another file by now: then nobody else would see our commits.

        A person may have removed the log as a left-over. SQLite removes it too: if a process opens the file by other means and
        closes it, the process loses its locks, and another that closes the file takes itself for the last. `StoreError` if the
        file is gone.
        """
        try:
            is_other = identity_of(self.path) != self.file
        except OSError as error:
            raise StoreError(
                f"the file {self.path} is gone: {error.strerror}", hint="put it back, or open it again"
            ) from error
        return is_other or (self.log is not None and self.log_now() != self.log)

    def close(self) -> None:
        _OPEN.discard(self)
        # An interrupted cursor may keep its statement, and so the file and the lock.
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


_OPEN: WeakSet[FileConnection] = WeakSet()


def _check_not_inherited(file: Path) -> None:
    if _INHERITED and file.exists() and identity_of(file) in _INHERITED:
        raise StoreError(
            f"{file} was in use when this process was forked, and SQLite's locks don't survive a fork",
            hint="fork between batches, or start processes with 'spawn' or 'forkserver'",
        )


def identity_of(file: str | Path) -> _File:
    """Distinguishes a file from another of the same name; `OSError` if there is none."""
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
"""The most bytes that the write-ahead log keeps once it is copied into the file: a large transaction's space is given back."""
_SHORTEST_DATABASE_BYTES = 512
_LOG_HEADER_BYTES = 32
_HEADER_AT, _ROLLS_BACK = 18, b"\1\1"
"""Where a file says how it is written, and how one says so that has no write-ahead log: https://sqlite.org/fileformat.html"""
_UNSAFE = (
    (
        r" (nfs4?|cifs|smb3|9p|ceph|lustre|fuse\.(glusterfs|juicefs|sshfs|rclone|s3fs|gcsfuse))$",
        "the file is on a network share, where hosts don't see each other's changes: use a disk of this host, or PostgreSQL",
    ),
    (r" (tmpfs|ramfs)$", "the file is in memory, which a restart of the machine empties: name one on a disk"),
    (
        r"kubernetes\.io~empty-dir/| (overlay|aufs|fuse\.fuse-overlayfs)$",
        "the file is in a container, and all ids and messages in it go with that: mount a volume",
    ),
)
"""Why a file isn't safe on a mount, by a pattern for the mount's root and kind."""
_CLOSING_SECS = 0.05
"""Far longer than SQLite takes to remove and close the log when the last connection to a file is closed."""


def is_file(url: URL) -> bool:
    """Whether the file is there; `StoreError` if it can't be a database."""
    file, address = Path(url.database or ""), shown(url)
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        if file.parent.is_dir():
            return False
        raise StoreError(f"{address}: there is no folder {file.parent}", hint="make it first") from None
    except OSError as error:
        raise StoreError(
            f"{address}: it can't be looked at: {error.strerror}", hint="grant the right to, or name another file"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{address}: this isn't a file", hint="name the file itself")
    # SQLite takes very short files for empty ones, and would overwrite them.
    if 0 < status.st_size < _SHORTEST_DATABASE_BYTES:
        raise StoreCorruptError(f"{address}: it isn't a database: too short", hint="name another file")
    return True


def check_its_log(url: URL) -> None:
    """Raise `StoreError` for a file with several names: SQLite would keep a write-ahead log of its own for each."""
    file, address = Path(url.database or "").resolve(), shown(url)
    if not file.exists():
        return
    if (names := file.stat().st_nlink) > 1:
        raise StoreError(
            f"{address}: the file has {names} names, as hard links, and SQLite would keep a log for each of them",
            hint="delete all names but one; a symbolic link may lead there",
        )
    if _as_mounted(file) in {mount.point for mount in _mounts()}:
        raise StoreError(
            f"{address}: the file is mounted without its folder, and SQLite would keep its log where others don't see it",
            hint="mount the folder that it is in",
        )


def why_unsafe(url: URL) -> str | None:
    """Why commits to the file may be lost, judged by its file system; None if nothing suggests that."""
    folder = _as_mounted(Path(url.database or "").resolve().parent)
    above = [mount for mount in _mounts() if f"{folder}/".startswith(f"{mount.point.removesuffix('/')}/")]
    if not above:
        return None
    mount = max(above[::-1], key=lambda mount: len(mount.point))  # of two at one point, the later covers the earlier
    return next((why for where, why in _UNSAFE if re.search(where, f"{mount.root} {mount.kind}")), None)


class _Mount(NamedTuple):
    root: str
    """The folder of the file system that is mounted."""
    point: str
    kind: str
    """The kind of file system, such as ext4."""


def _mounts() -> list[_Mount]:
    """The mounts, as Linux lists them (proc_pid_mountinfo(5)), in the order in which they were made; none elsewhere."""
    with suppress(OSError):
        listed = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        fields = (line.split(" ") for line in listed)
        return [_Mount(each[3], each[4], each[each.index("-", 6) + 1]) for each in fields]
    return []


def _as_mounted(path: Path) -> str:
    """The path as the list of mounts spells it."""
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in str(path))


def open_to_write(url: URL, settings: StoreSettings) -> FileConnection:
    """Open the file to write. Creates it if need be, and switches it to a write-ahead log."""
    connection = _opened(url, settings, "mode=rwc")
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):
            # Lets the pages of deleted rows be given back. It must be set before the first page is written.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        set_up(connection, settings)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # a commit to two files isn't atomic
    except BaseException:
        connection.close()
        raise
    return connection


def set_up(connection: FileConnection, settings: StoreSettings) -> None:
    """Switch the file to a write-ahead log, and set how the connection waits and commits."""
    _write_ahead(connection, settings.lock_timeout_secs)
    connection.execute(f"PRAGMA busy_timeout = {round(settings.lock_timeout_secs * 1000)}")
    connection.execute(f"PRAGMA synchronous = {settings.sqlite_synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_LOG_BYTES}")
    # Some builds overwrite deleted data, for which empty pages would be read and written once more.
    connection.execute("PRAGMA secure_delete = FAST")
    connection.execute("PRAGMA schema_version").fetchone()  # makes the log, if this has just switched the file
    connection.log = connection.log_now()


def _write_ahead(connection: sqlite3.Connection, patience_secs: float) -> None:
    """Switch the file to a write-ahead log. While another process does so, SQLite fails at once: so this tries again."""
    until_done(
        lambda: connection.execute("PRAGMA journal_mode = WAL"),
        is_passing=lambda error: (
            isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        ),
        backoff=_BACKOFF,
        patience_secs=patience_secs,
    )


def open_to_read(url: URL, settings: StoreSettings) -> sqlite3.Connection:
    """Open the file to read. Creates and changes nothing."""
    connection = _opened(url, settings, _way_to_read(Path(url.database or "").resolve()))
    connection.execute("PRAGMA query_only = ON")
    return connection


def _way_to_read(file: Path) -> str:
    with suppress(FileNotFoundError):
        # A journal that a power cut left beside the log must be rolled back first, which needs a writable file.
        if Path(f"{file}-wal").stat().st_size > 0 and not Path(f"{file}-journal").exists():
            return "mode=ro"  # the last connection to close a writable file would copy the log into it
    if not os.access(file.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return "immutable=1"  # otherwise SQLite makes files beside it
    return "mode=rw"  # removes those files on closing; with mode=ro they would stay


def _opened(url: URL, settings: StoreSettings, options: str) -> FileConnection:
    file = Path(url.database or "")
    _check_not_inherited(file)
    connection = sqlite3.connect(
        f"{file.as_uri()}?{options}",
        uri=True,
        factory=FileConnection,
        timeout=settings.lock_timeout_secs,
        isolation_level=None,  # we begin and end transactions ourselves
        check_same_thread=False,  # a lock of the receiver's makes threads wait for each other
    )
    connection.watch(file)
    _check_not_anothers(connection)
    _check_not_removed(connection)
    return connection


def _check_not_anothers(connection: FileConnection) -> None:
    """Raise `StoreError` if the log beside the file is another's: a copy was put back where a killed process had left the log.

    SQLite would write the log into the copy. A file that has a log says so itself, but a copy by VACUUM doesn't. Nor may a new file
    whose journal a power cut left beside the log.
    """
    log = Path(connection.log_path)
    with suppress(FileNotFoundError):
        has_log = (
            log.stat().st_size > _LOG_HEADER_BYTES
            and not log.with_name(f"{log.name.removesuffix('-wal')}-journal").exists()
        )
        if has_log and _ROLLS_BACK in _of_descriptors(connection.header_at):
            connection.close()
            raise StoreError(
                f"{connection.path} was put back from a copy, and {connection.log_path}, the log of the file before, would damage it",
                hint="delete that log, and the file beside it that ends with -shm",
            )


def _check_not_removed(connection: FileConnection) -> None:
    """Raise `StoreError` if other connections of this process use a removed log: SQLite would share its index with them."""
    removed = _removed_logs(connection)
    if removed:
        with suppress(RuntimeError):  # another thread has opened one meanwhile: the next try ends the rest
            for other in list(_OPEN):
                if other is not connection and other.log_path == connection.log_path:
                    other.end_if_idle()
        time.sleep(_CLOSING_SECS)
        removed &= _removed_logs(connection)
    if removed and [*_of_descriptors(identity_of)].count(connection.file) > 1:
        connection.close()
        raise StoreError(
            f"the log of {connection.path} was removed, and other connections of this process write on to it",
            hint="end them, such as by engine.dispose(), or end the process",
        )


def _removed_logs(connection: FileConnection) -> set[_File]:
    """The file's removed logs, and their indexes, that this process still has open."""
    names = {f"{connection.log_path} (deleted)", f"{connection.log_path.removesuffix('-wal')}-shm (deleted)"}
    return set(_of_descriptors(lambda path: identity_of(path) if os.readlink(path) in names else None)) - {None}  # noqa: PTH115


def _of_descriptors(read: Callable[[str], Any]) -> Iterator[Any]:
    """The result of `read` for each file that this process has open, as Linux lists them."""
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - it is read whole, and closed
            with suppress(OSError):  # closed since, or not to be read
                yield read(f"/proc/self/fd/{descriptor}")
