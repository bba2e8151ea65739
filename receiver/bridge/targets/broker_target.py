"""Messages sent on to another broker: exactly once where that drops a message whose `_AMQ_DUPL_ID` it has had before.

Artemis does (https://activemq.apache.org/components/artemis/documentation/latest/duplicate-detection.html). What was sent
before a crash without being confirmed is sent again with the same id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from receiver.bridge.connectors import DUPLICATE_ID, Header, Sink, TurnSink
from receiver.bridge.connectors.nodes import Way
from receiver.bridge.options import IdRule
from receiver.bridge.received import PASSED, Passed, Received
from receiver.bridge.targets import Outcome, Target, one_by_one
from receiver.errors import BrokerError, MessageRefusedError
from receiver.store.inbox import Lease
from receiver.store.messages import Message, Property, StoredMessage

_S = TypeVar("_S", bound=Sink | TurnSink)
ORIGINAL_DUPLICATE_ID = "receiverOriginalDuplicateId"
"""The property with the `_AMQ_DUPL_ID` that a message's sender gave it, for the broker it came from. The first bridge on
its way sets it."""
_LOGGER = logging.getLogger("receiver.bridge")


class SinkTarget(Target, Generic[_S]):
    """A target by a sink that `connect` makes, and another after a failure."""

    def __init__(self, name: str, connect: Callable[[], _S], ids: IdRule) -> None:
        self.name = name
        self.ids = ids
        self._connect = connect
        self._sink: _S | None = None
        self.passed: Passed | None = None
        """Marks the messages as having passed their domain; None: they aren't marked."""
        self.nodes = connect.nodes if isinstance(connect, Way) else None
        """Where it connects to, as far as that is known."""

    def connect(self) -> _S:
        """The connection, made if there is none; `BrokerError` where that can't be."""
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
        """They are sent all the same: the broker knows whether anybody wants to hear of what has expired."""
        now_ms = time.time_ns() // 1_000_000
        ends = [message.headers[Header.EXPIRATION] for message in messages if Header.EXPIRATION in message.headers]
        expired = sum(end_ms.isdecimal() and int(end_ms) <= now_ms for end_ms in ends)
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
            if id_ is not None and (name not in properties or str(properties[name]) != id_):  # a number stays one
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
            default_id=None,
            # Of its way to here. The broker that gets it says anew what these are.
            message_id=None,
            redelivered=False,
            jms_timestamp_ms=None,
        )


class BrokerTarget(SinkTarget[Sink]):
    """Sends messages on one by one, each with a `_AMQ_DUPL_ID` if it is told to."""

    def __init__(self, name: str, connect: Callable[[], Sink], ids: IdRule, *, adds_duplicate_ids: bool) -> None:
        super().__init__(name, connect, ids)
        self._adds_duplicate_ids = adds_duplicate_ids
        self._has_warned = False

    def connect(self) -> Sink:
        sink = super().connect()
        if self._adds_duplicate_ids and not self._has_warned and not getattr(sink, "drops_known_ids", True):
            self._has_warned = True
            _LOGGER.warning(
                "%s doesn't drop what is sent again, so to it this is at least once: who takes it has to go by %s",
                self.name,
                self.ids.id_property,
            )
        return sink

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        self.warn_of_expired(messages)
        if self._refusal(messages, lease) is None:
            return Outcome.all_of(messages)
        # Find out which of them can't be sent. Those sent already are dropped by the broker, or come twice.
        return one_by_one(messages, lambda message: self._refusal([message], lease))

    def _refusal(self, messages: Sequence[Received], lease: Lease | None) -> MessageRefusedError | None:
        """Send these; why one of them can't be sent, whatever became of the others."""
        try:
            self.connect().send([self.outgoing(message, self._duplicate_id(message, lease)) for message in messages])
        except BrokerError as error:
            self.close()
            if not isinstance(error, MessageRefusedError):
                raise
            return error
        return None

    def _duplicate_id(self, message: Received, lease: Lease | None) -> str | None:
        if not self._adds_duplicate_ids or lease is None or (name := name_in_domain(message)) is None:
            return None
        return lease.handed_on_as(name)


def name_in_domain(message: StoredMessage) -> str | None:
    """The message's name in its domain; None where it has neither a sequence number nor an id.

    A message that was kept isn't named by its id, which another may have later. Nor is its sequence number enough: a
    store that has lost its last commits, such as a copy that was restored, gives the same numbers again.
    """
    if message.sequence is None:
        return None if message.unique_message_id is None else f":{message.unique_message_id}"
    return f"-{message.sequence}-{message.received_at_us:x}"
