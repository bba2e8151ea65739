"""Converts a message to and from AMQP 1.0: its body, properties and headers.

Values that the fields of a `Message` can't hold, such as the types of properties, stay with it as AMQP sections, to be sent on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from types import NoneType
from typing import Any, NamedTuple

from receiver.bridge.connectors import NON_PERSISTENT, UNREAD, Header, unfit_error
from receiver.bridge.connectors.amqp_link import proton
from receiver.bridge.connectors.amqp_sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    WRONG,
    section,
    section_of,
    sections_of,
    value_of,
)
from receiver.errors import MessageRefusedError
from receiver.store.messages import Message, Property

_KINDS = {VALUE: "amqp-value", SEQUENCE: "amqp-sequence"}
"""The `body_kind` of bodies that are neither text nor bytes, by section code."""
_MESSAGE_ID, _CORRELATION_ID, _CONTENT_TYPE, _ENCODING, _EXPIRES, _CREATED = 0, 5, 6, 7, 8, 9
_FIELDS = 13
"""The number of fields in the section `properties`: message-id, user-id, to, subject, reply-to, correlation-id, content-type,
content-encoding, absolute-expiry-time, creation-time, group-id, group-sequence, reply-to-group-id."""
_GROUPS = slice(10, 13)
_NO_GROUP = [None] * 3
_JMS_FIELDS = {
    Header.JMS_TYPE: 3,
    Header.REPLY_TO: 4,
    Header.CORRELATION_ID: _CORRELATION_ID,
    Header.CONTENT_TYPE: _CONTENT_TYPE,
}
_OF_HEADER = frozenset((Header.PRIORITY, Header.DELIVERY_MODE, Header.EXPIRATION))
_LEFT_OUT = {
    # The destination, and the time of delivery.
    *("x-opt-jms-dest", "x-opt-delivery-time", "x-opt-delivery-delay"),
    # Annotations that RabbitMQ sets on every message anew.
    *("x-exchange", "x-routing-key", "x-stream-offset"),
    # Queues to which RabbitMQ copied the message: from 4.1 on, a target would copy it again.
    "x-cc",
}
"""Annotations by the broker that the message came from. They aren't sent on."""
_TEXT_TYPES = {str, NoneType}
_PLAIN_TYPES = {str, bool, int, float, bytes, NoneType}
"""Types whose values Proton encodes as they came: text, 64 bits, double, binary."""
_DECIMALS = {proton.decimal32: (4, 8, 101), proton.decimal64: (8, 10, 398), proton.decimal128: (16, 14, 6176)}
"""By type: the bytes, the bits of the exponent, and the exponent's bias."""
_NO_NUMBER, _LONG_COEFFICIENT = 0b1111, 0b11
"""The first bits behind the sign: of an infinity or NaN, and of a number whose exponent is two bits further right."""
_TEXT, _BINARY = (0xA1, 0xB1), (0xA0, 0xB0)
_EMPTY_BINARY, _NULL, _EMPTY_LIST = b"\xa0\0", b"\x40", b"\x45"
_DEATHS = b"x-opt-deaths"
"""An annotation of what RabbitMQ has dead-lettered. It has no end any more, though RabbitMQ may still say one."""
_COMPRESSED, _SIZE = "_AMQ_LARGE_COMPRESSED", "_AMQ_LARGE_SIZE"
"""Properties that Artemis adds to a large message that its own client has compressed."""
_OBJECT = "application/x-java-serialized-object"
_PERSISTENT = section(HEADER, b"\xc0\x02\x01\x41")
_LONGEST_TTL_MS = 2**32 - 1
_DEFAULT_PRIORITY = 4


def decoded(data: bytes) -> Message:
    """The message from AMQP's bytes; `refused` has the reason if it can't be read."""
    data = bytes(data)
    try:
        return _decoded(data)
    except WRONG as error:
        return Message(body=data, body_kind=UNREAD, refused=f"it can't be read as AMQP: {error}")


