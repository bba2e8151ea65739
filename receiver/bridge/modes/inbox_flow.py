"""AT_LEAST_ONCE and EXACTLY_ONCE: messages wait in the inbox until the target has them.

A lease of the target is a transaction: who has it hands on what waits, whoever put it there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from receiver.bridge.connectors import PositionedSource, Source
from receiver.bridge.modes import Admitted, Figures, Taken, admit, log_failure, log_refused
from receiver.bridge.received import Received, new_received
from receiver.bridge.targets import Target
from receiver.durable.batch import Batch
from receiver.durable.receiver import Receiver
from receiver.errors import StoreBusyError
from receiver.retrying import Backoff
from receiver.senders import SequenceIdMaker
from receiver.settings import BridgeSettings
from receiver.store.inbox import Inbox, Lease
from receiver.store.positions import Positions

_LOGGER = logging.getLogger("receiver.bridge")
_AT_ONCE = 1_000
_BACKOFF = Backoff(0.5, 30.0)
_LONGEST_PAUSE_SECS = 0.2
_GIVE_BACK_BYTES = 64 << 20
_COUNT_SECS = 30.0
"""How often the waiting messages are counted, which reads all of them, while the figures say that there are any."""


@dataclass(slots=True)
class _Done:
    """What was done by one lease."""

    more: bool = False
    """Whether another lease may have more to do."""
    failed: int = 0
    parked: int = 0
    bytes: int = 0
    delivered: Sequence[int] = ()
    """The sequence numbers of the delivered messages."""


class Dispatcher:
    """What flows with an inbox have in common: they hand on what waits for the target, in the order of receipt, also what
    another bridge put there and didn't live to deliver.

    Where a message fails its source waits, and others go on; after the last try it is parked.
    """

    def __init__(
        self, receiver: Receiver, inbox: Inbox, target: Target, figures: Figures, settings: BridgeSettings
    ) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._target = target
        self.figures = figures
        self._max_tries = settings.max_tries
        self._due_secs: dict[str | None, float] = {}
        """When a source whose message failed is tried again."""
        self._confirmed_bytes = 0
        self._delivered_before = 0
        """How many messages were delivered when `tend` was last called."""
        self._count_due_secs = 0.0
        self._positions: Positions | None = None
        """Of the source, where it has any."""
        self.on_dropped: Callable[[Batch, dict[int, Received]], None] | None = None
        """Called with the duplicates of a batch, by sequence number, in its transaction."""
        self.ours = {target.name}
        """The targets that messages of the bridge may wait for."""
        self.at_hand: dict[int, Received] = {}
        """Messages that needn't be read back, by sequence number: of the latest batch, until it is handed on."""
        self.at_hand_of: Hashable = None
        """The run of the store's server that has committed them. Another may have given their numbers to others."""

    def prepare(self) -> None:
        """Begin to deliver what others have left; what waits for another target is only reported."""
        for target, count in self._inbox.elsewhere().items():
            if target not in self.ours:
                _LOGGER.warning(
                    "%d messages wait for %s: run a bridge to it, or move them with receiver inbox move", count, target
                )
        self.tend()
        with suppress(StoreBusyError):  # another bridge is delivering
            self.deliver_waiting(lambda: True)

    def attach(self, source: Source) -> None:
        if isinstance(source, PositionedSource):
            self._positions = self._inbox.positions(source.positions_of)
            source.start(self._positions)

    def admit(self, batch: Batch, taken: Taken) -> Admitted:
        """Move the source's positions and decide on each message, in the transaction of the batch."""
        if self._positions is not None:
            self._positions.advance(batch.connection, taken.advances)
        admitted = admit(batch, taken, self._inbox)
        if self.on_dropped is not None and admitted.dropped:
            self.on_dropped(batch, admitted.dropped)
        return admitted

    def keep(self, connection: Connection, messages: Sequence[Received]) -> None:
        """Have these messages wait, if and when the transaction on the connection is committed."""
        self._inbox.add(connection, messages)

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        """Lease the target until nothing is left that is due, or until `is_enough`."""
        try:
            has_more = True
            while has_more:
                began = time.monotonic()
                has_more = self._hand_on_due()
                if has_more:
                    # Who waits for a file of SQLite looks ten times a second whether it is free.
                    time.sleep(min(_LONGEST_PAUSE_SECS, (time.monotonic() - began) / 5))
                    if is_enough():
                        return
        finally:
            self.at_hand = {}
        if not self._due_secs:  # nothing is left, also of what other bridges put there
            self.figures.waiting = 0
        if self._confirmed_bytes > _GIVE_BACK_BYTES:
            self._give_back_space()

    def tend(self) -> None:
        """Count what waits, also what others have left, and give space back once nothing is delivered."""
        self.figures.waiting = self._waiting()
        is_idle, self._delivered_before = self._delivered_before == self.figures.delivered, self.figures.delivered
        if self._confirmed_bytes and is_idle:
            self._give_back_space()

    def close(self) -> None:
        self._inbox.close()

    def _waiting(self) -> int:
        if not self._inbox.has_waiting():
            return 0
        now = time.monotonic()
        if self.figures.waiting and now < self._count_due_secs:
            return self.figures.waiting
        self._count_due_secs = now + _COUNT_SECS
        return self._inbox.waiting()

    def _give_back_space(self) -> None:
        if not self._inbox.give_back_space():  # else the rest is for the next time
            self._confirmed_bytes = 0

    def _make_ready(self) -> None:
        """Bring the target to the state that the store has of it, before there is anything to hand on."""
        with self._leased() as lease:
            self._target.ready(lease)

    @contextmanager
    def _leased(self) -> Iterator[Lease]:
        try:
            with self._inbox.lease() as lease:
                yield lease
        finally:
            self._target.release()

    def _hand_on_due(self) -> bool:
        """Hand on what is due, by one lease; whether another may have more to do."""
        now = time.monotonic()
        self._due_secs = {source: due for source, due in self._due_secs.items() if due > now}
        done = _Done()
        with self._leased() as lease:
            done.more = not self._target.ready(lease)
            if not done.more and (numbers := lease.sequence_numbers(_AT_ONCE, but_of=self._due_secs)):
                self._hand_on(lease, numbers, done)
        self._count(done)
        return done.more

    def _hand_on(self, lease: Lease, numbers: Sequence[int], done: _Done) -> None:
        messages = self._messages(lease, numbers)
        outcome = self._target.deliver(messages, lease)
        done.delivered = [numbers[index] for index in outcome.delivered]
        lease.confirm(done.delivered)
        tries = lease.tries_failed([numbers[index] for index in outcome.failed])
        for index, why in outcome.failed.items():
            failed = messages[index]._replace(tries=tries[numbers[index]])
            done.parked += self._has_failed(lease, failed, why, is_final=index in outcome.final)
        done.failed = len(outcome.failed)
        done.bytes = sum([len(messages[index].body) for index in outcome.delivered])
        done.more = lease.has_more or len(done.delivered) < len(numbers)

    def _count(self, done: _Done) -> None:
        """Add up what was done by a lease, once that is committed."""
        figures = self.figures
        figures.delivered += len(done.delivered)
        figures.failed += done.failed
        figures.parked += done.parked
        figures.waiting = max(0, figures.waiting - len(done.delivered) - done.parked)
        self._confirmed_bytes += done.bytes
        delivered = set(done.delivered)
        self.at_hand = {number: message for number, message in self.at_hand.items() if number not in delivered}

    def _messages(self, lease: Lease, numbers: Sequence[int]) -> list[Received]:
        messages = self.at_hand if self.at_hand_of == lease.server_run else {}
        missing = [number for number in numbers if number not in messages]
        if missing:
            messages = messages | dict(zip(missing, map(new_received, lease.messages(missing)), strict=True))
        return [messages[number] for number in numbers]

    def _has_failed(self, lease: Lease, message: Received, why: str, *, is_final: bool) -> bool:
        """Deal with a message that was tried once more; whether that was the last try, so that it is parked."""
        tries = message.tries
        if log_failure(self._target.name, message, tries, self._max_tries, why, is_final=is_final, then="parked"):
            lease.park(message, why)
            return True
        self._due_secs[message.message_source_id] = time.monotonic() + _BACKOFF.pause_secs(tries)
        return False


