"""A real Kafka: what the connector promises; the store's positions count rather than the group's; losses are loud."""

import json
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from examples.demo.processes import HOST
from receiver.bridge import Message, open_bridge, sink_of, source_of
from receiver.bridge.connectors import DUPLICATE_ID, kafka_client, kafka_sink
from receiver.bridge.connectors import kafka as kafka_source
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.kafka_message import NULL_VALUE
from receiver.bridge.opening import BridgeOptions
from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.durable.audit import audit
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, MessagesLostError, SettingsError
from tests.brokers import kafka as kafka_module
from tests.brokers.cached import new_broker
from tests.choosing import quick
from tests.patience import until
from tests.stores import execute

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON_SECS = 60


@pytest.fixture
def topic(kafka):
    return kafka.new_topic(2)


def texts(*bodies, **properties):
    return [Message(body=body.encode(), is_text=True, properties=properties) for body in bodies]


def numbered(count, first=0):
    return [
        Message(body=str(number).encode(), is_text=True, properties={"uniqueMessageId": f"{number}:web"})
        for number in range(first, first + count)
    ]


def send(kafka, topic, messages):
    with sink_of(kafka.address(topic)) as sink:
        sink.send(messages)


def take_all(source):
    """Take and acknowledge all messages that are there."""
    taken, until = [], time.monotonic() + SOON_SECS
    while source.is_settling:
        assert time.monotonic() < until
        more = source.take(10, wait_secs=0.1)
        if more:
            source.acknowledge(more)
        taken += more
    return [delivery.message for delivery in taken]


def bodies(messages):
    return sorted(message.body.decode() for message in messages)


