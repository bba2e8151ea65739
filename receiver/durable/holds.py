"""Which thread of this process holds which domain: what would wait for itself is refused at once.

Two transactions of one thread that need the same lock would wait until the time is up, for neither can go on. SQLite
locks the whole file, PostgreSQL the domain.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from receiver.errors import StoreBusyError

__all__ = ["Hold", "hold", "release"]

_GUARD = threading.Lock()
_HOLDS: list[Hold] = []


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    lock: Hashable
    """What is locked: a file, or a domain of a server."""
    holder: Callable[[], object]
    """The connection that holds the lock, and may take it again."""
    thread: int
    domain: Hashable = None
    """The domain of the batch under way; None once the batch is over and only its caller's transaction goes on."""
    is_over: Callable[[], bool] = lambda: False
    """Whether that transaction has ended, and the lock with it."""


def hold(wanted: Hold) -> None:
    """Note that a thread is about to take a lock, unless it would wait for itself."""
    with _GUARD:
        _HOLDS[:] = [other for other in _HOLDS if not other.is_over()]
        for other in _HOLDS:
            if (other.thread, other.lock) != (wanted.thread, wanted.lock):
                continue
            if other.domain is not None and other.domain == wanted.domain:
                raise StoreBusyError("this thread has a batch of the domain under way", hint="end that one first")
            if other.holder() is not wanted.holder():
                raise StoreBusyError(
                    "this thread holds the lock in another transaction, which is still open",
                    hint="end that one first, or join it: batch(connection=...)",
                )
        _HOLDS.append(wanted)


def release(held: Hold) -> None:
    with _GUARD:
        if held in _HOLDS:
            _HOLDS.remove(held)


def _forget_the_parents() -> None:
    global _GUARD  # noqa: PLW0603 - another thread of the parent may have had it
    _GUARD = threading.Lock()
    _HOLDS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents)
