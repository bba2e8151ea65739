"""STOMP 1.2 by way of stomp.py, as ActiveMQ Artemis speaks it.

A subscription acknowledges cumulatively (`ack:client`), so one frame and its receipt let the broker forget a batch. What
is sent asks for a receipt for each message, for the broker gives one when that message is safe, and only then. Header
values are escaped as the protocol has it: a broker that got a raw colon would drop it silently, and merge two ids.
"""

from __future__ import annotations

import queue
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from receiver.bridge.address import BrokerAddress
from receiver.bridge.connector import MAX_BODY_BYTES, Closing, Delivery, Message, Property
from receiver.errors import BrokerError, BrokerRefusedError, MissingExtraError

try:
    import stomp
    from stomp.exception import StompException
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("bridge", "STOMP") from error

__all__ = ["StompSink", "StompSource"]

_ANSWER_SECS = 30.0
_HEARTBEATS_MS = (10_000, 10_000)
_PREFETCH_BYTES = 4 << 20
"""What the broker may send ahead of acknowledgements; a single larger message comes all the same."""
_SUBSCRIPTION = "receiver"
_PROTOCOLS_OWN = {
    *("destination", "message-id", "subscription", "transaction", "ack", "content-length", "content-type", "receipt"),
    *(
        "redelivered",
        "timestamp",
        "expires",
        "priority",
        "persistent",
        "reply-to",
        "correlation-id",
        "type",
        "destination-type",
    ),
}
"""Headers that aren't properties of the application."""

_Frame = tuple[str, Any]


class _Session(stomp.ConnectionListener):  # type: ignore[misc]
    """One connection; what comes in by it waits in two queues, messages apart from answers."""

    def __init__(self, address: BrokerAddress, *, client_id: str | None = None) -> None:
        self.address = address
        self.messages: queue.Queue[_Frame] = queue.Queue()
        self._answers: queue.Queue[_Frame] = queue.Queue()
        self._broken: str | None = None
        self._is_refused = False
        host = (address.host, address.port)
        self.connection = stomp.Connection12(
            [host],
            reconnect_attempts_max=1,
            timeout=_ANSWER_SECS,
            heartbeats=_HEARTBEATS_MS,
            auto_decode=False,
            auto_content_length=False,  # its presence says that a body is bytes
        )
        if address.tls:
            self.connection.set_ssl([host], ssl_version=ssl.PROTOCOL_TLS_CLIENT)
        self.connection.set_listener("", self)
        headers = {} if client_id is None else {"client-id": client_id}
        try:
            # Waiting is done here, for the library would wait for ever for one that speaks another protocol.
            self.connection.connect(address.user, address.password, wait=False, headers=headers)
            kind, _ = self._answers.get(timeout=_ANSWER_SECS)
        except (StompException, OSError, UnicodeError, queue.Empty) as error:
            self._give_up()
            raise BrokerError(f"{address} can't be reached: {str(error) or 'no answer'}") from error
        if kind == "broken":
            self._give_up()
            if not self._is_refused:
                raise BrokerError(f"{address} can't be reached: {self._broken}")
            raise BrokerRefusedError(f"{address} refuses: {self._broken}", hint="check user and password")
        # Frames are small, and answers are waited for: without this each would take 40 ms.
        self.connection.transport.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_connected(self, _frame: Any) -> None:
        self._answers.put(("connected", None))

    def on_message(self, frame: Any) -> None:
        self.messages.put(("message", frame))

    def on_receipt(self, frame: Any) -> None:
        self._answers.put(("receipt", frame.headers.get("receipt-id")))

    def on_error(self, frame: Any) -> None:
        body = frame.body.decode("utf-8", "replace") if isinstance(frame.body, bytes) else str(frame.body or "")
        self._is_refused = True
        self._break(str(frame.headers.get("message") or body.strip() or "it says ERROR"))

    def on_disconnected(self) -> None:
        self._break("the connection is lost")

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        # Whoever waits for either is woken.
        self.messages.put(("broken", None))
        self._answers.put(("broken", None))

    def error(self) -> BrokerError:
        return BrokerError(f"{self.address}: {self._broken or 'no answer'}", hint="connect again")

    def check(self) -> None:
        if self._broken is not None:
            raise self.error()

    def asked(self, ask: Callable[[str], None], times: int = 1) -> None:
        """Send frames that each ask for a receipt, whose name is what they are given, and wait for all of these."""
        self.check()
        wanted = {uuid.uuid4().hex for _ in range(times)}
        try:
            for receipt in wanted:
                ask(receipt)
        except (StompException, OSError) as error:
            self._break(str(error) or "the connection is lost")
            raise self.error() from error
        until = time.monotonic() + _ANSWER_SECS
        while wanted:
            try:
                kind, receipt = self._answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self._break(f"no answer in {_ANSWER_SECS:g} s")
                raise self.error() from None
            if kind == "broken":
                raise self.error()
            wanted.discard(receipt)
            until = time.monotonic() + _ANSWER_SECS

    def close(self) -> None:
        self._break("the connection is closed")
        self._give_up()

    def _give_up(self) -> None:
        with suppress(Exception):
            self.connection.set_listener("", stomp.ConnectionListener())
        with suppress(Exception):
            self.connection.disconnect(uuid.uuid4().hex)
        with suppress(Exception):
            self.connection.transport.stop()