class Bridged:
    """Bridges from a topic to a file, one after the other, through one store."""

    def __init__(self, kafka, topic, store, folder):
        self.kafka, self.topic, self.store = kafka, topic, store
        self.file = folder / "out.jsonl"

    def run(self, *, group="g", mode=Mode.EXACTLY_ONCE, ids=None, **options):
        store = self.store if mode.keeps else None
        address = self.kafka.address(self.topic, group, **options)
        to = f"file:{self.file}"
        bridge = open_bridge(address, to, store, BridgeOptions(mode=mode, ids=ids or IdRule()))
        bridge.run(stop_when_idle_secs=0)
        return bridge

    def effects(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def numbers(self):
        return sorted(int(line["body"]) for line in self.effects())


@pytest.fixture(params=["sqlite"])
def bridged(request, kafka, topic, tmp_path):
    return Bridged(kafka, topic, request.getfixturevalue(f"{request.param}_store"), tmp_path)


def offsets_of_group(kafka, topic, group="g"):
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    at = consumer.committed([TopicPartition(topic, number) for number in range(2)], timeout=10)
    consumer.close()
    return [max(each.offset, 0) for each in at]  # below 0 if nothing came: all may have gone to the other partition


def set_offsets_of_group(kafka, topic, *offsets, group="g"):
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    at = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()


@pytest.mark.quick
def test_what_was_acknowledged_is_forgotten_and_the_rest_comes_again(kafka, topic):
    send(kafka, topic, numbered(30))
    with source_of(kafka.address(topic, "g")) as source:
        first = []
        while not first:
            first = source.take(5, wait_secs=1)
        source.acknowledge(first)
        assert source.take(5, wait_secs=SOON_SECS)
    with source_of(kafka.address(topic, "g")) as source:
        rest = take_all(source)
    assert len(first) <= 5
    assert bodies([delivery.message for delivery in first] + rest) == sorted(map(str, range(30)))


@pytest.mark.quick
def test_messages_of_a_partition_come_in_order(kafka, topic):
    sent = [Message(body=str(number).encode(), default_source=f"key-{number % 5}") for number in range(200)]
    send(kafka, topic, sent)
    with source_of(kafka.address(topic, "g")) as source:
        arrived = take_all(source)
    for key in range(5):
        own = [int(message.body) for message in arrived if message.default_source == f"key-{key}"]
        assert own == list(range(key, 200, 5))


def test_nothing_is_waited_for_once_something_is_there(kafka, topic):
    with source_of(kafka.address(topic, "g")) as source:
        take_all(source)
        assert source.take(5, wait_secs=0.2) == []
        send(kafka, topic, texts("one"))
        began = time.monotonic()
        assert len(source.take(5, wait_secs=SOON_SECS)) == 1
        assert time.monotonic() - began < SOON_SECS / 2


AWKWARD = ["", " a ", "a\nb", "é", "\U0001f600", "a\0b", "007", "x" * 2_000]


def test_what_a_message_has_comes_as_it_was(kafka, topic):
    properties = {f"p{number}": text for number, text in enumerate(AWKWARD)}
    properties |= {"é \n": "odd", "bytes": b"\xff\0", "null": None, DUPLICATE_ID: "dropped"}
    headers = {"JMSCorrelationID": "c", "JMSReplyTo": "queue://r", "JMSType": "t"}
    given = Message(body=b"\xff\0", properties=properties, headers=headers, default_source="web")
    send(kafka, topic, [given, *texts(*AWKWARD, number=5, flag=True, share=0.5)])
    with source_of(kafka.address(topic, "g")) as source:
        arrived = take_all(source)
    (first,) = [message for message in arrived if message.headers]
    del properties[DUPLICATE_ID]
    assert (first.body, first.is_text, first.properties, first.headers) == (b"\xff\0", False, properties, headers)
    assert (first.default_source, first.redelivered) == ("web", False)
    assert abs(first.jms_timestamp_ms / 1_000 - time.time()) < SOON_SECS
    others = [message for message in arrived if not message.headers]
    assert sorted(message.body.decode() for message in others) == sorted(AWKWARD)
    assert all(message.is_text for message in others)
    assert all(message.properties == {"number": "5", "flag": "true", "share": "0.5"} for message in others)


def test_ids_are_offsets_and_sources_are_keys_where_no_header_says_otherwise(kafka, topic):
    producer = Producer({"bootstrap.servers": kafka.servers})
    for key in (b"web", "é".encode(), b"\xff", b"", None):
        producer.produce(topic, key=key, value=b"a", partition=1)
    producer.flush(10)
    with source_of(kafka.address(topic, "g")) as source:
        arrived = take_all(source)
    assert [IdRule().ids_of(message) for message in arrived] == [
        (f"{topic}-1-0", "web"),
        (f"{topic}-1-1", "é"),
        (f"{topic}-1-2", "ff"),
        (f"{topic}-1-3", f"{topic}-1"),
        (f"{topic}-1-4", f"{topic}-1"),
    ]
    named = Message(body=b"", properties={"uniqueMessageId": "7", "messageSourceId": "shop"}, default_id="a")
    assert IdRule().ids_of(named) == ("7", "shop")
    with pytest.raises(MessageRefusedError, match="ids are required"):
        IdRule(missing=MissingIds.REFUSE).ids_of(arrived[0])


def test_a_record_without_a_value_stays_one(kafka, topic):
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(topic, key=b"gone")
    producer.produce(topic, key=b"empty", value=b"")
    producer.flush(10)
    with source_of(kafka.address(topic, "g")) as source:
        arrived = {message.default_source: message for message in take_all(source)}
    assert arrived["gone"].properties == {NULL_VALUE: True}
    assert arrived["empty"].properties == {}
    again = kafka.new_topic()
    send(kafka, again, arrived.values())
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([again])
    records = {record.key(): record.value() for record in (consumer.poll(SOON_SECS), consumer.poll(SOON_SECS))}
    consumer.close()
    assert records == {b"gone": None, b"empty": b""}


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_kafka_cannot_express_is_refused_before_anything_is_sent(kafka, topic, name):
    with sink_of(kafka.address(topic)) as sink:
        with pytest.raises(MessageRefusedError, match="can't be sent by Kafka"):
            sink.send([*texts("good"), *texts("bad", **{name: "x"})])
        sink.send(texts("more"))
    with source_of(kafka.address(topic, "g")) as source:
        assert bodies(take_all(source)) == ["more"]


def test_a_message_above_the_brokers_limit_is_to_blame_itself(kafka):
    topic = kafka.new_topic(1, max_message_bytes="10000")
    with sink_of(kafka.address(topic)) as sink:
        with pytest.raises(MessageRefusedError, match="refuses a message"):
            sink.send([Message(body=b"x" * 100_000)])
        sink.send(texts("small"))


def test_a_slow_way_is_waited_for_as_long_as_answers_come(kafka, topic, monkeypatch):
    """Otherwise all messages would be sent again for ever, and a part of them would arrive each time."""
    monkeypatch.setattr(kafka_sink, "ANSWER_SECS", 0.5)
    one_by_one = {"batch.num.messages": 1, "max.in.flight": 1}
    config_of = kafka_client.client_config
    monkeypatch.setattr(kafka_client, "client_config", lambda address: config_of(address) | one_by_one)
    with sink_of(kafka.address(topic)) as sink:
        began = time.monotonic()
        sink.send(numbered(3_000))
        assert time.monotonic() - began > 0.5


def test_many_large_messages_are_not_taken_at_once(kafka):
    """Otherwise they would be one batch, however large."""
    topic = kafka.new_topic(1)
    for _ in range(3):
        send(kafka, topic, [Message(body=bytes(900_000)) for _ in range(20)])
    with source_of(kafka.address(topic, "g")) as source:
        while not source.take(1, wait_secs=1):
            pass
        time.sleep(2)  # until all that is fetched ahead is there
        assert 5 < len(source.take(1_000, wait_secs=1)) < 30


def test_a_body_that_is_too_large_stays_and_says_which(kafka):
    topic = kafka.new_topic(1)
    send(kafka, topic, [Message(body=body) for body in (b"a", b"b" * 1_000, b"c")])
    with source_of(kafka.address(topic, "g"), max_body_bytes=100) as source:
        taken = []
        while not taken:
            taken = source.take(10, wait_secs=1)
        assert bodies(delivery.message for delivery in taken) == ["a"]
        source.acknowledge(taken)
        for _ in range(2):
            with pytest.raises(MessageRefusedError, match="offset 1 of partition 0: its body has 1,000 bytes"):
                source.take(10, wait_secs=SOON_SECS)


@pytest.mark.quick
def test_a_topic_that_has_just_been_made_is_waited_for(kafka):
    """Each node learns of it by itself, so the first one asked may not know it yet."""
    name = f"new-{uuid.uuid4().hex}"
    with ThreadPoolExecutor() as threads:
        opened = threads.submit(source_of, kafka.address(name, "g"))
        time.sleep(0.5)
        kafka.declare(name)
        opened.result().close()


def test_what_is_not_there_is_refused(kafka, topic):
    nowhere = f"nowhere-{uuid.uuid4().hex}"
    for connect in (lambda: source_of(kafka.address(nowhere, "g")), lambda: sink_of(kafka.address(nowhere))):
        with pytest.raises(BrokerRefusedError, match=f"UNKNOWN_TOPIC.*kafka-topics.sh --create .* --topic {nowhere}"):
            connect()
    assert nowhere not in kafka.admin().list_topics(timeout=10).topics
    with pytest.raises(BrokerError, match="can't be reached"):
        source_of(f"kafka://{HOST}:1/{topic}?group=g")


def test_a_group_of_other_clients_is_refused(kafka, topic):
    other = Consumer({"bootstrap.servers": kafka.servers, "group.id": "g", "partition.assignment.strategy": "range"})
    other.subscribe([topic])
    while not other.assignment():
        other.poll(0.1)
    refused = pytest.raises(BrokerRefusedError, match="other clients are in this group")
    with source_of(kafka.address(topic, "g")) as source, refused:
        take_all(source)
    other.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "names no consumer group"),
        ({"group": "g", "start": "now"}, "start is earliest or latest"),
        ({"group": "g", "lost": "5"}, "lost is PARTITION:OFFSET"),
        ({"group": "g", "session": "0"}, "session is a number of seconds"),
        ({"group": "g", "session": "x"}, "session is a number of seconds"),
        ({"group": "g", "selector": "a = 1"}, "after \\? only group=GROUP"),
    ],
)
def test_options_that_make_no_sense_are_refused(kafka, topic, options, problem):
    with pytest.raises(SettingsError, match=problem):
        source_of(kafka.address(topic, options.pop("group", None), **options))


