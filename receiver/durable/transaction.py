"""A batch's transaction: lock the domain, catch up, record, commit, and know what became of it.

Memory advances with the commit only. The outcome of a transaction of our own is known at once, or read from the log
where the connection was lost during the commit. That of a caller's transaction is looked up when the domain is next used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING

from receiver.durable.cache import making_sense
from receiver.durable.holds import Hold, hold
from receiver.durable.opening import new_number
from receiver.durable.retirement import as_retired
from receiver.durable.status import Tally
from receiver.errors import StoreError
from receiver.message import ReceiptValues
from receiver.retrying import Backoff, until_done
from receiver.store.engine import store_error, translated
from receiver.store.log import Changes, DomainLog, NotCommittedError
from receiver.store.sql_log import JoinedLog
from receiver.store.tables import DomainState

if TYPE_CHECKING:
    from receiver.durable.session import DomainSession

__all__ = ["Transaction"]

_LOGGER = logging.getLogger("receiver")
_BACKOFF = Backoff(0.05, 1.0)


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
        nap_secs = session.turns.nap_secs(self._began_ns) if log.naps else 0
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
                log.record(
                    state, Changes(gone, policy_states, rows=rows, batch_number=batch_number), before=self._state
                )
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
            cache.advance(state, rows)
            log.give_back_space()
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
