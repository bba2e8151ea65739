"""What AMQP and STOMP make of a message: all that came goes out again as it was, or is refused, whatever it is."""

import uuid
from decimal import Decimal
from typing import NamedTuple

import pytest

proton = pytest.importorskip("proton")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from receiver.bridge.connectors import NON_PERSISTENT, UNREAD, Message, kafka_message  # noqa: E402
from receiver.bridge.connectors import stomp_message as stomp  # noqa: E402
from receiver.bridge.connectors.amqp_message import decoded, encoded  # noqa: E402
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
from receiver.bridge.connectors.products import Product  # noqa: E402
from receiver.bridge.connectors.stomp_message import Frame, FrameReader  # noqa: E402
from receiver.bridge.options import IdRule  # noqa: E402
from receiver.bridge.received import Received  # noqa: E402
from receiver.bridge.targets import Outcome  # noqa: E402
from receiver.bridge.targets.broker_target import BrokerTarget  # noqa: E402
from receiver.errors import MessageRefusedError  # noqa: E402
from receiver.store.inbox import Inbox  # noqa: E402
from receiver.store.upkeep import parked_rows, retry_parked  # noqa: E402
from tests.bridge.bridged import DiedError, message  # noqa: E402
from tests.choosing import cases  # noqa: E402

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SYMBOLS = st.text("abc-", max_size=8).map(proton.symbol)


def whole(kind, bits, *, signed):
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1).map(kind)


SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    TEXT,
    st.binary(max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    *(whole(kind, bits, signed=True) for kind, bits in [(proton.byte, 8), (proton.short, 16), (proton.int32, 32)]),
    *(whole(kind, bits, signed=False) for kind, bits in [(proton.ubyte, 8), (proton.ushort, 16), (proton.uint, 32)]),
    whole(proton.ulong, 64, signed=False),
    whole(proton.timestamp, 64, signed=True),
    whole(proton.decimal32, 32, signed=False),
    whole(proton.decimal64, 64, signed=False),
    st.binary(min_size=16, max_size=16).map(proton.decimal128),
    st.floats(width=32).map(proton.float32),
    st.characters(exclude_categories=["Cs"]).map(proton.char),
    st.uuids(),
    SYMBOLS,
)
COMPOUND = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
BODIES = st.one_of(
    COMPOUND.map(lambda value: [section_of(VALUE, value)]),
    st.lists(st.binary(max_size=300).map(lambda data: section_of(DATA, data)), min_size=1, max_size=3),
    st.lists(st.lists(COMPOUND, max_size=3).map(lambda items: section_of(SEQUENCE, items)), min_size=1, max_size=2),
)
ADDRESSES = st.none() | TEXT.filter(lambda text: "\0" not in text)
IDS = (
    st.none()
    | TEXT.filter(lambda text: "\0" not in text)
    | whole(proton.ulong, 64, signed=False)
    | st.uuids()
    | st.binary()
)
FIELDS = st.tuples(
    *(IDS, st.none(), ADDRESSES, ADDRESSES, ADDRESSES, IDS, st.none() | SYMBOLS, st.none() | SYMBOLS, st.none()),
    *(st.just(proton.timestamp(1)), ADDRESSES, st.none() | whole(proton.uint, 32, signed=False), ADDRESSES),
)
MAPS = st.dictionaries(SYMBOLS.filter(bool), COMPOUND, min_size=1, max_size=3)
PRIORITIES = st.integers(0, 9).filter(lambda priority: priority != 4).map(proton.ubyte)  # 4 is as none
MESSAGES = st.tuples(
    st.tuples(st.booleans(), PRIORITIES),
    st.none() | MAPS,
    FIELDS,
    st.dictionaries(NAMES, SIMPLE, max_size=5),
    BODIES,
    st.none() | MAPS,
)


def amqp(*sections):
    header, annotations, fields, properties, bodies, footer = sections
    parts = [section_of(HEADER, list(header))]
    if annotations is not None:
        parts.append(section_of(ANNOTATIONS, annotations))
    parts.append(section_of(PROPERTIES, list(fields)))
    if properties:
        parts.append(section_of(APPLICATION_PROPERTIES, properties))
    parts += bodies
    if footer is not None:
        parts.append(section_of(FOOTER, footer))
    return b"".join(parts)


