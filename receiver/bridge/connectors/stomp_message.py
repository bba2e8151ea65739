"""A message as a frame of STOMP 1.2: what becomes of its body, its properties and its headers on the way."""

from __future__ import annotations

from receiver.bridge.connectors import Message, Property
from receiver.bridge.connectors.products.product import StompDialect
from receiver.bridge.connectors.stomp_frames import Frame
from receiver.errors import MessageRefusedError

__all__ = ["PROTOCOLS_OWN", "decoded", "encoded_headers"]

_JMS_NAMES = {"correlation-id": "JMSCorrelationID", "reply-to": "JMSReplyTo", "type": "JMSType"}
PROTOCOLS_OWN = {
    *("destination", "message-id", "subscription", "transaction", "ack", "content-length", "content-type", "receipt"),
    *("redelivered", "timestamp", "expires", "priority", "persistent", "destination-type", *_JMS_NAMES),
}
"""Headers that aren't properties of the application."""


def decoded(frame: Frame, dialect: StompDialect) -> Message:
    """What came by STOMP from such a product."""
    headers = frame.headers
    sent = headers.get("timestamp", "")
    return Message(
        body=frame.body,
        is_text=_is_utf8(frame.body) and not (dialect.length_means_bytes and "content-length" in headers),
        properties={name: value for name, value in headers.items() if name not in PROTOCOLS_OWN},
        headers={
            jms_name: _unprefixed(name, headers[name], dialect)
            for name, jms_name in _JMS_NAMES.items()
            if name in headers
        },
        message_id=headers.get("message-id"),
        redelivered=headers.get("redelivered") == "true",
        jms_timestamp_ms=int(sent) * dialect.timestamp_unit_ms if sent.isdecimal() else None,
    )


def _unprefixed(name: str, value: str, dialect: StompDialect) -> str:
    return value.removeprefix(dialect.reply_prefix) if name == "reply-to" else value


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def encoded_headers(message: Message) -> dict[str, str]:
    """The headers that the message is sent with, beside those of its destination; `MessageRefusedError` where STOMP can't
    express it."""
    properties = message.properties.items()
    # A property that bears the name of a header can't be distinguished from it: another protocol's would spoil the frame.
    headers = {name: _text(value) for name, value in properties if value is not None and name not in PROTOCOLS_OWN}
    headers |= {name: message.headers[jms_name] for name, jms_name in _JMS_NAMES.items() if jms_name in message.headers}
    for text in (*headers, *headers.values()):
        _check_text(text)
    if message.is_text and not _is_utf8(message.body):
        raise MessageRefusedError("a message can't be sent by STOMP: its text isn't UTF-8", hint="send it as bytes")
    # Text can't be sent with a zero byte in it: a frame ends there.
    if not message.is_text or b"\0" in message.body:
        headers["content-length"] = str(len(message.body))
    return headers


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
