"""Kinds of messages: how each protocol sends a kind, and what tests look at where it arrives."""

import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import proton

from receiver.bridge.connectors.amqp_sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    section_of,
    sections_of,
    value_of,
)
from receiver.bridge.connectors.stomp_message import Frame

ENDS_MS = 3_600_000 + time.time_ns() // 1_000_000
BYTES, TEXT = b"\xff\0", "10 \u20ac"


class Seen(NamedTuple):
    """A message as it arrived by one of the protocols."""

    body: Any
    header: dict[Any, Any]
    """AMQP's header and properties by position, or the headers of STOMP or Kafka by name."""
    properties: dict[str, Any]
    others: dict[Any, Any]


class Kind(NamedTuple):
    """One kind of message: how each protocol sends it, and what tests look at where it arrives."""

    amqp: Mapping[Any, Any] = MappingProxyType({})
    """AMQP's sections without the body, each as bytes."""
    stomp: dict[str, str] | None = None
    """STOMP's headers; None if STOMP can't express this kind."""
    body: Any = TEXT
    """The body: text, bytes, or sections of AMQP."""
    by_amqp: Callable[[Seen], Any] = lambda seen: seen.body
    by_stomp: Callable[[Seen], Any] = lambda seen: seen.body
    text: Any = None
    """What must arrive by STOMP or Kafka, if it was sent by AMQP."""
    kafka: dict[str, bytes] | None = None
    """Kafka's headers; None if Kafka can't express this kind."""
    from_kafka: Any = None
    """What must arrive by AMQP, if it was sent by Kafka and differs from the rest."""


def field(position):
    return lambda seen: seen.header.get(position)


def said(name):
    return lambda seen: seen.header.get(name)


def of_field(position, value):
    return [None] * position + [value]


def annotated(kind):
    return {ANNOTATIONS: {proton.symbol("x-opt-jms-msg-type"): proton.byte(kind)}}


NUMBERS = {
    "byte": proton.byte(-1),
    "short": proton.short(2),
    "int": proton.int32(3),
    "long": 2**62,
    "float": proton.float32(1.5),
    "double": 0.1,
    "bool": True,
}
OTHERS = {
    "ubyte": proton.ubyte(1),
    "ushort": proton.ushort(1),
    "uint": proton.uint(1),
    "ulong": proton.ulong(2**63),
    "symbol": proton.symbol("a"),
    "char": proton.char("\u20ac"),
    "time": proton.timestamp(5),
    "uuid": uuid.UUID(int=7),
    "decimal": proton.decimal32(0x32800001),
    "binary": BYTES,
    "null": None,
}
TEXTS = {"text": "a:b\n\u20ac", "digits": "007"}
OTHERS_AS_TEXT = {
    **dict.fromkeys(["ubyte", "ushort", "uint", "decimal"], "1"),
    "ulong": str(2**63),
    "symbol": "a",
    "char": "\u20ac",
    "time": "5",
    "uuid": str(uuid.UUID(int=7)),
    "binary": "ff00",
}
NUMBERS_AS_TEXT = {
    "byte": "-1",
    "short": "2",
    "int": "3",
    "long": str(2**62),
    "float": "1.5",
    "double": "0.1",
    "bool": "true",
}


KAFKAS_NAMES = {
    "JMSPriority": "priority",
    "JMSExpiration": "expires",
    "ContentType": "content-type",
    "JMSCorrelationID": "correlation-id",
    "JMSReplyTo": "reply-to",
    "JMSType": "type",
}
"""STOMP's names for the headers that a bridge sends to Kafka."""


def properties(values, as_text):
    return Kind(
        {APPLICATION_PROPERTIES: values},
        by_amqp=lambda seen: {name: seen.properties.get(name) for name in values},
        by_stomp=lambda seen: {name: seen.header.get(name) for name in as_text},
        stomp=None if as_text != values else as_text,
        text=as_text,
        kafka=None if as_text != values else {name: value.encode() for name, value in as_text.items()},
    )


