"""A message with what its receipt says of it, as targets get it; and the domains it has passed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b, sha256
from math import isfinite
from operator import attrgetter
from typing import Any

from receiver.bridge.connectors import UNREAD, Message, Property
from receiver.message import LATEST_US, Receipt
from receiver.store.messages import StoredMessage
from receiver.store.values import base64_of, dumped, to_bytes

PASSED = "receiverPassedDomains"
"""The property that holds the mark of `Passed`. JMS allows the name too, so that selectors can use it."""
_MOST_NUMBERS = 64
"""A mark keeps the newest 64 numbers, at most 1,087 characters. A longer ring isn't noticed."""
_NUMBER = re.compile("[0-9a-f]{16}")
_EARLIEST_MS = 10**11
"""In 1973, before there were brokers. What is less is of seconds, up to the year 5138."""
_EARLIEST_SECS = 10**9
"""In 2001. What is less can't be meant in either unit."""
_LATEST_MS = LATEST_US // 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        """The body as text; `UnicodeDecodeError` where it is none."""
        return self.body.decode()

    @property
    def body_digest(self) -> str | None:
        """SHA-256 of the body as it came, in hexadecimal digits. It tells an id that was used twice from a duplicate.

        Of AMQP's own kinds of body it is that of one encoding of their values; None where they have none.
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

    @classmethod
    def of_message(
        cls, message: Message, ids: tuple[str | None, str | None], received_at_us: int, destination: str
    ) -> Received:
        """A message as it was taken off a broker, with its id and its source."""
        return new_received((None, 0, received_at_us, *ids, destination, message))

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

    def numbered(self, sequence: int) -> Received:
        """The message with a sequence number."""
        return new_received((sequence, *self[1:]))

    def json_line(self) -> bytes:
        """As a line of JSON: the columns of a log of receipts, the properties and the body.

        What isn't text is in base64. All of it is ASCII, so that text of any kind comes back as it was.
        """
        message = self.message
        line: dict[str, Any] = {
            "unique_message_id": self.unique_message_id,
            "message_source_id": self.message_source_id,
            "received_at": iso(self.received_at_us),
            "jms_redelivered": message.redelivered,
            "destination": self.destination,
            **({"headers": dict(message.headers)} if message.headers else {}),
            "properties": {name: _shown(value) for name, value in message.properties.items()},
            **({"body_kind": message.body_kind} if message.body_kind else {}),
        }
        if message.is_text:
            try:
                line["body"] = self.text
            except UnicodeDecodeError:
                line["body_base64"] = base64_of(message.body)
        else:
            line["body_base64"] = base64_of(message.body)
        return dumped(line).encode() + b"\n"


new_received: Callable[[Iterable[Any]], Received] = partial(tuple.__new__, Received)
"""Makes a `Received` of the values of its fields, in half the time that calling the class takes."""


def sent_at_ms(message: Message) -> int | None:
    """JMSTimestamp in milliseconds, also where a client has it in seconds; None for one that can't be meant."""
    time = message.jms_timestamp_ms or 0
    if _EARLIEST_MS <= time <= _LATEST_MS:
        return time
    return time * 1_000 if _EARLIEST_SECS <= time < _EARLIEST_MS else None


class Passed:
    """Reads and makes, for one domain, the mark by which a ring of bridges is noticed.

    Without it, what comes back would be dropped as a duplicate. The mark of a message that a bridge sends to a broker has
    one number for each domain that the message has passed: a hash of the message's id, keyed by the domain's store id. No
    other domain has that in any store, while names may repeat. The id is hashed in because an application may copy the
    mark to a message of its own, which has passed nothing.
    """

    def __init__(self, store_id: int) -> None:
        self._key = store_id.to_bytes(8, "big")

    def has(self, id_: str | None, properties: Mapping[str, Property]) -> bool:
        """Whether a message with this id and these properties has passed the domain."""
        return PASSED in properties and self._number(id_) in _numbers(properties)

    def mark(self, id_: str | None, properties: Mapping[str, Property]) -> str:
        """The mark of such a message once it has passed this domain too."""
        own = self._number(id_)
        before = [number for number in _numbers(properties) if number != own]
        return ",".join([*before, own][-_MOST_NUMBERS:])

    def _number(self, id_: str | None) -> str:
        return blake2b(to_bytes(id_ or ""), digest_size=8, key=self._key).hexdigest()


def _numbers(properties: Mapping[str, Property]) -> list[str]:
    mark = properties.get(PASSED)
    return [] if not isinstance(mark, str) else [number for number in mark.split(",") if _NUMBER.fullmatch(number)]


def _shown(value: Property) -> Property:
    """The value for JSON, which has no infinities and no NaN."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def iso(time_us: int) -> str:
    """ISO 8601 with microseconds, in UTC."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