@pytest.mark.parametrize("address", ["topic%00?group=g", "topic?group=g%00", "topic?group=g&mechanism=PLAIN"])
def test_a_name_that_would_end_at_a_zero_byte_is_refused(kafka, address):
    """The client's library would use another topic or another group."""
    login = "me%00" if "mechanism" in address else "me"
    with pytest.raises(SettingsError, match="has a zero byte"):
        source_of(f"kafka://{login}@{kafka.servers}/{address}")


@pytest.mark.quick
@pytest.mark.parametrize("login", ["me", "me:", ":secret"])
def test_a_login_of_one_half_is_refused(login):
    """The client's library would raise its own error."""
    with pytest.raises(SettingsError, match="wants a user and a password"):
        kafka_client.client_config(BrokerAddress.parse(f"kafka://{login}@host/orders"))


class Leaderless(Consumer):
    def get_watermark_offsets(self, *_arguments, **_keywords):
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))


def test_a_partition_without_a_leader_is_an_error_of_the_broker(bridged, monkeypatch):
    monkeypatch.setattr(kafka_source, "Consumer", Leaderless)
    with pytest.raises(BrokerError):
        bridged.run(start="latest")


def test_nothing_can_be_acknowledged(kafka, topic):
    with source_of(kafka.address(topic, "g")) as source:
        source.acknowledge([])


