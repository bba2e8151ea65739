"""A message as AMQP 1.0 encodes it: what becomes of its body, its properties and its headers on the way."""

from __future__ import annotations

import time
import uuid
from typing import Any

from receiver.bridge.connectors import Message, Property
from receiver.bridge.connectors.amqp_link import proton
from receiver.errors import MessageRefusedError

__all__ = ["decoded", "encoded"]

_OFF = "take it off the queue"
_JMS_NAMES = {"correlation_id": "JMSCorrelationID", "reply_to": "JMSReplyTo", "subject": "JMSType"}


def encoded(message: Message) -> bytes:
    """As AMQP sends it; `MessageRefusedError` where AMQP can't express it."""
    headers = {name: message.headers[jms_name] for name, jms_name in _JMS_NAMES.items() if jms_name in message.headers}
    if any("\0" in text for text in headers.values()):  # Proton would drop the rest
        raise MessageRefusedError("a message can't be sent by AMQP: a zero byte in a header", hint="leave it out")
    try:
        data: bytes = proton.Message(
            # As JMS has it by AMQP: text is a value, and bytes are data.
            body=message.body.decode() if message.is_text else message.body,
            inferred=not message.is_text,
            properties=dict(message.properties),
            durable=True,
            id=f"ID:{uuid.uuid4()}",
            creation_time=time.time(),
            **headers,
        ).encode()
    except (proton.ProtonException, TypeError, ValueError, OverflowError) as error:
        raise MessageRefusedError(f"a message can't be sent by AMQP: {error}", hint="leave it out") from error
    return data


def decoded(data: bytes) -> Message:
    """What came by AMQP; `MessageRefusedError` where it can't be read."""
    message = proton.Message()
    try:
        message.decode(data)
        body: Any = message.body
        properties: dict[str, Any] = message.properties or {}
    except (proton.ProtonException, TypeError, ValueError) as error:
        raise MessageRefusedError(f"a message can't be read: {error}", hint=_OFF) from error
    message_id = None if message.id is None else str(_plain(message.id))
    if not isinstance(body, str | bytes | memoryview | None):
        kind = type(body).__name__
        raise MessageRefusedError(f"message {message_id} is neither text nor bytes but {kind}", hint=_OFF)
    return Message(
        body=body.encode() if isinstance(body, str) else bytes(body or b""),
        is_text=isinstance(body, str),
        properties={name: _plain(value) for name, value in properties.items()},
        headers={
            jms_name: str(_plain(value))
            for name, jms_name in _JMS_NAMES.items()
            if (value := getattr(message, name)) is not None
        },
        message_id=message_id,
        redelivered=message.delivery_count > 0,
        jms_timestamp_ms=round(message.creation_time * 1_000) or None,
    )


def _plain(value: Any) -> Property:
    """The value without its type in AMQP, such as 32 bits, symbol or time."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value)
