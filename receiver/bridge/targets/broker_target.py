"""Messages sent on to another broker.

Sent one by one, messages arrive exactly once if the broker drops a message whose `_AMQ_DUPL_ID` it has had before, as Artemis
does (https://activemq.apache.org/components/artemis/documentation/latest/duplicate-detection.html): messages that were sent but
not confirmed before a crash are sent again with the same id. Sent in turns, each a transaction of Kafka, they arrive exactly once.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Generic, TypeVar

from receiver.bridge.connectors import DUPLICATE_ID, Header, Sink, TurnForgottenError, TurnSink, number_in
from receiver.bridge.connectors.nodes import ConnectionFactory
from receiver.bridge.options import IdRule
from receiver.bridge.received import PASSED, Passed, Received
from receiver.bridge.targets import Outcome, Target, one_by_one
from receiver.errors import BrokerError, MessageRefusedError
from receiver.store.codec import decoded_numbers, encoded_numbers
from receiver.store.databases import NONSENSE
from receiver.store.inbox import Lease
from receiver.store.messages import Message, Property, StoredMessage

_S = TypeVar("_S", bound=Sink | TurnSink)
ORIGINAL_DUPLICATE_ID = "receiverOriginalDuplicateId"
"""The property with the `_AMQ_DUPL_ID` that a message's sender gave it. The first bridge on the message's way sets it."""
_LOGGER = logging.getLogger("receiver.bridge")
_LONGEST_NOTE = 4_000
"""The most characters of a note for a `TurnSink`."""
_FIRST_NOTE = "nothing"
"""The note before the first turn. So if the store has a note and the broker has none, the broker has forgotten it."""
_ANY = 1 << 30
_MOST_REFUSALS = 10_000
"""How many messages to remember as refused, the newest. A lease has at most 1,000, but a bridge doesn't see that another has sent
what it couldn't: without an end these would pile up in the note."""


class SinkTarget(Target, Generic[_S]):
    """A target by a sink that `connect` makes. After a failure, it makes another."""

    def __init__(self, name: str, connect: Callable[[], _S], ids: IdRule) -> None:
        self.name = name
        self.ids = ids
        self._connect = connect
        self._sink: _S | None = None
        self.passed: Passed | None = None
        """Marks the messages as having passed their domain; None: they aren't marked."""
        self.nodes = connect.nodes if isinstance(connect, ConnectionFactory) else None
        """The nodes to which it connects; None if not known."""

    def connect(self) -> _S:
        """The connection, made if there is none; `BrokerError` if it can't be made."""
        if self._sink is None:
            self._sink = self._connect()
        return self._sink

    def check(self) -> None:
        """Connect again if the connection has ended."""
        check: Callable[[], None] = getattr(self.connect(), "check", lambda: None)
        try:
            check()
        except BrokerError:
            self.close()
            self.connect()

    def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def warn_of_expired(self, messages: Sequence[Received]) -> None:
        """Warn of expired messages. They are still sent: the broker decides what to do with expired messages."""
        now_ms = time.time_ns() // 1_000_000
        ends_ms = (number_in(message.headers.get(Header.EXPIRATION, "")) for message in messages)
        expired = sum(end_ms is not None and end_ms <= now_ms for end_ms in ends_ms)
        if expired:
            _LOGGER.warning("%s: of the messages handed on %d had expired", self.name, expired)

    def outgoing(self, message: Received, duplicate_id: str | None = None) -> Message:
        """The message as it is sent."""
        properties: dict[str, Property] = dict(message.properties)
        if self.passed is not None:
            properties[PASSED] = self.passed.mark(message.unique_message_id, properties)
        for name, id_ in (
            (self.ids.id_property, message.unique_message_id),
            (self.ids.source_property, message.message_source_id),
        ):
            if id_ is not None and (name not in properties or str(properties[name]) != id_):  # a number stays a number
                properties[name] = id_
        theirs = properties.pop(DUPLICATE_ID, None)
        if theirs is not None:
            properties.setdefault(ORIGINAL_DUPLICATE_ID, theirs)
        if duplicate_id is not None:
            properties[DUPLICATE_ID] = duplicate_id
        return replace(
            message.message,
            properties=properties,
            default_source=message.message_source_id,
            # Values that the message got on its way to here. The broker that takes it sets them anew.
            refused=None,
            default_id=None,
            message_id=None,
            redelivered=False,
            jms_timestamp_ms=None,
        )