@pytest.mark.quick
def test_addresses_come_back_as_they_were():
    for text in ("kafka://host:9092/orders?group=g", "kafkas://me@host:1/a.b?group=g&start=latest&lost=0%3A5"):
        assert str(BrokerAddress.parse(text)) == text
    address = BrokerAddress.parse("kafka://me@host/orders?mechanism=PLAIN")
    assert address.target_name == "kafka://host:9092/orders"
    assert not address.may_be(BrokerAddress.parse("amqp://host/topic/orders"))
    assert address.may_be(BrokerAddress.parse("kafka://host/orders?group=g"))


@pytest.mark.parametrize(
    ("bridged", "mode"),
    [("sqlite", Mode.EXACTLY_ONCE), ("postgresql", Mode.APP_CONTROLLED), ("postgresql", Mode.AT_LEAST_ONCE)],
    indirect=["bridged"],
)
def test_the_store_says_where_to_go_on_and_not_the_group(bridged, kafka, topic, mode):
    """If the group is set back, nothing comes twice. If the group is ahead, nothing is lost."""
    send(kafka, topic, numbered(20))
    bridged.run(mode=mode)
    ends = offsets_of_group(kafka, topic)
    assert sum(ends) == 20  # so figures of lag are right
    set_offsets_of_group(kafka, topic, 0, 0)
    send(kafka, topic, numbered(10, 20))
    bridged.run(mode=mode)
    assert bridged.numbers() == list(range(30))
    send(kafka, topic, numbered(10, 30))
    set_offsets_of_group(kafka, topic, 1_000, 1_000)
    assert bridged.run(mode=mode).receiver.figures().rDupsDet == 0
    assert bridged.numbers() == list(range(40))
    assert audit(bridged.store).findings == ()


def test_without_a_store_the_group_says_where_to_go_on(bridged, kafka, topic):
    send(kafka, topic, numbered(20))
    bridged.run(mode=Mode.BEST_EFFORT)
    send(kafka, topic, numbered(10, 20))
    bridged.run(mode=Mode.BEST_EFFORT)
    assert bridged.numbers() == list(range(30))


