"""One domain's transactions: lock it, catch up, record a batch, commit, and know what became of it.

Memory advances with the commit only. The outcome of a transaction of our own is known at once, or read from the log
where the connection was lost during the commit. That of a caller's transaction is looked up when the domain is next used.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection

from receiver.domains import Channel
from receiver.durable.cache import DomainCache, Retirement, as_retired, making_sense
from receiver.durable.opening import Opened, new_number
from receiver.durable.outcomes import Outcomes
from receiver.durable.status import Tally
from receiver.durable.turns import Turns
from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.message import ReceiptValues
from receiver.recording import Recorder
from receiver.retrying import Backoff, until_done
from receiver.settings import Recording
from receiver.store.connections import Guarded
from receiver.store.databases.database import shown
from receiver.store.engine import store_error, translated
from receiver.store.log import Changes, DomainLog, NotCommittedError
from receiver.store.sql_log import JoinedLog, SqlLog, forget_batches
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["DomainSession", "Hold", "Transaction", "hold", "release", "under_way"]

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


_LOGGER = logging.getLogger("receiver")
_BACKOFF = Backoff(0.05, 1.0)


class DomainSession(Guarded):
    """What the batches of one receiver share."""

    def __init__(self, opened: Opened, patience_secs: float, retirement: Retirement) -> None:
        super().__init__("receiver", "batches", patience_secs)
        self.log = opened.log
        self.lock = opened.lock
        self.address = opened.address
        self.store_id = opened.store_id
        self.domain_id = opened.domain_id
        self.cache = DomainCache(retirement)
        self.outcomes = Outcomes(new_number())
        self.turns = Turns()
        self._held_by: Hashable = None
        """The thread or the task whose batch is under way."""
        if isinstance(self.log, SqlLog):
            self.log.is_idle = lambda: not self._thread_lock.locked()

    def load(self) -> None:
        """Read the log ahead of the first batch, keeping nobody waiting."""
        with self._thread_lock:
            try:
                with translated(self.address):
                    self.cache.follow(self.log, self.log.begin_reading())
            finally:
                self.log.rollback()

    def read_ahead(self) -> None:
        """Follow what others have committed, before the domain is asked for, so that it is kept for less long."""
        if self.outcomes.are_settled and not self.cache.is_dropped:
            self.cache.follow(self.log, self.own(self.log.begin_reading()))
            self.log.commit()  # of nothing; after a rollback a driver may drop what it has prepared

    def record_to(self, record: Recording | StrPath, channel: Channel) -> Recorder:
        """Record what is received from now on, and settle what killed processes have recorded to the same path."""
        store_id = self.store_id if isinstance(self.log, SqlLog) else None
        recorder = self.outcomes.recorder = Recorder(
            record, **channel._asdict(), writer=self.outcomes.writer, store_id=store_id
        )
        try:
            with self._thread_lock:
                self.complete_recording()
        except BaseException:
            recorder.close()
            raise
        return recorder

    def begin(self, connection: Connection | None, task: Hashable = None) -> Transaction:
        """Have the domain to ourselves, in a transaction of our own or in the caller's, and catch up with it.

        `task` is the task of an event loop for which this thread does it, if there is one.
        """
        began_ns = perf_counter_ns()
        self.check_usable()
        log = self.log if connection is None else self._joining(connection)
        held = Hold(self.lock, lambda: log.holder, task or threading.get_ident(), domain=self.store_id)
        try:
            hold(held)
            self._acquire()
        except BaseException:
            release(held)
            raise
        self._held_by = held.owner
        transaction = Transaction(self, log, held, began_ns)
        try:
            transaction.begin()
        except BaseException:
            log.rollback()
            self.leave(held)
            raise
        return transaction

    def own(self, state: DomainState, given: URL | None = None) -> DomainState:
        """Return a state that is our domain's, else raise `StoreError`: SQLite may give its number anew once it is dropped.

        `given` is where the connection leads whose transaction a batch joins.
        """
        if state.store_id != self.store_id:
            which = "this" if given is None else f"{shown(given)}, where the connection given to batch() leads,"
            raise StoreError(
                f"{which} is another database than {shown(self.address)} was when the receiver was opened, or its domain"
                " was dropped",
                hint="give batch() a connection to the receiver's database; if that was replaced, or the domain dropped,"
                " open it again",
            )
        return state

    def leave(self, held: Hold) -> None:
        self._held_by = None
        self._thread_lock.release()
        release(held)

    def _joining(self, connection: Connection) -> JoinedLog:
        if not isinstance(self.log, SqlLog):
            raise SettingsError(
                "memory:// has no transactions to join", hint="open a sqlite:/// or postgresql:// store"
            )
        return JoinedLog(self.log, connection)

    def complete_recording(self) -> None:
        """Settle the journals of killed processes by their batch numbers, and delete those, in a transaction of its own.

        A failure is a warning only: whoever records to the same path next tries again.
        """
        recorder = self.outcomes.recorder
        journals = recorder.abandoned() if recorder is not None else []
        if recorder is None or not journals:
            return
        try:
            with translated(self.address):
                state = self.own(self.log.begin())
                for journal in journals:
                    journal.settle(self.log.last_batch(journal.writer))
                for journal in journals:
                    forget_batches(self.log.connection, state, journal.writer)
                self.log.commit()
        except (StoreError, OSError):
            _LOGGER.warning("can't complete what killed processes have recorded: %s", self.address, exc_info=True)
        finally:
            self.log.rollback()
            for journal in journals:
                journal.close()
            recorder.finish()

    def settle(self, log: DomainLog) -> None:
        """Look up what became of earlier batches; drop the cache if one wasn't committed."""
        if not self.outcomes.settle(log):
            self.cache.drop()

    def look_up(self) -> None:
        """Settle what can be settled between batches; a batch under way has done so."""
        if self._is_closed or self.is_forked_off or not self.outcomes.can_be_looked_up():
            return
        if not self._thread_lock.acquire(blocking=False):
            return
        try:
            if self.outcomes.can_be_looked_up():
                with translated(self.address):
                    self.own(self.log.begin_reading())
                    self.settle(self.log)
        finally:
            self.log.rollback()
            self._thread_lock.release()

    def count_silent_sources(self) -> None:
        """Count them anew, unless a batch is under way."""
        if self._is_closed or self.is_forked_off or not self._thread_lock.acquire(blocking=False):
            return
        try:
            self.cache.count_silent_sources()
        finally:
            self._thread_lock.release()

    def close(self) -> None:
        """Delete what is left to be deleted, and end the connection; a process forked off leaves both to its parent."""
        if self._is_closed or self.is_forked_off:
            return
        if self._held_by == threading.get_ident():
            raise StoreBusyError("this thread has a batch of the domain under way", hint="close after that has ended")
        self._acquire()
        self._is_closed = True
        try:
            with translated(self.address):
                self._tidy_up()
        except StoreError:
            # Nothing is lost by it: who opens the domain next deletes the same.
            _LOGGER.warning("can't tidy up %s while closing", self.address, exc_info=True)
        finally:
            self.log.close()
            self._thread_lock.release()

    def _tidy_up(self) -> None:
        if self.outcomes.callers_go_on():
            _LOGGER.warning(
                "closed before the caller's transaction has ended, so its batches won't be counted or reported: %s",
                self.address,
            )
            return
        self.complete_recording()
        if not self.cache.has_deletable and not self.outcomes.batches:
            return
        state = self.own(self.log.begin())
        self.settle(self.log)
        self.cache.follow(self.log, state)
        _, gone = self.cache.take_deletable((), all_of_them=True)
        self.log.record(state, Changes(gone), before=state)
        if isinstance(self.log, SqlLog) and self.outcomes.can_forget_numbers():
            forget_batches(self.log.connection, state, self.outcomes.writer)
        self.log.commit()
        self.log.give_back_space()