def _decoded(data: bytes) -> Message:
    sections: dict[int, bytes] = {}
    bodies: list[tuple[int, bytes]] = []
    if not data:  # a message without a body has other sections; an empty one is the rest of a lost message
        raise ValueError("it is empty")
    for code, value in sections_of(data):
        if DATA <= code <= VALUE:
            bodies.append((code, value))
        elif sections.setdefault(code, value) is not value:
            raise ValueError(f"it has two sections {code:#x}")
    fields = _fields(sections)
    typed = _properties(sections)
    is_plain = _PLAIN_TYPES.issuperset(map(type, typed.values()))
    headers, ttl_ms, redelivered = _header(sections.get(HEADER, _EMPTY_LIST))
    if _DEATHS in sections.get(ANNOTATIONS, b""):
        fields[_EXPIRES] = ttl_ms = None
    body = _body(bodies)
    if typed.get(_COMPRESSED) is True:
        body = _uncompressed(body, typed, fields)
    kept = b"".join(
        (
            _annotations(sections[ANNOTATIONS]) if ANNOTATIONS in sections else b"",
            b"" if _is_plain(fields) else section(PROPERTIES, sections[PROPERTIES]),
            b"" if is_plain else section(APPLICATION_PROPERTIES, sections[APPLICATION_PROPERTIES]),
            body.kept,
            section(FOOTER, sections[FOOTER]) if FOOTER in sections else b"",
        )
    )
    return Message(
        body=body.body,
        is_text=body.is_text,
        body_kind=body.kind,
        properties=typed if is_plain else {name: _plain(value) for name, value in typed.items()},
        headers=_headers(fields, headers, ttl_ms),
        message_id=None if fields[_MESSAGE_ID] is None else _text(fields[_MESSAGE_ID]),
        redelivered=redelivered,
        jms_timestamp_ms=None if fields[_CREATED] is None else int(fields[_CREATED]) or None,
        amqp=kept or None,
    )


def _fields(sections: Mapping[int, bytes]) -> list[Any]:
    """The fields of the section `properties`, by position; None if not set."""
    fields = value_of(sections[PROPERTIES]) if PROPERTIES in sections else []
    if not isinstance(fields, list) or len(fields) > _FIELDS:
        raise ValueError("its properties aren't those of AMQP")
    return fields + [None] * (_FIELDS - len(fields))


def _is_plain(fields: list[Any]) -> bool:
    """Whether a message's headers hold all of these properties that are sent on."""
    is_id_plain = type(fields[_CORRELATION_ID]) in _TEXT_TYPES
    return is_id_plain and fields[_ENCODING] is None and fields[_GROUPS] == _NO_GROUP


def _properties(sections: Mapping[int, bytes]) -> dict[str, Any]:
    """The application's properties, each value with its AMQP type."""
    typed = value_of(sections[APPLICATION_PROPERTIES]) if APPLICATION_PROPERTIES in sections else {}
    if not isinstance(typed, dict) or any(type(name) is not str for name in typed):
        raise ValueError("its application properties aren't named by text")
    return typed


@lru_cache(1_000)  # many messages have equal ones
def _header(encoded: bytes) -> tuple[Mapping[str, str], int | None, bool]:
    """From AMQP's section `header`: the headers, the time to live in milliseconds, and whether it was delivered before."""
    fields = value_of(encoded)
    if not isinstance(fields, list):
        raise TypeError("its header isn't a list")
    durable, priority, ttl_ms, _, count = [*fields, *[None] * 5][:5]
    headers = {}
    if not durable:
        headers[Header.DELIVERY_MODE] = NON_PERSISTENT
    if not isinstance(ttl_ms, int | None):
        raise TypeError("its time to live isn't a number")
    if priority not in {None, _DEFAULT_PRIORITY}:
        headers[Header.PRIORITY] = str(int(priority))
    return headers, ttl_ms, bool(count)


@lru_cache(1_000)
def _annotations(encoded: bytes) -> bytes:
    """The section of the annotations that are sent on; empty if there are none."""
    annotations = value_of(encoded)
    if not isinstance(annotations, dict):
        raise TypeError("its annotations aren't a map")
    sent_on = {name: value for name, value in annotations.items() if name not in _LEFT_OUT}
    return section_of(ANNOTATIONS, sent_on) if sent_on else b""


def _headers(fields: list[Any], said: Mapping[str, str], ttl_ms: int | None) -> dict[str, str]:
    headers = {name: _text(fields[at]) for name, at in _JMS_FIELDS.items() if fields[at] is not None}
    headers |= said
    if (expires_ms := fields[_EXPIRES]) or ttl_ms:
        headers[Header.EXPIRATION] = str(int(expires_ms or time.time() * 1_000 + (ttl_ms or 0)))
    return headers


