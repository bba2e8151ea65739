"""The locks that this process's threads and tasks hold, so that none of them waits for itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from receiver.errors import StoreBusyError

_GUARD = threading.Lock()
_HOLDS: list[Hold] = []


@dataclass(slots=True, eq=False)  # frozen ones are made in three times the time, and each batch makes one
class Hold:
    """A lock that a thread or a task holds, or is about to take."""

    lock: Hashable
    """What is locked: a file, or a domain of a server."""
    holder: Callable[[], object]
    """The connection that holds the lock, and may take it again."""
    owner: Hashable
    """The thread that waits, or the task of an event loop."""
    domain: Hashable = None
    """The domain of the batch under way; None once the batch is over and only its caller's transaction goes on."""
    is_over: Callable[[], bool] = lambda: False
    """Whether that transaction has ended, and the lock with it."""


def hold(wanted: Hold) -> None:
    """Note that a thread or a task is about to take a lock, unless it would wait for itself."""
    with _GUARD:
        _HOLDS[:] = [other for other in _HOLDS if not other.is_over()]
        for other in _HOLDS:
            if (other.owner, other.lock) != (wanted.owner, wanted.lock):
                continue
            if other.domain is not None and other.domain == wanted.domain:
                raise under_way(wanted.owner)
            # The caller's connection may take its own lock again: two batches, one after the other, join one transaction.
            if other.holder() is not wanted.holder():
                raise StoreBusyError(
                    f"this {_kind(wanted.owner)} holds the lock in another transaction, which is still open",
                    hint="end that one first, or join it: batch(connection=...)",
                )
        _HOLDS.append(wanted)


def under_way(owner: Hashable) -> StoreBusyError:
    """The error for whoever would wait for a batch of their own."""
    return StoreBusyError(f"this {_kind(owner)} has a batch of the domain under way", hint="end that one first")


def _kind(owner: Hashable) -> str:
    return "thread" if isinstance(owner, int) else "task"


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