class Transaction:
    """A batch's transaction, from the domain's lock to its outcome."""

    def __init__(self, session: DomainSession, log: DomainLog, held: Hold, began_ns: int) -> None:
        self.log = log
        self.cache = session.cache
        self._session = session
        self._held = held
        self._began_ns = began_ns
        """When the domain was asked for."""
        self._had_ns = began_ns
        """When it was had."""
        self._state: DomainState
        self._has_read_on = False

    @property
    def latest_us(self) -> int:
        """The time of the domain's latest receipt before this batch."""
        return self._state.latest_us

    def begin(self) -> None:
        session = self._session
        given = self.log.connection.engine.url if isinstance(self.log, JoinedLog) else None
        with translated(given or session.address):
            state = self._state = session.own(self._have_the_domain(), given)
            self._had_ns = perf_counter_ns()
            session.settle(self.log)
            self._has_read_on = session.cache.follow(self.log, state)

    def _have_the_domain(self) -> DomainState:
        session, log = self._session, self.log
        nap_secs = session.turns.nap_secs(self._began_ns)
        state = log.begin_if_free() if nap_secs else log.begin()
        if state is None:
            sleep(nap_secs)
            session.read_ahead()
            state = log.begin()
        return state

    def abandon(self, error: BaseException | None = None) -> None:
        """Record nothing, and forget what was decided."""
        if self._session.is_forked_off:
            return
        cache = self.cache
        policy = cache.policy
        has_decided = (policy.serial, policy.clock_us) != (self._state.last_seq, self._state.clock_us)
        may_be_half_done = error is not None and not isinstance(error, Exception)
        # What was read on in a transaction of the caller's may be rolled back with it.
        may_vanish = self._has_read_on and isinstance(self.log, JoinedLog)
        if has_decided or may_be_half_done or may_vanish:
            cache.drop()
        self.log.rollback()
        self._end()

    def record(self, rows: Sequence[ReceiptValues], tally: Tally) -> None:
        """Record the batch and commit; `StoreError` if it isn't committed, or not proven to be."""
        session, log, cache = self._session, self.log, self.cache
        try:
            session.check_usable()  # it may have been forked off inside the batch
            with making_sense(self._state):
                retired = cache.retire_due()
                state = self._new_state(tally, len(retired))
            self._check_whole(rows, state)
            batch_number = session.outcomes.prepare(log, rows, tally)
            with translated(session.address):
                rows, gone = cache.take_deletable(rows)
                rows, policy_states = as_retired(rows, retired)
                log.record(state, Changes(gone, policy_states, rows, batch_number), before=self._state)
        except BaseException as error:
            cache.drop()
            self.abandon(error)
            raise
        try:
            if isinstance(log, JoinedLog):
                tally.batch_secs = (perf_counter_ns() - self._began_ns) / 1e9
                session.outcomes.expect(tally)
            else:
                committing_ns = perf_counter_ns()
                self._commit(state)
                committed_ns = perf_counter_ns()
                tally.batch_secs = (committed_ns - self._began_ns) / 1e9
                tally.commit_secs = (committed_ns - committing_ns) / 1e9
                session.outcomes.count(tally)
            cache.advance(state)
            self._give_back_space()
        except BaseException:
            cache.drop()
            log.rollback()  # an interrupt may have come before the commit, and others would wait for the domain
            raise
        finally:
            self._end()

    def _check_whole(self, rows: Sequence[ReceiptValues], state: DomainState) -> None:
        if self._state.last_seq + len(rows) != state.last_seq:
            raise StoreError("a receive was interrupted halfway, so nothing of its batch is recorded")

    def _new_state(self, tally: Tally, retired: int) -> DomainState:
        policy = self.cache.policy
        needs_by_hour = self._state.needs_by_hour
        if tally.events:
            needs_by_hour = self.cache.needs_with(tally.events, policy.latest_us)
        return tally.added_to(
            self._state,
            last_seq=policy.serial,
            # Even a batch that only lent its connection leaves another state, by which its commit can be recognised.
            last_writer=new_number(),
            latest_us=policy.latest_us,
            clock_us=policy.clock_us,
            retired_sources=self._state.retired_sources + retired,
            needs_by_hour=needs_by_hour,
        )

    def _commit(self, state: DomainState) -> None:
        try:
            self.log.commit()
        except NotCommittedError as error:
            with translated(self._session.address):
                raise error.reason from None
        except Exception as error:
            failure = store_error(error, self._session.address)
            self.log.discard()
            if not self._was_committed(state, failure):
                raise failure from error
            _LOGGER.warning(
                "the connection was lost while committing; the batch turns out to be committed: %s", failure
            )

    def _was_committed(self, state: DomainState, failure: StoreError) -> bool:
        """Whether the log is in this state, read from it as soon as the database can be reached and lets go of the lock.

        Raises StoreError if that stays unknown.
        """
        patience_secs = self._session.patience_secs
        try:
            state_now = until_done(
                self._begun, is_passing=lambda _: True, backoff=_BACKOFF, patience_secs=patience_secs
            )
        except Exception as error:
            raise _unknown(failure) from error
        self.log.rollback()
        if state_now not in {state, self._state}:  # others have been here since
            raise _unknown(failure) from None
        return state_now == state

    def _begun(self) -> DomainState:
        try:
            return self.log.begin()
        except Exception:
            self.log.discard()
            raise

    def _give_back_space(self) -> None:
        try:
            self.log.give_back_space()
        except Exception:
            _LOGGER.warning("can't shrink %s", self._session.address, exc_info=True)
            self.log.discard()

    def _end(self) -> None:
        log = self.log
        self._session.turns.note(self._had_ns, perf_counter_ns())
        self._session.leave(self._held)
        if isinstance(log, JoinedLog):
            hold(Hold(self._held.lock, lambda: log.holder, self._held.owner, is_over=log.is_over))


def _unknown(failure: StoreError) -> StoreError:
    return StoreError(
        f"{failure.message}; it isn't known whether the batch was committed",
        hint="send it again: what was recorded after all is judged a duplicate",
    )
