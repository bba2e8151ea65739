"""What a real bridge between two queues of a real broker hands on of each kind of message: the table in docs/brokers.md.

One of each kind is sent as the protocol has it, not by the bridge's own connectors' idea of a message, and looked at
likewise. In between the bridge dies: the next one has only what the inbox has kept.
"""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

proton = pytest.importorskip("proton")
confluent_kafka = pytest.importorskip("confluent_kafka")

from receiver.bridge.connectors import Message, amqp, source_of, stomp  # noqa: E402
from receiver.bridge.connectors.address import BrokerAddress  # noqa: E402
from receiver.bridge.connectors.amqp import AmqpSink, AmqpSource  # noqa: E402
from receiver.bridge.connectors.amqp_sections import (  # noqa: E402
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
from receiver.bridge.connectors.stomp import StompSink, StompSource  # noqa: E402
from receiver.bridge.connectors.stomp_frames import Frame  # noqa: E402
from receiver.bridge.opening import BridgeOptions, open_bridge  # noqa: E402
from receiver.bridge.targets.broker_target import BrokerTarget  # noqa: E402
from receiver.errors import MessageRefusedError  # noqa: E402
from receiver.settings import BridgeSettings  # noqa: E402
from receiver.store.upkeep import move_waiting, parked_rows, retry_parked, target_rows  # noqa: E402
from tests.bridge.bridged import DiedError  # noqa: E402
from tests.bridge.conftest import address_of  # noqa: E402
from tests.choosing import quick  # noqa: E402

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

BY_QUEUES = [("stomp", "stomp"), ("stomp", "amqp"), ("amqp", "stomp"), ("amqp", "amqp")]
PAIRS = [*BY_QUEUES, ("amqp", "kafka"), ("kafka", "amqp")]
ARTEMIS = "running_artemis"
ROUTES = [
    *((ARTEMIS, pair) for pair in PAIRS),
    *(("rabbitmq", pair) for pair in BY_QUEUES),
    ("classic", ("stomp", "stomp")),
    ("classic", ("amqp", "amqp")),
    ("qpid", ("amqp", "amqp")),
]
"""Products, each by the fixture of its broker, with the pairs of protocols that are tried there. Kafka is beside it."""
DIFFERS = {
    # By STOMP they don't say that a message isn't persistent; it is handed on as if it were.
    ("classic", ("stomp", "stomp")): {"delivery mode": "no"},
    ("rabbitmq", ("stomp", "stomp")): {"delivery mode": "no"},
    ("rabbitmq", ("stomp", "amqp")): {"delivery mode": "no"},
    # It makes a message without any property of it before a bridge sees it.
    ("classic", ("amqp", "amqp")): {"several AMQP data sections": "lost"},
}
"""Where a product does otherwise than the table says."""
DOC = Path(__file__).resolve().parents[2] / "docs" / "brokers.md"
SOON_SECS = 20
ENDS_MS = 3_600_000 + time.time_ns() // 1_000_000
BYTES, TEXT = b"\xff\0", "10 \u20ac"


class Seen(NamedTuple):
    """A message as it came by either protocol."""

    body: Any
    header: dict[Any, Any]
    """AMQP's header and properties by position, or STOMP's headers by name, and so for Kafka."""
    properties: dict[str, Any]
    others: dict[Any, Any]


class Kind(NamedTuple):
    """One kind of message: how it is sent by either protocol, and what of it is looked at."""

    amqp: Mapping[Any, Any] = MappingProxyType({})
    """By section, but for the body: its bytes."""
    stomp: dict[str, str] | None = None
    """Headers; None for what STOMP has no way to say."""
    body: Any = TEXT
    """Text, bytes, or sections of AMQP."""
    by_amqp: Callable[[Seen], Any] = lambda seen: seen.body
    by_stomp: Callable[[Seen], Any] = lambda seen: seen.body
    text: Any = None
    """What STOMP is to have of what came by AMQP, and Kafka too."""
    kafka: dict[str, bytes] | None = None
    """Headers of Kafka; None for what it has no way to say."""
    from_kafka: Any = None
    """What AMQP is to have of what came by Kafka, where that isn't the same."""


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
"""STOMP's names for what a bridge sends to Kafka."""


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
        # It takes no slash there but in an address of its own.
        "reply-to": KINDS["reply-to"]._replace(
            amqp={PROPERTIES: of_field(4, "answers")},
            stomp={"reply-to": "answers"},
            by_stomp=lambda seen: seen.header["reply-to"].removeprefix("/reply-queue/"),
            text="answers",
        ),
        "annotations, footer": KINDS["annotations, footer"]._replace(by_amqp=lambda seen: without_routes(seen.others)),
    },
    # There bytes in properties stay bytes.
    "kafka": KINDS
    | {
        name: KINDS[name]._replace(text=KINDS[name].text | {"binary": BYTES})
        for name in ["properties of AMQP's other types"]
    },
}
"""By product, where one is sent otherwise, or shows otherwise what it has."""


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
    """With STOMP's names, and what isn't text as bytes."""
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


