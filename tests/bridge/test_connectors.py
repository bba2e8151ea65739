"""What every connector promises, with any broker and protocol. The broker in memory keeps the same promises."""

import threading
import time
import uuid

import pytest

from receiver.bridge.connectors import DUPLICATE_ID, Message, PipelinedSource
from receiver.errors import BrokerError

SOON_SECS = 20
"""Long enough for any message. A message that is there comes at once."""
NEVER_SECS = 0.3

HEADERS = ["JMSCorrelationID", "JMSReplyTo", "JMSType"]
AWKWARD = [
    "",
    " ",
    " a ",
    "a:b",
    "a\\b",
    "a\\cb",
    "a\nb",
    "é",
    "e\u0301",
    "\U0001f600",
    "NaN",
    "007",
    "%41",
    "x" * 2_000,
]


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4().hex}"


def lacks(broker):
    return getattr(broker, "lacks", ())


def texts(*bodies):
    return [Message(body=body.encode(), is_text=True) for body in bodies]


def bodies(deliveries):
    return [delivery.message.body.decode() for delivery in deliveries]


def take(source, count):
    """Take `count` messages, in however many parts the broker gives them."""
    taken, until = [], time.monotonic() + SOON_SECS
    while len(taken) < count and time.monotonic() < until:
        taken += source.take(count - len(taken), wait_secs=1)
    assert len(taken) == count, f"{len(taken)} of {count} messages came"
    return taken


def test_messages_come_in_order_and_are_forgotten_once_acknowledged(broker, name):
    sent = [f"message {number}" for number in range(50)]
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send(texts(*sent[:30]))
        sink.send(texts(*sent[30:]))
        first = take(source, 20)
        source.acknowledge(first)
        rest = take(source, 30)
        source.acknowledge(rest)
        assert bodies(first + rest) == sent
        assert source.take(1, wait_secs=NEVER_SECS) == []
    with broker.source(name) as source:
        assert source.take(1, wait_secs=NEVER_SECS) == []


def test_nothing_is_waited_for_once_something_is_there(broker, name):
    with broker.sink(name) as sink, broker.source(name) as source:
        began = time.monotonic()
        assert source.take(5, wait_secs=NEVER_SECS) == []
        assert time.monotonic() - began >= NEVER_SECS * 0.9
        later = threading.Timer(NEVER_SECS, lambda: sink.send(texts("late")))
        later.start()
        assert bodies(source.take(5, wait_secs=SOON_SECS)) == ["late"]
        later.join()
        assert time.monotonic() - began < SOON_SECS


def test_what_is_not_acknowledged_comes_again(broker, name):
    with broker.sink(name) as sink:
        sink.send(texts("a", "b", "c"))
    with broker.source(name) as source:
        (first,) = take(source, 1)
        assert not first.message.redelivered
        source.acknowledge([first])
        assert bodies(take(source, 2)) == ["b", "c"]
    with broker.source(name) as source:
        again = take(source, 2)
        assert bodies(again) == ["b", "c"]
        source.acknowledge(again)
        assert source.take(1, wait_secs=NEVER_SECS) == []


def test_more_is_taken_before_an_acknowledgement_is_answered(broker, name):
    with broker.sink(name) as sink, broker.source(name) as source:
        if not isinstance(source, PipelinedSource):
            pytest.skip("it answers at once")
        sink.send(texts("a", "b", "c", "d", "e"))
        hear = source.begin_acknowledging(take(source, 2))
        more = take(source, 2)
        hear()
        source.begin_acknowledging(more)()
        source.begin_acknowledging([])()
        assert bodies(more) == ["c", "d"]
    with broker.source(name) as source:
        assert bodies(take(source, 1)) == ["e"]


def test_one_answer_may_be_waited_for_in_place_of_several(broker, name):
    with broker.sink(name) as sink, broker.source(name) as source:
        if not isinstance(source, PipelinedSource):
            pytest.skip("it answers at once")
        sink.send(texts(*"abcdefghi"))
        for _ in range(3):
            source.begin_acknowledging(take(source, 1))
        source.begin_acknowledging(take(source, 2))()
        source.begin_acknowledging(take(source, 1))
        source.begin_acknowledging(take(source, 1))()
    with broker.source(name) as source:
        assert bodies(take(source, 2)) == ["h", "i"]


