"""A message as a frame of STOMP 1.2: what becomes of its body, its properties and its headers on the way."""

from __future__ import annotations

from collections.abc import Mapping

from receiver.bridge.connectors import (
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRATION,
    JMS_TYPE,
    NON_PERSISTENT,
    PRIORITY,
    REPLY_TO,
    UNREAD,
    Message,
    Property,
    check_body,
)
from receiver.bridge.connectors.products import StompDialect
from receiver.bridge.connectors.stomp_frames import Frame, UnreadableError
from receiver.errors import MessageRefusedError, MessageUnfitError

_JMS_NAMES = {"correlation-id": CORRELATION_ID, "reply-to": REPLY_TO, "type": JMS_TYPE, "content-type": CONTENT_TYPE}
_SET_BY_FEW = {"priority": PRIORITY, "expires": EXPIRATION}
_FROM_AMQP, _ENCODING, _AMQP_TYPE = "JMS_AMQP_HEADER", "JMS_AMQP_ORIGINAL_ENCODING", "JMS_AMQP_ContentType"
_OBJECT = "application/x-java-serialized-object"
_NOT_BY_STOMP = {None: "an AMQP value", "3": "a sequence", "7": "a map", "8": "a list"}
"""By what Artemis says of the encoding that a message came with by AMQP: bodies of which it sends nothing, or rubbish."""
PROTOCOLS_OWN = {
    *("destination", "message-id", "subscription", "transaction", "ack", "content-length", "content-type", "receipt"),
    *("redelivered", "timestamp", "persistent", "destination-type", *_JMS_NAMES, *_SET_BY_FEW),
}
"""Headers that aren't properties of the application."""
_PLAIN = StompDialect()


def decoded(frame: Frame, dialect: StompDialect) -> Message:
    """What came by STOMP from such a product; `MessageRefusedError` where the broker has a body that it didn't send."""
    headers = frame.headers
    if _FROM_AMQP in headers or _ENCODING in headers:
        _check_body(headers)
    sent = headers.get("timestamp", "")
    return Message(
        body=frame.body,
        is_text=_is_utf8(frame.body) and not (dialect.length_means_bytes and "content-length" in headers),
        properties={name: value for name, value in headers.items() if name not in PROTOCOLS_OWN},
        headers=_jms_headers(headers, dialect),
        message_id=headers.get("message-id"),
        redelivered=headers.get("redelivered") == "true",
        jms_timestamp_ms=int(sent) * dialect.timestamp_unit_ms if sent.isdecimal() else None,
    )


def unread(error: UnreadableError) -> Message:
    """All of a message that can't be read."""
    frame = error.frame
    return Message(body=frame.body, body_kind=UNREAD, message_id=frame.headers.get("message-id"), refused=error.message)


def _check_body(headers: Mapping[str, str]) -> None:
    """Artemis sends an empty body instead of one that STOMP can't have. To acknowledge that would lose it."""
    kind = "an object" if headers.get(_AMQP_TYPE) == _OBJECT else _NOT_BY_STOMP.get(headers.get(_ENCODING))
    if kind is not None:
        raise MessageRefusedError(
            f"message {headers.get('message-id')}: its body is {kind}, which the broker doesn't send by STOMP",
            hint="take it by AMQP",
        )


def _jms_headers(headers: Mapping[str, str], dialect: StompDialect) -> dict[str, str]:
    said = {jms_name: headers[name] for name, jms_name in _JMS_NAMES.items() if name in headers}
    if REPLY_TO in said:
        said[REPLY_TO] = said[REPLY_TO].removeprefix(dialect.reply_prefix)
    if (priority := headers.get("priority", "4")) != "4":
        said[PRIORITY] = priority
    if (expires_ms := headers.get("expires", "0")) != "0":
        said[EXPIRATION] = expires_ms
    # Who says nothing of it has nothing against keeping the message.
    if headers.get("persistent", "true") != "true":
        said[DELIVERY_MODE] = NON_PERSISTENT
    return said


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def encoded_headers(message: Message, dialect: StompDialect = _PLAIN) -> dict[str, str]:
    """The headers that the message is sent with, beside those of its destination; `MessageUnfitError` where STOMP can't
    express it."""
    check_body(message, "STOMP")
    properties = message.properties.items()
    # A property that bears the name of a header can't be distinguished from it: another protocol's would spoil the frame.
    own = PROTOCOLS_OWN | dialect.own_headers if dialect.own_headers else PROTOCOLS_OWN
    headers = {name: _text(value) for name, value in properties if value is not None and name not in own}
    if "" in headers:  # ActiveMQ Classic reads no header behind it
        raise MessageUnfitError("a message can't be sent by STOMP: a property without a name", hint="send it by AMQP")
    said = message.headers
    if said:
        headers |= {
            name: said[jms_name] for name, jms_name in (*_JMS_NAMES.items(), *_SET_BY_FEW.items()) if jms_name in said
        }
    for text in (*headers, *headers.values()):
        _check_text(text)
    headers["persistent"] = "false" if said and said.get(DELIVERY_MODE) == NON_PERSISTENT else "true"
    if message.is_text and not _is_utf8(message.body):
        raise MessageUnfitError("a message can't be sent by STOMP: its text isn't UTF-8", hint="send it as bytes")
    # Text can't be sent with a zero byte in it: a frame ends there.
    if not message.is_text or b"\0" in message.body:
        headers["content-length"] = str(len(message.body))
    return headers


def _check_text(text: str) -> None:
    """What the protocol can't express would be changed on the way, and two ids might become one."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)):
        raise MessageUnfitError(
            f"a message can't be sent by STOMP: {text!r:.80} in a property or header", hint="send it by AMQP"
        )


def _text(value: Property) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else str(value)
