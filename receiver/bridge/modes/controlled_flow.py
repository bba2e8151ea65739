"""APP_CONTROLLED: messages are handed on inside the transaction of the receipts, and acknowledged after its commit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from receiver.bridge.connectors import PositionedSource, Source
from receiver.bridge.modes import log_failure
from receiver.bridge.modes.inbox_flow import Admitted, Dispatcher, KeepingFlow
from receiver.bridge.received import Received, Taken
from receiver.bridge.targets import delivered_to
from receiver.durable.batch import Batch
from receiver.durable.concurrent import ConcurrentBatch
from receiver.durable.receiver import Receiver
from receiver.errors import BrokerError, OutputError, SettingsError, StoreBusyError
from receiver.store.databases import translated
from receiver.store.inbox import Lease
from receiver.store.tables import ARRIVAL_SEQUENCES


class ControlledFlow(KeepingFlow):
    """No message goes through the inbox: it stays with the broker until its effects and its id are committed together. Only
    parked messages that are to be tried again wait in the inbox.

    A message that fails rolls its whole batch back, which is tried again. After the last try the message is parked.
    """

    def __init__(self, receiver: Receiver, dispatcher: Dispatcher, duplicates: Dispatcher | None = None) -> None:
        super().__init__(receiver, dispatcher, duplicates)
        self._attempts: defaultdict[int, _Attempt] = defaultdict(_Attempt)
        """The failed attempts at the current batch, by index: the next may have other sequence numbers."""
        self._arrived_uncommitted = 0
        """How often the target has taken a message for good in a batch that wasn't committed then."""

    @property
    def handed_on(self) -> int:
        return super().handed_on + self._arrived_uncommitted

    def attach(self, source: Source) -> None:
        super().attach(source)
        self._attempts = defaultdict(_Attempt)  # the batch that they are of may have gone to another bridge

    def before_acknowledging(self, taken: Taken) -> None:
        while True:
            try:
                with self.receiver.batch() as batch:
                    admitted = self.admit(batch, taken)
                    parked = self.hand_on(batch.connection, admitted)
            except _NotReadyError:  # the batch is rolled back, and with it the target's notes in the store
                pass
            except BrokerError:  # so is what the target has just noted
                with suppress(StoreBusyError):  # then it is noted before the next try
                    self._dispatcher.make_ready()
                raise
            else:
                break
            finally:
                self.target.release()
            self._dispatcher.make_ready()
        self._attempts = defaultdict(_Attempt)
        self.figures.delivered += len(admitted.messages) - parked
        self.figures.parked += parked
        self.note_committed(taken, admitted)

    def hand_on(self, connection: Connection, admitted: Admitted) -> int:
        """Hand on the admitted messages in the transaction of their batch. Returns how many were parked instead."""
        with self._dispatcher.inbox.lease(connection) as lease:
            if not self.target.ready(lease):
                raise _NotReadyError
            return self.deliver(lease, admitted)

    def deliver(self, lease: Lease, admitted: Admitted) -> int:
        """Deliver all messages that can be delivered. Returns how many were parked instead."""
        attempts = self._attempts
        arrived = {index for index, attempt in attempts.items() if attempt.has_arrived}
        left = {index: message for index, message in admitted.messages.items() if index not in arrived}
        parked = 0
        while True:
            parked += self._park_given_up(lease.connection, admitted.numbers, left)
            if not left:
                return parked
            outcome = delivered_to(self.target, left, lease)
            if outcome.is_lasting:
                for index in outcome.delivered:
                    attempts[index].has_arrived = True
                self._arrived_uncommitted += len(outcome.delivered)
            if outcome.error is not None:
                raise outcome.error
            self.figures.failed += len(outcome.failed)
            # Count all failures before the first rolls the batch back.
            gives_up = [
                self._count_failure(index, left[index], why, is_final=index in outcome.final)
                for index, why in outcome.failed.items()
            ]
            outcome.raise_held()
            if not all(gives_up):
                raise _MessageFailedError(f"{self.target.name}: a message failed", hint="its batch is tried again")
            for index in outcome.delivered:
                del left[index]

    def _count_failure(self, index: int, message: Received, why: str, *, is_final: bool) -> bool:
        """Count a failed try. Returns whether it was the last."""
        attempts = self._attempts[index]
        attempts.failures += 1
        tried = message._replace(tries=attempts.failures)
        is_last = log_failure(self.target.name, tried, self._dispatcher.max_tries, why, is_final=is_final)
        if is_last:
            attempts.given_up = why
        return is_last

    def _park_given_up(self, connection: Connection, numbers: Sequence[int], left: dict[int, Received]) -> int:
        """Park the messages that aren't tried again, though the batch may be. Returns how many."""
        attempts = self._attempts.items()
        given_up = {index: each.given_up for index, each in attempts if each.given_up is not None and index in left}
        for index, why in given_up.items():
            message = left.pop(index)._replace(sequence=numbers[index], tries=self._attempts[index].failures)
            self._dispatcher.inbox.park(connection, message, why)
        return len(given_up)


