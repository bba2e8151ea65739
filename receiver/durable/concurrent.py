"""Concurrent receivers: many transactions of one domain at once. Ids are claimed; receipts are folded in afterwards.

A consumer's transaction claims the ids of its receipts (`receiver.store.databases.claims`). It uses neither the domain's
memory nor its lock. One process at a time folds the committed receipts in: it takes them through the rule as an exclusive
receiver does, in batches. So figures, events, recordings, retiring and resizing work as in any receiver, and receipts are
judged in the order of folding.

Every id that the rule remembers is claimed: an id is claimed before its receipt can be folded in. It is released once the
rule has forgotten it, in the transaction that records this.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sqlalchemy import Connection, Engine

from receiver.detector import ForgottenId, TwoTierDetector
from receiver.durable.batch import Batch, not_open_error
from receiver.durable.duplicates import Duplicate
from receiver.durable.session import DomainSession, is_interrupt, unknown_outcome_error
from receiver.durable.status import Counters
from receiver.errors import SettingsError, StoreBusyError, StoreError
from receiver.message import NEW, UNCHECKED, Decision, Receipt, Verdict, check_receipt, check_shape, for_each
from receiver.store.databases import database_of, store_error, translated
from receiver.store.databases.database import IDLE_AT_MOST
from receiver.store.log import ended_error, joinable, keep_whole, transactions_of
from receiver.store.sql_rows import discard, driver_of, end_if_interrupted, note_loss

if TYPE_CHECKING:
    from receiver.store.databases.claims import Claims, Waiting

_LOGGER = logging.getLogger("receiver")
_AT_ONCE = 2_000
"""Receipts folded in by one transaction."""
_LOOK_SECS = 0.1
"""How often the folding process looks for receipts."""
_COUNT_SECS = 1
"""How often it counts the waiting receipts while it folds."""
_TAKE_OVER_SECS = 0.5
"""How often other processes try to become the folding one."""
_LEFT_AT_MOST = 10_000
"""The most forgotten ids whose claims may stay until all waiting receipts are folded in."""
_WARNED_AT_MOST = 8
"""The most warnings that a folding process keeps, so as not to log them again."""
_BATCHES = "receiver_batches"
"""Key in a connection's `info`: the domains that have a batch under way on the connection."""