def test_what_is_sent_twice_is_a_duplicate(bridged, kafka, topic):
    send(kafka, topic, numbered(20))
    send(kafka, topic, numbered(20))
    assert bridged.run().receiver.figures().rDupsDet == 20
    assert bridged.numbers() == list(range(20))


@pytest.mark.quick
def test_two_groups_have_a_copy_each(bridged, kafka, topic):
    send(kafka, topic, numbered(5))
    bridged.run(group="g")
    assert bridged.numbers() == list(range(5))
    bridged.file = bridged.file.with_name("other.jsonl")
    bridged.run(group="h")
    assert bridged.numbers() == list(range(5))


@pytest.mark.quick
def test_two_groups_of_one_domain_are_refused(bridged, kafka, topic):
    """The second group would drop all messages as duplicates."""
    send(kafka, topic, numbered(5))
    first, second = (
        open_bridge(
            kafka.address(topic, group), f"file:{bridged.file}", bridged.store, BridgeOptions(connection_id=topic)
        )
        for group in "gh"
    )
    first.run(stop_when_idle_secs=0)
    with pytest.raises(SettingsError, match=f"its domain is one of {topic}.group=g, and drops"):
        second.run()


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.BEST_EFFORT])
def test_a_bridge_that_begins_at_the_end_keeps_that_at_once(bridged, kafka, topic, mode):
    send(kafka, topic, numbered(10))
    bridged.run(start="latest", mode=mode)
    send(kafka, topic, numbered(10, 10))
    bridged.run(start="latest", mode=mode)
    assert bridged.numbers() == list(range(10, 20))


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, quick(Mode.BEST_EFFORT)])
def test_a_partition_that_is_added_later_is_read_from_its_beginning(bridged, kafka, topic, mode):
    send(kafka, topic, numbered(10))
    bridged.run(start="latest", mode=mode)
    admin = kafka.admin()
    for done in admin.create_partitions([NewPartitions(topic, 5)]).values():
        done.result(SOON_SECS)
    until(lambda: kafka.leaders(topic) == 5)
    send(kafka, topic, numbered(20, 10))
    bridged.run(start="latest", mode=mode)
    assert bridged.numbers() == list(range(10, 30))


def delete_records(kafka, topic, *offsets):
    at = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    admin = kafka.admin()  # the name keeps it alive: its answers end with it
    for done in admin.delete_records(at).values():
        done.result(10)


@pytest.mark.parametrize("mode", [quick(Mode.EXACTLY_ONCE), Mode.BEST_EFFORT])
def test_what_retention_has_taken_is_loud_until_a_person_says_to_go_on(bridged, kafka, mode):
    bridged.topic = topic = kafka.new_topic(1)
    send(kafka, topic, numbered(10))
    bridged.run(mode=mode)
    send(kafka, topic, numbered(20, 10))
    delete_records(kafka, topic, 25)
    lost = "offsets 10 to 24 of partition 0 are gone before they were taken .&lost=0:25 "
    for options in ({}, {"lost": "0:24"}, {"lost": "1:25"}, {"start": "latest"}):
        with pytest.raises(MessagesLostError, match=lost):
            bridged.run(mode=mode, **options)
    bridged.run(mode=mode, lost="0:25")
    assert bridged.numbers() == [*range(10), *range(25, 30)]
    bridged.run(mode=mode)


def test_what_retention_takes_while_a_bridge_sleeps_is_loud_too(kafka):
    topic = kafka.new_topic(1)
    send(kafka, topic, numbered(10))
    source = source_of(kafka.address(topic, "g"))
    take_all(source)
    source._consumer.pause([TopicPartition(topic, 0)])
    send(kafka, topic, numbered(10, 10))
    delete_records(kafka, topic, 15)
    source._consumer.seek(TopicPartition(topic, 0, 10))
    source._consumer.resume([TopicPartition(topic, 0)])
    with pytest.raises(BrokerError):
        source.take(10, wait_secs=SOON_SECS)
    source.close()
    with source_of(kafka.address(topic, "g")) as source, pytest.raises(MessagesLostError, match="offsets 10 to 14"):
        source.take(10, wait_secs=SOON_SECS)