class BrokerTarget(SinkTarget[Sink]):
    """Sends messages on one by one, each with a `_AMQ_DUPL_ID` if asked to."""

    def __init__(self, name: str, connect: Callable[[], Sink], ids: IdRule, *, adds_duplicate_ids: bool) -> None:
        super().__init__(name, connect, ids)
        self._adds_duplicate_ids = adds_duplicate_ids
        self._has_warned = False
        self._accepted = 0
        """How many of the messages sent last, from the first on, the broker has taken."""
        self._at_most = _ANY
        """How many messages to send at once: one after a failure that hides how many the broker has, then twice as many each time.
        A full queue of RabbitMQ loses receipts by STOMP, and would have the same messages at each try."""
        self._refusals: Counter[str] = Counter()
        """By duplicate id, how often the broker has refused the message but kept its id, as Artemis does if the message is too large
        for its journal, or a divert leads to a full address. With this id the next try would be confirmed and dropped, so it has
        another. Kept as the target's note too, for the bridge's successor and others."""

    def connect(self) -> Sink:
        sink = super().connect()
        if self._adds_duplicate_ids and not self._has_warned and (why := self._why_twice(sink)):
            self._has_warned = True
            _LOGGER.warning(
                "%s doesn't drop %s, so to it this is at least once: who takes it has to go by %s",
                *(self.name, why, self.ids.id_property),
            )
        return sink

    def _why_twice(self, sink: Sink) -> str | None:
        """What the broker doesn't drop, so that it may have a message twice; None if it drops all that it knows."""
        if not getattr(sink, "drops_known_ids", True):
            return "what is sent again"
        if self.nodes is not None and self.nodes.serve_at_once:
            return "at one host what another has had"
        return None

    def ready(self, lease: Lease) -> bool:
        self._refusals |= _refusals_in(lease.target.last_turn)
        return not self._note_refusals(lease)

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        outcome = self._deliver(messages[: self._at_most], lease)
        if lease is not None:
            self._note_refusals(lease)
        return outcome

    def _note_refusals(self, lease: Lease) -> bool:
        """Save the refusals as the target's note. Returns whether it had others."""
        if self._refusals == _refusals_in(lease.target.last_turn):
            return False
        lease.save_turn(json.dumps(self._refusals))
        return True

    def _deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        self.warn_of_expired(messages)
        try:
            refusal = self._refusal(messages, lease)
        except BrokerError as error:
            if not self._accepted:
                self._at_most = 1
            # Otherwise a broker without room for all of them would get the first ones again and again.
            return Outcome(list(range(self._accepted)), error=error, is_lasting=True)
        self._at_most = max(self._at_most, 2 * len(messages))
        outcome = Outcome(list(range(self._accepted)), is_lasting=True)
        if refusal is not None:
            # Find the message that can't be sent. The broker drops messages that were sent behind it, or they come twice.
            one_by_one(messages, lambda each: self._refusal([each], lease), outcome=outcome, ends_by=BrokerError)
        return outcome

    def _refusal(self, messages: Sequence[Received], lease: Lease | None) -> MessageRefusedError | None:
        """Send these messages. Returns why one of them can't be sent, whatever happened to the others."""
        ids = [self._duplicate_id(message, lease) for message in messages]
        self._accepted = 0
        try:
            self.connect().send(list(map(self.outgoing, messages, map(self._next_id, ids))))
        except BrokerError as error:
            self._accepted = getattr(self._sink, "accepted", 0)
            self._note_spent(filter(None, map(ids.__getitem__, getattr(self._sink, "spent_ids", ()))))
            self.close()
            if not isinstance(error, MessageRefusedError):
                raise
            return error
        self._accepted = len(messages)
        for id_ in self._refusals.keys() & ids:
            del self._refusals[id_]
        return None

    def _note_spent(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self._refusals[id_] = self._refusals.pop(id_, 0) + 1  # the newest are last
        for id_ in list(self._refusals)[:-_MOST_REFUSALS]:
            del self._refusals[id_]

    def _next_id(self, duplicate_id: str | None) -> str | None:
        refusals = 0 if duplicate_id is None else self._refusals[duplicate_id]
        return f"{duplicate_id}-{refusals}" if refusals else duplicate_id

    def _duplicate_id(self, message: Received, lease: Lease | None) -> str | None:
        if not self._adds_duplicate_ids or lease is None or (name := name_in_domain(message)) is None:
            return None
        if message.sequence is None:  # a known id with another body may be delivered, and is another message
            name = f"{name}:{message.body_digest or ''}"
        return lease.handed_on_as(name)


class TurnTarget(SinkTarget[TurnSink]):
    """Sends messages on in turns, one in each lease. A turn's messages and a note on them are there together, or not at all.

    After a failed turn the next has half as many messages, so that in the end a message that is to blame is alone.

    The note names the turn's messages by sequence numbers. The store keeps the note of the last turn that it has confirmed. Only
    the last turn can be in doubt, and comparing the broker's note with the store's shows what happened to it:

    - Both are equal: none of the waiting messages is in the topic.
    - The broker's note is of waiting messages: their sender ended before it could confirm them. They are in the topic.
    - The broker has no note, or one of other messages: it has forgotten the note, or the store was restored from a copy. All
      waiting messages are sent, so that none is lost. A warning says which may come twice.

    A restored store gives the same numbers to other messages, so the note also has a digest.
    """

    def __init__(self, name: str, connect: Callable[[], TurnSink], ids: IdRule) -> None:
        super().__init__(name, connect, ids)
        self._has_begun = False
        self._note = _FIRST_NOTE
        """The note of the last turn that the broker has. Valid while `_has_begun`."""
        self._at_most = _ANY
        """How many messages the next turn may have."""

    def ready(self, lease: Lease) -> bool:
        if self._has_begun and self._note == lease.target.last_turn:
            return True
        try:
            return self._begin(lease)
        except BrokerError:
            self.close()
            raise

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        assert lease is not None  # noqa: S101 - messages without a store don't go in turns
        messages = messages[: self._at_most]
        while len(note := _note_of(messages)) > _LONGEST_NOTE:
            messages = messages[: len(messages) // 2]
        self.warn_of_expired(messages)
        outcome = Outcome()
        try:
            outgoing = [self.outgoing(message) for message in messages]
            is_sent = self.connect().send_turn(outgoing, note=note, number=messages[-1].sequence or 0)
        except BrokerError as error:
            self._at_most = max(1, len(messages) // 2)
            if not isinstance(error, MessageRefusedError):
                self.close()
                raise
            is_sent = False
            if len(messages) == 1:
                outcome.fail(0, error)
        if not is_sent:
            self._has_begun = False
            return outcome
        self._note = note
        self._at_most = max(self._at_most, 2 * len(messages))
        lease.save_turn(note)
        return Outcome.all_of(messages)

    def close(self) -> None:
        self._has_begun = False
        super().close()

    def _begin(self, lease: Lease) -> bool:
        """Fence other senders, and find out which turn is there. False if the store must note that first."""
        sink = self.connect()
        try:
            note = sink.begin(lease.target_key)
        except TurnForgottenError as error:
            self._abandon(sink, lease, error)
            note = sink.begin(lease.target_key)
        lease.look_again()  # another process may have had the lease meanwhile, and sent the messages that waited
        self._note = note or _FIRST_NOTE
        self._has_begun = sink.send_turn([], note=self._note, number=max(_numbers_in(note), default=0))
        if note is not None and note == lease.target.last_turn:
            return self._has_begun
        self._settle(lease, note)
        return False

    def _abandon(self, sink: TurnSink, lease: Lease, error: TurnForgottenError) -> None:
        """End the turn that the broker has forgotten, unless the store has confirmed it: then its messages don't wait any more."""
        lease.look_again()
        follows_last = lease.target.last_turn is None or error.note in (None, lease.target.last_turn)
        if not follows_last and not self._unconfirmed(lease, error.note):
            raise error
        sink.abandon_turn()
        _LOGGER.warning("%s has forgotten how the last turn ended: it is sent again, and may come twice", self.name)

    def _unconfirmed(self, lease: Lease, note: str | None) -> Sequence[int]:
        """The sequence numbers in a note, if these messages still wait; else none."""
        numbers = _numbers_in(note)
        messages = lease.messages(numbers)
        return numbers if messages and _note_of(messages) == note else ()

    def _settle(self, lease: Lease, note: str | None) -> None:
        """Update the store to the broker's note, which differs from the store's."""
        there = self._unconfirmed(lease, note)
        if there:
            lease.confirm(there)
            _LOGGER.info("%s has the %d messages that were sent and not confirmed", self.name, len(there))
        elif note is None:
            if lease.target.last_turn is not None and lease.sequence_numbers(1):
                _LOGGER.warning(
                    "%s no longer says what was sent last: what waits is sent, and may come twice", self.name
                )
        elif lease.target.last_turn is not None or note != _FIRST_NOTE:
            _LOGGER.warning(
                "%s and the store differ on what was sent last, as if the store had been put back from a copy: what was "
                "sent since then may come twice",
                self.name,
            )
        lease.save_turn(self._note)


def name_in_domain(message: StoredMessage) -> str | None:
    """The message's name in its domain; None if it has neither a sequence number nor an id.

    A kept message isn't named by its id, because another message may have that later. Nor is its sequence number enough: a store
    that has lost its last commits, such as a restored copy, gives the same numbers again.
    """
    if message.sequence is None:
        return None if message.unique_message_id is None else f":{message.unique_message_id}"
    return f"-{message.sequence}-{message.received_at_us:x}"


def _refusals_in(note: str | None) -> Counter[str]:
    """The refusals in a target's note; none in one of turns, as of a topic of Kafka."""
    try:
        return Counter(json.loads(note or "{}"))
    except ValueError:
        return Counter()


def _note_of(messages: Sequence[StoredMessage]) -> str:
    """The note on a turn of these messages: at least one, all with sequence numbers."""
    names = "".join(str(name_in_domain(message)) for message in messages)
    numbers = [message.sequence for message in messages if message.sequence is not None]
    return f"{sha256(names.encode()).hexdigest()} {encoded_numbers(numbers)}"


def _numbers_in(note: str | None) -> Sequence[int]:
    """The sequence numbers in a note; none if the note isn't ours."""
    try:
        return decoded_numbers((note or "").partition(" ")[2])
    except NONSENSE:
        return ()
