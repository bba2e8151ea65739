"""STOMP 1.2 by way of stomp.py, over a socket of our own, as ActiveMQ Artemis speaks it.

A subscription acknowledges cumulatively (`ack:client`), so one frame and its receipt let the broker forget a batch. What
is sent asks for a receipt for each message, for the broker gives one when that message is safe, and only then. Header
values are escaped as the protocol has it: a broker that got a raw colon would drop it silently, and merge two ids.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from receiver.bridge.connectors import Delivery, Message, Property, body_limit_bytes
from receiver.bridge.connectors.address import ANSWER_SECS, BrokerAddress
from receiver.bridge.connectors.stomp_session import StompSession
from receiver.closing import Closing
from receiver.errors import BrokerError, MessageRefusedError

__all__ = ["PROTOCOLS_OWN", "StompSink", "StompSource"]

_PREFETCH_BYTES = 4 << 20
"""What the broker may send ahead of acknowledgements; a single larger message comes all the same."""
_SUBSCRIPTION = "receiver"
_JMS_NAMES = {"correlation-id": "JMSCorrelationID", "reply-to": "JMSReplyTo", "type": "JMSType"}
PROTOCOLS_OWN = {
    *("destination", "message-id", "subscription", "transaction", "ack", "content-length", "content-type", "receipt"),
    *("redelivered", "timestamp", "expires", "priority", "persistent", "destination-type", *_JMS_NAMES),
}
"""Headers that aren't properties of the application."""


class StompSource(Closing):
    """Messages of a queue, or of a topic's durable subscription."""

    def __init__(
        self, address: BrokerAddress, *, max_body_bytes: int | None = None, answer_secs: float = ANSWER_SECS
    ) -> None:
        self._refused: MessageRefusedError | None = None
        self._session = StompSession(
            address,
            client_id=address.subscription,
            max_body_bytes=body_limit_bytes(max_body_bytes),
            answer_secs=answer_secs,
        )
        headers = {
            "subscription-type": "MULTICAST" if address.is_topic else "ANYCAST",
            "consumer-window-size": str(_PREFETCH_BYTES),
        }
        if address.subscription is not None:
            headers["durable-subscription-name"] = address.subscription
        if address.selector is not None:
            headers["selector"] = address.selector
        try:
            self._session.ask(
                lambda receipt: self._session.connection.subscribe(
                    address.name, id=_SUBSCRIPTION, ack="client", headers=headers | {"receipt": receipt}
                ),
                [uuid.uuid4().hex],
            )
        except BrokerError:
            self._session.close()
            raise
        self._session.is_ready = True

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        taken: list[Delivery] = []
        until = time.monotonic() + wait_secs
        while len(taken) < at_most and self._refused is None:
            self._session.check()
            try:
                came = self._session.messages.get(timeout=0 if taken else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(came, MessageRefusedError):
                self._refused = came
            elif came is not None:
                taken.append(Delivery(_message(came), came.headers["ack"]))
        if self._refused is not None and not taken:
            raise MessageRefusedError(self._refused.message, hint=self._refused.hint)
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._session.check()
        if deliveries:
            last = deliveries[-1].token  # and with it all before
            self._session.ask(lambda receipt: self._session.connection.ack(last, receipt=receipt), [uuid.uuid4().hex])

    def close(self) -> None:
        # When this is answered, what isn't acknowledged is back at its place, as it may not be yet when the connection
        # has ended: whoever connects again at once would first be sent what stands behind it. The price is the flag
        # that it's redelivered.
        self._session.close(
            last_words=lambda receipt: self._session.connection.unsubscribe(_SUBSCRIPTION, receipt=receipt)
        )


class StompSink(Closing):
    """Messages to a queue or a topic; persistent ones."""

    def __init__(self, address: BrokerAddress, *, answer_secs: float = ANSWER_SECS) -> None:
        self._session = StompSession(address, max_body_bytes=body_limit_bytes(), answer_secs=answer_secs)
        self._session.is_ready = True
        self._name = address.name
        self._headers = {
            "destination-type": "MULTICAST" if address.is_topic else "ANYCAST",
            "persistent": "true",
        }

    def send(self, messages: Sequence[Message]) -> None:
        self._session.check()
        # All of them before the first is sent: then none is if one can't be.
        coming = iter([(message.body, _headers(message) | self._headers) for message in messages])

        def send_next(receipt: str) -> None:
            body, headers = next(coming)
            self._session.connection.send(self._name, body, headers=headers | {"receipt": receipt})

        self._session.ask(send_next, [uuid.uuid4().hex for _ in messages])

    def close(self) -> None:
        self._session.close()


def _message(frame: Any) -> Message:
    headers: Mapping[str, str] = frame.headers
    sent_ms = headers.get("timestamp", "")
    return Message(
        body=frame.body,
        is_text=_is_utf8(frame.body),  # Artemis gives every body's length, so that its presence tells nothing
        properties={name: value for name, value in headers.items() if name not in PROTOCOLS_OWN},
        headers={jms_name: headers[name] for name, jms_name in _JMS_NAMES.items() if name in headers},
        message_id=headers.get("message-id"),
        redelivered=headers.get("redelivered") == "true",
        jms_timestamp_ms=int(sent_ms) if sent_ms.isdecimal() else None,
    )


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(message: Message) -> dict[str, str]:
    properties = message.properties.items()
    # A property that bears the name of a header can't be told from it: another protocol's would spoil the frame.
    headers = {name: _text(value) for name, value in properties if value is not None and name not in PROTOCOLS_OWN}
    headers |= {name: message.headers[jms_name] for name, jms_name in _JMS_NAMES.items() if jms_name in message.headers}
    for text in (*headers, *headers.values()):
        _check_text(text)
    if message.is_text and not _is_utf8(message.body):
        raise MessageRefusedError("a message can't be sent by STOMP: its text isn't UTF-8", hint="send it as bytes")
    headers = {_escaped(name): text for name, text in headers.items()}
    # Text can't be sent with a zero byte in it: a frame ends there.
    if not message.is_text or b"\0" in message.body:
        headers["content-length"] = str(len(message.body))
    return headers


def _escaped(name: str) -> str:
    """As the library does it for values alone."""
    return name.translate({ord("\\"): "\\\\", ord(":"): "\\c", ord("\n"): "\\n", ord("\r"): "\\r"})


def _check_text(text: str) -> None:
    """What the protocol can't express would be changed on the way, and two ids might become one."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)):
        raise MessageRefusedError(
            f"a message can't be sent by STOMP: {text!r:.80} in a property or header", hint="send it by AMQP"
        )


def _text(value: Property) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else str(value)
