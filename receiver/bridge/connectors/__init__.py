"""What a bridge asks of a broker's client: two small interfaces, and the connector for each protocol.

A connector for another client is a class with the methods of `Source` or `Sink`; nothing has to be inherited. Both are
made connected. After a `BrokerError` they are of no more use: whoever has one closes it and makes another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import MessageRefusedError, SettingsError
from receiver.settings import BridgeSettings
from receiver.store.positions import Advance, Positions

__all__ = [
    "CONTENT_TYPE",
    "CORRELATION_ID",
    "DELIVERY_MODE",
    "DUPLICATE_ID",
    "EXPIRATION",
    "JMS_TYPE",
    "NON_PERSISTENT",
    "PRIORITY",
    "REPLY_TO",
    "UNREAD",
    "Advance",
    "Delivery",
    "Message",
    "PositionedSource",
    "Positions",
    "Property",
    "Sink",
    "Source",
    "body_limit_bytes",
    "check_body",
    "check_carried",
    "check_durable",
    "connectors_of",
    "sink_of",
    "source_of",
    "too_large",
]

DUPLICATE_ID = "_AMQ_DUPL_ID"
"""The property that switches the duplicate detection of Artemis on."""
CORRELATION_ID, REPLY_TO, JMS_TYPE, CONTENT_TYPE = "JMSCorrelationID", "JMSReplyTo", "JMSType", "ContentType"
PRIORITY, DELIVERY_MODE, EXPIRATION = "JMSPriority", "JMSDeliveryMode", "JMSExpiration"
"""Headers that are set only where a message differs from most: a priority that isn't 4, NON_PERSISTENT, and when it ends,
in milliseconds since 1970."""
NON_PERSISTENT = "NON_PERSISTENT"
UNREAD = "unread"
"""The kind of a body that is all of a message that couldn't be read."""

Property = str | int | float | bool | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, as it came off a broker or as it is to be sent."""

    body: bytes
    is_text: bool = False
    """Whether the body is text, in UTF-8; else it is bytes. Where a protocol doesn't say, whether it could be text."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    """What the application has set, by exact name; ids are among them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """JMSCorrelationID, JMSReplyTo, JMSType, ContentType, JMSPriority, JMSDeliveryMode and JMSExpiration, as text, each
    where it's set; a connector sends no others."""
    message_id: str | None = None
    """The broker's own name for it (JMSMessageID)."""
    redelivered: bool = False
    """Whether the broker says that it has delivered it before (JMSRedelivered)."""
    jms_timestamp_ms: int | None = None
    """When it was sent (JMSTimestamp), None where nothing says so."""
    body_kind: str | None = None
    """None where the body is text or bytes. `amqp-value` or `amqp-sequence` where it is something else, such as a map: then
    `body` has AMQP's sections of it, which only AMQP can send. `UNREAD` where `body` is all of the message."""
    amqp: bytes | None = None
    """What came by AMQP and the other fields can't hold, as sections: annotations, types of properties and so on. Only AMQP
    sends them on."""
    refused: str | None = None
    """Why it can't be read. A bridge parks it with this reason."""
    default_id: str | None = None
    """Its uniqueMessageId where no property has one: a name that the broker never gives again, as Kafka's
    `TOPIC-PARTITION-OFFSET`."""
    default_source: str | None = None
    """Its messageSourceId where no property has one. Kafka takes it from the record's key, and sends it as the key."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message that was taken and not acknowledged yet."""

    message: Message
    token: Any
    """What the connector needs to acknowledge it."""


class Source(Protocol):
    """Takes messages of one queue or durable subscription, and acknowledges them when it is asked to.

    It may have an attribute `is_settling`: whether the broker hasn't said yet what it has for this source, so that an empty
    `take` doesn't mean that nothing is left.
    """

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        """The next messages in the order in which the broker sends them, waiting so long for the first of them.

        Returns what is there once the first is: it doesn't wait for more. Empty if none came. A message that can't be
        read has the reason in `Message.refused`. One that can't even be told from the next, or whose body is too large, is
        a `MessageRefusedError`; it stays with the broker, behind it the rest.
        """

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Let the broker forget these messages; they are all that was taken and not acknowledged, in order.

        Returns when the broker has said that it has done so. A `BrokerError` means that this isn't known: they may come
        again.
        """

    def close(self) -> None:
        """End the connection. The broker delivers again what was taken and not acknowledged. Never raises."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


@runtime_checkable
class PositionedSource(Source, Protocol):
    """A `Source` of a broker that keeps what was taken, and counts on its consumers to know how far they are.

    How far that is stands in the store: it is moved in the transaction of the messages' ids, before they are acknowledged.
    In BEST_EFFORT there is no store, `start` isn't called, and the source goes by what was acknowledged.
    """

    positions_of: str
    """What the positions are kept under, within the domain: a topic and a group, for one. All bridges that share the
    messages between them have the same."""

    def start(self, positions: Positions) -> None:
        """Called once, before the first `take`. `positions.read()` has what is committed, by name, and may be called
        whenever the broker gives this source another share; `positions.begin` keeps where it begins."""

    def advances(self, deliveries: Sequence[Delivery]) -> Sequence[Advance]:
        """How these, all that was taken and not acknowledged, move the positions, and where those have to be for that.

        Where they aren't, none of it is kept or handed on: the source is closed, and another made.
        """


