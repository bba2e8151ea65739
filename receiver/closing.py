"""Objects that a `with` block closes, a lock that no interrupt leaves locked, whole writes, and syncing to the disk."""

from __future__ import annotations

import errno
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Closing(ABC):
    """Base class of objects that the end of a `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} can't be pickled or copied: open another where it is needed")


def acquire_noted(lock: Any, has_it: list[bool], *, is_blocking: bool = True, within_secs: float | None = None) -> None:
    """Acquire a lock as its `acquire` does, and note in the list whether we have it.

    No interrupt comes between the two, because `starmap` and `+=` are C. So whoever is interrupted knows whether to release it.
    """
    has_it += starmap(lock.acquire, [(is_blocking,) if within_secs is None else (is_blocking, within_secs)])


@contextmanager
def acquired_if_free(lock: Any) -> Iterator[bool]:
    """Within it, we have acquired the lock if it was free; yields whether we have."""
    has_it: list[bool] = []
    try:
        acquire_noted(lock, has_it, is_blocking=False)
        yield has_it[0]
    finally:
        if True in has_it:
            lock.release()


_RLOCK: Any = type(threading.RLock())
"""Not `_thread.RLock`: gevent and eventlet put a lock here that keeps their greenlets apart."""


class Mutex(_RLOCK):  # type: ignore[misc]  # `Any`
    """A lock for `with` that no interrupt leaves locked. Since Python 3.14 an interrupt may come between the `__enter__` of a lock
    written in C and its block, and then nobody unlocks the lock."""

    def __enter__(self) -> bool:
        has_it: list[bool] = []
        try:
            acquire_noted(self, has_it)
        except BaseException:
            if has_it:
                self.release()
            raise
        return True


def write_all(write: Callable[[memoryview], int], data: ReadableBuffer) -> None:
    """Write all bytes by an unbuffered file's `write`, each call of which may write a part only."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) :]


def sync_path(path: Path) -> None:
    """Sync a file that is closed, or a folder, so that the disk keeps the names of its files: syncing a file doesn't keep its name."""
    if os.name == "nt":  # Windows syncs only files that are open for writing
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that can't sync folders
            raise
    finally:
        os.close(handle)
