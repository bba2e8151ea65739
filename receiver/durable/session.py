"""A receiver's state that its batches share, and the transaction of each batch, from asking for the domain to its outcome.

    asked     `begin` waits for the domain: for this process's other threads and transactions, then for the database's lock
    held      the batch has the domain, and has caught up with other processes; receipts are decided in memory
    recorded  `record` has written the decisions into the transaction, and commits a transaction of our own
    ended     committed, given up by `abandon` or, in a caller's transaction, left to the caller, who commits

Memory advances only with the commit. The outcome of a transaction of our own is known at once; if the connection was lost
during the commit, it is read from the log. In a caller's transaction, a batch leaves its number. When the domain is next
used, this number shows whether the batch was committed, and only then is it counted: `DomainSession.settle`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import URL, Connection, Engine

from receiver.domains import Channel
from receiver.durable.cache import DomainCache, corrupt_if_nonsense
from receiver.durable.duplicates import Duplicate, OnDuplicate, report
from receiver.durable.holds import GuardedDomain, Hold, held_by_callers, hold, keep, release
from receiver.durable.opening import MEMORY
from receiver.durable.status import Counters, Tally
from receiver.errors import StoreBusyError, StoreError
from receiver.message import ReceiptValues
from receiver.recording import Recorder
from receiver.retrying import Backoff, until_done
from receiver.settings import ReceiverSettings, Recording, StoreSettings
from receiver.store.databases import database_of, store_error, translated
from receiver.store.databases.database import FileBusyError, shown
from receiver.store.log import DomainLog, JoinedLog, KeptLog, is_over
from receiver.store.sql_rows import Changes
from receiver.store.tables import DomainState, new_number

if TYPE_CHECKING:
    from _typeshed import StrPath

    from receiver.store.databases.claims import Claims

_LOGGER = logging.getLogger("receiver")
_BACKOFF = Backoff(0.05, 1.0)
UNTIL_FREE = Backoff(0.001, 0.01)
"""While a thread or task waits for a file, it doesn't hold the domain: the transaction that has the file may be a caller's, and
need the domain next."""


class BatchOptions(NamedTuple):
    """The arguments of `Receiver.open` that say how batches judge."""

    domain: str
    """The domain's name."""
    observe_only: bool
    reject_batches: bool
    delivers_reused_ids: bool
    """Whether a message is delivered if its known id comes with another body."""


class Unsettled(NamedTuple):
    """A batch in a caller's transaction, whose outcome isn't known yet."""

    number: int
    tally: Tally
    """Counted if the batch was committed."""
    transaction: Any


