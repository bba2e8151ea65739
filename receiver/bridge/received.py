"""A batch as it was taken off a broker, and its messages with their ids and times, as targets get them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from math import isfinite
from operator import attrgetter
from typing import Any

from receiver.bridge.connectors import UNREAD, Delivery
from receiver.bridge.options import IdRule
from receiver.errors import MessageRefusedError
from receiver.message import LATEST_US, Receipt
from receiver.quantities import moment
from receiver.store.codec import ascii_json, base64_of, to_bytes
from receiver.store.messages import Message, Property, StoredMessage
from receiver.store.positions import Advance

_LOGGER = logging.getLogger("receiver.bridge")
PASSED = "receiverPassedDomains"
"""The property with the mark of `Passed`. JMS allows the name, so that selectors can use it."""
_MOST_NUMBERS = 64
"""A mark keeps the newest 64 numbers, at most 1,087 characters. A ring of more domains isn't noticed."""
_NUMBER = re.compile("[0-9a-f]{16}")
_EARLIEST_MS = 10**11
"""In 1973, before there were brokers. A smaller number is in seconds, up to the year 5138."""
_EARLIEST_SECS = 10**9
"""In 2001. A smaller number can't be a time in either unit."""
_LATEST_MS = LATEST_US // 1_000


def _of_message(name: str) -> Any:
    return property(attrgetter(f"message.{name}"), doc=f"`Message.{name}` of the message.")


class Received(StoredMessage):
    """One message as a bridge hands it on."""

    __slots__ = ()
    body: bytes = _of_message("body")
    is_text: bool = _of_message("is_text")
    body_kind: str | None = _of_message("body_kind")
    properties: Mapping[str, Property] = _of_message("properties")
    headers: Mapping[str, str] = _of_message("headers")
    message_id: str | None = _of_message("message_id")
    redelivered: bool = _of_message("redelivered")
    jms_timestamp_ms: int | None = _of_message("jms_timestamp_ms")
    amqp: bytes | None = _of_message("amqp")

    @property
    def text(self) -> str:
        """The body as text; `UnicodeDecodeError` if it isn't UTF-8."""
        return self.body.decode()

    @property
    def body_digest(self) -> str | None:
        """SHA-256 of the body as it came, in hexadecimal digits. It tells a reused id from a duplicate.

        For AMQP's own kinds of body, it is that of a canonical encoding of their values; None if they have none.
        """
        message = self.message
        body = message.body
        if message.body_kind is not None and message.body_kind != UNREAD:
            from receiver.bridge.connectors.amqp_sections import WRONG, canonical

            try:
                body = canonical(body)
            except WRONG:
                return None
        return sha256(body).hexdigest()

    def receipt(self) -> Receipt:
        """The message as the detector judges it."""
        message = self.message
        return Receipt(
            self.unique_message_id,
            self.message_source_id,
            self.received_at_us,
            message.redelivered,
            message.jms_timestamp_ms,
            self.body_digest,
        )

    def json_line(self) -> bytes:
        """The message as a line of JSON: the columns of a log of receipts, the properties and the body.

        Bytes are in base64. The line is ASCII, so that any text is read back unchanged.
        """
        message = self.message
        line: dict[str, Any] = {
            "unique_message_id": self.unique_message_id,
            "message_source_id": self.message_source_id,
            "received_at": moment(self.received_at_us),
            "jms_redelivered": message.redelivered,
            "destination": self.destination,
            **({"headers": dict(message.headers)} if message.headers else {}),
            "properties": {name: _shown(value) for name, value in message.properties.items()},
            **({"body_kind": message.body_kind} if message.body_kind else {}),
        }
        try:
            text = self.text if message.is_text else None
        except UnicodeDecodeError:
            text = None
        line |= {"body_base64": base64_of(message.body)} if text is None else {"body": text}
        return ascii_json(line).encode() + b"\n"


Identity = tuple[int | None, int, str | None]


def identity_of(message: StoredMessage) -> Identity:
    """Tells the message from others, also where a store was put back and gives sequence numbers again."""
    return message.sequence, message.received_at_us, message.unique_message_id


class Passed:
    """Reads and makes, for one domain, the mark that shows a ring of bridges.

    Without it, messages that come back would be dropped as duplicates. The mark of a message that a bridge sends to a broker has
    a number for each domain that the message has passed: a hash of the message's id, keyed by the domain's store id. The store
    id is unique among all stores, while names may repeat. The message's id is hashed because an application may copy the mark to
    a message of its own, which has passed no domain.
    """

    def __init__(self, store_id: int) -> None:
        self._key = store_id.to_bytes(8, "big")

    def has(self, id_: str | None, properties: Mapping[str, Property]) -> bool:
        """Whether a message with this id and these properties has passed the domain."""
        return PASSED in properties and self._number(id_) in _numbers(properties)

    def mark(self, id_: str | None, properties: Mapping[str, Property]) -> str:
        """The mark of a message with this id and these properties, once it has passed this domain too."""
        own = self._number(id_)
        before = [number for number in _numbers(properties) if number != own]
        return ",".join([*before, own][-_MOST_NUMBERS:])

    def _number(self, id_: str | None) -> str:
        return blake2b(to_bytes(id_ or ""), digest_size=8, key=self._key).hexdigest()


