"""AT_LEAST_ONCE and EXACTLY_ONCE: messages wait in the inbox until the target has them.

A lease of the target is a transaction. The bridge that has it hands on all waiting messages, whichever bridge kept them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from receiver.bridge.connectors import PositionedSource, Source
from receiver.bridge.connectors.address import Node
from receiver.bridge.connectors.nodes import Nodes
from receiver.bridge.modes import Figures, Flow, log_failure
from receiver.bridge.received import Identity, Received, Taken, identity_of
from receiver.bridge.targets import Outcome, Target, delivered_to
from receiver.durable.batch import Batch
from receiver.durable.receiver import Receiver
from receiver.errors import IdFormatError, StoreBusyError
from receiver.quantities import count, moment
from receiver.retrying import Backoff
from receiver.senders import SequenceIdMaker
from receiver.settings import BridgeSettings
from receiver.store.databases import database_of
from receiver.store.inbox import Inbox, Lease
from receiver.store.positions import Positions

DUPLICATE_OF = "receiverDuplicateOf"
"""The property of a kept duplicate that says since when its id has been remembered without a break: ISO 8601, in UTC."""
BODY_DIFFERS = "receiverBodyDiffers"
"""The property that says whether the body is known to differ from all bodies that came with the id before."""

_LOGGER = logging.getLogger("receiver.bridge")
_AT_ONCE = 1_000
_BACKOFF = Backoff(0.5, 30.0)
_LONGEST_PAUSE_SECS = 0.2
_GIVE_BACK_BYTES = 64 << 20
_COUNT_SECS = 30.0
"""How often waiting messages are counted, which reads all of them, while the figures have any."""


class Dispatcher:
    """Hands on the messages that wait for one target, in order of receipt, including those of bridges that died. If a message
    fails, later ones of its source wait, and other sources go on. After the last try it is parked.
    """

    def __init__(
        self,
        inbox: Inbox,
        target: Target,
        figures: Figures,
        settings: BridgeSettings,
        *,
        failures: Figures | None = None,
    ) -> None:
        """`failures`: counts failed tries and parked messages, if `figures` doesn't."""
        self.inbox = inbox
        self.target = target
        self.figures = figures
        self.max_tries = settings.max_tries
        self._failures = failures or figures
        self._due_secs: dict[str | None, float] = {}
        """By source whose message failed, when to try again."""
        self._confirmed_bytes = 0
        self._delivered_before = 0
        """The number of messages delivered when `tend` was last called."""
        self._count_due_secs = 0.0
        self._arrived: dict[Identity, str | None] = {}
        """The target has these messages for good, but no committed lease has deleted them from the inbox. With their sources."""
        self.at_hand: dict[int, Received] = {}
        """The messages of the latest batch, by sequence number, until they are handed on: they needn't be read back."""
        self.at_hand_of: Hashable = None
        """The run of the store's server, or the file, that has committed them. In another, other messages may have their numbers."""

    def deliver_waiting(self) -> bool:
        """Hand on messages that are due, in one lease. Returns whether there may be more."""
        began, has_more = time.monotonic(), False
        try:
            has_more = self._hand_on_due()
        finally:
            if not has_more:
                self.at_hand = {}
        if has_more:
            # Others that wait for a file of SQLite check ten times a second whether it is free.
            time.sleep(min(_LONGEST_PAUSE_SECS, (time.monotonic() - began) / 5))
            return True
        if not self._due_secs:  # no message is left, not even of other bridges
            self.figures.waiting = 0
        if self._confirmed_bytes > _GIVE_BACK_BYTES:
            self._give_back_space()
        return False

    def tend(self) -> None:
        """Count waiting messages, including those of other bridges. Gives space back once nothing is delivered any more."""
        figures, now = self.figures, time.monotonic()
        if not self.inbox.has_waiting():
            figures.waiting = 0
        elif not figures.waiting or now >= self._count_due_secs:
            self._count_due_secs = now + _COUNT_SECS
            figures.waiting = self.inbox.waiting()
        is_idle, self._delivered_before = self._delivered_before == figures.delivered, figures.delivered
        if self._confirmed_bytes and is_idle:
            self._give_back_space()

    def make_ready(self) -> None:
        """Bring the target to the state that the store has of it, before the first message is handed on."""
        with self._leased() as lease:
            self.target.ready(lease)

    @contextmanager
    def _leased(self) -> Iterator[Lease]:
        try:
            with self.inbox.lease() as lease:
                yield lease
        finally:
            self.target.release()

    def _hand_on_due(self) -> bool:
        """Hand on messages that are due, in one lease. Returns whether another lease may have more to do."""
        now = time.monotonic()
        self._due_secs = {source: due for source, due in self._due_secs.items() if due > now}
        with self._leased() as lease:
            if not self.target.ready(lease):
                return True
            numbers = lease.sequence_numbers(_AT_ONCE, but_of=self._due_secs)
            if not numbers:
                return False
            waiting = left = self._messages(lease, numbers)
            if self._arrived:
                left = {number: each for number, each in waiting.items() if identity_of(each) not in self._arrived}
            outcome = delivered_to(self.target, left, lease) if left else Outcome()
            if outcome.is_lasting:
                has = map(left.__getitem__, outcome.delivered)
                self._arrived |= {identity_of(each): each.message_source_id for each in has}
            delivered = {*outcome.delivered, *(waiting.keys() - left.keys())}
            lease.confirm(delivered)
            tries = lease.tries_failed(outcome.failed)
            parked = 0
            for number, why in outcome.failed.items():
                failed = left[number]._replace(tries=tries[number])
                parked += self._park_or_postpone(lease, failed, why, is_final=number in outcome.final)
            for number, error in outcome.held.items():
                self._postpone_held(left[number], error)
            has_more = lease.has_more or len(delivered) < len(numbers)
        # The lease is committed now. Other leases, and sources that wait, may have more that arrived.
        self._arrived = {
            which: source
            for which, source in self._arrived.items()
            if which[0] not in delivered and (has_more or source in self._due_secs)
        }
        figures = self.figures
        figures.delivered += len(delivered)
        figures.waiting = max(0, figures.waiting - len(delivered) - parked)
        self._failures.failed += len(outcome.failed)
        self._failures.parked += parked
        self._confirmed_bytes += sum([len(left[number].body) for number in outcome.delivered])
        self.at_hand = {number: message for number, message in self.at_hand.items() if number not in delivered}
        if outcome.error is not None:
            raise outcome.error
        return has_more

    def _messages(self, lease: Lease, numbers: Sequence[int]) -> dict[int, Received]:
        messages = self.at_hand if self.at_hand_of == lease.server_run else {}
        missing = [number for number in numbers if number not in messages]
        if missing:
            messages = messages | dict(zip(missing, map(Received._make, lease.messages(missing)), strict=True))
        return {number: messages[number] for number in numbers}

    def _park_or_postpone(self, lease: Lease, message: Received, why: str, *, is_final: bool) -> bool:
        """Park a message that has failed its last try, or have its source wait for the next. Returns whether it is parked."""
        if log_failure(self.target.name, message, self.max_tries, why, is_final=is_final):
            lease.park(message, why)
            return True
        self._due_secs[message.message_source_id] = time.monotonic() + _BACKOFF.pause_secs(message.tries)
        return False

    def _postpone_held(self, message: Received, error: StoreBusyError) -> None:
        """Have a message's source wait as long as before a last try. A shorter pause would cost others: they wait while a try waits
        for the lock."""
        _LOGGER.warning("%s: %r is tried again: %s", self.target.name, message.unique_message_id, error)
        self._due_secs[message.message_source_id] = time.monotonic() + _BACKOFF.pause_secs(self.max_tries)

    def _give_back_space(self) -> None:
        if not self.inbox.give_back_space():  # otherwise the next call does the rest
            self._confirmed_bytes = 0


