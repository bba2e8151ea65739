"""The options of a bridge: one of Apama's four reliability modes, the rule for ids, and the rest.

The first paragraph of a field's docstring is the help of its option of `receiver bridge`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from receiver.errors import LONGEST_ERROR, MessageRefusedError, SettingsError
from receiver.settings import BridgeSettings, IdReuse, ReceiverSettings, StoreSettings, default

if TYPE_CHECKING:  # no command but the bridge needs its connectors
    from receiver.bridge.targets import Target
    from receiver.store.messages import Message

_OF_JMS = "ID:"


class Mode(StrEnum):
    """What a bridge promises. `docs/bridge.md` has the promise for each kind of target."""

    BEST_EFFORT = "BEST_EFFORT"
    """Messages are acknowledged on receipt, and nothing is kept. A bridge that dies loses the messages that it hasn't handed on."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """A message is kept in the inbox before it is acknowledged. Duplicates are handed on, and only counted."""
    EXACTLY_ONCE = "EXACTLY_ONCE"
    """A message is kept in the inbox with its id before it is acknowledged. Duplicates aren't handed on."""
    APP_CONTROLLED = "APP_CONTROLLED"
    """A message is handed on first. The application's writes are committed with its id, then the message is acknowledged."""

    @property
    def keeps(self) -> bool:
        """Whether a store keeps messages, so that nothing is lost with the bridge."""
        return self is not Mode.BEST_EFFORT

    @property
    def detects(self) -> bool:
        """Whether duplicates are held back."""
        return self in {Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED}


class MissingIds(StrEnum):
    """How to treat a message without an id of its own."""

    MESSAGE_ID = "message-id"
    """Its JMSMessageID is its id. This only catches the broker's redeliveries, not messages that were sent twice."""
    REFUSE = "refuse"
    """The message is parked."""


_ID, _SOURCE = "uniqueMessageId", "messageSourceId"
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """Which id and source a message has: by two of its properties, or by a function."""

    id_property: str = _ID
    """The property with a message's id.

    A message sent on to a broker has its id there too, even if a function said it.
    """
    source_property: str = _SOURCE
    """The property with the id of its source."""
    function: str | Callable[[Message], tuple[str | int | bytes | None, str | int | bytes | None]] | None = None
    """A function that takes a message and returns (id, source), instead of the two properties. A message has .properties,
    .headers, .body, .is_text and .message_id.

    Each is None if the message has none. Bytes are judged as `0x` and their hexadecimal digits. Text is
    `MODULE:FUNCTION`, which `open_bridge` imports.
    """
    missing: MissingIds = MissingIds.MESSAGE_ID
    """What to do with a message without id."""

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
                lacks = "the function gave it no id" if self.function else f"it has no property {self.id_property}"
                raise MessageRefusedError(f"{lacks}, and ids are required")
            # JMS promises that ids with this prefix are unique. Another message id may be a number that the broker reuses after
            # it has lost its data: then a new message would be taken for a duplicate.
            if message.message_id is not None and message.message_id.startswith(_OF_JMS):
                id_ = message.message_id
            else:
                id_ = message.default_id
        return id_, source or message.default_source

    def _by_function(self, message: Message) -> tuple[str | None, str | None]:
        function = self.function
        assert callable(function)  # noqa: S101 - `open_bridge` has imported it
        from asyncio import CancelledError  # `open_bridge` has imported this too; the other commands need none of it

        # Read-only, because a change would be handed on, and the store might not be able to keep it.
        properties, headers = MappingProxyType(message.properties), MappingProxyType(message.headers)
        try:
            result: Any = function(replace(message, properties=properties, headers=headers))
            if isinstance(result, tuple) and len(result) == _PAIR:
                id_, source = map(_without_bytes, result)
                return _text(id_, "the function's", "id"), _text(source, "the function's", "source")
            why = not_done(result) or f"it returned {result!r:.80}, not (id, source)"
        except MessageRefusedError:
            raise
        except (Exception, SystemExit, CancelledError, GeneratorExit) as error:
            raise MessageRefusedError(f"the function for its id failed: {described(error)}") from error
        raise MessageRefusedError(f"the function for its id failed: {why}")