class ConcurrentBatch(Batch):
    """A batch of a concurrent receiver: one transaction, or part of the caller's. Each thread has its own.

    The database decides on a receipt as it is received: if another open transaction has claimed the id, the batch waits
    until that one ends.
    """

    def __init__(self, session: DomainSession, engine: Engine, connection: Connection | None) -> None:
        """`engine` has the connections for batches with transactions of their own."""
        super().__init__(session, connection)
        self._engine = engine
        self._duplicate = Decision(Verdict.DUPLICATE, delivered_anyway=session.options.observe_only)

    def __enter__(self) -> Self:
        self._began_secs = time.perf_counter()
        was_open = self._is_open
        try:
            self._session.check_usable()
            with translated(self._session.address):
                if self._joined is None:
                    self._begin_own()
                else:
                    joined = joinable(self._joined, self._engine.dialect, "batch()", may_await=True)
                    database_of(joined).refuse_autocommit(joined)
                    self._use(joined)
        except BaseException:
            self._counters.fail()
            if self._is_open and not was_open:  # an interrupt, and `__exit__` isn't called then
                self._is_open = False
                self._batches.discard(self._session.store_id)
                if self._joined is None:
                    discard(self._connection)
            raise
        self._must_commit = False
        self._arrivals: list[int] = []
        self._new: list[tuple[int, str]] = []
        return self

    def _begin_own(self) -> None:
        self._pool = self._engine.pool
        connection = self._engine.connect()
        connection.begin()
        self._use(connection)

    def _give_back(self) -> None:
        if self._pool is not self._engine.pool or self._session.is_closed or self._dbapi.closed:
            # A pool that was disposed of would keep the connection. A lost connection would make the pool log an error.
            discard(self._connection)
        else:
            self._connection.close()

    def _use(self, connection: Connection) -> None:
        # Two batches at once are refused: one could drop a message as the duplicate of a receipt that the other takes back.
        self._batches: set[int] = connection.info.setdefault(_BATCHES, set())
        if self._session.store_id in self._batches:
            raise StoreBusyError("the connection has a batch of the domain under way", hint="end that one first")
        self._connection = connection
        self._dbapi = driver_of(connection)
        self._transactions = transactions_of(connection)
        self._claims = self._session.claims_of(connection)
        self._is_open = True  # before the connection is marked, because an interrupt may come between
        self._batches.add(self._session.store_id)

    @property
    def _goes_on(self) -> bool:
        """Whether the transaction goes on, and nobody has tried to end it: a failed COMMIT leaves it on the connection."""
        transaction, _ = self._transactions
        return transaction is not None and transaction.is_active

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._batches.discard(self._session.store_id)
            if error is None:
                self._commit()
            elif not self._session.is_forked_off:
                self._counters.roll_back()
                self._roll_back(error)
        except BaseException as failure:
            if error is None:
                self._counters.fail()
            self._roll_back(failure)  # an interrupt may have come between any two steps
            raise

    def _roll_back(self, error: BaseException) -> None:
        if self._session.is_forked_off:  # the transaction is its parent's
            return
        if self._joined is not None:
            # Once the caller has ended the transaction, its claims are committed or gone.
            if not self._goes_on:
                return
            # An error here means that the transaction has failed or its connection is lost, and all claims with it.
            with suppress(Exception), self._lost_if_interrupted(), translated(self._session.address):
                self._roll_back_savepoints()
                self._claims.take_back(self._arrivals, self._new)
            note_loss(self._connection)
            return
        # If the server takes no writes any more, the next connection may lead to another server.
        if is_interrupt(error) or error.__class__ is StoreError:
            discard(self._connection)
            return
        try:
            self._connection.rollback()
            self._give_back()
        except BaseException as failure:
            discard(self._connection)  # whatever it is, the transaction ends with its connection
            if not isinstance(failure, Exception):
                raise

    def _roll_back_savepoints(self) -> None:
        """Roll back savepoints begun inside the block: rolling back to one later would undo what `take_back` does now."""
        outer = self._transactions[1]
        while outer is None or outer.is_active:
            inner = self._connection.get_nested_transaction()
            if inner is outer or inner is None:
                break
            inner.rollback()

    @contextmanager
    def _lost_if_interrupted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            end_if_interrupted(self._connection, error)
            raise

    def _check_whole(self) -> None:
        """Raise if the coming COMMIT would silently undo receipts of the batch."""
        self._session.check_process()
        connection, (_, savepoint) = self._connection, self._transactions
        if connection.invalidated or not self._goes_on or connection.get_nested_transaction() is not savepoint:
            raise ended_error(connection, self._dbapi)
        with translated(self._session.address):
            self._claims.check_whole()

    def _commit(self) -> None:
        self._check_whole()
        commit_secs = None
        if self._joined is None:
            committing_secs = time.perf_counter()
            self._commit_own()
            commit_secs = time.perf_counter() - committing_secs
        if self._arrivals or self._must_commit:
            self._counters.time_commit(time.perf_counter() - self._began_secs, commit_secs)

    def _commit_own(self) -> None:
        try:
            with database_of(self._connection).committing(self._connection):
                self._connection.commit()
        except BaseException as error:
            discard(self._connection)
            if not isinstance(error, Exception):
                raise
            raise unknown_outcome_error(store_error(error, self._session.address)) from error
        self._give_back()

    @property
    def connection(self) -> Connection:
        """The connection of the batch's transaction, as `Batch.connection`."""
        if not self._is_open:
            raise not_open_error()
        if self._joined is None and not self._must_commit:
            keep_whole(self._connection, lambda: self._is_open)
        self._must_commit = True
        return self._connection

    @property
    def arrivals(self) -> Sequence[int]:
        """The numbers of the receipts so far, in order. Each is unique in the database, over all domains."""
        return self._arrivals

    @property
    def duplicates(self) -> Sequence[Duplicate]:
        """Always empty: duplicates are reported once their receipts are folded in."""
        return ()

    def advance(self, *, min_msg_time_us: int) -> None:
        del min_msg_time_us
        raise SettingsError("advance is for the policy cmq:retry=...,network=..., which no concurrent receiver has")

    def decide(self, *receipt: Any) -> Decision:
        """Decide on one receipt, as `Batch.decide` does."""
        return self.receive_many([receipt])[0]

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]) -> list[Decision]:
        checked = for_each(receipts, self._checked)
        self._session.check_process()
        if not checked:
            return []
        if not self._goes_on:  # the driver would begin a transaction that nobody ends
            raise ended_error(self._connection, self._dbapi)
        with self._lost_if_interrupted(), translated(self._session.address):
            claimed = self._claimed(checked)
            self._arrivals += [arrival for arrival, _ in claimed]
            decisions = []
            for (id_, *_), (arrival, is_repeated) in zip(checked, claimed, strict=True):
                if id_ is None:
                    decisions.append(UNCHECKED)
                elif is_repeated:
                    decisions.append(self._duplicate)
                else:
                    self._new.append((arrival, id_))
                    decisions.append(NEW)
        return decisions

    def _claimed(self, receipts: Sequence[Receipt]) -> list[tuple[int, bool]]:
        session = self._session
        for _ in range(IDLE_AT_MOST):
            try:
                return self._claims.claim(receipts, session.store_id, session.patience_secs)
            except Exception:
                has_nothing = self._joined is None and not self._arrivals and not self._must_commit
                if not (has_nothing and (self._connection.invalidated or driver_of(self._connection).closed)):
                    raise
                self._connection.invalidate()  # it was lost while idle in the pool, so nothing else is lost
                self._begin_own()
        return self._claims.claim(receipts, session.store_id, session.patience_secs)

    def _checked(self, receipt: Sequence[Any]) -> Receipt:
        check_shape(receipt)
        id_, source, received_at_us, redelivered, jms_timestamp_ms, body_digest = Receipt(*receipt)
        if received_at_us is None:
            received_at_us = time.time_ns() // 1000
        self._check(received_at_us, redelivered, jms_timestamp_ms, body_digest)
        check_receipt("" if id_ is None else id_, source, received_at_us, first=True)
        return Receipt(id_ or None, source, received_at_us, bool(redelivered), jms_timestamp_ms, body_digest)


