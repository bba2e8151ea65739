"""Small interfaces for a broker's client, and the connectors for each protocol.

A connector for another client is a class with the methods of `Source` or `Sink`; nothing has to be inherited. A new object is
connected. After a `BrokerError` it can't be used any more: its user closes it and makes another.

| file | what is in it |
|---|---|
| `address.py` | the address of a queue or topic |
| `sockets.py` | the connection to a broker, by TLS or not, and what can be wrong with it |
| `nodes.py` | which node of a cluster to connect to |
| `amqp.py`, `stomp.py` | the source and the sink for each protocol |
| `kafka.py`, `kafka_sink.py` | the source for Kafka, and its sinks |
| `amqp_link.py`, `stomp_session.py`, `kafka_client.py` | their connections |
| `amqp_message.py`, `stomp_message.py`, `kafka_message.py` | a message as each protocol encodes it |
| `amqp_sections.py` | the sections of an AMQP message |
| `amqp_stream.py` | streams of RabbitMQ |
| `products.py` | what each broker product does differently |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from receiver.bridge.connectors.address import BrokerAddress, check_options
from receiver.bridge.connectors.nodes import ConnectionFactory, Nodes
from receiver.errors import BrokerError, MessageRefusedError, MessageUnfitError, SettingsError
from receiver.settings import BridgeSettings
from receiver.store.messages import Message
from receiver.store.positions import Advance, Positions

_T = TypeVar("_T")
_LOGGER = logging.getLogger("receiver.bridge")
BATCH_BYTES = 16 << 20
"""A batch ends once its bodies have so many bytes: this bounds memory."""
DUPLICATE_ID = "_AMQ_DUPL_ID"
"""The property with the id by which Artemis detects duplicates."""
UNREAD = "unread"
"""The `body_kind` of a message that couldn't be read: its body is the whole message."""
NON_PERSISTENT = "NON_PERSISTENT"
"""The only delivery mode that is stated: a message without one is persistent."""


class Header:
    """The names of a message's headers."""

    CORRELATION_ID = "JMSCorrelationID"
    REPLY_TO = "JMSReplyTo"
    JMS_TYPE = "JMSType"
    CONTENT_TYPE = "ContentType"
    PRIORITY = "JMSPriority"
    """Set only if it isn't 4."""
    DELIVERY_MODE = "JMSDeliveryMode"
    EXPIRATION = "JMSExpiration"
    """When the message expires, in milliseconds since 1970."""


def number_in(header: str) -> int | None:
    """The number in a header, such as a time in any unit; None if it is no whole number.

    Only the first 20 digits count, which exceed any time: Python raises for a number of more than 4,300 digits.
    """
    return int(header[:20]) if header.isdecimal() else None


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message that was taken and isn't acknowledged yet."""

    message: Message
    token: Any
    """Anything that the connector needs to acknowledge the message."""


