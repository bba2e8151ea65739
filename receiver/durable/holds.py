"""Which thread or task holds a lock of the store, or is about to take it, and how it waits for callers' transactions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from time import sleep

from sqlalchemy import Connection

from receiver.closing import acquire_noted
from receiver.errors import StoreBusyError
from receiver.retrying import Backoff, Patience
from receiver.store.connections import Guarded, kept_busy_error

UNTIL_CALLERS_END = Backoff(0.0005, 0.002)
"""Short, for nobody has the domain until we notice that a caller's transaction has ended. One thread or task at a time waits so."""
_HOLDS: list[Hold] = []
"""No lock guards the list, because an interrupt might leave it locked. Each hold is added or removed in one step."""
_TURNS: dict[Hashable, threading.Lock] = {}
"""By lock, for `turn_of`."""


@dataclass(slots=True, eq=False)  # not frozen: making a frozen one takes three times as long, and each batch makes one
class Hold:
    """A lock that a thread or task of this process holds, or is about to take. It shows who would wait for itself."""

    lock: Hashable
    """Identifies what is locked: a file, or a domain of a server."""
    holder: Callable[[], object]
    """Gives the connection that has the lock or asks for it. A connection that has the lock may take it again."""
    owner: Hashable
    """The thread, or the event loop's task, that holds or wants the lock."""
    domain: Hashable = None
    """The domain of the batch under way; None once the batch is over and only its caller's transaction goes on."""
    is_over: Callable[[], bool] = lambda: False
    """Whether that transaction has ended, and the lock with it."""
    is_callers: bool = False
    """Whether it is a caller's transaction. It may have another batch, of any receiver."""
    has_lock: bool = False
    """Whether the transaction has the lock already."""
    turns: list[bool] = field(default_factory=list)
    """Has True while the owner is next to take the lock: see `turn_of`."""
    earlier: Hold | None = None
    """The hold of this owner's batch before, in the same caller's transaction."""


def hold(wanted: Hold) -> None:
    """Note that a thread or task is about to take a lock; `StoreBusyError` if it would wait for itself."""
    for other in _HOLDS.copy():
        if other.is_over():
            release(other)
            continue
        if other.lock != wanted.lock:
            continue
        is_own = other.owner == wanted.owner
        if is_own and other.domain == wanted.domain:
            raise under_way_error(wanted.owner)
        # A caller's connection may take its own lock again: batches may join one transaction, one after the other.
        if other.holder() is wanted.holder():
            wanted.has_lock |= other.has_lock and wanted.is_callers  # our own next batch is another transaction
            if is_own and other.domain is None:
                wanted.earlier = other
        elif is_own:
            raise in_another_transaction_error(wanted.owner)
    _HOLDS.append(wanted)


def keep(held: Hold, is_over: Callable[[], bool]) -> None:
    """Note that the batch is over, but its caller's transaction has the lock until that is over too."""
    held.domain, held.is_over = None, is_over
    earlier, held.earlier = held.earlier, None
    if earlier is not None:
        release(earlier)  # one hold for each transaction is enough, and each batch looks through all of them


def held_by_callers(lock: Hashable) -> list[Hold]:
    """The holds of callers' transactions that have the lock. They may have another batch."""
    return [
        held for held in _HOLDS.copy() if held.is_callers and held.has_lock and held.lock == lock and not held.is_over()
    ]


def refuse_waiting_for_itself(owner: Hashable, lock: Hashable, connection: Connection | None) -> None:
    """`StoreBusyError` if a transaction of this thread or task has the lock, unless it is the connection's."""
    for held in held_by_callers(lock):
        if held.owner == owner and held.holder() is not connection:
            raise in_another_transaction_error(owner)


def under_way_error(owner: Hashable) -> StoreBusyError:
    """The error for a thread or task that would wait for its own batch."""
    return StoreBusyError(f"this {_kind(owner)} has a batch of the domain under way", hint="end that one first")


def in_another_transaction_error(owner: Hashable) -> StoreBusyError:
    """The error for a thread or task that would wait for its own transaction."""
    return StoreBusyError(
        f"this {_kind(owner)} holds the lock in another transaction, which is still open",
        hint="end that one first, or join it: batch(connection=...)",
    )


def _kind(owner: Hashable) -> str:
    return "thread" if isinstance(owner, threading.Thread) else "task"


def release(held: Hold) -> None:
    with suppress(ValueError):  # it is gone: removed before an interrupt, or because it was over
        _HOLDS.remove(held)


def turn_of(lock: Hashable) -> threading.Lock:
    """Held by the thread that is next to take a lock, until it has it: one thread of the process at a time."""
    return _TURNS.setdefault(lock, threading.Lock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HOLDS.clear)
    os.register_at_fork(after_in_child=_TURNS.clear)


class GuardedDomain(Guarded):
    """A receiver's domain. Its threads take turns, and wait until callers' transactions that have the domain have ended."""

    def __init__(self, lock: Hashable, patience_secs: float, in_use: threading.Lock, *, is_shared: bool) -> None:
        """`lock` identifies what a transaction locks: a file, or one domain of a server. `is_shared`: by other receivers."""
        super().__init__("receiver", "batches", patience_secs, in_use)
        self.lock = lock
        self.turn = turn_of(lock) if is_shared else threading.Lock()

    def is_free(self) -> bool:
        """Whether the database has the lock to give, although it seems to be taken."""
        raise NotImplementedError

    def acquire_for(self, held: Hold) -> None:
        """Acquire it for a batch, once callers' transactions that have the lock have ended.

        Such a transaction may have another batch. If we waited in the database, that batch would wait for us, and we for its
        transaction. We keep the turn until `release_turn`, so that no other thread gets the lock before us.
        """
        try:
            self.acquire(held.owner)
            if held.has_lock or not isinstance(held.owner, threading.Thread):
                return  # a task has waited already, without its thread
            acquire_noted(self.turn, held.turns, is_blocking=False)
            if not held.turns[0] or held_by_callers(held.lock):
                self.release(held.owner)
                self._acquire_after_callers(held)
        except BaseException:  # an interrupt may come between any two steps
            self.release_turn(held)
            self.release(held.owner)
            raise

    def release_turn(self, held: Hold) -> None:
        """Let another thread wait for the lock, because we have it, or no longer want it."""
        turns, held.turns = held.turns, []
        if True in turns:
            self.turn.release()

    def _acquire_after_callers(self, held: Hold) -> None:
        """Acquire it as soon as callers' transactions have ended. Transactions that begin meanwhile wait behind us."""
        patience = Patience(self.patience_secs)
        if not held.turns[0]:
            acquire_noted(self.turn, held.turns, within_secs=self.patience_secs)
        for pause_secs in UNTIL_CALLERS_END.pauses_secs():
            self.acquire(held.owner)
            is_late = patience.left_secs <= 0
            if (True in held.turns and not held_by_callers(held.lock)) or (is_late and self.is_free()):
                return
            self.release(held.owner)
            if is_late:
                raise kept_busy_error("other transactions of this process kept the domain", self.patience_secs)
            sleep(patience.spend(pause_secs))