def shown(data):
    """Every value with its type, but what each broker says anew."""
    sections = []
    for code, value in sections_of(data):
        said = value_of(value)
        if code == HEADER:
            said = [*said, *[None] * (5 - len(said))]
        if code == PROPERTIES:
            said = [*said, *[None] * (13 - len(said))]
            said[0] = said[1] = said[2] = said[9] = None
        sections.append((code, repr(said)))
    return sections


@cases()
@given(MESSAGES)
def test_amqp_goes_on_as_it_came(sections):
    data = amqp(*sections)
    came = decoded(data)
    assert came.refused is None
    assert shown(encoded(came)) == shown(data)
    # And so after the inbox, which has other objects.
    again = Message(**{name: getattr(came, name) for name in Message.__slots__} | {"properties": dict(came.properties)})
    assert shown(encoded(again)) == shown(data)


@cases()
@given(MESSAGES, st.dictionaries(NAMES, TEXT, min_size=1, max_size=2))
def test_properties_that_are_set_anew_are_those_that_are_sent(sections, new):
    came = decoded(amqp(*sections))
    sent = Message(
        body=came.body,
        is_text=came.is_text,
        body_kind=came.body_kind,
        properties={**came.properties, **new},
        amqp=came.amqp,
    )
    assert decoded(encoded(sent)).properties.items() >= new.items()


@cases()
@given(
    st.binary(max_size=60) | MESSAGES.flatmap(lambda sections: st.binary(max_size=3).map(amqp(*sections)[:-2].__add__))
)
@example(b"\0" * 5_000)
@example(b"\0Sw\xf0\0\0\0\0")
@example(b"\0Su\x40")
@example(b"\0Sr" + b"\0" * 3_000 + b"\x40" * 3_001)
def test_what_is_no_amqp_stays_as_it_is_and_says_why(data):
    came = decoded(data)
    if came.refused is not None:
        assert (came.body, came.body_kind) == (data, UNREAD)
        for send in (encoded, stomp.encoded_headers):
            with pytest.raises(MessageRefusedError, match="can't be sent by"):
                send(came)
    else:
        encoded(came)


def test_a_transfer_without_a_byte_is_no_message():
    """It would be one without an id, and be handed on without being judged."""
    assert decoded(b"").refused == "it can't be read as AMQP: it is empty"


ITEMS = st.lists(st.none() | TEXT | whole(proton.timestamp, 64, signed=True) | st.booleans(), max_size=6)


@given(ITEMS)
def test_usual_values_are_read_as_proton_reads_them(items):
    for value in (items, dict(enumerate(items)), dict(zip(map(str, items), items, strict=True))):
        data = proton.Data()
        data.put_object(value)
        assert repr(value_of(data.encode())) == repr(value)


def test_annotations_of_the_broker_that_it_came_from_stay_there():
    names = ["x-opt-jms-dest", "x-opt-delivery-delay", "x-exchange", "x-cc"]
    of_broker = dict.fromkeys(map(proton.symbol, names), 1)
    mine = {proton.symbol("x-opt-jms-msg-type"): proton.byte(5)}
    came = decoded(amqp([True], of_broker | mine, [None], {}, [section_of(VALUE, "")], None))
    assert dict(shown(encoded(came)))[ANNOTATIONS] == repr(mine)
    assert decoded(amqp([True], of_broker, [None], {}, [section_of(VALUE, "")], None)).amqp is None


def test_of_compressed_bytes_artemis_sends_too_many_or_too_few():
    """As many as its own client has compressed, when the message is large. Of text it sends all."""

    def come(body, size):
        marks = {"_AMQ_LARGE_COMPRESSED": True, "_AMQ_LARGE_SIZE": size, "order": 7}
        return decoded(section_of(APPLICATION_PROPERTIES, marks) + body)

    for body in (section_of(DATA, b"abc\0\0"), section_of(VALUE, "abc")):
        came = come(body, 3)
        assert (came.body, came.properties, came.refused) == (b"abc", {"order": 7}, None)
        assert "_AMQ" not in str(encoded(came))
    with pytest.raises(MessageRefusedError, match="3 of its 200,000 bytes"):
        come(section_of(DATA, b"abc"), 200_000)


