"""SQLite files in a process forked off while they were open.

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
from pathlib import Path
from weakref import WeakSet

from receiver.errors import StoreError

__all__ = ["Connection", "check_not_inherited"]

_File = tuple[int, int]

_INHERITED: set[_File] = set()


class Connection(sqlite3.Connection):
    """A connection that is known as long as it is open."""

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


def check_not_inherited(file: Path) -> None:
    """Raise StoreError if the file was in use when this process was forked off."""
    if _INHERITED and file.exists() and _identity_of(file) in _INHERITED:
        raise StoreError(
            f"{file} was in use when this process was forked off, and SQLite's locks don't pass a fork",
            hint="fork between batches, or start processes with 'spawn' or 'forkserver'",
        )


def _identity_of(file: str | Path) -> _File:
    """What tells a file from another of the same name; OSError if there is none."""
    found = os.stat(file)  # noqa: PTH116 - for each batch, and a Path costs as much again
    return found.st_dev, found.st_ino


def _after_fork() -> None:
    for connection in list(_OPEN):
        if connection.is_idle():
            connection.close()
        else:
            _INHERITED.add(connection.file)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
