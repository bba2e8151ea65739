"""A batch's transaction, from asking for the domain to its outcome.

    asked     `begin` waits for the domain: for this process's other threads, then for the database's lock
    held      it has the domain, and has caught up with what others recorded; receipts are decided in memory
    recorded  `record` has put into the transaction what was decided, and commits a transaction of our own
    ended     committed, given up by `abandon` or, in a caller's transaction, left to the caller, who commits

Memory advances with the commit only. The outcome of a transaction of our own is known at once, or read from the log where
the connection was lost during the commit. In a transaction of its caller's, a batch leaves its number. So whether it was
committed is looked up when the domain is next used, and only then it is counted: `DomainSession.settle`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from receiver.durable.cache import corrupt_if_nonsense
from receiver.durable.opening import new_number
from receiver.durable.status import Tally
from receiver.errors import StoreBusyError, StoreError
from receiver.message import ReceiptValues
from receiver.retrying import Backoff, until_done
from receiver.store.databases import store_error, translated
from receiver.store.log import DomainLog
from receiver.store.sql_rows import BatchNumber, Changes
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from receiver.durable.session import DomainSession

_LOGGER = logging.getLogger("receiver")
_BACKOFF = Backoff(0.05, 1.0)


class Transaction:
    """A batch's transaction: `begin`, then `record` or `abandon`."""

    def __init__(self, session: DomainSession, connection: Connection | None, task: Hashable = None) -> None:
        """`connection` is the caller's whose transaction is joined, `task` that of an event loop if there is one."""
        self.cache = session.cache
        self._session = session
        self._began_ns = perf_counter_ns()
        """When the domain was asked for."""
        self._joined = None if connection is None else session.log.join(connection, session.patience_secs)
        self.log: DomainLog = self._joined or session.log
        log = self.log
        self._held = Hold(session.lock, lambda: log.holder, task or threading.get_ident(), domain=session.store_id)
        self.state: DomainState
        """The domain's state as the transaction found it."""
        self._has_read_on = False
        self.converts = False
        """Whether it makes the domain one of the other kind."""
        self.last_writer = new_number()

    @property
    def first_sequence(self) -> int:
        """The sequence number of the batch's first receipt; each further one has the next."""
        return self.state.receipts

    def begin(self) -> None:
        """Have the domain to ourselves, and catch up with it."""
        session, log, held, joined = self._session, self.log, self._held, self._joined
        given = None if joined is None else joined.connection.engine.url
        try:
            hold(held)
            session.acquire(held.owner)
        except BaseException:
            release(held)
            raise
        try:
            with translated(given or session.address):
                self.state = session.check_own(log.begin(), given)
                session.settle(log)
                self._has_read_on = self.cache.follow(log, self.state)
        except BaseException:
            log.rollback()
            session.release()
            release(held)
            raise

    def abandon(self, error: BaseException | None = None) -> None:
        """Record nothing, and forget what was decided."""
        if self._session.is_forked_off:
            return
        policy = self.cache.policy
        has_decided = (policy.serial, policy.clock_us) != (self.state.last_seq, self.state.clock_us)
        may_be_half_done = error is not None and not isinstance(error, Exception)
        # What was read on in a transaction of the caller's may be rolled back with it.
        may_vanish = self._has_read_on and self._joined is not None
        if has_decided or may_be_half_done or may_vanish:
            self.cache.drop()
        try:
            self.log.rollback()
        finally:  # an interrupt may come meanwhile, and this thread would be refused the domain for ever
            self._end()

    def record(self, rows: Sequence[ReceiptValues], tally: Tally) -> None:
        """Record the batch and commit; `StoreError` if it isn't committed, or not proven to be."""
        session, log, cache = self._session, self.log, self.cache
        number = None
        if self._joined is not None:
            session.numbered += 1
            number = BatchNumber(session.writer, session.numbered)
        try:
            session.check_usable()  # it may have been forked off inside the batch
            state, changes = self._changes(rows, tally, number)
            with translated(session.address):
                log.record(state, changes, before=self.state)
        except BaseException as error:
            cache.drop()
            self.abandon(error)
            raise
        try:
            if self._joined is not None and number is not None:
                tally.batch_secs = (perf_counter_ns() - self._began_ns) / 1e9
                session.leave_unsettled(number.batch, tally, self._joined.transaction)
            else:
                self._commit(state, tally)
                session.count(tally)
            cache.advance(state, changes.rows)
            log.give_back_space()
        except BaseException:
            cache.drop()
            log.rollback()  # an interrupt may have come before the commit, and others would wait for the domain
            raise
        finally:
            self._end()

    def _changes(
        self, rows: Sequence[ReceiptValues], tally: Tally, number: BatchNumber | None
    ) -> tuple[DomainState, Changes]:
        """The domain's new state, and all else that is to be recorded."""
        cache = self.cache
        if self.state.last_seq + len(rows) != cache.policy.serial:
            raise StoreError("a receive was interrupted halfway, so nothing of its batch is recorded")
        if (recorder := self._session.recorder) is not None:
            tally.recorded = recorder.packed(rows, tally.full_receipts)
        with corrupt_if_nonsense(self.state):
            retired = cache.retire_due()
            changes = cache.changes(rows, retired)._replace(batch_number=number, recorded=tally.recorded)
            return self._new_state(tally, len(retired)), changes

    def _new_state(self, tally: Tally, retired: int) -> DomainState:
        policy = self.cache.policy
        needs_by_hour = self.state.needs_by_hour
        if tally.events:
            needs_by_hour = self.cache.needs_with(tally.events, policy.latest_us)
        state = tally.added_to(
            self.state,
            last_seq=policy.serial,
            # Even a batch that only lent its connection leaves another state, by which its commit can be recognised.
            last_writer=self.last_writer,
            latest_us=policy.latest_us,
            clock_us=policy.clock_us,
            retired_sources=self.state.retired_sources + retired,
            needs_by_hour=needs_by_hour,
        )
        return state.converted() if self.converts else state

    def _commit(self, state: DomainState, tally: Tally) -> None:
        address = self._session.address
        committing_ns = perf_counter_ns()
        try:
            self.log.commit()
        except Exception as error:
            failure = store_error(error, address)
            self.log.discard()
            if not self._was_committed(state, failure):
                raise failure from error
            _LOGGER.warning(
                "the connection was lost while committing; the batch turns out to be committed: %s", failure
            )
        committed_ns = perf_counter_ns()
        tally.batch_secs = (committed_ns - self._began_ns) / 1e9
        tally.commit_secs = (committed_ns - committing_ns) / 1e9

    def _was_committed(self, state: DomainState, failure: StoreError) -> bool:
        """Whether the log is in this state, read from it as soon as the database can be reached and lets go of the lock.

        Raises StoreError if that stays unknown.
        """
        try:
            state_now = until_done(
                self._state_now,
                is_passing=lambda _: True,
                backoff=_BACKOFF,
                patience_secs=self._session.patience_secs,
            )
        except Exception as error:
            raise unknown_outcome(failure) from error
        self.log.rollback()
        if state_now not in {state, self.state}:  # others have been here since
            raise unknown_outcome(failure) from None
        return state_now == state

    def _state_now(self) -> DomainState:
        try:
            return self.log.begin()
        except Exception:
            self.log.discard()
            raise

    def _end(self) -> None:
        self._session.release()
        if self._joined is None:
            release(self._held)
        else:  # the domain stays locked until the caller's transaction ends
            self._held.domain, self._held.is_over = None, self._joined.is_over


def unknown_outcome(failure: StoreError) -> StoreError:
    """The error for a commit that has failed in this way, and may have been done all the same."""
    return StoreError(
        f"{failure.message}; it isn't known whether the batch was committed",
        hint="send it again: what was recorded after all is judged a duplicate",
    )


_GUARD = threading.Lock()
_HOLDS: list[Hold] = []


@dataclass(slots=True, eq=False)  # frozen ones are made in three times the time, and each batch makes one
class Hold:
    """A lock that a thread or a task of this process holds, or is about to take, so that none of them waits for itself."""

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