class FoldedUpTo(NamedTuple):
    """How far the last folding came."""

    policy: TwoTierDetector
    """The policy in memory whose forgotten ids were released. If the next batch has another policy, the log was read anew."""
    last_writer: int
    """The last writer of the domain's row. If the next batch reads another number there, other processes may have released
    those ids, and receivers may have claimed them again."""
    again: set[str]
    """Forgotten ids that are still claimed: an open transaction had the claim, or other receipts may have the id."""


def fold(batch: Batch, claims: Claims, known: FoldedUpTo | None, at_most: int = _AT_ONCE) -> tuple[int, FoldedUpTo]:
    """Fold waiting receipts in, in a batch of the domain, and release the claims of ids that the rule has forgotten.

    Returns the number of receipts folded in, and how far the folding came.
    """
    folded = _take_in(batch, claims, at_most)
    transaction = batch.transaction
    policy = transaction.cache.policy
    assert isinstance(policy, TwoTierDetector)  # noqa: S101 - no other domain is concurrent
    if known is not None and known.policy is policy and known.last_writer == transaction.state.last_writer:
        forgotten: Iterable[str] = {*known.again, *policy.forgotten_ids}
    else:  # the forgotten ids that are still claimed aren't known, so all folded ids are tried
        forgotten = claims.folded_in()
    policy.forgotten_ids = deque()
    # Entries that were forgotten by hand have no id any more.
    left = claims.release_single(id_ for id_ in forgotten if id_ not in policy and not isinstance(id_, ForgottenId))
    # Few ids come more than once. Releasing those reads all waiting receipts, so it is put off until few wait.
    if folded < at_most or len(left) > _LEFT_AT_MOST:
        left = claims.release(left)
    return folded, FoldedUpTo(policy, transaction.last_writer, left)


def _take_in(batch: Batch, claims: Claims, at_most: int = _AT_ONCE) -> int:
    """Take waiting receipts through the rule, in a batch of the domain, and return their number."""
    receipts = claims.take(at_most)
    batch.receive_many(receipts)
    return len(receipts)


