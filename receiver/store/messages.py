"""A message of a broker, and the fields of it that a store keeps. Each field is declared once, here.

Add a new field at the end of `Message`, with a default: messages that were packed before get this value. Add its column to
the table of parked messages by a migration.
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
    """One message, as a broker gave it or as it is to be sent."""

    refused: str | None = None
    """Why it can't be read: a bridge parks it for this reason. None if it can be read."""
    default_id: str | None = None
    """Its uniqueMessageId if no property has one: a name that the broker never gives again, such as Kafka's
    `TOPIC-PARTITION-OFFSET`."""
    default_source: str | None = None
    """Its messageSourceId if no property has one. Kafka takes it from the record's key, and sends it as the key."""
    jms_timestamp_ms: int | None = None
    """When it was sent (JMSTimestamp); None if not known."""
    redelivered: bool = False
    """Whether the broker says that it delivered the message before (JMSRedelivered)."""
    is_text: bool = False
    """Whether the body is text in UTF-8, or else bytes. If the protocol doesn't say: whether the body is valid UTF-8."""
    message_id: str | None = None
    """The broker's own id of the message (JMSMessageID)."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """JMSCorrelationID, JMSReplyTo, JMSType, ContentType, JMSPriority, JMSDeliveryMode and JMSExpiration, as text, if they
    are set; a connector sends no others."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    """The application's properties, by exact name; ids are among them."""
    body: bytes
    body_kind: Ascii | None = None
    """None if the body is text or bytes. `amqp-value` or `amqp-sequence` if it is something else, such as a map: then `body`
    has its AMQP sections, which only AMQP can send. `UNREAD` if `body` is the whole message."""
    amqp: bytes | None = None
    """AMQP sections with what the other fields can't hold: annotations, types of properties and so on. Only AMQP sends them
    on."""


class StoredMessage(NamedTuple):
    """A message with the values of its receipt, as it waits for its target or is parked."""

    sequence: int | None
    """Its sequence number, unique in the domain for ever; None if it isn't kept in the inbox."""
    tries: int
    """How often its delivery has failed."""
    received_at_us: int
    """Microseconds since 1970."""
    unique_message_id: str | None
    """None if it has no id: then nothing could be checked."""
    message_source_id: str | None
    destination: str
    """`queue://NAME` or `topic://NAME`."""
    message: Message


_NOT_KEPT = {"refused", "default_id", "default_source"}
"""Fields that aren't needed any more once the message has its id, or is parked."""
OF_MESSAGE = {
    name: kind for name, kind in get_type_hints(Message, include_extras=True).items() if name not in _NOT_KEPT
}
"""The fields of a `Message` that are kept, with their types."""
OF_RECEIPT = {name: kind for name, kind in get_type_hints(StoredMessage).items() if name != "message"} | {
    "sequence": int
}
"""The fields of a `StoredMessage` besides its `Message`, with their types. Each kept message has a sequence number."""
_HINTS = OF_RECEIPT | OF_MESSAGE
_FIRST = ("sequence", "received_at_us", "jms_timestamp_ms", "tries", "redelivered", "is_text")
"""Wide numbers first, then narrow ones: PostgreSQL pads a narrow column before a wide one."""

FIELDS = tuple(dict.fromkeys((*_FIRST, *_HINTS)))
"""The fields of a stored message and of its message side by side, in the order of the columns of `receiver_parked`."""
FlatMessage: type[tuple[Any, ...]] = NamedTuple("FlatMessage", [(name, _HINTS[name]) for name in FIELDS])  # type: ignore[misc]
flat = attrgetter(*(name if name in OF_RECEIPT else f"message.{name}" for name in FIELDS))
"""The values of a stored message in that order."""
_NAMES = [each.name for each in fields(Message)]
DEFAULTS = {each.name: each.default for each in fields(Message)[_NAMES.index("body") + 1 :]}
"""Fields that were added after packing was, with their values in messages packed without them."""