class Admitted(NamedTuple):
    """The messages of a batch to hand on, and the others."""

    numbers: Sequence[int]
    """The sequence numbers of all messages of the batch, by index."""
    messages: dict[int, Received]
    """The messages to hand on, by index."""
    dropped: int
    """The number of duplicates."""
    refused: Mapping[int, str]
    """By index, why messages are parked: they can't be judged, or have come back in a ring of bridges."""


class KeepingFlow(Flow):
    """Base class of flows that keep messages or ids in the store."""

    def __init__(self, receiver: Receiver, dispatcher: Dispatcher, duplicates: Dispatcher | None = None) -> None:
        """`duplicates`: hands duplicates on to a target of their own; None: they are dropped."""
        super().__init__(receiver, dispatcher.target, dispatcher.figures)
        self._dispatcher = dispatcher
        self._duplicates = duplicates
        self._dispatchers = [dispatcher] if duplicates is None else [dispatcher, duplicates]
        self._positions: Positions | None = None
        """The positions of the source, if it has any."""
        self._noted: dict[Nodes, Node] = {}

    def prepare(self) -> None:
        """Begin to deliver messages that other bridges have left. Only logs messages that wait for other targets."""
        if self._duplicates is not None:
            self._duplicates.target.connect()
        ours = {each.target.name for each in self._dispatchers}
        for target, waiting in self._dispatcher.inbox.elsewhere().items():
            if target not in ours:
                messages = count(waiting, "message")
                _LOGGER.warning(
                    "the inbox holds %s for %s: run a bridge to it, or receiver inbox move", messages, target
                )
        for each in self._dispatchers:
            each.tend()
            with suppress(StoreBusyError):  # another bridge is delivering
                each.deliver_waiting()

    def attach(self, source: Source) -> None:
        if isinstance(source, PositionedSource):
            self._positions = self._dispatcher.inbox.positions(source.positions_of)
            source.start(self._positions)
        self._note_nodes()

    def _note_nodes(self) -> None:
        """Store the cluster nodes to which the bridge is connected, if they have changed."""
        for nodes in self.figures.nodes.values():
            if nodes.address.others and nodes.at is not None and self._noted.get(nodes) != nodes.at:
                with suppress(StoreBusyError):  # another consumer serves the inbox; the next call notes it
                    self._dispatcher.inbox.note_node(nodes.address.target_name, str(nodes.at))
                    self._noted[nodes] = nodes.at

    def admit(self, batch: Batch, taken: Taken) -> Admitted:
        """In the transaction of the batch, move the source's positions and decide on each message. Parks messages that can't be
        judged or have come back, and keeps duplicates that have a target."""
        inbox, decide, first = self._dispatcher.inbox, batch.decide, batch.transaction.first_sequence
        numbers = range(first, first + len(taken.messages))
        if self._positions is not None:
            self._positions.advance(batch.connection, taken.advances)
        refused = dict(taken.refused)
        messages, dropped = {}, {}
        for index, (message, receipt) in enumerate(zip(taken.messages, taken.receipts, strict=True)):
            if index not in refused:
                try:
                    decision = decide(*receipt)
                except IdFormatError as error:
                    refused[index] = str(error)
            if index in refused:
                decide(None, *receipt[1:])  # it counts as a message without id
                inbox.park(batch.connection, message._replace(sequence=numbers[index]), refused[index])
            elif decision.deliver:
                messages[index] = message
            else:
                dropped[numbers[index]] = message
        if self._duplicates is not None and dropped:
            self._duplicates.inbox.add(batch.connection, _as_duplicates(batch, dropped))
        return Admitted(numbers, messages, len(dropped), refused)

    def note_committed(self, taken: Taken, admitted: Admitted) -> None:
        """Count parked messages and kept duplicates. Log the parked ones, except those of a ring: there has been a warning."""
        for index, why in admitted.refused.items():
            if index not in taken.returned:
                _LOGGER.error("%r is parked: %s", taken.messages[index].message_id, why)
        self.figures.parked += len(admitted.refused)
        if self._duplicates is not None:
            self._duplicates.figures.waiting += admitted.dropped

    def deliver_waiting(self) -> bool:
        return any(each.deliver_waiting() for each in self._dispatchers if each.figures.waiting)

    def tend(self) -> None:
        for each in self._dispatchers:
            each.tend()
        self._note_nodes()

    def close(self) -> None:
        if self._duplicates is not None:
            self._duplicates.target.close()
        for each in self._dispatchers:
            each.inbox.close()


