"""Turns to a real Kafka: readers at `read_committed` see each message once, in order per key, whatever happens in
between."""

import logging
import time
from contextlib import suppress
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from sqlalchemy import text

from receiver.bridge import Message, open_bridge, sink_of
from receiver.bridge.connectors import TurnForgottenError, kafka_sink, turn_sink_factory
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.kafka_message import encoded
from receiver.bridge.opening import BridgeOptions
from receiver.bridge.options import Mode
from receiver.durable.audit import audit
from receiver.errors import BrokerError, MessageRefusedError, MessageUnfitError, SettingsError
from receiver.settings import BridgeSettings
from receiver.store.upkeep import parked_rows, retry_parked
from tests.bridge import effects
from tests.bridge.bridged import DiedError, run_until
from tests.bridge.campaign import Event, Plan, perform
from tests.bridge.cluster_campaign import LogCampaign, Topic
from tests.brokers import kafka as kafka_nodes
from tests.brokers.cached import new_broker
from tests.patience import until
from tests.stores import engine_of, execute

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON_SECS = 60
KEY = "SELECT incarnation, target_id FROM receiver_domain JOIN receiver_target USING (domain_id)"
PARTITIONS = 2


@pytest.fixture
def topic(kafka):
    return kafka.new_topic(PARTITIONS)


@pytest.fixture
def out(kafka):
    return kafka.new_topic(PARTITIONS)


def turns(kafka, topic):
    make = turn_sink_factory(BrokerAddress.parse(kafka.address(topic)))
    assert make is not None
    return make()


def numbered(count, first=0):
    """Numbered messages from three sources by turns."""
    return [
        Message(
            body=b"%d" % number,
            is_text=True,
            properties={"uniqueMessageId": str(number), "messageSourceId": f"source {number % 3}"},
            default_source=f"source {number % 3}",
        )
        for number in range(first, first + count)
    ]


def send(kafka, topic, messages):
    with sink_of(kafka.address(topic)) as sink:
        sink.send(messages)


def bodies(kafka, topic, isolation="read_committed"):
    return [record.value().decode() for record in effects.records(kafka.servers, topic, isolation)]


def check_each_once(kafka, topic, numbers):
    """Check that the topic has each of these messages once, and those of each key in order."""
    found = effects.records(kafka.servers, topic)
    assert sorted(int(record.value()) for record in found) == sorted(numbers)
    by_key = {}
    for record in found:
        by_key.setdefault(record.key(), []).append(int(record.value()))
    assert all(own == sorted(own) for own in by_key.values())