class _Body(NamedTuple):
    body: bytes
    is_text: bool = False
    kind: str | None = None
    kept: bytes = b""
    """Sections that say what the body doesn't: it is a null or bytes as a value, or the lengths of several data sections."""


def _body(bodies: list[tuple[int, bytes]]) -> _Body:
    codes = {code for code, _ in bodies}
    if not bodies:
        return _Body(b"", kept=section(VALUE, _NULL))
    if len(codes) > 1 or (codes == {VALUE} and len(bodies) > 1):
        raise ValueError("it has bodies of several kinds")
    ((code, value), *more) = bodies
    if code == DATA:
        parts = [_content(part, _BINARY) for _, part in bodies]
        return _Body(
            b"".join(parts), kept=b"".join(section_of(DATA, b"%d" % len(part)) for part in parts) if more else b""
        )
    if code == VALUE and value[0] in _TEXT:
        text = _content(value, _TEXT)
        text.decode()  # raises if it isn't UTF-8
        return _Body(text, is_text=True)
    if code == VALUE and value[0] in _BINARY:
        return _Body(_content(value, _BINARY), kept=section(VALUE, _EMPTY_BINARY))
    if code == VALUE and value == _NULL:
        return _Body(b"", kept=section(VALUE, _NULL))
    return _Body(b"".join(section(*body) for body in bodies), kind=_KINDS[code])


def _uncompressed(body: _Body, typed: dict[str, Any], fields: list[Any]) -> _Body:
    """The body of a compressed message, as Artemis has uncompressed it. Of bytes it sends as many as there are compressed ones, so
    zeros may follow them. `MessageRefusedError` if it cuts them off."""
    del typed[_COMPRESSED]  # else Artemis' own clients would take the body for compressed
    size = typed.pop(_SIZE, None)
    if body.is_text or body.kind is not None or fields[_CONTENT_TYPE] == _OBJECT or not isinstance(size, int):
        return body
    if len(body.body) < size:
        raise MessageRefusedError(
            f"message {fields[_MESSAGE_ID]} is compressed, and the broker sends {len(body.body):,} of its {size:,} bytes by AMQP",
            hint="let its sender not compress it (compressLargeMessage)",
        )
    return body._replace(body=body.body[:size])


def _content(encoded: bytes, codes: tuple[int, int]) -> bytes:
    """The content of text or bytes, for the two codes with a length of one byte and of four."""
    if encoded[0] not in codes:
        raise ValueError("its data isn't bytes")
    return encoded[2 if encoded[0] == codes[0] else 5 :]


def encoded(message: Message) -> bytes:
    """The message's bytes in AMQP; `MessageUnfitError` if AMQP can't express it."""
    try:
        return b"".join(_encoded(message))
    except WRONG as error:
        raise unfit_error("AMQP", str(error), hint="leave it out") from error


def _encoded(message: Message) -> Iterator[bytes]:
    kept: dict[int, bytes] = {}
    parts: list[bytes] = []
    for code, value in sections_of(message.amqp or b""):
        if code == DATA:
            parts.append(value)
        else:
            kept[code] = value
    headers = message.headers
    yield _header_section(headers)
    if ANNOTATIONS in kept:
        yield section(ANNOTATIONS, kept[ANNOTATIONS])
    yield section_of(PROPERTIES, _fields_sent(headers, _fields(kept)))
    if message.properties:
        yield section_of(APPLICATION_PROPERTIES, _typed(message.properties, _properties(kept)))
    yield _body_sections(message, kept.get(VALUE), parts)
    if FOOTER in kept:
        yield section(FOOTER, kept[FOOTER])


def _header_section(headers: Mapping[str, str]) -> bytes:
    if not _OF_HEADER.isdisjoint(headers):
        priority, expires_ms = headers.get(Header.PRIORITY), headers.get(Header.EXPIRATION)
        left_ms = None if expires_ms is None else int(expires_ms) - time.time_ns() // 1_000_000
        fields = [
            headers.get(Header.DELIVERY_MODE) != NON_PERSISTENT,
            None if priority is None else proton.ubyte(int(priority)),
            # In AMQP, a time to live of 0 would mean no end.
            None if left_ms is None else proton.uint(min(max(left_ms, 1), _LONGEST_TTL_MS)),
        ]
        return section_of(HEADER, fields)
    return _PERSISTENT