@dataclass(slots=True)
class _Attempt:
    """What the attempts at a batch have made of one of its messages."""

    failures: int = 0
    """How often it has failed."""
    given_up: str | None = None
    """Why it has failed for good."""
    has_arrived: bool = False
    """Whether a broker or a function has taken it. It doesn't get it again."""


class _MessageFailedError(OutputError):
    """A message failed, so its batch is rolled back."""


class _NotReadyError(Exception):
    """The target's notes in the store must be committed before it takes messages."""


class ConsumerFlow(ControlledFlow):
    """The flow of one of several consumers. They share a receiver and the target's inbox, but no lease. Each has a transaction
    for each batch, in which it claims the ids and hands on the messages.

    One of them serves the inbox, which only has parked messages that are tried again, and those of a bridge without consumers.
    """

    def __init__(self, receiver: Receiver, dispatcher: Dispatcher, *, serves_inbox: bool) -> None:
        super().__init__(receiver, dispatcher)
        self._serves_inbox = serves_inbox
        self._alone: deque[tuple[Taken, defaultdict[int, _Attempt]]] = deque()
        """The messages left of a batch that failed as a whole, each as a batch of its own."""

    def prepare(self) -> None:
        if self._serves_inbox:
            super().prepare()

    def attach(self, source: Source) -> None:
        if isinstance(source, PositionedSource):
            raise SettingsError(
                f"{source.positions_of} is read by positions, which several consumers can't move at once",
                hint="leave out --consumers",
            )
        super().attach(source)
        self._alone.clear()

    def before_acknowledging(self, taken: Taken) -> None:
        """Once a message has failed, or others hold what it needs, each message of the batch gets a transaction of its own. So none
        waits for the next try of another. The first lock that isn't free ends a try, so that a stop waits for one lock alone."""
        if not self._alone:
            try:
                super().before_acknowledging(taken)
            except (StoreBusyError, _MessageFailedError) as error:
                for index in range(len(taken.messages)):
                    self._alone.append((taken.only(index), defaultdict(_Attempt, {0: self._attempts[index]})))
                if isinstance(error, StoreBusyError) or len(self._alone) == 1:
                    raise
        failure = None
        for _ in range(len(self._alone)):
            only, self._attempts = self._alone[0]
            try:
                super().before_acknowledging(only)
            except (StoreBusyError, _MessageFailedError) as error:
                self._alone.rotate(-1)  # the others come first the next time
                if isinstance(error, StoreBusyError):
                    raise
                failure = error
            else:
                self._alone.popleft()
        if failure is not None:
            raise failure

    def tend(self) -> None:
        if self._serves_inbox:
            super().tend()

    def admit(self, batch: Batch, taken: Taken) -> Admitted:
        assert isinstance(batch, ConcurrentBatch)  # noqa: S101 - the receiver is a concurrent one
        refused = taken.refused
        receipts = (
            receipt._replace(unique_message_id=None) if index in refused else receipt
            for index, receipt in enumerate(taken.receipts)
        )
        decisions = batch.receive_many(receipts)
        messages = {
            index: message
            for index, (message, decision) in enumerate(zip(taken.messages, decisions, strict=True))
            if decision.deliver and index not in refused
        }
        numbers = [ARRIVAL_SEQUENCES.start + arrival for arrival in batch.arrivals]
        for index, why in refused.items():
            message = taken.messages[index]._replace(sequence=numbers[index])
            self._dispatcher.inbox.park(batch.connection, message, why)
        return Admitted(numbers, messages, 0, refused)

    def hand_on(self, connection: Connection, admitted: Admitted) -> int:
        with translated(connection.engine.url):
            return self.deliver(_Turn(connection), admitted)


class _Turn(Lease):
    """Stands in for a lease where nobody locks the target: functions only need its connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