def _numbers(properties: Mapping[str, Property]) -> list[str]:
    mark = properties.get(PASSED)
    return [] if not isinstance(mark, str) else [number for number in mark.split(",") if _NUMBER.fullmatch(number)]


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch as it was taken off the broker: in order, and not acknowledged yet."""

    messages: Sequence[Received]
    receipts: Sequence[Receipt]
    """The messages as the detector judges them."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """By index, why messages aren't judged but, if there is a store, parked: they can't be, or have come back in a ring."""
    returned: AbstractSet[int] = frozenset()
    """The indexes of those that have come back in a ring of bridges."""
    advances: Sequence[Advance] = ()
    """The positions of the source that move with the batch."""

    def only(self, index: int) -> Taken:
        """One message as a batch of its own, which moves no position."""
        refused = {0: self.refused[index]} if index in self.refused else {}
        returned = frozenset({0} if index in self.returned else ())
        return Taken([self.messages[index]], [self.receipts[index]], refused, returned)


def _sent_at_ms(message: Message) -> int | None:
    """JMSTimestamp in milliseconds, even if a client has it in seconds; None if it can't be a time."""
    sent = message.jms_timestamp_ms or 0
    if _EARLIEST_MS <= sent <= _LATEST_MS:
        return sent
    return sent * 1_000 if _EARLIEST_SECS <= sent < _EARLIEST_MS else None


class Intake:
    """Makes a `Taken` of a batch, and warns once of each problem with messages. Threads may share it."""

    def __init__(self, ids: IdRule, passed: Passed, *, destination: str, domain: str) -> None:
        self._ids = ids
        self._passed = passed
        self._destination = destination
        self._domain = domain
        self._warned_of: set[str] = set()

    def taken(
        self,
        deliveries: Sequence[Delivery],
        advances: Sequence[Advance],
        *,
        window: int | None,
        on_progress: Callable[[], object],
    ) -> Taken:
        """`window`: how many ids a source's window has; 0 for a policy without one, None if nothing is detected. `on_progress` is
        called before each call of a function for ids, which may take long."""
        now_us = time.time_ns() // 1_000
        messages, receipts, refused, returned = [], [], {}, set()
        rule = self._ids
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            if rule.function is not None:
                on_progress()
            try:
                id_, source = rule.ids_of(message)
            except MessageRefusedError as error:
                refused[index] = error.message
                id_ = source = None
            else:
                lacks_id = rule.function is None and rule.id_property not in message.properties
                if window is not None and (lacks_id or id_ is None):
                    self._warn_of_id(id_)
                if window and id_ is not None and source is None:
                    self._warn_of_one_window(window)
                if self._passed.has(id_, message.properties):
                    returned.add(index)
                    refused[index] = f"it has come back to {self._domain}, which it has passed before"
                    self._warn_of_ring(id_)
            sent_ms = _sent_at_ms(message)
            if sent_ms != message.jms_timestamp_ms:
                self._warn_of_time(message, sent_ms)
                message = replace(message, jms_timestamp_ms=sent_ms)
            received = Received._make((None, 0, now_us, id_, source, self._destination, message))
            messages.append(received)
            receipts.append(received.receipt())
        return Taken(messages, receipts, refused, returned, advances)

    def _warn_of_ring(self, id_: str | None) -> None:
        self._warn_once(
            "a ring",
            "bridges form a ring: %r has come back to %s. Such messages are parked (in BEST_EFFORT: handed on). Name other "
            "queues, or take only what no bridge has sent: ?selector=%s IS NULL",
            *(id_, self._domain, PASSED),
        )

    def _warn_of_id(self, id_: str | None) -> None:
        """Warn once that messages have no id, or only one that each send changes."""
        what = "they aren't checked, and each is handed on as often as it comes"
        if id_ is not None:
            what = "their ids are new with each send, and what a sender sends twice isn't noticed"
        self._warn_once(
            what,
            "messages come without %s, so %s. Have each sender set it, or name the property that has the id (--id-property)",
            *("an id from the function" if self._ids.function else self._ids.id_property, what),
        )

    def _warn_of_one_window(self, window: int) -> None:
        """Warn once that messages without source share one window: a bridge can't see how many senders there are."""
        self._warn_once(
            "one window",
            "messages come without %s: if several senders send them, they share the window of %d ids, and each pushes out "
            "the ids of the others. Have each set it, or name the property that says who sent a message (--source-property)",
            *(self._ids.source_property, window),
        )

    def _warn_of_time(self, message: Message, sent_ms: int | None) -> None:
        """Warn of a JMSTimestamp that isn't in milliseconds, and say how it is read; 0 means none."""
        if message.jms_timestamp_ms:
            done = "left out" if sent_ms is None else "read as seconds"
            text = "JMSTimestamp %d of %r can't be in milliseconds; times like it are %s"
            self._warn_once(done, text, message.jms_timestamp_ms, message.message_id, done)

    def _warn_once(self, of: str, text: str, *values: object) -> None:
        if of not in self._warned_of:
            self._warned_of.add(of)
            _LOGGER.warning(text, *values)


def _shown(value: Property) -> Property:
    """The value for JSON, which has no infinities and no NaN."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value