def note_of_group(kafka, topic, group):
    """The group's offset and note, as the broker has them."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    (at,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    return at.offset, at.metadata


# The connector


def test_a_turn_and_its_note_are_there_together_and_in_order(kafka, topic):
    with turns(kafka, topic) as first:
        assert first.begin("a") is None
        assert first.send_turn(numbered(10), note="one", number=10)
        assert first.send_turn(numbered(10, 10), note="two", number=10**12)
    check_each_once(kafka, topic, range(20))
    with turns(kafka, topic) as second:
        assert second.begin("a") == "two"
        assert second.begin("b") is None
    assert note_of_group(kafka, topic, f"receiver-{topic}-a") == (10**12, "two")


@pytest.mark.quick
def test_whoever_begins_ends_the_turns_of_the_one_before(kafka, topic):
    with turns(kafka, topic) as first, turns(kafka, topic) as second:
        first.begin("a")
        assert first.send_turn(numbered(5), note="one", number=5)
        assert second.begin("a") == "one"
        for _ in range(2):
            assert not first.send_turn(numbered(5, 5), note="two", number=10)
        assert second.send_turn(numbered(5, 10), note="three", number=15)
        assert first.begin("a") == "three"
        assert first.send_turn([], note="three", number=15)
        assert not second.send_turn([], note="four", number=20)
    check_each_once(kafka, topic, [*range(5), *range(10, 15)])


def test_names_are_strangers_to_each_other(kafka, topic):
    with turns(kafka, topic) as one, turns(kafka, topic) as other:
        one.begin("a")
        other.begin("b")
        for number in range(3):
            assert one.send_turn(numbered(1, 2 * number), note=f"a{number}", number=1)
            assert other.send_turn(numbered(1, 2 * number + 1), note=f"b{number}", number=1)
        assert (one.begin("a"), other.begin("b")) == ("a2", "b2")
    check_each_once(kafka, topic, range(6))


@pytest.mark.parametrize("sent", ["messages", "note"])
def test_a_turn_that_its_sender_did_not_end_is_not_there(kafka, topic, sent):
    with turns(kafka, topic) as dead, turns(kafka, topic) as next_:
        dead.begin("a")
        dead.send_turn(numbered(5), note="one", number=5)
        dead._producer.begin_transaction()
        for number in range(5, 10):
            dead._producer.produce(topic, value=b"%d" % number)
        dead._producer.flush(SOON_SECS)
        if sent == "note":
            dead._send_note(dead._producer, "two", 10)
        assert next_.begin("a") == "one"
        assert next_.send_turn(numbered(5, 5), note="two", number=10)
    check_each_once(kafka, topic, range(10))
    assert len(bodies(kafka, topic, "read_uncommitted")) == 15


def test_an_orderly_end_ends_what_was_under_way_for_readers_too(kafka, topic):
    with turns(kafka, topic) as first:
        first.begin("a")
        first._producer.begin_transaction()
        first._producer.produce(topic, value=b"0", partition=0)
        first._producer.flush(SOON_SECS)
    began = time.monotonic()
    send(kafka, topic, numbered(5))
    check_each_once(kafka, topic, range(5))
    assert time.monotonic() - began < SOON_SECS


def test_a_message_that_is_too_large_takes_its_turn_along_and_nothing_else(kafka):
    topic = kafka.new_topic(1, max_message_bytes="10000")
    large = Message(body=b"x" * 100_000)
    with turns(kafka, topic) as sender:
        sender.begin("a")
        sender.send_turn(numbered(2), note="one", number=1)
        with pytest.raises(MessageRefusedError, match="refuses a message") as caught:
            sender.send_turn([*numbered(2, 2), large, *numbered(2, 4)], note="two", number=1)
        assert not isinstance(caught.value, MessageUnfitError)
        assert sender.begin("a") == "one"
        with pytest.raises(MessageUnfitError, match="refuses a message"):
            sender.send_turn([large], note="two", number=1)
        assert sender.begin("a") == "one"
        assert sender.send_turn(numbered(2, 2), note="two", number=1)
    check_each_once(kafka, topic, range(4))


def test_what_kafka_cannot_express_is_refused_before_anything_is_sent(kafka, topic):
    odd = Message(body=b"", properties={"a\0b": "x"})
    with turns(kafka, topic) as sender:
        sender.begin("a")
        with pytest.raises(MessageUnfitError, match="can't be sent by Kafka"):
            sender.send_turn([*numbered(1), odd], note="one", number=1)
        assert sender.send_turn(numbered(1), note="one", number=1)
    check_each_once(kafka, topic, [0])


def test_the_longest_note_and_the_least_number(kafka, topic):
    """The broker would leave out a note with a number below 0, because that is no offset. Concurrent receivers give
    such numbers."""
    note = "x" * 4_000
    with turns(kafka, topic) as sender:
        sender.begin("a")
        assert sender.send_turn(numbered(1), note=note, number=-(1 << 62))
        assert sender.begin("a") == note


def test_a_turn_that_takes_longer_than_the_broker_gives_it_is_not_there(kafka, topic, monkeypatch):
    """Every ten seconds, the broker looks for transactions that have lasted too long."""
    with turns(kafka, topic) as sender:
        sender.begin("a")  # the first begin takes longer
        with monkeypatch.context() as patch:
            patch.setitem(sender._config, "transaction.timeout.ms", 1_000)
            patch.setattr(kafka_sink, "ANSWER_SECS", 1)
            sender.begin("a")
        sender._producer.begin_transaction()
        sender._producer.produce(topic, value=b"late", partition=0)
        sender._producer.flush(SOON_SECS)
        time.sleep(15)
        with pytest.raises(KafkaException, match="fenced"):
            sender._producer.commit_transaction(SOON_SECS)
        assert sender.begin("a") is None
        assert sender.send_turn(numbered(1), note="one", number=1)
    check_each_once(kafka, topic, [0])


def test_a_broker_that_was_killed_is_begun_with_anew(kafka, topic):
    with turns(kafka, topic) as sender:
        sender.begin("a")
        sender.send_turn(numbered(1), note="one", number=1)
        kafka.kill()
        kafka.start()
        with suppress(BrokerError):
            sender.send_turn(numbered(1, 1), note="two", number=1)
    with turns(kafka, topic) as sender:
        note = sender.begin("a")
        assert sorted(bodies(kafka, topic)) == {"one": ["0"], "two": ["0", "1"]}[note]


@pytest.fixture
def apart():
    """Two nodes. The first decides how transactions end. The second has the notes and a topic `out`."""
    with new_broker(kafka_nodes, kafka_nodes.Apart) as nodes:
        nodes.start()
        nodes.declare("__transaction_state", node=1, cleanup_policy="compact")
        nodes.declare("__consumer_offsets", node=2, cleanup_policy="compact")
        nodes.declare("out", PARTITIONS, node=2, cleanup_policy="compact")
        yield nodes


@pytest.mark.quick
def test_a_turn_that_the_broker_forgot_to_end_is_abandoned_and_sent_again(apart, monkeypatch):
    """Kafka doesn't mark a transaction's end in partitions without a leader: it takes them for deleted. If its only
    node is killed as a transaction ends, no partition has a leader."""
    monkeypatch.setattr(kafka_sink, "ANSWER_SECS", 5)
    second = apart.nodes[1]
    with turns(apart, "out") as dead, turns(apart, "out") as next_:
        dead.begin("a")
        assert dead.send_turn(numbered(5), note="one", number=5)
        producer = dead._producer
        producer.begin_transaction()
        for message in numbered(5, 5):
            producer.produce("out", **encoded(message))
        assert producer.flush(SOON_SECS) == 0
        dead._send_note(producer, "two", 10)
        second.kill()
        until(lambda: apart.leaders("__consumer_offsets") == 0)
        producer.commit_transaction(SOON_SECS)
        apart.start(second)
        with pytest.raises(TurnForgottenError) as caught:
            next_.begin("a")
        assert caught.value.note == "one"
        next_.abandon_turn()
        assert next_.begin("a") == "one"
        assert next_.send_turn(numbered(5, 5), note="two", number=10)
    check_each_once(apart, "out", range(10))


@pytest.mark.quick
def test_a_turn_is_there_once_the_broker_has_marked_its_end(apart, monkeypatch):
    monkeypatch.setattr(kafka_sink, "ANSWER_SECS", 5)
    with turns(apart, "out") as sender:
        sender.begin("a")
        send_note = sender._send_note

        def sent_to_the_last(producer, *more):
            """Afterwards the node dies before the transaction ends."""
            send_note(producer, *more)
            assert producer.flush(SOON_SECS) == 0
            apart.nodes[1].kill()
            until(lambda: apart.leaders("__consumer_offsets") == 0)

        monkeypatch.setattr(sender, "_send_note", sent_to_the_last)
        with pytest.raises(BrokerError):
            sender.send_turn(numbered(5), note="one", number=5)


# Bridges from Kafka to Kafka


class Bridged:
    """Bridges from one topic to another, one after the other, through one store."""

    def __init__(self, kafka, topic, out, store):
        self.kafka, self.topic, self.out, self.store = kafka, topic, out, store

    def open(self, *, mode=Mode.EXACTLY_ONCE, group="g", duplicates_to=None, to=None, **settings):
        options = BridgeOptions(
            mode=mode, connection_id=self.topic, duplicates_to=duplicates_to, settings=BridgeSettings(**settings)
        )
        store = self.store if mode.keeps else None
        return open_bridge(self.kafka.address(self.topic, group), to or self.kafka.address(self.out), store, options)

    def run(self, **options):
        bridge = self.open(**options)
        bridge.run(stop_when_idle_secs=0)
        return bridge

    def run_until_sent(self, **options):
        """Run a bridge that dies between the two commits."""
        bridge = self.open(**options)
        target = bridge._target
        deliver = target.deliver

        def dying(messages, lease):
            deliver(messages, lease)
            raise DiedError

        target.deliver = dying
        with pytest.raises(DiedError):
            bridge.run(stop_when_idle_secs=0)

    def group(self):
        """The target's group."""
        with engine_of(self.store).connect() as connection:
            (key,) = connection.execute(text(KEY)).all()
        return f"receiver-{self.out}-{key[0]:x}-{key[1]}"