class Source(Protocol):
    """Takes messages of one queue or durable subscription, and acknowledges them when asked to.

    It may have an attribute `is_settling`: while this is true, an empty `take` doesn't mean that the broker has none left.

    It may have an attribute `answers_acknowledgements`: if this is false, `acknowledge` returns once it is sent.
    """

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        """The next messages, in the order in which the broker sends them.

        Waits up to `wait_secs` for the first one, and not for more. Returns an empty list if none came. A message that
        can't be read has the reason in `Message.refused`.

        Raises:
            MessageRefusedError: A message can't be separated from the next, or its body is too large. The message and those
                behind it stay with the broker.
            BrokerError: The connection is lost. The source can't be used any more.
        """

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge these messages: all that were taken and aren't acknowledged yet, in order.

        Returns once the broker has confirmed this, and forgets them.

        Raises:
            BrokerError: It isn't known whether the broker received the acknowledgement. The messages may come again.
        """

    def close(self) -> None:
        """Close the connection. The broker delivers unacknowledged messages again. Never raises."""


@runtime_checkable
class PipelinedSource(Source, Protocol):
    """A `Source` that can take further messages before the broker has answered an acknowledgement."""

    def begin_acknowledging(self, deliveries: Sequence[Delivery]) -> Callable[[], None]:
        """As `acknowledge`, but returns as soon as the broker is asked. The function that it returns waits for the answer, and
        for all earlier answers. Until then these messages count as acknowledged, and more may be taken and acknowledged."""


@runtime_checkable
class PositionedSource(Source, Protocol):
    """A `Source` of a broker that keeps every message. Its consumers must know how far they have read.

    The store keeps these positions. The transaction that records the messages' ids also moves them, before the messages are
    acknowledged. In BEST_EFFORT, without a store, `start` isn't called: the source goes on behind the acknowledged messages.
    """

    positions_of: str
    """The name of the positions in the domain, such as a topic and a group: one for all bridges that share the messages."""

    def start(self, positions: Positions) -> None:
        """Called once, before the first `take`.

        `positions.read()` returns the committed positions by name. Call it whenever the broker gives this source another
        share. `positions.begin` stores where the source begins.
        """

    def advances(self, deliveries: Sequence[Delivery]) -> Sequence[Advance]:
        """From where to where these messages move the positions. They are all messages taken and not acknowledged.

        If the store's positions have moved meanwhile, nothing is kept or handed on, and another source is made.
        """


class Sink(Protocol):
    """Sends messages to one queue or topic.

    It may have these attributes:

    - `drops_known_ids`: whether the broker drops a message whose `DUPLICATE_ID` came before. If this is false, the bridge warns
      that messages may come twice.
    - `accepted`, after an error of `send`: how many messages, from the first on, the broker has confirmed.
    - `spent_ids`, after such an error: the indexes of messages that the broker hasn't got, though it would drop what comes with
      their `DUPLICATE_ID`.

    It may have a method `check`, which raises a `BrokerError` if the connection is known to have ended, and doesn't wait.
    """

    def send(self, messages: Sequence[Message]) -> None:
        """Send these in order. Returns once the broker has confirmed that it has them.

        Raises:
            MessageUnfitError: The protocol can't express one of the messages, and none was sent. Or one message is larger than
                the broker takes. It isn't tried again.
            MessageRefusedError: The broker refused one of the messages. Others may have been sent. To find the refused one,
                send them one by one, each by a sink that still works.
            BrokerError: It isn't known whether messages behind those `accepted` were sent. Send these again.
        """

    def close(self) -> None:
        """Close the connection. Never raises."""


class OpenSource(Source, AbstractContextManager["OpenSource"], Protocol):
    """A `Source` that the end of a `with` block closes. Others needn't offer this."""


class OpenSink(Sink, AbstractContextManager["OpenSink"], Protocol):
    """A `Sink` that the end of a `with` block closes. Others needn't offer this."""


class TurnForgottenError(BrokerError):
    """The broker has forgotten how a turn ended: readers don't see the turn, and wait for its end."""

    def __init__(self, address: BrokerAddress, note: str | None) -> None:
        super().__init__(
            f"{address}: the broker has forgotten how the last transaction ended",
            hint="its messages may be in the topic alone, where readers don't see them: kafka-transactions.sh find-hanging",
        )
        self.note = note
        """The note of the turn before; None if there is none."""


