"""What the batches of one receiver share: the log, the domain in memory, and the outcomes that aren't known yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection

from receiver.domains import Channel
from receiver.durable.cache import DomainCache
from receiver.durable.earlier_journals import finish_earlier
from receiver.durable.opening import Opened, new_number
from receiver.durable.outcomes import Outcomes
from receiver.durable.retirement import Retirement
from receiver.durable.status import Counters
from receiver.errors import StoreBusyError, StoreError
from receiver.recording import Recorder
from receiver.settings import Recording, StoreSettings
from receiver.store.connections import Guarded
from receiver.store.databases import claims_of, translated
from receiver.store.databases.database import shown
from receiver.store.log import DomainLog
from receiver.store.sql_rows import Changes
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from _typeshed import StrPath

    from receiver.store.databases.claims import Claims

_LOGGER = logging.getLogger("receiver")


class DomainSession(Guarded):
    """A receiver's domain: its log, what is known of it in memory, and the batches whose outcome isn't known yet."""

    def __init__(self, opened: Opened, patience_secs: float, retirement: Retirement, counters: Counters) -> None:
        super().__init__("receiver", "batches", patience_secs, opened.log.in_use)
        self.log = opened.log
        self.lock = opened.lock
        self.address = opened.address
        self.store_id = opened.store_id
        self.domain_id = opened.domain_id
        self.url = opened.url
        self.cache = DomainCache(retirement)
        self.outcomes = Outcomes(new_number(), counters)
        self.is_concurrent: bool | None = None
        """Which kind of domain it was opened as; None for either kind."""
        self.was_concurrent = False
        """Which kind it was as it was read ahead of the first batch."""
        self._held_by: Hashable = None
        """The thread or the task whose batch is under way."""

    def claims_of(self, connection: Connection) -> Claims:
        """The claims of the domain, through a connection of ours or of a caller's."""
        return claims_of(connection, self.domain_id)

    def load(self) -> None:
        """Read the log ahead of the first batch, keeping nobody waiting."""
        with self._thread_lock:
            try:
                with translated(self.address):
                    state = self.log.begin_reading()
                    self.was_concurrent = state.is_concurrent
                    self.cache.follow(self.log, state)
            finally:
                self.log.rollback()

    def record_to(self, record: Recording | StrPath, channel: Channel, store_settings: StoreSettings) -> Recorder:
        """Record what is received from now on."""
        store = None if self.url is None else (self.url, store_settings)
        recorder = self.outcomes.recorder = Recorder(record, **channel._asdict(), store=store)
        try:
            with self._thread_lock:
                finish_earlier(recorder, self.log, self.own, self.address)
        except BaseException:
            recorder.close()
            raise
        return recorder

    def take(self, owner: Hashable) -> None:
        """Have the domain to ourselves within this process, for a batch of this thread or task."""
        self._acquire()
        self._held_by = owner

    def give_back(self) -> None:
        """Let others of this process have the domain."""
        self._held_by = None
        self._thread_lock.release()

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
        if self.is_concurrent is not None and state.is_concurrent != self.is_concurrent:
            raise StoreError(
                f"the domain was opened {'without' if self.is_concurrent else 'with'} concurrent=True since, which made it"
                " another kind",
                hint="open it again, all of its receivers alike",
            )
        return state

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
        """Count the silent sources anew, unless a batch is under way."""
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
        if not self.cache.has_deletable and not self.outcomes.batches:
            return
        state = self.own(self.log.begin())
        self.settle(self.log)
        self.cache.follow(self.log, state)
        _, gone = self.cache.take_deletable((), all_of_them=True)
        self.log.record(state, Changes(gone), before=state)
        if self.outcomes.batches:
            self.log.forget_batches(state, self.outcomes.writer)
        self.log.commit()
        self.log.give_back_space()