def queue_of(product, protocol, name=None):
    """The address of a queue or of a topic of Kafka, a new one unless it is named."""
    name = name or f"fidelity-{uuid.uuid4().hex}"
    if hasattr(product, "declare"):
        product.declare(name)
    if protocol == "kafka":
        return product.address(name)
    if hasattr(product, "address"):
        return product.address(protocol, name)
    return str(address_of(product, protocol, f"queue/{name}"))


def records_of(address, count):
    servers = {"bootstrap.servers": f"{address.host}:{address.port}", "group.id": "fidelity"}
    consumer = confluent_kafka.Consumer(servers | {"auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(address.name, 0, 0)])
    try:
        return consumer.consume(count, timeout=SOON_SECS)
    finally:
        consumer.close()


@pytest.fixture
def raw(monkeypatch):
    """Connectors that send and take what is given to them, as it is."""

    class Raw:
        def send(self, queue, things):
            address = BrokerAddress.parse(queue)
            if address.protocol == "kafka":
                producer = confluent_kafka.Producer({"bootstrap.servers": f"{address.host}:{address.port}"})
                for thing in things:
                    producer.produce(address.name, **thing)
                assert producer.flush(SOON_SECS) == 0
                return
            with monkeypatch.context() as patch:
                if address.protocol == "amqp":
                    patch.setattr(amqp, "encoded", lambda data: data)
                    with AmqpSink(address) as sink:
                        sink.send(things)
                else:
                    with StompSink(address) as sink:
                        own = {name: value for name, value in sink._headers.items() if name != "persistent"}
                        sink._session.ask(*(frame._replace(headers=frame.headers | own) for frame in things))

        def take(self, queue, count):
            """Messages that have what came as their body, and STOMP's headers as their properties; records of Kafka."""
            address = BrokerAddress.parse(queue)
            if address.protocol == "kafka":
                return records_of(address, count)
            with monkeypatch.context() as patch:
                patch.setattr(amqp, "decoded", lambda data: Message(body=data))
                patch.setattr(stomp, "decoded", lambda frame, _: Message(body=frame.body, properties=frame.headers))
                with {"amqp": AmqpSource, "stomp": StompSource}[address.protocol](address) as source:
                    until, taken = time.monotonic() + SOON_SECS, []
                    while len(taken) < count and time.monotonic() < until:
                        taken += source.take(count - len(taken), wait_secs=0.5)
                    source.acknowledge(taken)
            return [delivery.message for delivery in taken]

    return Raw()


@pytest.fixture
def bridge_that_dies(monkeypatch):
    """A bridge that dies when it first has something to hand on, and another that does the work."""

    def run(from_, to, store, *, pause_secs=0.0):
        def dying(*_arguments):
            raise DiedError

        options = BridgeOptions(settings=BridgeSettings(max_tries=1))
        with monkeypatch.context() as patch:
            patch.setattr(BrokerTarget, "deliver", dying)
            with pytest.raises(DiedError):
                open_bridge(from_, to, store, options).run()
        time.sleep(pause_secs)
        open_bridge(from_, to, store, options).run(stop_when_idle_secs=0.5)

    return run


def came_by(protocol, message):
    if protocol == "kafka":
        return seen_by_kafka(message)
    return seen_by_amqp(message.body) if protocol == "amqp" else seen_by_stomp(message)


def looked_at(kind, protocol, seen):
    return repr(kind.by_amqp(seen) if protocol == "amqp" else kind.by_stomp(seen))


def outcome(kind, pair, seen):
    """`yes`, `plain` or `no`."""
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


def documented(pair):
    """By kind, what the table says."""
    section = DOC.read_text().partition("\n## What each pair of protocols carries\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|" + r" (yes|plain|no|parked|-) \|" * len(PAIRS) + "$", section, re.MULTILINE)
    return {row[0]: row[1 + PAIRS.index(pair)] for row in rows}


def parked_of(store, queue):
    return [row for row in parked_rows(store) if row.destination == f"queue://{queue.rpartition('/')[2]}"]


@pytest.mark.parametrize(
    "way",
    [quick(way) if way == (ARTEMIS, ("amqp", "stomp")) else way for way in ROUTES],
    ids=lambda way: "-".join((way[0], *way[1])),
)
def test_the_table_says_what_is_handed_on(request, store, raw, bridge_that_dies, way):
    name, pair = way
    source, target = pair
    products = {protocol: request.getfixturevalue("kafka" if protocol == "kafka" else name) for protocol in pair}
    from_, to = (queue_of(products[protocol], protocol) for protocol in pair)
    has_kind = {"amqp": lambda _: True, "stomp": lambda kind: kind.stomp is not None}
    has_kind["kafka"] = lambda kind: kind.kafka is not None
    kinds = KINDS_OF.get(target if target == "kafka" else name, KINDS)
    sent = {name: kind for name, kind in kinds.items() if has_kind[source](kind)}
    make = {"amqp": amqp_bytes, "stomp": stomp_frame, "kafka": kafka_record}[source]
    raw.send(from_, [make(name, kind) for name, kind in sent.items()])
    bridge_that_dies(f"{from_}?group=fidelity" if source == "kafka" else from_, to, store)
    parked = {row.unique_message_id: row.error for row in parked_of(store, from_)}
    outcomes = dict.fromkeys(KINDS, "-") | dict.fromkeys(sent, "lost") | dict.fromkeys(parked, "parked")
    for message in raw.take(to, len(sent) - len(parked)):
        seen = came_by(target, message)
        kind = seen.properties["uniqueMessageId"]
        if kind in sent:
            outcomes[kind] = outcome(sent[kind], pair, seen)
    assert outcomes == documented(pair) | DIFFERS.get(way, {})
    named = {"kafka": "Kafka", "stomp": "STOMP"}.get(target)
    assert all(f"can't be sent by {named}: its body is an amqp-" in error for error in parked.values())


def test_what_was_parked_goes_on_unchanged_to_a_target_that_can_have_it(running_artemis, store, raw, bridge_that_dies):
    name, kind = "JMS map", KINDS["JMS map"]
    from_, by_stomp, by_amqp = (queue_of(running_artemis, protocol) for protocol in ("amqp", "stomp", "amqp"))
    raw.send(from_, [amqp_bytes(name, kind)])
    bridge_that_dies(from_, by_stomp, store)
    (row,) = parked_of(store, from_)
    assert "amqp-value" in row.error
    retry_parked(store, [row.parked_id])
    (target,) = [target for target in target_rows(store) if target.name == by_stomp]
    move_waiting(store, target, by_amqp)
    open_bridge(from_, by_amqp, store).run(stop_when_idle_secs=0.5)
    (message,) = raw.take(by_amqp, 1)
    assert outcome(kind, ("amqp", "amqp"), seen_by_amqp(message.body)) == "yes"
    assert seen_by_amqp(message.body).others == kind.amqp


def test_what_cannot_be_read_is_parked_and_the_rest_goes_on(running_artemis, store, raw, bridge_that_dies):
    from_, to = (queue_of(running_artemis, "amqp") for _ in range(2))
    bad = amqp_bytes("2", Kind(body=b"\0\x53\x77\xa1\x02\xc3\x28"))
    raw.send(from_, [amqp_bytes("1", Kind()), bad, amqp_bytes("3", Kind())])
    bridge_that_dies(from_, to, store)
    # Parked by both bridges if the first one dies before its acknowledgement: what can't be read has no id to know it by.
    parked = parked_of(store, from_)
    assert len(parked) in (1, 2)
    assert all("can't be read as AMQP" in row.error for row in parked)
    assert [seen_by_amqp(message.body).properties["uniqueMessageId"] for message in raw.take(to, 2)] == ["1", "3"]


def test_an_expired_message_is_sent_with_its_end_and_told_of(running_artemis, store, raw, bridge_that_dies, caplog):
    """The broker does with it what it does with all that expire; this one drops it."""
    from_, to = (queue_of(running_artemis, "amqp") for _ in range(2))
    ends_ms = time.time_ns() // 1_000_000 + 1_500
    raw.send(
        from_, [amqp_bytes("1", Kind({PROPERTIES: of_field(8, proton.timestamp(ends_ms))})), amqp_bytes("2", Kind())]
    )
    bridge_that_dies(from_, to, store, pause_secs=2)
    assert "of the messages handed on 1 had expired" in caplog.text
    assert [seen_by_amqp(message.body).properties["uniqueMessageId"] for message in raw.take(to, 1)] == ["2"]
    assert parked_of(store, from_) == []


def test_stomp_takes_no_message_whose_body_the_broker_does_not_send(running_artemis, raw):
    """To acknowledge it would lose it: it stays for AMQP."""
    name = f"fidelity-{uuid.uuid4().hex}"
    by_amqp, by_stomp = (queue_of(running_artemis, protocol, name) for protocol in ("amqp", "stomp"))
    kinds = {name: KINDS[name] for name in ("JMS map", "JMS object", "other AMQP values")}
    for id_, kind in (kinds | {"sequence": Kind(body=section_of(SEQUENCE, [1, "x"]))}).items():
        raw.send(by_amqp, [amqp_bytes(id_, kind)])
        with source_of(by_stomp) as source, pytest.raises(MessageRefusedError, match="doesn't send by STOMP"):
            source.take(1, wait_secs=SOON_SECS)
        (message,) = raw.take(by_amqp, 1)
        assert seen_by_amqp(message.body).properties["uniqueMessageId"] == id_