KINDS = {
    "text": Kind(stomp={}, text=TEXT.encode(), kafka={}),
    "bytes": Kind(body=BYTES, stomp={}, text=BYTES, kafka={}),
    "no body, or null": Kind(body=section_of(VALUE, None), text=b"", kafka={}, from_kafka=[(DATA, repr(b""))]),
    "bytes as an AMQP value": Kind(body=section_of(VALUE, BYTES), text=BYTES),
    "several AMQP data sections": Kind(
        body=section_of(DATA, BYTES) + section_of(DATA, b"") + section_of(DATA, b"a"), text=BYTES + b"a"
    ),
    "JMS map": Kind(annotated(2), body=section_of(VALUE, {"a": proton.int32(1), "b": BYTES})),
    "JMS stream, AMQP sequence": Kind(annotated(4), body=section_of(SEQUENCE, [proton.short(1), "a", None])),
    "JMS object": Kind(
        annotated(1) | {PROPERTIES: of_field(6, proton.symbol("application/x-java-serialized-object"))},
        body=BYTES,
        text=BYTES,
    ),
    "other AMQP values": Kind(body=section_of(VALUE, proton.Described(proton.symbol("a"), [uuid.UUID(int=7)]))),
    "priority": Kind(
        {HEADER: [True, proton.ubyte(7)]},
        {"priority": "7"},
        by_amqp=field("priority"),
        by_stomp=said("priority"),
        text="7",
    ),
    "delivery mode": Kind(
        {HEADER: [False]}, {"persistent": "false"}, by_amqp=field("durable"), by_stomp=said("persistent"), text="false"
    ),
    "expiration": Kind(
        {PROPERTIES: of_field(8, proton.timestamp(ENDS_MS))},
        {"expires": str(ENDS_MS)},
        by_amqp=field(8),
        by_stomp=said("expires"),
        text=str(ENDS_MS),
    ),
    "time to live, what is left of it": Kind(
        {HEADER: [True, None, proton.uint(3_600_000)]},
        by_amqp=lambda seen: 3_000_000 < (seen.header["ttl"] or 0) <= 3_600_000,
        by_stomp=lambda seen: 3_000_000 < int(seen.header["expires"]) - time.time_ns() // 1_000_000 <= 3_600_000,
        text=True,
    ),
    "content type": Kind(
        {PROPERTIES: of_field(6, proton.symbol("text/xml"))},
        {"content-type": "text/xml"},
        by_amqp=field(6),
        by_stomp=said("content-type"),
        text="text/xml",
    ),
    "correlation id": Kind(
        {PROPERTIES: of_field(5, "a")},
        {"correlation-id": "a"},
        by_amqp=field(5),
        by_stomp=said("correlation-id"),
        text="a",
        kafka={"JMSCorrelationID": b"a"},
    ),
    "correlation id that is no text": Kind(
        {PROPERTIES: of_field(5, uuid.UUID(int=7))},
        by_amqp=field(5),
        by_stomp=said("correlation-id"),
        text=str(uuid.UUID(int=7)),
    ),
    "reply-to": Kind(
        {PROPERTIES: of_field(4, "queue://answers")},
        {"reply-to": "queue://answers"},
        by_amqp=field(4),
        by_stomp=said("reply-to"),
        text="queue://answers",
        kafka={"JMSReplyTo": b"queue://answers"},
    ),
    "type": Kind(
        {PROPERTIES: of_field(3, "Order")},
        {"type": "Order"},
        by_amqp=field(3),
        by_stomp=said("type"),
        text="Order",
        kafka={"JMSType": b"Order"},
    ),
    "properties that are text": properties(TEXTS, TEXTS),
    "whole numbers, fractions, truth values": properties(NUMBERS, NUMBERS_AS_TEXT),
    "properties of AMQP's other types": properties(OTHERS, OTHERS_AS_TEXT),
    "group, content encoding": Kind(
        {PROPERTIES: [None] * 7 + [proton.symbol("gzip"), None, None, "g", proton.uint(1)]},
        by_amqp=lambda seen: [seen.header.get(7), seen.header.get(10), seen.header.get(11)],
        by_stomp=said("content-encoding"),
        text="gzip",
    ),
    "annotations, footer": Kind(
        {ANNOTATIONS: {proton.symbol("x-opt-mine"): proton.byte(1)}, FOOTER: {proton.symbol("hash"): BYTES}},
        by_amqp=lambda seen: seen.others,
        by_stomp=said("x-opt-mine"),
        text="1",
    ),
}