class TurnSink(Protocol):
    """Sends messages to one topic in turns. Readers see a turn as a whole or not at all, and in order.

    A turn leaves a note, which shows the next sender whether the turn is there. A `TurnSink` may have `check`, as a `Sink`.
    """

    def begin(self, name: str) -> str | None:
        """Begin under a name: any sink that began under this name before can send no more turns. May be called again.

        Returns:
            The note of the last turn that is there under the name; None if there is none, or the broker has forgotten it.

        Raises:
            BrokerRefusedError: The broker doesn't allow turns. The hint says what is missing.
            TurnForgottenError: It isn't known, and never will be, whether the last turn is there. `abandon_turn` ends it.
            BrokerError: The connection is lost.
        """

    def abandon_turn(self) -> None:
        """End a turn that the broker has forgotten, as if it had never been sent. Then begin again.

        Raises:
            BrokerError: The connection is lost, and the turn hasn't ended.
        """

    def send_turn(self, messages: Sequence[Message], *, note: str, number: int) -> bool:
        """Send messages in order, with a note. Returns once the broker has confirmed that the whole turn is there.

        Args:
            messages: May be empty: such a turn shows whether the broker allows turns, and makes it keep the note for longer.
            note: ASCII, up to 4,000 characters.
            number: A number to show to people with the note.

        Returns:
            False if another sink has begun under the name since. Begin again: the note then shows whether the turn is there.

        Raises:
            MessageUnfitError: The protocol can't express one of the messages, and none was sent. Or a single message is larger
                than the broker takes. It isn't tried again.
            MessageRefusedError: The broker refused one of the messages, and none is there. Begin again.
            BrokerError: It isn't known whether the turn is there. Close this sink, and begin by another: the note shows it.
        """

    def close(self) -> None:
        """Close the connection. Never raises."""


@cache
def warn_once(text: str) -> None:
    """Log a warning once, and not at each connection or message."""
    _LOGGER.warning("%s", text)


def too_large_error(which: str, size: str, most_bytes: int) -> MessageRefusedError:
    """A source's error for a body that is too large. `which` names the message; `size` is the number of bytes of its body."""
    return MessageRefusedError(
        f"{which}: its body has {size} bytes, and the limit is {most_bytes:,}",
        hint="raise --max-body-bytes, or take the message off the queue",
    )


def source_of(
    address: BrokerAddress | str,
    *,
    max_body_bytes: int | None = None,
    durable: bool = True,
    most_ahead: int | None = None,
) -> OpenSource:
    """A source that is connected to an address.

    Args:
        address: Text is read by `BrokerAddress.parse`.
        max_body_bytes: The largest body that is taken. None: the settings' default.
        durable: Refuse a topic without a subscription.
        most_ahead: About how many messages of a queue to keep from other consumers, unacknowledged. None: as many as is fast.

    Raises:
        SettingsError: The address is invalid.
        BrokerError: The broker can't be reached.
        MissingExtraError: The protocol's library isn't installed.
    """
    address = address if isinstance(address, BrokerAddress) else BrokerAddress.parse(address)
    if durable:
        check_durable(address)
    if most_ahead is not None and address.keeps_what_is_taken:
        raise SettingsError(
            f"{address}: most_ahead is for a queue, whose messages go to one consumer", hint="leave it out"
        )
    if most_ahead is not None and most_ahead < 1:  # brokers take 0 or less for no limit
        raise SettingsError(
            f"most_ahead must be 1 or more, not {most_ahead!r:.80}", hint="leave it out for as many as is fast"
        )
    more = {} if most_ahead is None else {"most_ahead": most_ahead}
    return source_factory(address, max_body_bytes).of_its_own(**more)()


def source_factory(address: BrokerAddress, max_body_bytes: int | None = None) -> ConnectionFactory[OpenSource]:
    """A function that makes a connected source at each call."""
    if max_body_bytes is None:
        max_body_bytes = BridgeSettings().max_body_bytes
    elif max_body_bytes < 0:
        raise SettingsError(f"the largest body can't have {max_body_bytes} bytes", hint="give 0 or more")
    check_options(address)
    connectors = connectors_of(address)
    make = partial(connectors.source, max_body_bytes=max_body_bytes)
    return ConnectionFactory(Nodes(address, connectors.identity_at), make)


def check_durable(address: BrokerAddress) -> None:
    """`SettingsError` for a topic without a durable subscription."""
    if address.protocol == "kafka" and address.subscription is None:
        raise SettingsError(f"{address} names no consumer group", hint=f"write {address}?group=NAME")
    if address.is_topic and address.subscription is None:
        raise SettingsError(
            f"{address} names no subscription: a topic drops what it gets while nobody listens",
            hint=f"write {address}?subscription=NAME, or choose --mode BEST_EFFORT",
        )