def _as_duplicates(batch: Batch, dropped: Mapping[int, Received]) -> list[Received]:
    """The batch's duplicates in the form in which they are handed on; `dropped` has them by sequence number."""
    events = [event for event in batch.duplicates if not event.delivered]
    messages = []
    for (number, each), event in zip(dropped.items(), events, strict=True):
        properties = {**each.properties, DUPLICATE_OF: moment(event.first_received_at_us)}
        message = replace(each.message, properties=properties | {BODY_DIFFERS: bool(event.body_differs)})
        messages.append(each._replace(sequence=number, message=message))
    return messages


class InboxFlow(KeepingFlow):
    """Commits ids and messages together; then their batch may be acknowledged."""

    def __init__(
        self,
        receiver: Receiver,
        dispatcher: Dispatcher,
        duplicates: Dispatcher | None = None,
        *,
        numbers: SequenceIdMaker | None = None,
    ) -> None:
        super().__init__(receiver, dispatcher, duplicates)
        self._numbers = numbers
        """Gives ids to messages without one, if the target needs ids."""

    def before_acknowledging(self, taken: Taken) -> None:
        dispatcher = self._dispatcher
        with self.receiver.batch() as batch:
            admitted = self.admit(batch, taken)
            messages = self._with_ids(batch, admitted.messages)
            numbered = ((admitted.numbers[index], message) for index, message in messages.items())
            kept = {number: Received._make((number, *message[1:])) for number, message in numbered}
            connection = batch.transaction.log.rows.connection
            run = database_of(connection).server_run(connection)
            if kept:  # not by `batch.connection`: with the driver alone, SQLAlchemy needn't begin a transaction
                dispatcher.inbox.add(connection, list(kept.values()))
        self.note_committed(taken, admitted)
        self.figures.waiting += len(kept)
        dispatcher.at_hand, dispatcher.at_hand_of = kept, run

    def close(self) -> None:
        super().close()
        if self._numbers is not None:
            self._numbers.close()

    def _with_ids(self, batch: Batch, messages: dict[int, Received]) -> dict[int, Received]:
        """The messages. If the target needs ids, those without one get a new id."""
        without = [index for index, message in messages.items() if message.unique_message_id is None]
        if self._numbers is None or not without:
            return messages
        # A store that is new, or has lost its last commits, would give the numbers of earlier messages again. Receivers behind the
        # target would take these messages for duplicates.
        self._numbers.skip_to(time.time_ns() // 1_000)
        ids = self._numbers.next_many(len(without), connection=batch.connection)
        source = self.receiver.domain
        return messages | {
            index: messages[index]._replace(
                unique_message_id=id_, message_source_id=messages[index].message_source_id or source
            )
            for index, id_ in zip(without, ids, strict=True)
        }