KINDS_OF = {
    "rabbitmq": KINDS
    | {
        "delivery mode": KINDS["delivery mode"]._replace(
            by_stomp=lambda seen: seen.header.get("persistent", "false"),
        ),
        # RabbitMQ takes a slash there only in its own addresses.
        "reply-to": KINDS["reply-to"]._replace(
            amqp={PROPERTIES: of_field(4, "answers")},
            stomp={"reply-to": "answers"},
            by_stomp=lambda seen: seen.header["reply-to"].removeprefix("/reply-queue/"),
            text="answers",
        ),
        "annotations, footer": KINDS["annotations, footer"]._replace(by_amqp=lambda seen: without_routes(seen.others)),
    },
    # In Kafka, bytes in properties stay bytes.
    "kafka": KINDS
    | {
        name: KINDS[name]._replace(text=KINDS[name].text | {"binary": BYTES})
        for name in ["properties of AMQP's other types"]
    },
}
"""The kinds by product, for products that send a kind otherwise or show it otherwise."""


def without_routes(others):
    """Without the annotations that RabbitMQ adds."""
    kept = {
        name: value
        for name, value in others.get(ANNOTATIONS, {}).items()
        if name not in {"x-exchange", "x-routing-key"}
    }
    return {**others, ANNOTATIONS: kept}


def amqp_bytes(id_, kind):
    sections = {HEADER: [True], APPLICATION_PROPERTIES: {}, **kind.amqp}
    sections[APPLICATION_PROPERTIES] = {**sections[APPLICATION_PROPERTIES], "uniqueMessageId": id_}
    body = kind.body
    if isinstance(body, str):
        body = section_of(VALUE, body)
    elif body == BYTES:
        body = section_of(DATA, body)
    footer = sections.pop(FOOTER, None)
    parts = [section_of(code, value) for code, value in sorted(sections.items())]
    return b"".join([*parts, body, b"" if footer is None else section_of(FOOTER, footer)])


def stomp_frame(id_, kind):
    body = kind.body.encode() if isinstance(kind.body, str) else kind.body
    length = {} if isinstance(kind.body, str) else {"content-length": str(len(body))}
    return Frame("SEND", {"persistent": "true"} | kind.stomp | length | {"uniqueMessageId": id_}, body)


def kafka_record(id_, kind):
    value = kind.body if kind.body in (TEXT, BYTES) else None
    return {"value": value, "headers": {"uniqueMessageId": id_, **kind.kafka}}


def seen_by_amqp(data):
    header, properties_, others, bodies = {}, {}, {}, []
    for code, value in sections_of(data):
        said_ = value_of(value)
        if code == HEADER:
            header |= dict(zip(["durable", "priority", "ttl"], said_, strict=False))
            header["durable"] = bool(header["durable"])
        elif code == PROPERTIES:
            header |= dict(enumerate(said_))
        elif code == APPLICATION_PROPERTIES:
            properties_ = said_
        elif DATA <= code <= VALUE:
            bodies.append((code, repr(said_)))
        else:
            others[code] = said_
    header.setdefault("durable", False)
    return Seen(bodies, header, properties_, others)


def seen_by_kafka(record):
    """A record with STOMP's names for its headers. Values that aren't UTF-8 stay bytes."""
    said_ = {}
    for name, value in record.headers():
        try:
            said_[KAFKAS_NAMES.get(name, name)] = value.decode() if value is not None else None
        except UnicodeDecodeError:
            said_[name] = value
    said_["persistent"] = {"NON_PERSISTENT": "false", None: "true"}[said_.pop("JMSDeliveryMode", None)]
    return Seen(record.value(), said_, said_, {})


def seen_by_stomp(message):
    return Seen(message.body, dict(message.properties), dict(message.properties), {})


def came_by(protocol, message):
    if protocol == "kafka":
        return seen_by_kafka(message)
    return seen_by_amqp(message.body) if protocol == "amqp" else seen_by_stomp(message)


def looked_at(kind, protocol, seen):
    return repr(kind.by_amqp(seen) if protocol == "amqp" else kind.by_stomp(seen))


def outcome(kind, pair, seen):
    """How the kind arrived: `yes`, `plain` or `no`."""
    source, target = pair
    if source == "kafka" and kind.from_kafka is not None:
        return "plain" if repr(kind.by_amqp(seen)) == repr(kind.from_kafka) else "no"
    if target == "amqp":
        expected = looked_at(kind, "amqp", seen_by_amqp(amqp_bytes("1", kind)))
    elif source == "stomp":
        frame = stomp_frame("1", kind)
        expected = looked_at(kind, "stomp", Seen(frame.body, dict(frame.headers), {}, {}))
    else:
        expected = repr(kind.text)
    if looked_at(kind, target, seen) != expected:
        return "no"
    return "plain" if source != target and kind.stomp is None else "yes"