def check_body(message: Message, protocol: str) -> None:
    """Raise `MessageUnfitError` for a body that is neither text nor bytes, if the protocol has only these."""
    if message.body_kind is not None:
        why = "it couldn't be read" if message.body_kind == UNREAD else f"its body is an {message.body_kind}"
        raise unfit_error(protocol, why)


def unfit_error(protocol: str, why: str, *, hint: str = "send it by AMQP") -> MessageUnfitError:
    """The error for a message that the protocol can't express."""
    return MessageUnfitError(f"a message can't be sent by {protocol}: {why}", hint=hint)


def check_carried(address: BrokerAddress, *properties: str) -> None:
    """Raise `SettingsError` for a property name that the protocol uses for a header of its own."""
    own = connectors_of(address).own_headers
    for name in properties:
        if name in own:
            raise SettingsError(
                f"{address.protocol.upper()} has a header {name} of its own, so no property of that name comes",
                hint="name another",
            )


def sink_of(address: BrokerAddress | str) -> OpenSink:
    """A sink that is connected to an address. Errors are those of `source_of`."""
    return sink_factory(address if isinstance(address, BrokerAddress) else BrokerAddress.parse(address))()


def sink_factory(address: BrokerAddress) -> ConnectionFactory[OpenSink]:
    """A function that makes a connected sink at each call."""
    return _factory_to(address, lambda at: connectors_of(at).sink(at))


def _factory_to(address: BrokerAddress, make: Callable[[BrokerAddress], _T]) -> ConnectionFactory[_T]:
    if address.is_stream:
        raise SettingsError(f"{address}: a target isn't named as a stream", hint="write /queue/NAME")
    check_options(address, of_target=True)
    return ConnectionFactory(Nodes(address, lambda at: connectors_of(at).identity_at(at)), make)


def turn_sink_factory(address: BrokerAddress) -> ConnectionFactory[TurnSink] | None:
    """A function that makes a connected sink of turns at each call; None if messages go one by one."""
    if not address.takes_turns:
        return None
    from receiver.bridge.connectors.kafka_sink import KafkaTurns

    return _factory_to(address, KafkaTurns)


class Connectors(NamedTuple):
    """The connectors for a protocol."""

    source: Callable[..., OpenSource]
    sink: Callable[..., OpenSink]
    identity_at: Callable[[BrokerAddress], str]
    """Gives what all nodes of a cluster have in common: the product or, with Kafka, the cluster's id."""
    own_headers: Collection[str] = ()
    """Headers of the protocol that a message has beside its properties, so that no property of such a name comes."""
    is_prefetch_fixed: bool = False
    """Whether a source can't change how many messages come ahead of acknowledgements."""


def connectors_of(address: BrokerAddress) -> Connectors:
    """Load the connectors for the address's protocol; `MissingExtraError` if its library isn't installed."""
    match address.protocol:
        case "stomp":
            from receiver.bridge.connectors.stomp import StompSink, StompSource
            from receiver.bridge.connectors.stomp_message import PROTOCOLS_OWN
            from receiver.bridge.connectors.stomp_session import product_at

            return Connectors(StompSource, StompSink, product_at, PROTOCOLS_OWN, is_prefetch_fixed=True)
        case "amqp":
            from receiver.bridge.connectors.amqp import AmqpSink
            from receiver.bridge.connectors.amqp_link import product_at
            from receiver.bridge.connectors.amqp_stream import amqp_source

            return Connectors(amqp_source, AmqpSink, product_at)
        case "kafka":
            from receiver.bridge.connectors.kafka import KafkaSource
            from receiver.bridge.connectors.kafka_client import cluster_at
            from receiver.bridge.connectors.kafka_sink import KafkaSink

            return Connectors(KafkaSource, KafkaSink, cluster_at)
    raise SettingsError(f"{address}: unknown protocol", hint="one of stomp, amqp, kafka")
