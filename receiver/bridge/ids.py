"""Which id and which source a message has: from properties of configurable names, made where they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from receiver.bridge.connector import Message, Property
from receiver.errors import MessageRefusedError, SettingsError

__all__ = ["IdRule", "MissingIds", "sent_at_ms"]

_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a time beyond it can't be meant."""
_EARLIEST_MS = 10**11
"""In 1973, before there were brokers. What is less is of seconds, up to the year 5138."""
_EARLIEST_SECS = 10**9
"""In 2001. What is less can't be meant in either unit."""
_OF_JMS = "ID:"


class MissingIds(StrEnum):
    """What becomes of a message without an id of its own."""

    MESSAGE_ID = "message-id"
    """Its JMSMessageID is its id, where it has one: caught then is what the broker delivers twice, not what is sent twice."""
    REFUSE = "refuse"
    """It is parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    id_property: str = "uniqueMessageId"
    source_property: str = "messageSourceId"
    missing: MissingIds = MissingIds.MESSAGE_ID

    def __post_init__(self) -> None:
        if not (self.id_property and self.source_property):
            raise SettingsError(
                "a property for ids has no name", hint="leave it out, or name it (--id-property, --source-property)"
            )

    def ids_of(self, message: Message) -> tuple[str | None, str | None]:
        """The message's id and source, each None where it has none.

        `MessageRefusedError` where they can't be ids: bytes, a truth value, a number with a fraction; or where there is
        none and there has to be.
        """
        id_ = _text(message.properties, self.id_property)
        if id_ is None:
            if self.missing is MissingIds.REFUSE:
                raise MessageRefusedError(f"it has no property {self.id_property}, and ids are required")
            # By JMS such an id is like no other. What else a protocol calls so may be a number that a broker gives to
            # another message once its data were lost, and that would then be taken for a duplicate.
            if message.message_id is not None and message.message_id.startswith(_OF_JMS):
                id_ = message.message_id
        return id_, _text(message.properties, self.source_property)


def _text(properties: Mapping[str, Property], name: str) -> str | None:
    value = properties.get(name)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise MessageRefusedError(f"its property {name} is {value!r:.80}, neither text nor a whole number")


def sent_at_ms(message: Message) -> int | None:
    """JMSTimestamp in milliseconds, also of a broker that has it in seconds (RabbitMQ); None for one that can't be meant."""
    time = message.jms_timestamp_ms or 0
    if _EARLIEST_SECS <= time < _EARLIEST_MS:
        return time * 1_000
    return time if _EARLIEST_MS <= time <= _LATEST_MS else None