@pytest.fixture(params=["sqlite"])
def bridged(request, kafka, topic, out):
    return Bridged(kafka, topic, out, request.getfixturevalue(f"{request.param}_store"))


@pytest.mark.quick
def test_who_dies_between_the_two_commits_doubles_nothing(bridged, kafka, topic, out, caplog):
    send(kafka, topic, numbered(20))
    bridged.run_until_sent(max_batch_size=10)
    with caplog.at_level(logging.INFO, "receiver.bridge"):
        bridged.run(max_batch_size=10)
    check_each_once(kafka, out, range(20))
    assert "that were sent and not confirmed" in caplog.text
    assert "at least once" not in caplog.text
    assert audit(bridged.store).findings == ()


def test_who_slept_while_its_lease_went_to_another_sends_nothing(kafka, topic, out, postgresql_store):
    bridged = Bridged(kafka, topic, out, postgresql_store)
    send(kafka, topic, numbered(20))
    sleeper = bridged.open()
    deliver = sleeper._target.deliver

    def sleeping(messages, lease):
        sleeper._target.deliver = deliver
        backend = lease.connection.connection.driver_connection.info.backend_pid
        execute(postgresql_store, f"SELECT pg_terminate_backend({backend})")
        other = bridged.open()
        run_until(other, lambda: other.figures.delivered == 20)
        return deliver(messages, lease)

    sleeper._target.deliver = sleeping
    sleeper.run(stop_when_idle_secs=0)
    assert sleeper._target.deliver is deliver
    check_each_once(kafka, out, range(20))