class DomainSession(GuardedDomain):
    """A receiver's domain: its log, its cache, and the batches whose outcome isn't known yet."""

    def __init__(
        self,
        opened: tuple[KeptLog, DomainState],
        options: BatchOptions,
        settings: ReceiverSettings,
        store_settings: StoreSettings,
        on_duplicate: OnDuplicate | None,
    ) -> None:
        self.log, state = opened
        self.url = self.log.url
        lock = (self.url and database_of(self.url).locked_file(self.url)) or state.store_id
        super().__init__(lock, store_settings.lock_timeout_secs, self.log.in_use, is_shared=self.url is not None)
        self.address = MEMORY if self.url is None else shown(self.url)
        self.store_id = state.store_id
        self.domain_id = state.domain_id
        self.options = options
        self.store_settings = store_settings
        self.cache = DomainCache(settings)
        self.counters = Counters()
        self.recorder: Recorder | None = None
        self.is_concurrent: bool | None = None
        """The kind of domain that it was opened as; None for either kind."""
        self.writer = new_number()
        """Identifies this receiver in the store, beside the numbers that its batches leave."""
        self.numbered = 0
        """How many batches have left their number."""
        self.unsettled: deque[Unsettled] = deque()
        """The batches in callers' transactions whose outcome isn't known yet, oldest first."""
        self.unreported: deque[Duplicate] = deque()
        """The duplicates of committed batches that aren't reported yet."""
        self._on_duplicate = on_duplicate

    def claims_of(self, connection: Connection) -> Claims:
        """The claims of the domain, through a connection of ours or of a caller's."""
        return database_of(connection).claims(connection, self.domain_id)

    def pooled_engine(self, *, is_awaited: bool = False) -> Engine:
        """An engine for many transactions at once, for a concurrent receiver."""
        assert self.url is not None  # noqa: S101 - memory:// has no domain of this kind
        return database_of(self.url).pooled(self.url, self.store_settings, is_awaited=is_awaited)

    def load(self) -> DomainState:
        """Read the log before the next batch needs it, without a lock."""
        with self._thread_lock, self._between_batches() as log:
            state = log.begin_reading()
            self.cache.follow(log, state, may_lag=True)
            return state

    def watch(self, connection: Connection) -> None:
        """Note the domain's state while another process folds: it shows what a failover has lost if this process folds next."""
        rows = database_of(connection).rows(connection, self.domain_id)
        self.cache.watch(rows.read(rows.sql.read))

    @contextmanager
    def _between_batches(self) -> Iterator[KeptLog]:
        """The log, for a transaction that is rolled back unless the block commits it."""
        try:
            with translated(self.address):
                yield self.log
            self.log.rollback()
        except BaseException as error:
            _give_up(self.log, error)
            raise

    def record_to(self, record: Recording | StrPath, channel: Channel) -> None:
        """Record receipts from now on."""
        store = None if self.url is None else (self.url, self.store_settings)
        self.recorder = Recorder(record, channel, store=store)
        try:
            with self._thread_lock:
                self._finish_earlier_journals(self.recorder)
        except BaseException:
            self.recorder.close()
            raise

    def _finish_earlier_journals(self, recorder: Recorder) -> None:
        """Finish the journals of killed processes of earlier versions, by the numbers that their batches left in the store.

        Of a store's journals, only those of our own domain are finished, and none that a process still writes. A failure is
        only a warning: the next receiver that records to the same path tries again. Remove this with `receiver.logs.journal`.
        """
        from receiver.logs.journal import finish_journals, journals_of

        folder = recorder.folder
        if not journals_of(folder.names):
            return
        try:
            with self._between_batches() as log, folder.locked(recorder.patience_secs):
                state = self.check_own(log.begin())  # waits for a transaction that a dead process has left open
                store_id = state.store_id if state.domain_id else None
                for writer in finish_journals(folder, store_id, log.rows.last_batch):
                    log.delete_batch_numbers(state, writer)
                log.commit()
        except Exception as error:  # noqa: BLE001
            _LOGGER.warning("can't finish what killed processes have recorded: %s: %s", self.address, error)

    def check_own(self, state: DomainState, given: URL | None = None) -> DomainState:
        """Return the state if it is our domain's, else raise `StoreError`: SQLite may reuse the number of a dropped domain.

        `given` is the address of the connection whose transaction a batch joins.
        """
        if state.store_id != self.store_id:
            which = "this" if given is None else f"{shown(given)}, where the connection given to batch() leads,"
            raise StoreError(
                f"{which} is another database than {self.address} was when the receiver was opened, or its domain"
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
        """Look up the outcome of earlier batches; drop the cache if one wasn't committed.

        Unless the log has the domain locked, a batch that isn't committed yet stays unsettled: the server may still be about
        to do its COMMIT.
        """
        unsettled = self.unsettled
        if not unsettled:
            self.cache.confirm()
            return
        last = log.rows.last_batch(self.writer)
        # A batch's number is committed after all that the batch saw, so the batches before it were committed too.
        while has_domain and unsettled and unsettled[-1].number > last:
            unsettled.pop()
            self.counters.roll_back()
            self.cache.drop()
        # We see our own uncommitted batches here, but they may yet be rolled back.
        ours = log.transaction if isinstance(log, JoinedLog) else None
        while unsettled and unsettled[0].number <= last and unsettled[0].transaction is not ours:
            self.count(unsettled.popleft().tally)
        if not unsettled:
            self.cache.confirm()

    def count(self, tally: Tally) -> None:
        """Count a committed batch. In a concurrent domain it folds receipts in, and only the receipts are counted."""
        if self.recorder is not None and tally.recorded is not None:
            self.recorder.commit(tally.recorded)
        self.counters.commit(tally, is_batch=self.is_concurrent is False)  # None: it converts the domain
        self.unreported += tally.events

    def is_free(self) -> bool:
        """Whether the database has the domain to give. A server may have ended a transaction whose thread hangs."""
        with self._between_batches() as log:
            return log.begin_if_free() is not None

    def callers_go_on(self) -> bool:
        """Whether a caller's transaction with a recorded batch is still under way."""
        unsettled = self.unsettled.copy()  # another thread may change it
        return any(not is_over(batch.transaction) for batch in unsettled)

    def look_up(self) -> None:
        """Settle earlier batches if no batch is under way; a batch does this when it begins."""
        if not self.unsettled or self.callers_go_on():
            return
        with self._acquired_if_free() as is_ours:
            if is_ours:
                with self._between_batches() as log:
                    state = log.begin_if_free()
                    self.check_own(state or log.begin_reading())
                    self.settle(log, has_domain=state is not None)

    def notify(self) -> None:
        """Report the duplicates of committed batches. Call it once the domain is free: callbacks may take their time."""
        while self.unreported and not self.is_forked_off:
            try:
                event = self.unreported.popleft()
            except IndexError:  # another thread was faster
                break
            report(event, self._on_duplicate)

    def count_silent_sources(self) -> None:
        """Count the silent sources anew, unless a batch is under way."""
        with self._acquired_if_free() as is_ours:
            if is_ours:
                self.cache.count_silent_sources()

    def close(self) -> None:
        """Delete forgotten rows that are left, and end the connection; then report, and finish the recording.

        A forked process leaves the store to its parent.
        """
        if self.held_by == threading.current_thread() and not self.is_forked_off:
            raise StoreBusyError("this thread has a batch of the domain under way", hint="close after that has ended")
        if self._acquire_to_close():
            try:
                with translated(self.address):
                    self._tidy_up()
            except StoreError as error:
                # Nothing is lost: the next receiver that opens the domain deletes the same rows.
                _LOGGER.warning("can't tidy up while closing: %s", error)
            finally:
                self.log.close()
                self.release()
        self.notify()
        if self.recorder is not None:
            self.recorder.close()

    def _tidy_up(self) -> None:
        if self.callers_go_on():
            _LOGGER.warning(
                "closed before the caller's transaction has ended, so its batches won't be counted or reported: %s",
                self.address,
            )
            return
        if not self.cache.has_deletable and not self.numbered:
            return
        if held_by_callers(self.lock):  # perhaps by this thread or task, which would wait for itself
            self.check_own(self.log.begin_reading())
            self.settle(self.log, has_domain=False)
            return
        state = self.check_own(self.log.begin())
        self.settle(self.log)
        self.cache.follow(self.log, state)
        self.log.record(state, self.cache.changes(deletes_all=True))
        if self.numbered:
            self.log.delete_batch_numbers(state, self.writer)
        self.log.commit()
        self.log.give_back_space()


class Transaction:
    """A batch's transaction: `begin`, then `record` or `abandon`."""

    def __init__(self, session: DomainSession, connection: Connection | None, task: Hashable = None) -> None:
        """`connection`: the caller's, whose transaction is joined. `task`: the event loop's task, if there is one."""
        self.cache = session.cache
        self._session = session
        self._began_ns = perf_counter_ns()
        """When the domain was asked for."""
        self._joined = None if connection is None else session.log.join(connection, session.patience_secs)
        self.log: DomainLog = self._joined or session.log
        log = self.log
        owner = task or threading.current_thread()
        self._held = Hold(session.lock, lambda: log.holder, owner, session.store_id, is_callers=connection is not None)
        self.state: DomainState
        """The domain's state as the transaction found it."""
        self._has_read_on = False
        self.converts = False
        """Whether it converts the domain to the other kind."""
        self.last_writer = new_number()

    @property
    def first_sequence(self) -> int:
        """The sequence number of the batch's first receipt; each further one has the next."""
        return self.state.receipts

    def begin(self) -> None:
        """Lock the domain, and catch up with it. A thread waits for a file here; for a task, `SerialBatch` does."""
        until_done(
            self._begin,
            is_passing=lambda error: isinstance(error, FileBusyError),
            backoff=UNTIL_FREE,
            patience_secs=self._session.patience_secs if isinstance(self._held.owner, threading.Thread) else 0,
        )

    def _begin(self) -> None:
        session, log, held, joined = self._session, self.log, self._held, self._joined
        given = None if joined is None else joined.connection.engine.url
        try:
            hold(held)
            session.acquire_for(held)
        except BaseException:
            release(held)
            raise
        try:
            with translated(given or session.address):
                state = log.begin_at_once()
                held.has_lock = True
                session.release_turn(held)
                self.state = session.check_own(state, given)
                if joined is not None:
                    joined.check_same()
                session.settle(log)
                self._has_read_on = self.cache.follow(log, self.state)
        except BaseException as error:
            session.release_turn(held)
            _give_up(log, error)
            session.release(held.owner)
            release(held)
            raise

    def abandon(self, error: BaseException | None = None) -> None:
        """Record nothing, and forget what was decided. Does nothing once the transaction has ended."""
        session = self._session
        if session.is_forked_off:
            return
        if session.held_by != self._held.owner:
            self._end()
            return
        policy = self.cache.policy
        has_decided = (policy.serial, policy.clock_us) != (self.state.last_seq, self.state.clock_us)
        may_be_half_done = error is not None and not isinstance(error, Exception)
        # Rows that were read in the caller's transaction may be rolled back with it.
        may_vanish = self._has_read_on and self._joined is not None
        if has_decided or may_be_half_done or may_vanish:
            self.cache.drop()
        try:
            _give_up(self.log, error)
        finally:  # an interrupt may come meanwhile, and this thread would be refused the domain for ever
            self._end()

    def record(self, rows: Sequence[ReceiptValues], tally: Tally) -> None:
        """Record the batch and commit; `StoreError` unless it is known to be committed. After any error, call `abandon`."""
        session, log, cache = self._session, self.log, self.cache
        try:
            session.check_usable()  # it may have been forked off inside the batch
            state, changes = self._changes(rows, tally)
            with translated(session.address):
                log.record(state, changes)
            if self._joined is not None:
                tally.batch_secs = (perf_counter_ns() - self._began_ns) / 1e9
                session.unsettled.append(Unsettled(session.numbered, tally, self._joined.transaction))
            else:
                self._commit(state, tally)
                session.count(tally)
            cache.advance(state, changes.rows)
            log.give_back_space()
        except BaseException:
            cache.drop()
            raise
        self._end()

    def _changes(self, rows: Sequence[ReceiptValues], tally: Tally) -> tuple[DomainState, Changes]:
        """The domain's new state, and all other changes to record."""
        session, cache = self._session, self.cache
        if cache.is_dropped or self.state.last_seq + len(rows) != cache.policy.serial:
            raise StoreError("the batch was interrupted halfway through a step, so nothing of it is recorded")
        if session.recorder is not None:
            tally.recorded = session.recorder.packed(rows, tally.full_receipts)
        with corrupt_if_nonsense(self.state):
            changed, changes = cache.end_batch(self.state, rows, tally.events)
            # Even a batch that only lent its connection changes the state, so that its commit can be recognised.
            state = tally.added_to(self.state, last_writer=self.last_writer, **changed)
        number = None
        if self._joined is not None:
            session.numbered += 1
            number = session.writer, session.numbered
        changes = changes._replace(batch_number=number, recorded=tally.recorded)
        return (state.converted() if self.converts else state), changes

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
            _LOGGER.warning("a commit failed, but the batch turns out to be committed: %s", failure)
        committed_ns = perf_counter_ns()
        tally.batch_secs = (committed_ns - self._began_ns) / 1e9
        tally.commit_secs = (committed_ns - committing_ns) / 1e9

    def _was_committed(self, state: DomainState, failure: StoreError) -> bool:
        """Whether the log is in this state. It is read as soon as the database can be reached and the domain locked.

        `StoreError` if the outcome stays unknown.
        """
        try:
            state_now = until_done(
                self._state_now,
                is_passing=lambda _: True,
                backoff=_BACKOFF,
                patience_secs=self._session.patience_secs,
            )
            if state_now == state:
                # The server may have ended while the commit waited for a standby, which may then lack it. Another commit
                # waits until the standby has both.
                self.log.record(state, Changes())
                self.log.commit()
        except Exception as error:
            self.log.discard()
            raise unknown_outcome_error(failure) from error
        self.log.rollback()
        if state_now not in {state, self.state}:  # other batches have changed it since
            raise unknown_outcome_error(failure) from None
        return state_now == state

    def _state_now(self) -> DomainState:
        try:
            return self.log.begin_at_once()
        except Exception:
            self.log.discard()
            raise

    def _end(self) -> None:
        if self._joined is not None:  # the domain stays locked until the caller's transaction ends
            keep(self._held, self._joined.is_over)
        self._session.release(self._held.owner)  # not before, because who is next asks who holds the domain
        if self._joined is None:
            release(self._held)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an exception may have come between any two steps of a driver, as KeyboardInterrupt does.

    Then the driver's own lock may still be taken, and rolling back would wait for it for ever: so the connection must end. A
    task is cancelled only where it awaits, which leaves nothing locked.
    """
    return not isinstance(error, Exception | asyncio.CancelledError | None)


def _give_up(log: DomainLog, error: BaseException | None) -> None:
    if is_interrupt(error):
        log.discard()
    else:
        log.rollback()


def unknown_outcome_error(failure: StoreError) -> StoreError:
    """The error for a commit that failed in this way, but may have taken effect."""
    return StoreError(
        f"{failure.message}; it isn't known whether the batch was committed",
        hint="send it again: what was recorded after all is judged a duplicate",
    )
