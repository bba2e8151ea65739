"""What the batches of one receiver share: the log, the domain in memory, and the outcomes that aren't known yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from time import perf_counter_ns
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection

from receiver.domains import Channel
from receiver.durable.cache import DomainCache
from receiver.durable.holds import Hold, hold, release
from receiver.durable.opening import Opened, new_number
from receiver.durable.outcomes import Outcomes
from receiver.durable.retirement import Retirement
from receiver.durable.transaction import Transaction
from receiver.durable.turns import Turns
from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.recording import Recorder
from receiver.settings import Recording
from receiver.store.connections import Guarded
from receiver.store.databases.database import shown
from receiver.store.engine import translated
from receiver.store.log import Changes, DomainLog
from receiver.store.sql_log import JoinedLog, SqlLog, forget_batches
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["DomainSession"]

_LOGGER = logging.getLogger("receiver")


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

    def settle(self, log: DomainLog, *, has_domain: bool = True) -> None:
        """Look up what became of earlier batches; drop the cache if one wasn't committed."""
        if not self.outcomes.settle(log, has_domain=has_domain):
            self.cache.drop()

    def look_up(self) -> None:
        """Settle what can be settled between batches; a batch under way has done so."""
        if not (self.outcomes.can_be_looked_up() and self._acquire_if_free()):
            return
        try:
            with translated(self.address):
                state = self.log.begin_if_free()
                has_domain = state is not None
                self.own(state or self.log.begin_reading())
                self.settle(self.log, has_domain=has_domain)
        finally:
            self.log.rollback()
            self._thread_lock.release()

    def count_silent_sources(self) -> None:
        """Count them anew, unless a batch is under way."""
        if not self._acquire_if_free():
            return
        try:
            self.cache.count_silent_sources()
        finally:
            self._thread_lock.release()

    def close(self) -> None:
        """Delete what is left to be deleted, and end the connection; a process forked off leaves both to its parent."""
        if self._held_by == threading.get_ident() and not self.is_forked_off:
            raise StoreBusyError("this thread has a batch of the domain under way", hint="close after that has ended")
        if not self._acquire_to_close():
            return
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
            if self.outcomes.recorder is not None:
                self.outcomes.recorder.sync()
            forget_batches(self.log.connection, state, self.outcomes.writer)
        self.log.commit()
        self.log.give_back_space()
