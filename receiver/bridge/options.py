"""What a person chooses for a bridge: one of Apama's four reliability modes, and which ids messages have."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from receiver.errors import MessageRefusedError, SettingsError

if TYPE_CHECKING:  # no command but the bridge needs its connectors
    from receiver.bridge.connectors import Message

__all__ = ["IdRule", "MissingIds", "Mode", "described", "not_done"]

_OF_JMS = "ID:"


class Mode(StrEnum):
    """What a bridge promises. `docs/bridge.md` says it for each kind of target."""

    BEST_EFFORT = "BEST_EFFORT"
    """Messages are acknowledged on receipt, and nothing is kept. If the bridge dies, it loses what is under way."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """A message is kept in the inbox before it is acknowledged. Duplicates are handed on, and only counted."""
    EXACTLY_ONCE = "EXACTLY_ONCE"
    """A message is kept in the inbox with its id before it is acknowledged. Duplicates aren't handed on."""
    APP_CONTROLLED = "APP_CONTROLLED"
    """A message is handed on first. What the application writes is committed with the id, then it is acknowledged."""

    @property
    def keeps(self) -> bool:
        """Whether a store keeps messages, so that nothing is lost with the bridge."""
        return self is not Mode.BEST_EFFORT

    @property
    def detects(self) -> bool:
        """Whether duplicates are held back."""
        return self in {Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED}


class MissingIds(StrEnum):
    """What becomes of a message without an id of its own."""

    MESSAGE_ID = "message-id"
    """Its JMSMessageID is its id. This only catches the broker's redeliveries, not what is sent twice."""
    REFUSE = "refuse"
    """It is parked."""


_ID, _SOURCE = "uniqueMessageId", "messageSourceId"
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """Which id and source a message has: by two of its properties, or by a function."""

    id_property: str = _ID
    """The property with the id. A message sent on to a broker has its id there too, even if a function said it."""
    source_property: str = _SOURCE
    """The property with the source."""
    function: Callable[[Message], tuple[str | int | bytes | None, str | int | bytes | None]] | str | None = None
    """Returns a message's id and source, each None if it has none. Bytes are judged as `0x` and their hexadecimal digits.
    Text is `MODULE:FUNCTION`, which `open_bridge` imports. None: the two properties have them."""
    missing: MissingIds = MissingIds.MESSAGE_ID
    """What becomes of a message without an id."""

    def __post_init__(self) -> None:
        if not (self.id_property and self.source_property):
            raise SettingsError(
                "a property for ids has no name", hint="leave it out, or name it (--id-property, --source-property)"
            )
        if self.function is not None and (self.id_property, self.source_property) != (_ID, _SOURCE):
            raise SettingsError(
                "ids come from a function or from properties, not from both",
                hint="give --ids alone, or --id-property and --source-property; a function can read properties",
            )

    def ids_of(self, message: Message) -> tuple[str | None, str | None]:
        """The message's id and source, each None if it has none.

        Raises:
            MessageRefusedError: The message can't be read, a value can't be an id (true or false, a number with a
                fraction, bytes of a property), an id is required and missing, or the function failed.
        """
        if message.refused is not None:
            raise MessageRefusedError(message.refused)
        if self.function is not None:
            id_, source = self._by_function(message)
        else:
            properties = message.properties
            id_ = _text(properties.get(self.id_property), "its property", self.id_property)
            source = _text(properties.get(self.source_property), "its property", self.source_property)
        if id_ is None:
            if self.missing is MissingIds.REFUSE:
                raise MessageRefusedError(f"{self._lack()}, and ids are required")
            # JMS promises that such an id is unique. Any other message id may be a number that a broker gives again once
            # it has lost its data: the message that gets it would be taken for a duplicate.
            if message.message_id is not None and message.message_id.startswith(_OF_JMS):
                id_ = message.message_id
            else:
                id_ = message.default_id
        return id_, source or message.default_source

    def _by_function(self, message: Message) -> tuple[str | None, str | None]:
        function = self.function
        assert callable(function)  # noqa: S101 - `open_bridge` has imported it
        try:
            result: Any = function(_read_only(message))
            if isinstance(result, tuple) and len(result) == _PAIR:
                id_, source = map(_without_bytes, result)
                return _text(id_, "the function's", "id"), _text(source, "the function's", "source")
            why = not_done(result) or f"it returned {result!r:.80}, not (id, source)"
        except MessageRefusedError:
            raise
        except (Exception, SystemExit, CancelledError, GeneratorExit) as error:
            raise MessageRefusedError(f"the function for its id failed: {described(error)}") from error
        raise MessageRefusedError(f"the function for its id failed: {why}")

    def _lack(self) -> str:
        return f"it has no property {self.id_property}" if self.function is None else "the function gave it no id"


def _without_bytes(value: object) -> object:
    if not isinstance(value, bytes):
        return value
    return f"0x{value.hex()}" if value else None


def _text(value: object, whose: str, name: str) -> str | None:
    if value.__class__ is str or value is None:  # as most have it
        return value or None
    if isinstance(value, str):  # a kind of its own may compare otherwise
        return str.__str__(value) or None
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    remedy = "; a function (--ids) can return bytes" if isinstance(value, bytes) and value else ""
    raise MessageRefusedError(f"{whose} {name} is {value!r:.80}, neither text nor a whole number{remedy}")


def _read_only(message: Message) -> Message:
    """A function that changed a message would change what is handed on, or what the store can't keep."""
    properties, headers = MappingProxyType(message.properties), MappingProxyType(message.headers)
    return replace(message, properties=properties, headers=headers)


def not_done(result: object) -> str | None:
    """What is wrong with a function that returned this, though it did nothing; None if nothing is."""
    if inspect.iscoroutine(result):
        result.close()  # or the interpreter would complain, too
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        return f"it returned a {type(result).__name__}, which nobody runs"
    return None


def described(error: BaseException) -> str:
    """An exception of a function's, in words."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - one that can't even be shown
        return kind