def test_what_rabbitmq_has_dead_lettered_has_no_end():
    ends = section_of(HEADER, [True, None, proton.uint(500)])
    of_properties = section_of(PROPERTIES, [None] * 8 + [proton.timestamp(1)])
    deaths = section_of(ANNOTATIONS, {proton.symbol("x-opt-deaths"): [{proton.symbol("queue"): "waiting"}]})
    for sections, has_end in ((ends + of_properties, True), (ends + deaths + of_properties, False)):
        assert ("JMSExpiration" in decoded(sections).headers) == has_end


def test_ids_that_are_bytes_are_hexadecimal_digits_as_text():
    """A JMS client sets such a correlation id by `setJMSCorrelationIDAsBytes`."""
    came = decoded(section_of(PROPERTIES, [b"\0\xff", None, None, None, None, b"\0\xfe"]))
    assert (came.message_id, came.headers["JMSCorrelationID"]) == ("00ff", "00fe")


def test_a_correlation_id_may_read_as_none():
    sent = encoded(Message(body=b"", headers={"JMSCorrelationID": "None"}))
    assert decoded(sent).headers == {"JMSCorrelationID": "None"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (proton.decimal32(0x32800001), "1"),
        (proton.decimal32(0xB1800000 + 1250), "-12.50"),
        (proton.decimal32(0x6CB8967F), "9999999"),
        (proton.decimal64(0x31C0000000000001), "1"),
        (proton.decimal128(bytes.fromhex("303c00000000000000000000000004d2")), "12.34"),
        (proton.decimal32(0x78000000), "Infinity"),
        (proton.decimal64(0xF800000000000000), "-Infinity"),
        (proton.decimal32(0x7C000000), "NaN"),
    ],
)
def test_a_decimal_is_a_number_as_text(value, text):
    came = decoded(amqp([True], None, [None], {"price": value}, [], None))
    assert came.properties == {"price": text}
    assert str(Decimal(text)) == text


@pytest.mark.parametrize(
    ("kind", "why"), [("amqp-value", "amqp-value"), ("amqp-sequence", "amqp-sequence"), (UNREAD, "couldn't be read")]
)
@pytest.mark.parametrize(
    ("protocol", "encode"), [("STOMP", stomp.encoded_headers), ("Kafka", kafka_message.encoded)], ids=["stomp", "kafka"]
)
def test_what_only_amqp_has_is_refused(protocol, encode, kind, why):
    with pytest.raises(MessageRefusedError, match=f"can't be sent by {protocol}: .*{why}"):
        encode(Message(body=b"", body_kind=kind))


STOMP_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
STOMP_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["JMSCorrelationID", "JMSReplyTo", "JMSType", "ContentType"], STOMP_TEXT),
        "JMSPriority": st.sampled_from("01235"),
        "JMSDeliveryMode": st.just(NON_PERSISTENT),
        "JMSExpiration": st.integers(1, 2**45).map(str),
    },
)


@given(st.dictionaries(STOMP_TEXT.filter(bool), STOMP_TEXT), STOMP_HEADERS, st.binary(max_size=8))
def test_stomp_goes_on_as_it_came(properties, headers, body):
    sent = Message(body=body, properties=properties, headers=headers)
    frame = Frame("MESSAGE", stomp.encoded_headers(sent), body)
    pieces = iter([frame.encoded()])
    frame = FrameReader(lambda: next(pieces, b""), pytest.fail, max_body_bytes=99).read()
    came = stomp.decoded(frame, Product(name="any"))
    own = stomp.PROTOCOLS_OWN
    assert (came.body, came.headers) == (body, headers)
    assert came.properties == {name: value for name, value in properties.items() if name not in own}


def test_times_of_thousands_of_digits_go_on_and_end_no_bridge():
    """More than 4,300 are more than Python makes a number of."""
    never = "9" * 5_000
    came = stomp.decoded(Frame("MESSAGE", {"timestamp": never, "expires": never}), Product(name="any"))
    assert (came.jms_timestamp_ms, came.headers["JMSExpiration"]) == (int(never[:20]), never)
    target = BrokerTarget("any", pytest.fail, IdRule(), adds_duplicate_ids=False)
    target.warn_of_expired([Received._make((1, 0, 0, "1", None, "orders", came))])