class InboxFlow(Dispatcher):
    """The ids and the messages to deliver are committed together; then their batch may be acknowledged."""

    def __init__(
        self,
        receiver: Receiver,
        inbox: Inbox,
        target: Target,
        figures: Figures,
        settings: BridgeSettings,
        *,
        numbers: SequenceIdMaker | None = None,
    ) -> None:
        super().__init__(receiver, inbox, target, figures, settings)
        self._numbers = numbers
        """Gives ids to messages without one, where the target needs them."""

    def before_acknowledging(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            admitted = self.admit(batch, taken)
            kept = self._kept(admitted.messages, batch.connection) if admitted.messages else {}
            server_run = self._inbox.server_run(batch.connection)
        log_refused(taken, admitted.refused)
        self.figures.parked += len(admitted.refused)
        self.figures.waiting += len(kept)
        self.at_hand, self.at_hand_of = kept, server_run

    def close(self) -> None:
        super().close()
        if self._numbers is not None:
            self._numbers.close()

    def _kept(self, messages: dict[int, Received], connection: Connection) -> dict[int, Received]:
        """Have these messages wait, by sequence number, and return them as they are to be handed on."""
        kept = {number: message.numbered(number) for number, message in self._with_ids(messages, connection).items()}
        self.keep(connection, list(kept.values()))
        return kept

    def _with_ids(self, messages: dict[int, Received], connection: Connection) -> dict[int, Received]:
        """The messages; where all are to have an id, those without one have a new one."""
        if self._numbers is None:
            return messages
        without = [number for number, message in messages.items() if message.unique_message_id is None]
        if not without:
            return messages
        ids = self._numbers.next_many(len(without), connection=connection)
        source = self._receiver.domain
        return messages | {
            number: messages[number]._replace(
                unique_message_id=id_, message_source_id=messages[number].message_source_id or source
            )
            for number, id_ in zip(without, ids, strict=True)
        }