def test_who_is_too_large_is_parked_and_the_others_go_once_and_in_order(bridged, kafka, topic):
    bridged.out = kafka.new_topic(PARTITIONS, max_message_bytes="10000")
    large = Message(body=b"x" * 100_000, properties={"uniqueMessageId": "large", "messageSourceId": "source 0"})
    send(kafka, topic, [*numbered(10), large, *numbered(10, 10)])
    bridge = bridged.run()
    check_each_once(kafka, bridged.out, range(20))
    assert (bridge.figures.delivered, bridge.figures.parked) == (20, 1)
    (row,) = [row for row in parked_rows(bridged.store) if row.domain == bridge.receiver.domain]
    assert "refuses a message" in row.error
    retry_parked(bridged.store, [row.parked_id])
    assert bridged.run().figures.parked == 1
    check_each_once(kafka, bridged.out, range(20))


def test_duplicates_that_are_kept_come_once_each_too(bridged, kafka, topic):
    duplicates = kafka.new_topic(PARTITIONS)
    send(kafka, topic, numbered(20))
    send(kafka, topic, numbered(20))
    bridged.run(duplicates_to=kafka.address(duplicates))
    bridged.run(duplicates_to=kafka.address(duplicates))
    check_each_once(kafka, bridged.out, range(20))
    check_each_once(kafka, duplicates, range(20))


@pytest.mark.parametrize(
    ("mode", "options"),
    [(Mode.EXACTLY_ONCE, {"transactions": "no"}), (Mode.AT_LEAST_ONCE, {}), (Mode.APP_CONTROLLED, {})],
)
def test_without_turns_there_is_no_group(bridged, caplog, mode, options):
    kafka, out = bridged.kafka, bridged.out
    send(kafka, bridged.topic, numbered(20))
    bridged.run(mode=mode, to=kafka.address(out, **options))
    check_each_once(kafka, out, range(20))
    admin = kafka.admin()  # the name keeps it alive: its answers end with it
    assert not any(out in group.group_id for group in admin.list_consumer_groups().result(10).valid)
    assert ("this is at least once" in caplog.text) == (mode is not Mode.AT_LEAST_ONCE)


def test_options_that_make_no_sense_are_refused(kafka, topic, out, sqlite_store):
    for from_, to, problem in (
        (kafka.address(topic, "g", transactions="no"), kafka.address(out), "transactions is for where messages go"),
        (kafka.address(topic, "g"), kafka.address(out, transactions="maybe"), "transactions is yes or no"),
        (kafka.address(topic, "g"), kafka.address(out, start="latest"), "start is for where messages come from"),
    ):
        with pytest.raises(SettingsError, match=problem):
            open_bridge(from_, to, sqlite_store).run(stop_when_idle_secs=0)


KILLS = {
    "quick": {Event.KILL: 2, Event.KILL_BROKER: 1},
    "small": {Event.KILL: 10, Event.KILL_BROKER: 2},
    "long": {Event.KILL: 100, Event.KILL_BROKER: 10},
}


@pytest.mark.scaled
@pytest.mark.parametrize("database", ["sqlite"])
def test_each_message_once_whoever_is_killed(kafka, mortal_store, size, seed):
    """Readers also see each source in order."""
    topic, out = kafka.new_topic(), kafka.new_topic(PARTITIONS)
    plan = Plan(target=kafka.address(out), events=KILLS[size])
    read = partial(effects.in_topic, kafka.servers, out)
    _, arrived = perform(plan, Topic(kafka, topic), mortal_store, seed, read, kind=LogCampaign)
    effects.check_order(arrived)