def _fields_sent(headers: Mapping[str, str], kept: list[Any]) -> list[Any]:
    fields: list[Any] = [None] * _FIELDS
    fields[_ENCODING], fields[_GROUPS] = kept[_ENCODING], kept[_GROUPS]
    for name, at in _JMS_FIELDS.items():
        if name in headers:
            fields[at] = headers[name]
            if "\0" in headers[name]:
                raise ValueError("a zero byte in a header")
    if Header.CONTENT_TYPE in headers:
        fields[_CONTENT_TYPE] = proton.symbol(headers[Header.CONTENT_TYPE])
    if kept[_CORRELATION_ID] is not None and _text(kept[_CORRELATION_ID]) == headers.get(Header.CORRELATION_ID):
        fields[_CORRELATION_ID] = kept[_CORRELATION_ID]
    if Header.EXPIRATION in headers:
        fields[_EXPIRES] = proton.timestamp(int(headers[Header.EXPIRATION]))
    fields[_MESSAGE_ID] = f"ID:{uuid.uuid4()}"
    fields[_CREATED] = proton.timestamp(time.time_ns() // 1_000_000)
    while fields[-1] is None:
        fields.pop()
    return fields


def _typed(properties: Mapping[str, Property], kept: Mapping[str, Any]) -> dict[str, Any]:
    """The properties, with the AMQP types with which they came if their values are unchanged."""
    if not kept:
        return dict(properties)
    return {
        name: kept[name] if name in kept and repr(_plain(kept[name])) == repr(value) else value
        for name, value in properties.items()
    }


def _body_sections(message: Message, value: bytes | None, parts: list[bytes]) -> bytes:
    body, kind = message.body, message.body_kind
    if kind in _KINDS.values():
        return body
    if kind is not None:
        raise ValueError(f"its body is {kind}")
    if value == _NULL and not body:
        return section(VALUE, _NULL)
    if message.is_text:
        body.decode()
        return section(VALUE, _sized(body, _TEXT))
    if value is not None:
        return section(VALUE, _sized(body, _BINARY))
    lengths = [int(_content(part, _BINARY)) for part in parts]
    if sum(lengths) != len(body) or not lengths:
        return section(DATA, _sized(body, _BINARY))
    ends = accumulate(lengths)
    return b"".join(
        section(DATA, _sized(body[end - length : end], _BINARY)) for length, end in zip(lengths, ends, strict=True)
    )


def _sized(content: bytes, codes: tuple[int, int]) -> bytes:
    """Text or bytes, encoded with their length."""
    if len(content) < 1 << 8:
        return bytes((codes[0], len(content))) + content
    return bytes((codes[1],)) + len(content).to_bytes(4, "big") + content


def _plain(value: Any) -> Property:
    """The value without its type in AMQP, such as 32 bits, symbol or time."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) in _DECIMALS:
        return _decimal(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value)


def _text(value: Any) -> str:
    """The value as text; bytes in hexadecimal digits."""
    plain = _plain(value)
    return plain.hex() if isinstance(plain, bytes) else str(plain)


def _decimal(value: Any) -> str:
    """A decimal number as text. AMQP encodes it as IEEE 754 does, with a binary coefficient."""
    size, exponent_bits, bias = _DECIMALS[type(value)]
    data = bytes(value) if isinstance(value, bytes) else int(value).to_bytes(size, "big")
    bits = int.from_bytes(data, "big")
    rest_bits = size * 8 - 1
    sign, rest = bits >> rest_bits, bits & ((1 << rest_bits) - 1)
    if rest >> rest_bits - 4 == _NO_NUMBER:
        return "NaN" if rest >> rest_bits - 5 & 1 else "-Infinity" if sign else "Infinity"
    coefficient_bits, leading = rest_bits - exponent_bits, 0
    if rest >> rest_bits - 2 == _LONG_COEFFICIENT:
        coefficient_bits, leading = coefficient_bits - 2, 1 << coefficient_bits
    exponent = rest >> coefficient_bits & ((1 << exponent_bits) - 1)
    coefficient = leading | rest & ((1 << coefficient_bits) - 1)
    return str(Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias)))