def convert(batch: Batch, claims: Claims, *, to_concurrent: bool) -> None:
    """Convert a domain to concurrent or to exclusive, in a batch of it, once consumers' open transactions have ended.

    To concurrent: every remembered id is claimed. To exclusive: waiting receipts are folded in, and all claims dropped.
    """
    transaction = batch.transaction
    if transaction.state.is_concurrent == to_concurrent:
        return  # another process was faster, and consumers may be at work already
    claims.keep_others_out()
    policy = transaction.cache.policy
    if not isinstance(policy, TwoTierDetector):
        raise SettingsError(f"concurrent receivers go by Apama's rule, not by {policy}", hint="open another domain")
    if to_concurrent:
        claims.drop()
        claims.add(policy.remembered())
    else:
        while _take_in(batch, claims):
            pass
        claims.drop()
    transaction.converts = True


class _Folding(Batch):
    """A batch that folds receipts in. Its end isn't counted among those of the consumers' batches."""

    def __init__(self, session: DomainSession) -> None:
        super().__init__(session)
        self._counters = Counters()


class FoldingThread:
    """Folds in the receipts of a domain, in a thread of its own, while no other process does."""

    def __init__(self, session: DomainSession, engine: Engine) -> None:
        """`engine` makes the thread's own connection. The process whose session has the lock is the one that folds."""
        self._session = session
        self._engine = engine
        self._known: FoldedUpTo | None = None
        self._kept: Connection | None = None
        self.is_folding = False
        """Whether this process is the one that folds."""
        self.waiting: Waiting | None = None
        """The receipts that wait to be folded in, as last counted; None before that."""
        self._ends = threading.Event()
        self._warned: deque[str] = deque(maxlen=_WARNED_AT_MOST)
        """The last warnings since the folding last succeeded: errors that alternate are logged once each, too."""
        self._thread = threading.Thread(target=self._run, name="receiver-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Fold in what waits, if this process is the one that folds; then let another take over."""
        self._ends.set()
        if threading.current_thread() is not self._thread:  # `on_duplicate` runs in that thread, and may call `close`
            self._thread.join()

    def _run(self) -> None:
        pause_secs = 0.0
        while not self._ends.wait(pause_secs):
            self._try_to_fold("trying again")
            pause_secs = _LOOK_SECS if self.is_folding else _TAKE_OVER_SECS
        if self.is_folding:
            self._try_to_fold("the next receiver does")
        self._let_go()

    def _try_to_fold(self, what_then: str) -> None:
        try:
            with translated(self._session.address):
                if self.is_folding or self._try_lock():
                    self._fold_all()
                    self._warned.clear()
        except BaseException as error:  # noqa: BLE001 - what waits is in the store, and a dead thread would keep the lock
            self._let_go()
            if str(error) not in self._warned:
                self._warned.append(str(error))
                _LOGGER.warning("%s: can't fold receipts in, %s: %s", self._session.options.domain, what_then, error)

    def _try_lock(self) -> bool:
        if self._kept is None:
            self._kept = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        claims = self._session.claims_of(self._kept)
        self.is_folding = claims.try_to_lock_folding(self._session.store_id)
        self.waiting = claims.waiting()
        if not self.is_folding:
            self._session.watch(self._kept)
        return self.is_folding

    def _let_go(self) -> None:
        self.is_folding, self._known = False, None
        kept, self._kept = self._kept, None
        if kept is not None:
            discard(kept)

    def _fold_all(self) -> None:
        """Fold in what waits. Writes nothing if there is nothing to do."""
        while self._is_due():
            # Waiting receipts aren't counted before each batch: counting many takes long.
            ends_secs = time.monotonic() + _COUNT_SECS
            while (is_more := self._fold_some()) and time.monotonic() < ends_secs:
                pass
            if not is_more:
                break

    def _fold_some(self) -> bool:
        """Fold in one batch; whether more waits."""
        with _Folding(self._session) as batch:
            folded, known = fold(batch, self._session.claims_of(batch.connection), self._known)
        self._known = known
        return folded >= _AT_ONCE

    def _is_due(self) -> bool:
        assert self._kept is not None  # noqa: S101 - it has the lock
        looked = self._session.claims_of(self._kept).look()
        if looked is None:
            raise StoreError("the domain is gone from the database")
        last_writer, self.waiting = looked
        known = self._known
        if self.waiting.receipts or known is None or last_writer != known.last_writer:
            return True
        return bool(known.again or known.policy.forgotten_ids)  # ids that an open transaction had are tried again