def test_a_beginning_is_kept_before_the_first_message(bridged, kafka, topic):
    """Otherwise messages that retention deletes before the first batch would be lost unseen."""
    bridged.run()
    send(kafka, topic, numbered(20))
    delete_records(kafka, topic, *offsets_behind(kafka, topic))
    with pytest.raises(MessagesLostError, match="offsets 0 to"):
        bridged.run()


def offsets_behind(kafka, topic):
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "g"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1] for number in range(2)]
    consumer.close()
    return ends


def test_a_topic_made_anew_is_loud(bridged, kafka, topic):
    send(kafka, topic, numbered(10))
    bridged.run()
    kafka.delete(topic)
    kafka.declare(topic, 2)
    send(kafka, topic, numbered(30, 10))
    with pytest.raises(MessagesLostError, match="deleted and created again"):
        bridged.run()


class KeptPositions(dict):
    """Positions in memory instead of a store."""

    others = staticmethod(set)

    def read(self):
        return self

    def begin(self, at):
        self.update(at | self)


def test_a_topic_made_anew_while_a_bridge_is_frozen_is_loud(kafka):
    """The new topic has more messages than were taken of the old one. So nothing else would show the change, and the
    first ten would be left out."""
    topic = kafka.new_topic(1)
    send(kafka, topic, numbered(10))
    with source_of(kafka.address(topic, "g")) as source:
        source.start(KeptPositions())
        take_all(source)
        source._consumer.pause([TopicPartition(topic, 0)])
        kafka.delete(topic)
        kafka.declare(topic, 1)
        send(kafka, topic, numbered(30, 10))
        source._consumer.resume([TopicPartition(topic, 0)])
        with pytest.raises(MessagesLostError, match="deleted and created again"):
            source.take(10, wait_secs=SOON_SECS)


def test_a_partition_that_has_lost_its_end_is_loud(bridged, kafka, topic):
    send(kafka, topic, numbered(10))
    bridged.run()
    execute(bridged.store, "UPDATE receiver_position SET position = :far WHERE length(name) = 1", far=b"1000")
    with pytest.raises(MessagesLostError, match="was taken up to 1,000"):
        bridged.run()


def test_without_a_store_another_group_goes_on_where_a_partition_has_lost_its_end(bridged, kafka, topic):
    set_offsets_of_group(kafka, topic, 1_000, 1_000)
    send(kafka, topic, numbered(10))
    with pytest.raises(MessagesLostError, match="was taken up to 1,000") as caught:
        bridged.run(mode=Mode.BEST_EFFORT)
    assert caught.value.hint == "name another group"
    bridged.run(mode=Mode.BEST_EFFORT, group="h")
    assert bridged.numbers() == list(range(10))


def test_a_partition_that_has_lost_its_end_and_grown_again_is_loud(sqlite_store, tmp_path):
    """Otherwise new messages at offsets that had been taken would never come."""
    with new_broker(kafka_module) as broker:
        broker.start()
        topic = broker.new_topic()
        bridged = Bridged(broker, topic, sqlite_store, tmp_path)
        for number in range(10):
            send(broker, topic, numbered(1, first=number))
        bridged.run()
        broker.stop()
        broker.lose_half(topic)
        broker.start()
        send(broker, topic, numbered(10, first=10))
        for _ in range(2):
            with pytest.raises(MessagesLostError, match="offset 9 of partition 0 now has another message") as caught:
                bridged.run()
        assert "&lost=0:10" in caught.value.hint
        bridged.run(lost="0:10")
    assert bridged.numbers() == [*range(10), *range(15, 20)]


@pytest.mark.quick
def test_another_message_where_the_last_one_was_is_loud(bridged, kafka):
    bridged.topic = kafka.new_topic()
    send(kafka, bridged.topic, numbered(10))
    bridged.run()
    execute(bridged.store, "UPDATE receiver_position SET position = :other WHERE length(name) = 1", other=b"10 7")
    send(kafka, bridged.topic, numbered(10, first=10))
    with pytest.raises(MessagesLostError, match="offset 9 of partition 0 now has another message"):
        bridged.run()
    bridged.run(lost="0:10")
    bridged.run()
    assert bridged.numbers() == list(range(20))


