"""STOMP 1.2, as the broker's product speaks it (`products.py`).

A subscription acknowledges cumulatively (`ack:client`), so one frame and its receipt acknowledge a batch; on Artemis message by
message, with one receipt. Each sent message asks for a receipt, which the broker gives only once the message is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy

from receiver.bridge.connectors import Delivery, warn_once
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.products import Product
from receiver.bridge.connectors.sockets import named
from receiver.bridge.connectors.stomp_message import Frame, decoded, encoded_headers
from receiver.bridge.connectors.stomp_session import StompSession
from receiver.closing import Closing
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, SettingsError
from receiver.store.messages import Message

_SUBSCRIPTION = "receiver"
_AT_ONCE_BYTES = 4 << 20
"""`take` gives no more messages once their bodies have so many bytes: a thousand that came ahead may be too large for one batch."""
_WILDCARDS = set("*#>")
"""Characters in a name that may stand for many topics."""


class StompSource(Closing):
    """Messages of a queue, or of a topic's durable subscription."""

    def __init__(self, address: BrokerAddress, *, max_body_bytes: int, most_ahead: int | None = None) -> None:
        self._refused: MessageRefusedError | None = None
        self._unacknowledged = 0
        self._session = StompSession(address, client_id=address.subscription, max_body_bytes=max_body_bytes)
        self.product = self._session.product
        try:
            self._headers = _subscribing(address, self.product, most_ahead)
            if _is_stream(address, self.product):
                raise BrokerRefusedError(  # noqa: TRY301 - closed as after any other
                    f"{address} is a stream, which STOMP doesn't keep track of",
                    hint="take it by AMQP: amqp://HOST/stream/NAME",
                )
            self._session.ask(Frame("SUBSCRIBE", self._headers))
        except BaseException:
            self._session.close()
            raise
        self._busy_at = time.monotonic()
        self._topic = self._headers["destination"] if _may_be_of_another_topic(address, self.product) else ""
        """How the destination of each message must end."""
        self._session.is_ready = True

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        if not self._unacknowledged and self._is_overdue():
            self._renew()  # before what came ahead: if the subscription has ended, it comes again though it is acknowledged
        taken: list[Delivery] = []
        taken_bytes = 0
        while len(taken) < at_most and taken_bytes < _AT_ONCE_BYTES and self._refused is None:
            try:
                came = self._session.next_message(wait_secs=0 if taken else wait_secs)
                if came is None:
                    break
                taken_bytes += len(came.body)
                taken.append(self._delivery(came))
            except MessageRefusedError as error:
                self._session.check()  # it isn't the error of the connection itself
                self._refused = named(self._session.address, error)
        if self._refused is not None and not taken:
            raise copy(self._refused)
        self._unacknowledged += len(taken)
        if self._unacknowledged:
            self._busy_at = time.monotonic()
        return taken

    def _is_overdue(self) -> bool:
        address, secs = self._session.address, self.product.stomp.renews_after_secs
        keeps_messages = not address.is_topic or address.subscription is not None
        return secs is not None and keeps_messages and time.monotonic() - self._busy_at >= secs

    def _renew(self) -> None:
        """Subscribe anew; `BrokerError` if the broker has ended the subscription."""
        self._session.ask(self._unsubscribing())
        self._session.drop_messages()  # they come again
        self._session.ask(Frame("SUBSCRIBE", self._headers))
        self._busy_at = time.monotonic()

    def _unsubscribing(self) -> Frame:
        return Frame("UNSUBSCRIBE", {"id": self._headers["id"]})

    def _delivery(self, came: Frame) -> Delivery:
        topic = came.headers.get("destination", "")
        if not topic.endswith(self._topic):
            raise MessageRefusedError(
                f"the subscription is one of another topic, {topic}", hint="choose another name: ?subscription=NAME"
            )
        if not came.body and "content-length" not in came.headers and self.product.stomp.empties_bodies:
            warn_once(
                f"{self._session.address}: a message came without a body, as {self.product.name} sends JMS maps, streams and "
                "objects by STOMP, whatever they have in them: take such messages by AMQP"
            )
        return Delivery(decoded(came, self.product), came.headers.get("ack", ""))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.begin_acknowledging(deliveries)()

    def begin_acknowledging(self, deliveries: Sequence[Delivery]) -> Callable[[], None]:
        self._session.check()
        # Where a subscription acknowledges cumulatively, the last acknowledges all before it too.
        first = 0 if self.product.stomp.acknowledges_each else -1
        acks = [Frame("ACK", {"id": delivery.token}) for delivery in deliveries[first:]]
        self._session.tell(*acks[:-1])
        self._unacknowledged -= len(deliveries)
        return self._session.begin_asking(*acks[-1:])

    def close(self) -> None:
        # Once this is answered, unacknowledged messages are back in their order. If the connection just ended, they might not
        # be back yet, and the next connection would get later messages first. The cost: they aren't flagged as redelivered.
        self._session.close(self._unsubscribing())


