"""What a person chooses for a bridge: one of Apama's four reliability modes, and which ids messages have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from receiver.errors import MessageRefusedError, SettingsError

if TYPE_CHECKING:  # no command but the bridge needs its connectors
    from receiver.bridge.connectors import Message, Property

__all__ = ["IdRule", "MissingIds", "Mode"]

_OF_JMS = "ID:"


class Mode(StrEnum):
    """What a bridge promises; `docs/bridge.md` has the table of it, target by target."""

    BEST_EFFORT = "BEST_EFFORT"
    """Acknowledged on receipt, nothing kept: what is under way is lost with the bridge."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """Kept in the inbox before it is acknowledged, and handed on whatever came before: duplicates are only counted."""
    EXACTLY_ONCE = "EXACTLY_ONCE"
    """Kept in the inbox together with its id before it is acknowledged, and not handed on if that id came before."""
    APP_CONTROLLED = "APP_CONTROLLED"
    """Handed on first; what the application writes and the id are committed together, then it is acknowledged."""

    @property
    def keeps(self) -> bool:
        """Whether a store keeps what may not be lost with the bridge."""
        return self is not Mode.BEST_EFFORT

    @property
    def detects(self) -> bool:
        """Whether a duplicate isn't handed on."""
        return self in {Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED}


class MissingIds(StrEnum):
    """What becomes of a message without an id of its own."""

    MESSAGE_ID = "message-id"
    """Its JMSMessageID, if it has one, is its id. This catches what the broker delivers twice, not what is sent twice."""
    REFUSE = "refuse"
    """It is parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """Which properties name a message and its source, and what becomes of one without an id."""

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
            # JMS promises that such an id is unique. Any other message id may be a number that a broker gives again once
            # it has lost its data: the message that gets it would be taken for a duplicate.
            if message.message_id is not None and message.message_id.startswith(_OF_JMS):
                id_ = message.message_id
            else:
                id_ = message.default_id
        return id_, _text(message.properties, self.source_property) or message.default_source


def _text(properties: Mapping[str, Property], name: str) -> str | None:
    value = properties.get(name)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise MessageRefusedError(f"its property {name} is {value!r:.80}, neither text nor a whole number")
