"""A message of a broker, and what a store keeps of it. Each field is declared once, here.

A new field stands last in `Message` and has a default, which it takes in messages that were packed before. A migration adds
its column to the table of parked messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

from receiver.message import Ascii

Property = str | int | float | bool | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, as it came off a broker or as it is to be sent."""

    refused: str | None = None
    """Why it can't be read. A bridge parks it with this reason."""
    default_id: str | None = None
    """Its uniqueMessageId where no property has one: a name that the broker never gives again, as Kafka's
    `TOPIC-PARTITION-OFFSET`."""
    default_source: str | None = None
    """Its messageSourceId where no property has one. Kafka takes it from the record's key, and sends it as the key."""
    jms_timestamp_ms: int | None = None
    """When it was sent (JMSTimestamp), None where nothing says so."""
    redelivered: bool = False
    """Whether the broker says that it has delivered it before (JMSRedelivered)."""
    is_text: bool = False
    """Whether the body is text, in UTF-8; else it is bytes. Where a protocol doesn't say, whether it could be text."""
    message_id: str | None = None
    """The broker's own name for it (JMSMessageID)."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """JMSCorrelationID, JMSReplyTo, JMSType, ContentType, JMSPriority, JMSDeliveryMode and JMSExpiration, as text, each
    where it's set; a connector sends no others."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    """What the application has set, by exact name; ids are among them."""
    body: bytes
    body_kind: Ascii | None = None
    """None where the body is text or bytes. `amqp-value` or `amqp-sequence` where it is something else, such as a map: then
    `body` has AMQP's sections of it, which only AMQP can send. `UNREAD` where `body` is all of the message."""
    amqp: bytes | None = None
    """What came by AMQP and the other fields can't hold, as sections: annotations, types of properties and so on. Only AMQP
    sends them on."""


class StoredMessage(NamedTuple):
    """A message with what its receipt says of it, as it waits for its target or is parked."""

    sequence: int | None
    """Its sequence number, which no other message of the domain ever has; None where it isn't kept in the inbox."""
    tries: int
    """How often its delivery has failed."""
    received_at_us: int
    """Microseconds since 1970."""
    unique_message_id: str | None
    """None where it has none: then nothing could be checked."""
    message_source_id: str | None
    destination: str
    """`queue://NAME` or `topic://NAME`."""
    message: Message


_NOT_KEPT = {"refused", "default_id", "default_source"}
"""They have done their work once the message has its id, or is parked."""
OF_MESSAGE = {
    name: kind for name, kind in get_type_hints(Message, include_extras=True).items() if name not in _NOT_KEPT
}
"""The fields of a `Message` that are kept, with their types."""
OF_RECEIPT = {name: kind for name, kind in get_type_hints(StoredMessage).items() if name != "message"} | {
    "sequence": int
}
"""The fields that a `StoredMessage` has beside its `Message`, with their types. Each kept message has a sequence number."""
_HINTS = OF_RECEIPT | OF_MESSAGE
_FIRST = ("sequence", "received_at_us", "jms_timestamp_ms", "tries", "redelivered", "is_text")
"""The wide numbers and then the narrow ones: PostgreSQL pads a narrow column before a wide one."""

FIELDS = tuple(dict.fromkeys((*_FIRST, *_HINTS)))
"""The fields of a stored message and of its message side by side, in the order of the columns of `receiver_parked`."""
FlatMessage: type[tuple[Any, ...]] = NamedTuple("FlatMessage", [(name, _HINTS[name]) for name in FIELDS])  # type: ignore[misc]
flat = attrgetter(*(name if name in OF_RECEIPT else f"message.{name}" for name in FIELDS))
"""The values of a stored message in that order."""
_NAMES = [each.name for each in fields(Message)]
DEFAULTS = {each.name: each.default for each in fields(Message)[_NAMES.index("body") + 1 :]}
"""Fields that are younger than packing, with the value that they have in messages packed without them."""