class StompSink(Closing):
    """Sends messages to a queue or a topic."""

    def __init__(self, address: BrokerAddress) -> None:
        self.accepted = 0
        self._session = StompSession(address)
        self.product = self._session.product
        self.drops_known_ids = self.product.drops_known_ids
        try:
            self._headers = {"destination": _destination(address, self.product)}
            if self.product.stomp.names_kind:
                self._headers["destination-type"] = _kind(address)
            _is_stream(address, self.product)  # a stream may be a target, but a missing queue is refused
        except BaseException:
            self._session.close()
            raise
        self._session.is_ready = True

    def send(self, messages: Sequence[Message]) -> None:
        self.accepted = 0
        self._session.check()
        dialect, before = self.product.stomp, self._session.confirmed
        # Encode all before sending the first: then none is sent if one can't be.
        frames = [
            Frame("SEND", encoded_headers(message, dialect) | self._headers, message.body) for message in messages
        ]
        try:
            self._session.ask(*frames)
        except BrokerError as error:
            self.accepted = self._session.confirmed - before
            most_bytes = dialect.cuts_above_bytes
            if most_bytes is None or not self._session.was_cut:
                raise
            if all(len(frame.encoded()) <= most_bytes for frame in frames):
                raise BrokerError(error.message, hint="see whether the queue is full, and the broker's log") from error
            raise MessageRefusedError(
                f"{error.message} without an error, after a message that {self.product.name} may have refused",
                hint="see the broker's log: the message may be too large, or have a property that the broker refuses",
            ) from error

    def check(self) -> None:
        self._session.check()

    def close(self) -> None:
        self._session.close()


def _is_stream(address: BrokerAddress, product: Product) -> bool:
    """Whether a queue is a stream; `BrokerRefusedError` if it doesn't exist. False for a product that needn't be asked."""
    probe = product.stomp.probe
    if probe is None or address.is_topic:
        return False
    session = StompSession(address)  # the answer ends it
    try:
        session.ask(Frame("SUBSCRIBE", {**_subscribing(address, product), **probe}))
    except BrokerRefusedError as error:
        if product.stomp.queue_is_there not in error.message:
            raise
        return False
    finally:
        session.close()
    return True


def _subscribing(address: BrokerAddress, product: Product, most_ahead: int | None = None) -> dict[str, str]:
    """The headers of SUBSCRIBE."""
    dialect = product.stomp
    headers = {"destination": _destination(address, product), "id": _SUBSCRIPTION}
    headers["ack"] = "client-individual" if dialect.acknowledges_each else "client"
    headers |= dialect.prefetch(most_ahead)
    if dialect.names_kind:
        headers["subscription-type"] = _kind(address)
    if address.subscription is not None:
        headers |= _durable(address, address.subscription, product)
    if address.selector is not None:
        if not dialect.has_selectors:
            raise SettingsError(
                f"{address}: {product.name} has no selectors by STOMP, and would deliver all messages",
                hint="leave the selector out, and let the broker route the wanted messages to a queue of their own",
            )
        headers["selector"] = address.selector
    return headers


def _destination(address: BrokerAddress, product: Product) -> str:
    dialect, name = product.stomp, address.name
    if address.vhost is not None and not dialect.has_vhosts:
        raise SettingsError(f"{address}: {product.name} has no virtual hosts by STOMP", hint="leave out vhost=")
    if dialect.escapes_slashes:
        if "%2F" in name:
            raise SettingsError(f"{address}: {product.name} would read %2F as / by STOMP", hint="reach it by AMQP")
        name = name.replace("/", "%2F")
    return (dialect.topic if address.is_topic else dialect.queue).format(name)


def _durable(address: BrokerAddress, subscription: str, product: Product) -> dict[str, str]:
    dialect = product.stomp
    if dialect.durable is None:
        raise SettingsError(
            f"{address}: how {product.name} keeps a subscription by STOMP isn't known",
            hint="take a queue that the broker copies the topic to, or AMQP",
        )
    if dialect.not_in_subscriptions is not None and dialect.not_in_subscriptions in subscription:
        raise SettingsError(
            f"{address}: {product.name} allows no {dialect.not_in_subscriptions} in the name of a subscription by STOMP",
            hint="choose another name",
        )
    return {name: value.format(subscription) for name, value in dialect.durable.items()}


def _may_be_of_another_topic(address: BrokerAddress, product: Product) -> bool:
    """Whether the broker may give messages of another topic, to which the subscription belongs. It doesn't say so."""
    is_of_one = address.subscription is not None and not _WILDCARDS & set(address.name)
    return is_of_one and product.stomp.mixes_subscriptions


def _kind(address: BrokerAddress) -> str:
    return "MULTICAST" if address.is_topic else "ANYCAST"