def send_in_transactions(kafka, topic, numbers):
    """Each in a transaction of its own, whose end has the offset behind it."""
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(SOON_SECS)
    for number in numbers:
        producer.begin_transaction()
        producer.produce(topic, str(number).encode())
        producer.commit_transaction(SOON_SECS)


@pytest.mark.quick
def test_no_message_where_the_last_one_was_is_loud_if_its_epoch_ended_before(bridged, kafka):
    """Compaction may drop that message. But where a partition has lost its end, the end of a transaction may have its
    offset: messages that were sent before that would be left out."""
    bridged.topic = kafka.new_topic()
    send_in_transactions(kafka, bridged.topic, range(10))
    bridged.run()
    position = "UPDATE receiver_position SET position = :at WHERE length(name) = 1"
    execute(bridged.store, position, at=b"20 0")
    bridged.run()
    send_in_transactions(kafka, bridged.topic, range(10, 20))
    assert bridged.run().receiver.figures().rDupsDet == 0  # what came before the partition was wound back isn't taken
    assert bridged.numbers() == list(range(20))
    execute(bridged.store, position, at=b"20 7")
    for _ in range(2):
        with pytest.raises(MessagesLostError, match="offset 19 of partition 0 now has another message"):
            bridged.run()
    assert bridged.numbers() == list(range(20))


def test_a_bridge_without_transactions_says_that_it_is_at_least_once(kafka, topic, sqlite_store, caplog):
    send(kafka, topic, [Message(body=b"1", properties={"uniqueMessageId": "1", "messageSourceId": "web"})])
    out = kafka.new_topic()
    to = kafka.address(out, transactions="no")
    bridge = open_bridge(kafka.address(topic, "g"), to, sqlite_store, BridgeOptions())
    bridge.run(stop_when_idle_secs=0)
    assert "this is at least once" in caplog.text
    with source_of(kafka.address(out, "g")) as source:
        (message,) = take_all(source)
    assert (message.properties["uniqueMessageId"], message.default_source) == ("1", "web")


def test_a_compacted_topic_is_warned_of_once(kafka, sqlite_store, caplog):
    """Kafka deletes messages of it without a sign, and the bridge can't know which."""
    from_, to = (kafka.new_topic(cleanup_policy=policy) for policy in ("compact", "delete,compact"))
    for _ in range(2):
        bridge = open_bridge(kafka.address(from_, "g"), kafka.address(to), sqlite_store, BridgeOptions())
        bridge.run(stop_when_idle_secs=0)
    said = [record.getMessage() for record in caplog.records if "is compacted" in record.getMessage()]
    assert [(to in text, "all but the last message of each messageSourceId" in text) for text in said] == [
        (True, True),
        (False, False),
    ]


def test_a_broker_that_says_nothing_of_compaction_is_used_all_the_same(kafka, topic, monkeypatch):
    """Other makes of Kafka may lack that setting."""
    nothing = Future()
    nothing.set_result({})
    monkeypatch.setattr(AdminClient, "describe_configs", lambda *_, **__: {topic: nothing})
    with source_of(kafka.address(topic, "g")), sink_of(kafka.address(topic)) as sink:
        sink.send(texts("a"))


def test_hosts_of_two_clusters_are_refused_in_one_line(kafka, topic, sqlite_store, tmp_path):
    with new_broker(kafka_module) as other:
        other.start()
        address = kafka.address(topic, "g").replace(kafka.servers, f"{kafka.servers},{other.servers}")
        bridge = open_bridge(address, f"file:{tmp_path / 'x'}", sqlite_store, BridgeOptions())
        said = f"isn't one cluster: {kafka.servers} is Kafka's cluster .*, {other.servers} is Kafka's cluster "
        with pytest.raises(SettingsError, match=said) as caught:
            bridge.run()
    assert "\n" not in str(caught.value)