class Sink(Protocol):
    """Sends messages to one queue or topic.

    It may have an attribute `drops_known_ids`: whether a message whose `DUPLICATE_ID` came before is dropped there. Where
    it says no, whoever promises more is warned that messages may come twice.
    """

    def send(self, messages: Sequence[Message]) -> None:
        """Send these in order, and return when the broker has said that it has them safe.

        A `BrokerError` means that this isn't known of any: send all of them again. A `MessageRefusedError` means besides
        that one of them is to blame: whoever sends them one by one, each by a sink that is still of use, finds it. If the
        protocol can't express it, none of them was sent; if the broker refuses it, others may have been, before it and
        behind it.
        """

    def close(self) -> None:
        """End the connection. Never raises."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


_Connectors = tuple[Callable[..., Source], Callable[..., Sink]]
"""What makes a source and a sink."""


def body_limit_bytes(given: int | None = None) -> int:
    """The largest body that is taken: as given, or else the settings' default."""
    return BridgeSettings().max_body_bytes if given is None else given


def too_large(which: str, size: str, most_bytes: int) -> MessageRefusedError:
    """A source's error for a body that is too large. `which` names the message, `size` is how many bytes its body has."""
    return MessageRefusedError(
        f"{which}: its body has {size} bytes, and no more than {most_bytes:,} are taken",
        hint="allow more by --max-body-bytes, or take it off the queue",
    )


def source_of(address: BrokerAddress | str, *, max_body_bytes: int | None = None, durable: bool = True) -> Source:
    """Connected to where messages are taken from; a message with a larger body is a `MessageRefusedError`.

    None takes the size that the settings have. With `durable` a topic without a subscription is refused.

    An address may be text, as `BrokerAddress.parse` takes it. `MissingExtraError` where the protocol's library isn't
    installed, `BrokerError` where the broker can't be reached.
    """
    address = _parsed(address)
    if durable:
        check_durable(address)
    if max_body_bytes is not None and max_body_bytes < 0:
        raise SettingsError(f"the largest body can't have {max_body_bytes} bytes", hint="give 0 or more")
    make, _ = connectors_of(address)
    return make(address, max_body_bytes=max_body_bytes)


def check_durable(address: BrokerAddress) -> None:
    """`SettingsError` for a topic without a durable subscription."""
    if address.protocol == "kafka" and address.subscription is None:
        raise SettingsError(f"{address} names no consumer group", hint=f"write {address}?group=NAME")
    if address.is_topic and address.subscription is None:
        raise SettingsError(
            f"{address} names no subscription, and what a topic gets while nobody listens is gone",
            hint=f"write {address}?subscription=NAME, or choose --mode BEST_EFFORT",
        )


def check_body(message: Message, protocol: str) -> None:
    """`MessageRefusedError` for a body that is neither text nor bytes, by a protocol that has nothing else."""
    if message.body_kind is not None:
        why = "it couldn't be read" if message.body_kind == UNREAD else f"its body is an {message.body_kind}"
        raise MessageRefusedError(f"a message can't be sent by {protocol}: {why}", hint="send it by AMQP")


def check_carried(address: BrokerAddress, *properties: str) -> None:
    """`SettingsError` for a name that is a header of the protocol's own, and so can't be a property."""
    if address.protocol != "stomp":
        return
    from receiver.bridge.connectors.stomp_message import PROTOCOLS_OWN

    for name in properties:
        if name in PROTOCOLS_OWN:
            raise SettingsError(
                f"STOMP has a header {name} of its own, so no property of that name comes", hint="name another"
            )


def sink_of(address: BrokerAddress | str) -> Sink:
    """Connected to where messages are sent; errors as of `source_of`."""
    address = _parsed(address)
    if address.subscription is not None or address.selector is not None:
        raise SettingsError(f"{address}: what is sent is for all to take", hint="leave out what follows ?")
    _, make = connectors_of(address)
    return make(address)


def connectors_of(address: BrokerAddress) -> _Connectors:
    """What makes a source and a sink; `MissingExtraError` where the protocol's library isn't installed."""
    if address.protocol not in _CONNECTORS:
        raise SettingsError(f"{address}: no connector speaks that", hint=f"one of {', '.join(_CONNECTORS)}")
    return _CONNECTORS[address.protocol]()


def _of_stomp() -> _Connectors:
    from receiver.bridge.connectors.stomp import StompSink, StompSource

    return StompSource, StompSink


def _of_amqp() -> _Connectors:
    from receiver.bridge.connectors.amqp import AmqpSink, AmqpSource

    return AmqpSource, AmqpSink


def _of_kafka() -> _Connectors:
    from receiver.bridge.connectors.kafka import KafkaSink, KafkaSource

    return KafkaSource, KafkaSink


_CONNECTORS: dict[str, Callable[[], _Connectors]] = {"stomp": _of_stomp, "amqp": _of_amqp, "kafka": _of_kafka}
"""By `BrokerAddress.protocol`; each loads the protocol's library."""


def _parsed(address: BrokerAddress | str) -> BrokerAddress:
    return BrokerAddress.parse(address) if isinstance(address, str) else address