def test_order_outlives_connections_that_acknowledge_nothing(broker, name):
    sent = [str(number) for number in range(30)]
    with broker.sink(name) as sink:
        sink.send(texts(*sent))
    for count in (1, 7, 30):
        with broker.source(name) as source:
            assert bodies(take(source, count)) == sent[:count]


def test_bodies_and_properties_stay_as_they_are(broker, name):
    every_byte = bytes(range(256)) * 3
    sent = [
        Message(body=every_byte, properties={"uniqueMessageId": "1"}),
        Message(body=b""),
        *(Message(body=text.encode(), is_text=True, properties={"uniqueMessageId": text}) for text in AWKWARD),
    ]
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send(sent)
        taken = take(source, len(sent))
        source.acknowledge(taken)
    for message, delivery in zip(sent, taken, strict=True):
        came = delivery.message
        assert came.body == message.body
        assert came.is_text == message.is_text or not message.body
        assert came.properties.get("uniqueMessageId") == message.properties.get("uniqueMessageId")


def test_headers_stay_as_they_are(broker, name):
    """A broker doesn't change them, and a header that isn't set is absent."""
    is_short = "long headers" in lacks(broker)
    sent = [{header: f"a {header}"} for header in HEADERS]
    sent += [dict.fromkeys(HEADERS, text) for text in AWKWARD if text and not (is_short and len(text) > 255)]
    reply_to = "answers" if is_short else "queue://answers"
    sent += [{}, dict(zip(HEADERS, ["order 17", reply_to, "Order"], strict=True))]
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send([Message(body=b"body", properties={"uniqueMessageId": "1"}, headers=headers) for headers in sent])
        taken = take(source, len(sent))
        source.acknowledge(taken)
    assert [delivery.message.headers for delivery in taken] == sent
    assert {delivery.message.properties["uniqueMessageId"] for delivery in taken} == {"1"}


def test_messages_of_any_priority_arrive(broker, name):
    """Not in their order: many brokers take the highest first. JMS has priorities up to 9, AMQP and RabbitMQ up to 255."""
    priorities = ["0", "9", "10", "127", "128", "255"]
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send([Message(body=each.encode(), headers={"JMSPriority": each}) for each in priorities])
        taken = take(source, len(priorities))
        source.acknowledge(taken)
    assert sorted(bodies(taken)) == sorted(priorities)


def test_a_large_body(broker, name):
    body = bytes(range(256)) * (15_000 if "large bodies" in lacks(broker) else 40_000)  # 4 or 10 MB
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send([Message(body=body)])
        (taken,) = take(source, 1)
        source.acknowledge([taken])
    assert taken.message.body == body


def test_each_message_goes_to_one_of_competing_sources(broker, name):
    sent = {f"message {number}" for number in range(40)}
    with broker.source(name) as one, broker.source(name) as other, broker.sink(name) as sink:
        sink.send(texts(*sorted(sent)))
        came, until = [], time.monotonic() + SOON_SECS
        while len(came) < len(sent) and time.monotonic() < until:
            for source in (one, other):
                taken = source.take(3, wait_secs=0.05)
                source.acknowledge(taken)
                came += bodies(taken)
    assert sorted(came) == sorted(sent)


def test_a_broker_drops_what_is_sent_again_by_its_duplicate_id(broker, name):
    def message(id_):
        return Message(body=id_.encode(), is_text=True, properties={DUPLICATE_ID: id_})

    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send([message("a"), message("b:1")])
        sink.send([message("b:1"), message("c")])
        sink.send([message("a"), message("b:2")])
        expected = ["a", "b:1", "c", "b:2"]
        if "known ids" in lacks(broker):
            expected = ["a", "b:1", "b:1", "c", "a", "b:2"]
        taken = take(source, len(expected))
        source.acknowledge(taken)
        assert bodies(taken) == expected
        assert source.take(1, wait_secs=NEVER_SECS) == []


def test_a_connection_that_is_closed_says_so(broker, name):
    with broker.sink(name) as sink, broker.source(name) as source:
        sink.send(texts("a"))
        taken = take(source, 1)
        source.close()
        with pytest.raises(BrokerError):
            source.acknowledge(taken)
        with pytest.raises(BrokerError):
            source.take(1, wait_secs=0)
        source.close()
        sink.close()
        with pytest.raises(BrokerError):
            sink.send(texts("b"))
        sink.close()
    with broker.source(name) as source:
        assert bodies(take(source, 1)) == ["a"]