class StompSource(Closing):
    """Messages of a queue, or of a topic's durable subscription."""

    def __init__(self, address: BrokerAddress, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._address = address
        self._max_body_bytes = max_body_bytes
        self._is_cut_off = False
        self._session = _Session(address, client_id=address.subscription)
        headers = {
            "subscription-type": "MULTICAST" if address.is_topic else "ANYCAST",
            "consumer-window-size": str(_PREFETCH_BYTES),
        }
        if address.subscription is not None:
            headers["durable-subscription-name"] = address.subscription
        connection = self._session.connection
        try:
            self._session.asked(
                lambda receipt: connection.subscribe(
                    address.name, id=_SUBSCRIPTION, ack="client", headers=headers | {"receipt": receipt}
                )
            )
        except BrokerError as error:
            self._session.close()
            raise BrokerRefusedError(f"{address} can't be taken from: {error.message}", hint=error.hint) from error

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        taken: list[Delivery] = []
        messages = self._session.messages
        until = time.monotonic() + wait_secs
        while len(taken) < at_most:
            self._session.check()
            if self._is_cut_off:
                break
            try:
                kind, frame = messages.get(timeout=0 if taken else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if kind == "message":
                self._is_cut_off = "ack" not in frame.headers
                if not self._is_cut_off:
                    taken.append(Delivery(_message(frame), frame.headers["ack"]))
        if self._is_cut_off and not taken:
            raise BrokerRefusedError(
                f"{self._address} sent a message that STOMP cuts off at a zero byte in a property",
                hint="take it by AMQP",
            )
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._session.check()
        if deliveries:
            last = deliveries[-1].token  # and with it all before
            self._session.asked(lambda receipt: self._session.connection.ack(last, receipt=receipt))

    def close(self) -> None:
        self._session.close()


class StompSink(Closing):
    """Messages to a queue or a topic; persistent ones."""

    def __init__(self, address: BrokerAddress) -> None:
        self._session = _Session(address)
        self._name = address.name
        self._headers = {
            "destination-type": "MULTICAST" if address.is_topic else "ANYCAST",
            "persistent": "true",
        }

    def send(self, messages: Sequence[Message]) -> None:
        coming = iter(messages)

        def send_next(receipt: str) -> None:
            message = next(coming)
            headers = _headers(message) | self._headers | {"receipt": receipt}
            self._session.connection.send(self._name, message.body, headers=headers)

        self._session.asked(send_next, len(messages))

    def close(self) -> None:
        self._session.close()


def _message(frame: Any) -> Message:
    headers: Mapping[str, str] = frame.headers
    sent_ms = headers.get("timestamp", "")
    return Message(
        body=frame.body,
        is_text=_is_utf8(frame.body),  # Artemis gives every body's length, so that its presence tells nothing
        properties={name: value for name, value in headers.items() if name not in _PROTOCOLS_OWN},
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
    headers = {name: _text(value) for name, value in properties if value is not None and name not in _PROTOCOLS_OWN}
    for text in (*headers, *headers.values()):
        _check_text(text)
    if message.is_text and not _is_utf8(message.body):
        raise BrokerRefusedError("a message can't be sent by STOMP: its text isn't UTF-8")
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
        raise BrokerRefusedError(
            f"a message can't be sent by STOMP: {text!r:.80} in a property", hint="send it by AMQP"
        )


def _text(value: Property) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else str(value)