class Unreadable(NamedTuple):
    """As confluent-kafka gives a record with a header whose name isn't UTF-8, which no client of that library can send."""

    body: bytes | None

    def value(self):
        return self.body

    def topic(self):
        return "orders"

    def partition(self):
        return 3

    def offset(self):
        return 17

    def headers(self):
        raise SystemError("returned a result with an exception set") from UnicodeDecodeError("utf-8", b"", 0, 1, "")


@pytest.mark.parametrize("body", [b"10 EUR", None])
def test_a_record_of_kafka_with_unreadable_headers_is_refused_and_stops_nothing(body):
    read = kafka_message.decoded(Unreadable(body))
    assert read.refused == "the name of a header of orders-3-17 isn't UTF-8"
    assert (read.body, read.body_kind) == (body or b"", UNREAD)


@pytest.mark.usefixtures("hasty")
def test_a_message_that_cannot_be_read_is_parked_and_stops_nothing(route, monkeypatch):
    """Also not by a broker's target, to which it comes by a retry."""
    route.kind, bad = "queue", b"\0Sw\xb1"
    route.send(message("1"), decoded(bad), message("2"))
    bridge = route.run(max_tries=1)
    assert route.effects() == ["1", "2"]
    assert (bridge.figures.parked, route.queued) == (1, [])
    (row,) = parked_rows(route.store)
    assert "can't be read as AMQP" in row.error
    retry_parked(route.store, None)
    monkeypatch.setattr(
        type(route.broker.sink("out")), "send", lambda _, messages: [encoded(each) for each in messages]
    )
    route.run(max_tries=1)
    (row,) = parked_rows(route.store)
    assert "its body is unread" in row.error


def test_a_frame_that_cannot_be_read_is_given_whole():
    head = b"MESSAGE\nmessage-id:7\nack:9\nid:\\t\ncontent-length:3\n\n"
    pieces = iter([head + b"a\0b\0" + Frame("MESSAGE", {"id": "1"}).encoded()])
    reader = FrameReader(lambda: next(pieces, b""), pytest.fail, max_body_bytes=99)
    frame = reader.read()
    came = stomp.decoded(frame, Product(name="any"))
    assert (came.body, came.body_kind, came.message_id) == (head + b"a\0b", UNREAD, "7")
    assert frame.headers["ack"] == "9"
    assert reader.read().headers == {"id": "1"}
    assert "escape" in came.refused


@pytest.mark.usefixtures("hasty")
def test_the_inbox_and_parking_keep_all_of_a_message(route, monkeypatch, store_url):
    """Typed properties, a map and annotations, through deaths between keeping and handing on, and through a retry."""
    route.store, route.kind = store_url, "queue"
    data = amqp(
        (True, proton.ubyte(7)),
        {proton.symbol("x-opt-jms-msg-type"): proton.byte(2)},
        ["ID:1", None, None, "Order", "answers", uuid.UUID(int=7)],
        {
            "int": proton.int32(1),
            "float": proton.float32(1.1),
            "nan": float("nan"),
            "price": proton.decimal32(0x32800001),
        },
        [section_of(VALUE, {"a": proton.short(1), "b": [None, proton.char("é")]})],
        {proton.symbol("hash"): b"\0"},
    )
    route.send(decoded(data))

    def dying(*_arguments):
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(Inbox, "lease", dying)
        with pytest.raises(DiedError):
            route.run()
    failing = route.open(max_tries=1)
    failing._target.deliver = lambda messages, _lease: Outcome(failed=dict.fromkeys(range(len(messages)), "not today"))
    failing.run(stop_when_idle_secs=0)
    assert len(parked_rows(store_url)) == 1
    retry_parked(store_url, None)
    route.run()
    (arrived,) = route.broker.queue("out")
    expected, arrived_as = dict(shown(data)), dict(shown(encoded(arrived)))
    typed = value_of(dict(sections_of(encoded(arrived)))[APPLICATION_PROPERTIES])
    of_bridge = arrived.properties.keys() - decoded(data).properties.keys()
    sent = {name: value for name, value in typed.items() if name not in of_bridge}
    assert repr(sent) == expected.pop(APPLICATION_PROPERTIES)
    del arrived_as[APPLICATION_PROPERTIES]
    assert arrived_as == expected
