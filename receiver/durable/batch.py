"""One batch of receipts: each is decided in memory as it comes; all are recorded in one transaction at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from receiver.durable.duplicates import Duplicate, headroom_of, need_of
from receiver.durable.session import DomainSession, Transaction
from receiver.durable.status import Tally
from receiver.errors import BatchRejectedError, ClosedError, ReceiverError, SettingsError
from receiver.message import (
    LATEST_US,
    Decision,
    Receipt,
    ReceiptRow,
    ReceiptValues,
    for_each,
    not_text_error,
    time_hint,
)
from receiver.policies.artemis import ArtemisIdCache
from receiver.policies.cmq import CmqMinimumTimeCache
from receiver.store.databases.database import FileBusyError
from receiver.store.sql_rows import end_if_interrupted

_LATEST_MS = LATEST_US // 1_000


class Batch:
    """A batch under way: `with orders.batch() as batch:`.

    A batch locks the domain until it ends, so keep it short. When the block ends normally, the batch is committed. If it
    joined a transaction of yours, your commit commits it. When an exception leaves the block, nothing is recorded. Threads
    may use a batch one after another, but not at the same time.
    """

    transaction: Transaction

    def __init__(self, session: DomainSession, connection: Connection | None = None, task: Hashable = None) -> None:
        """`connection` and `task` are as for `Transaction`."""
        self._session = session
        self._options = session.options
        self._counters = session.counters
        self._joined = connection
        self._task = task
        self._is_open = self._is_simple = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._options.domain!r}>"

    def __enter__(self) -> Self:
        try:
            transaction = Transaction(self._session, self._joined, self._task)
            transaction.begin()
        except BaseException as error:
            if self._task is None or not isinstance(error, FileBusyError):  # a task tries again
                self._counters.fail()
            raise
        self.transaction = transaction
        try:
            self._start()
        except BaseException as error:  # an interrupt, and `__exit__` isn't called then
            transaction.abandon(error)
            raise
        return self

    def _start(self) -> None:
        self._tally = Tally()
        self._rows: list[ReceiptValues] = []
        cache = self._cache = self.transaction.cache
        policy = self._policy = cache.policy
        self._receive: Callable[..., Decision] = policy.receive
        self._clamped_before = policy.clock_clamped
        self._records = self._session.recorder is not None
        self._rejected: list[str] = []
        self._transactional = policy if self._options.reject_batches and isinstance(policy, ArtemisIdCache) else None
        if self._transactional is not None:
            self._transactional.begin_transaction()
        self._must_commit = False
        """Whether to commit even without receipts: the connection was lent, or the policy's clock moved."""
        self._next_seq = policy.serial + 1
        self._is_open = True
        # In a simple batch, a receipt with only an id, a source and a time needs only a decision. A batch that is over isn't
        # simple, so that `decide` needs one test for both.
        self._is_simple = not policy.goes_by_send_time

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = self._is_simple = False
        try:
            self._end(error)
            if self._task is None or self._joined is None:  # else this is the event loop, and callbacks would block it
                self._session.notify()
        except BaseException as failure:
            self.transaction.abandon(failure)  # an interrupt may have come between any two steps
            if error is None and self._joined is not None:  # what it has recorded there can't be taken back
                end_if_interrupted(self._joined, failure)
            raise

    def _end(self, error: BaseException | None) -> None:
        counters = self._counters
        if error is not None:
            counters.roll_back()
            self.transaction.abandon(error)
        elif self._rejected:
            counters.roll_back()
            raise BatchRejectedError(tuple(self._rejected))
        elif not (self._rows or self._tally.unchecked or self._must_commit):
            self.transaction.abandon()
        else:
            if self._transactional is not None:
                self._transactional.commit_transaction()
            tally = self._tally
            tally.receipts = tally.unchecked + len(self._rows)
            tally.clock_clamped = self._policy.clock_clamped - self._clamped_before
            try:
                self.transaction.record(self._rows, tally)
            except BaseException:
                counters.fail()
                raise

    @property
    def is_open(self) -> bool:
        """Whether the block is still being executed."""
        return self._is_open

    @property
    def connection(self) -> Connection:
        """The connection of the batch's transaction. What you write through it is committed with the ids, or not at all.

        Leave committing and rolling back to the batch.

        Raises:
            ClosedError: The batch is over.
        """
        if not self._is_open:
            raise not_open_error()
        self._must_commit = True
        return self.transaction.log.connection

    @property
    def duplicates(self) -> Sequence[Duplicate]:
        """The batch's duplicates so far, in order. They aren't committed yet."""
        if not hasattr(self, "transaction"):
            raise not_open_error()
        return self._tally.events

    def advance(self, *, min_msg_time_us: int) -> None:
        """Move the clock of the policy `cmq:retry=...,network=...`, which then forgets ids of messages sent long enough before.

        The move is recorded with the batch.

        Args:
            min_msg_time_us: The earliest send time of all messages that aren't consumed yet, in microseconds since 1970.

        Raises:
            SettingsError: The argument is no time, or the domain has another policy.
            ClosedError: The batch is over.
        """
        if not self._is_open:
            raise not_open_error()
        if not isinstance(self._policy, CmqMinimumTimeCache):
            raise SettingsError(f"advance is for the policy cmq:retry=...,network=..., not {self._policy}")
        if isinstance(min_msg_time_us, int) and min_msg_time_us > LATEST_US:
            raise _bad_time("min_msg_time_us", "microseconds", min_msg_time_us)
        try:
            self._policy.advance(min_msg_time_us)
        except BaseException as error:
            self._drop_if_halfway(error)
            raise
        self._must_commit = True

    def receive(
        self,
        unique_message_id: str | None,
        message_source_id: str | None = None,
        *,
        received_at_us: int | None = None,
        redelivered: bool = False,
        jms_timestamp_ms: int | None = None,
        body_digest: str | None = None,
    ) -> Decision:
        """Decide on one receipt. It is recorded when the batch ends.

        Args:
            unique_message_id: The message's id. None or empty: it isn't checked, and is delivered.
            message_source_id: Who sent it. None or empty: the anonymous source.
            received_at_us: When it came, in microseconds since 1970. None: now.
            redelivered: The broker's flag (JMSRedelivered), for the figures.
            jms_timestamp_ms: When it was sent (JMSTimestamp), in milliseconds since 1970; None or 0 if not set. For the
                figures, and for the policy `cmq:retry=...,network=...`.
            body_digest: Any text that distinguishes bodies, such as a hash. It shows that an id was reused, if the id had a
                digest when it first came.

        Raises:
            SettingsError: An argument is invalid. Nothing has changed, and the batch may go on.
            IdFormatError: The policy can't judge this id. Nothing has changed, and the batch may go on.
            ClosedError: The batch is over.
        """
        return self.decide(
            unique_message_id, message_source_id, received_at_us, redelivered, jms_timestamp_ms, body_digest
        )

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int | None]]) -> list[Decision]:
        """Decide on receipts in order, as `receive` does one by one.

        Args:
            receipts: `Receipt`s, or tuples `(unique_message_id, message_source_id, received_at_us)`.
        """
        decide = self.decide
        return for_each(receipts, lambda receipt: decide(*receipt))

    def decide(
        self,
        id_: str | None,
        source: str | None,
        received_at_us: int | None,
        redelivered: bool = False,
        jms_timestamp_ms: int | None = None,
        body_digest: str | None = None,
    ) -> Decision:
        """Decide on one receipt as `receive` does, with positional arguments: keywords would cost too much for many."""
        if received_at_us is None:
            received_at_us = time.time_ns() // 1000
        # A cheap test of whether anything may be wrong. `_check` says what.
        says_more = redelivered is not False or not self._is_simple
        is_sent_at = jms_timestamp_ms is not None  # true of most messages of a broker
        if (
            says_more
            or (body_digest is not None and body_digest.__class__ is not str)
            or received_at_us.__class__ is not int
            or received_at_us > LATEST_US
            or (is_sent_at and not (jms_timestamp_ms.__class__ is int and 0 <= jms_timestamp_ms <= _LATEST_MS))
        ):
            self._check(received_at_us, redelivered, jms_timestamp_ms, body_digest)
        try:
            if says_more and self._policy.goes_by_send_time:
                decision = self._receive(id_, source, received_at_us=received_at_us, jms_timestamp_ms=jms_timestamp_ms)
            else:
                decision = self._receive(id_, source, received_at_us=received_at_us)
        except BaseException as error:
            self._drop_if_halfway(error)
            raise
        now_us = self._policy.latest_us
        if redelivered:
            self._tally.note_redelivered(received_at_us, jms_timestamp_ms)
        # A receipt needn't be kept for the recording if its row has all of it. A row's time is the domain's clock.
        if self._records and (says_more or is_sent_at or body_digest or not id_ or received_at_us != now_us):
            receipt = Receipt(id_, source, received_at_us, bool(redelivered), jms_timestamp_ms, body_digest)
            self._tally.full_receipts.append((len(self._rows) + self._tally.unchecked, receipt))
        if not id_:
            self._tally.unchecked += 1
        elif decision.age_us is None:  # new
            digests = self._cache.note_new(id_, body_digest) if body_digest or self._cache.has_histories else None
            rows = self._rows
            seq = self._next_seq + len(rows)
            rows.append((seq, now_us, None, source or None, id_, digests, self._policy.policy_state))
        else:
            decision = self._known(id_, source, decision, redelivered, body_digest)
        return decision

    def _drop_if_halfway(self, error: BaseException) -> None:
        """Drop the memory unless the policy has refused its arguments: a signal's handler may raise any exception, and halfway."""
        if not isinstance(error, ReceiverError):
            self._cache.drop()

    def _known(
        self, id_: str, source: str | None, decision: Decision, redelivered: bool, body_digest: str | None
    ) -> Decision:
        """Record a duplicate. Its row also says when the id first came, and with which bodies."""
        assert decision.age_us is not None  # noqa: S101
        now_us = self._policy.latest_us
        known = self._cache.history_of(id_)
        last_us = now_us - decision.age_us
        first_us = last_us if known.first_received_at_us is None else known.first_received_at_us
        # If the id first came without a digest, its first body is unknown, and a repeat of it would be delivered again.
        if not known.body_digests:
            body_digest = None
        history = known.extended(first_us, body_digest)
        if body_digest:
            decision = replace(decision, body_differs=body_digest not in known.body_digests)
        options = self._options
        if options.observe_only or (decision.body_differs and options.delivers_reused_ids):
            decision = replace(decision, delivered_anyway=True)
        if self._transactional is not None and not decision.deliver:
            self._rejected.append(id_)
        state = self.transaction.state
        headroom = headroom_of(decision, state.window_size, state.expiry_us)
        # The time of the receipt just before is the second value of its row.
        before_us = self._rows[-1][1] if self._rows else state.latest_us
        need = need_of(decision, state.window_size, before_us - last_us)
        self._tally.note_duplicate(
            Duplicate(options.domain, id_, source, now_us, first_us, last_us, redelivered, decision, headroom, need)
        )
        seq = self._next_seq + len(self._rows)
        self._cache.note(seq, id_, history)
        self._rows.append(ReceiptRow(seq, now_us, first_us, source or None, id_, history.digests_stored()))
        return decision

    def _check(
        self, received_at_us: object, redelivered: object, jms_timestamp_ms: object, body_digest: object
    ) -> None:
        if not self._is_open:
            raise not_open_error()
        # A time in nanoseconds would put the domain's clock ahead for good.
        if not isinstance(received_at_us, int) or received_at_us > LATEST_US:
            raise _bad_time("received_at_us", "microseconds", received_at_us)
        if redelivered != bool(redelivered):  # whatever it is, hashable or not
            raise SettingsError(f"redelivered must be true or false, not {redelivered!r:.80}")
        if jms_timestamp_ms is not None and (
            not isinstance(jms_timestamp_ms, int)
            or isinstance(jms_timestamp_ms, bool)
            or not 0 <= jms_timestamp_ms <= _LATEST_MS
        ):
            raise _bad_time("jms_timestamp_ms", "milliseconds from 0 on", jms_timestamp_ms)
        if body_digest is not None and not isinstance(body_digest, str):
            raise not_text_error("body_digest", body_digest)


def not_open_error() -> ClosedError:
    """The error for a batch that is used before or after its block."""
    return ClosedError("the batch is over, or hasn't begun", hint="use it inside `with receiver.batch() as batch:`")


def _bad_time(name: str, unit: str, value: object) -> SettingsError:
    return SettingsError(
        f"{name} must be whole {unit}, before the year 10000, not {value!r:.80}",
        hint=time_hint(value, in_ms=name.endswith("_ms")),
    )
