"""Converts a message to and from a record of Kafka: its body, properties and key."""

from __future__ import annotations

from typing import Any

from receiver.bridge.connectors import DUPLICATE_ID, UNREAD, Header, check_body, unfit_error
from receiver.store.messages import Message, Property

_JMS_NAMES = (Header.CORRELATION_ID, Header.REPLY_TO, Header.JMS_TYPE)
NULL_VALUE = "kafkaNullValue"
"""The property of a record without a value. In a compacted topic, such a record deletes its key."""
_NO_TIMESTAMP = 0


def decoded(record: Any) -> Message:
    """The message from a record. Without a header for the id, the id is the offset; never the key, which may come again."""
    value = record.value()
    own_name = f"{record.topic()}-{record.partition()}-{record.offset()}"
    try:
        named = {name: _text_or_bytes(value) for name, value in record.headers() or ()}
    except (SystemError, UnicodeDecodeError):  # the client's library raises the former because of the latter
        why = f"the name of a header of {own_name} isn't UTF-8"
        return Message(body=value or b"", body_kind=UNREAD, message_id=own_name, refused=why)
    headers = {name: text for name in _JMS_NAMES if isinstance(text := named.get(name), str)}
    properties: dict[str, Property] = {name: value for name, value in named.items() if name not in headers}
    if value is None:
        properties[NULL_VALUE] = True
    kind, sent_ms = record.timestamp()
    return Message(
        body=value or b"",
        is_text=value is not None and isinstance(_text_or_bytes(value), str),
        properties=properties,
        headers=headers,
        message_id=own_name,
        jms_timestamp_ms=None if kind == _NO_TIMESTAMP else sent_ms,
        default_id=own_name,
        default_source=_source_of(record.key()) or f"{record.topic()}-{record.partition()}",
    )


def encoded(message: Message) -> dict[str, Any]:
    """A producer's arguments to send the message; `MessageUnfitError` if Kafka can't express it."""
    check_body(message, "Kafka")
    named = {**message.properties, **message.headers}
    named.pop(DUPLICATE_ID, None)  # Kafka doesn't use it
    is_null = not message.body and bool(named.pop(NULL_VALUE, False))
    key = message.default_source
    return {
        "value": None if is_null else message.body,
        "key": None if key is None else _bytes_of(key),
        "headers": [(_checked(name), _value_of(value)) for name, value in named.items()],
    }


def _source_of(key: bytes | None) -> str | None:
    """The key as text; in hexadecimal digits if it isn't UTF-8."""
    text = _text_or_bytes(key)
    return text.hex() if isinstance(text, bytes) else text


def _text_or_bytes(value: bytes | None) -> str | bytes | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _value_of(value: Property) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return _bytes_of(str(value))


def _checked(name: str) -> str:
    _bytes_of(name)
    if "\0" in name:  # the client's library would cut it off there
        raise unfit_error("Kafka", f"{name!r:.80} in a property or header")
    return name


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise unfit_error("Kafka", f"{text!r:.80} in a property or header") from error