def _without_bytes(value: object) -> object:
    if not isinstance(value, bytes):
        return value
    return f"0x{value.hex()}" if value else None


def _text(value: object, whose: str, name: str) -> str | None:
    if value.__class__ is str or value is None:  # the usual case
        return value or None
    if isinstance(value, str):  # a subclass may compare differently
        return str.__str__(value) or None
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    remedy = "; a function (--ids) can return bytes" if isinstance(value, bytes) and value else ""
    raise MessageRefusedError(f"{whose} {name} is {value!r:.80}, neither text nor a whole number{remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The PEM files by which a broker and its client authenticate each other through TLS."""

    ca_file: Path | None = None
    """Certificates of the authorities to trust. [default: the system's]"""
    cert_file: Path | None = None
    """The client's own certificate; needs --tls-key."""
    key_file: Path | None = None
    """The key of the client's certificate.

    None: the certificate's file has the key too.
    """

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise SettingsError(f"{self.key_file} is a key without its certificate", hint="name that too (--tls-cert)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """How a bridge works. The defaults are those of the command `receiver bridge`."""

    mode: Mode = Mode.EXACTLY_ONCE
    """What the bridge promises."""
    domain: str = "default"
    """The KEY that makes the domain, as in `Receiver.open`."""
    connection_id: str | None = None
    """This connection's name in its domain. [default: HOST:PORT, with ?vhost= and /SUB if given]"""
    consumers: int | None = None
    """Take and handle messages with N consumers at once, in any order: only for python:MODULE:FUNCTION, and a store in
    PostgreSQL. [default: one, in order]"""
    receiver_id: str | None = None
    """This receiver's name in its domain. For a topic, or with --domain receiver."""
    id_reuse: IdReuse | str | None = field(default_factory=lambda: default("receiver", "id_reuse"))
    """What to do with a known id that comes with another body."""
    policy: str | None = None
    """Follow another system's rule. receiver compare --help lists them."""
    duplicates_to: str | Target | Callable[..., object] | None = None
    """Where duplicates go, written as TO: each at least once, with the properties receiverDuplicateOf (when the id first came)
    and receiverBodyDiffers. [default: they are only counted]"""
    record: str | None = None
    """Record the receipts for receiver simulate: a .jsonl.zst, a .parquet or a folder."""
    ids: IdRule = field(default_factory=IdRule)
    """Which id and source a message has."""
    windows: ReceiverSettings | None = None
    """W and E; None: the domain's own."""
    tls: Tls = field(default_factory=Tls)
    from_password: str | None = None
    """The password for `from_`; None: the address has it, or there is none."""
    to_password: str | None = None
    """The password for `to`; None: the address has it, or there is none."""
    duplicates_to_password: str | None = None
    settings: BridgeSettings = field(default_factory=BridgeSettings)
    """How large batches and bodies may be, how often a message is tried."""
    store_settings: StoreSettings | None = None

    def __post_init__(self) -> None:
        for name, kind in (("mode", Mode), ("ids", IdRule), ("tls", Tls), ("settings", BridgeSettings)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                example = "Mode.EXACTLY_ONCE" if kind is Mode else f"{kind.__name__}(...)"
                raise SettingsError(f"{name} must be {kind.__name__}, not {value!r:.80}", hint=f"write {example}")


def not_done(result: object) -> str | None:
    """Why a function that returned this did nothing, such as an async function; None if it did its work."""
    if inspect.iscoroutine(result):
        result.close()  # otherwise the interpreter would warn, too
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        return f"it returned a {type(result).__name__}, which nobody runs"
    if isinstance(result, Future):
        return f"it returned a {type(result).__name__}, for whose end nobody waits"
    return None


def described(error: BaseException) -> str:
    """An exception of a user's function, in words."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"[:LONGEST_ERROR]
    except Exception:  # noqa: BLE001 - the exception can't even be shown
        return kind
