"""Streams of a real RabbitMQ: each message takes effect once, by the position in the store, and losses are loud."""

import json
import time
import uuid
from dataclasses import replace

import pytest

from receiver.bridge import Message, open_bridge, sink_of, source_of
from receiver.bridge.connectors import amqp_stream, products
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.amqp_link import AmqpLink
from receiver.bridge.opening import BridgeOptions, Origin
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.probing import probe
from receiver.durable.audit import audit
from receiver.errors import BrokerRefusedError, MessagesLostError, SettingsError
from tests.bridge.mortal_bridge import MortalBridge
from tests.campaigns import survived
from tests.choosing import quick, scaled
from tests.patience import until
from tests.stores import execute

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOON_SECS = 60
PATIENCE_SECS = 300
SMALL = {"x_stream_max_segment_size_bytes": 4_000}
"""Segments with only a few messages."""
SHORT = SMALL | {"x_max_length_bytes": 20_000}
"""A stream that deletes its older messages."""
MESSAGES = {"quick": 500, "small": 1_500, "long": 12_000}
KILLS = {"quick": 1, "small": 3, "long": 100}


class Stream:
    """A stream, and bridges from it to a file, one after the other, through one store."""

    def __init__(self, rabbitmq, folder, **arguments):
        self.rabbitmq, self.file = rabbitmq, folder / "out.jsonl"
        self.name = f"stream-{uuid.uuid4().hex}"
        self.arguments = arguments
        self.declare()

    def declare(self):
        self.rabbitmq.declare(self.name, "stream", **self.arguments)

    def delete(self):
        with self.rabbitmq.connect() as connection:
            connection.channel().queue_delete(self.name)

    def address(self, **options):
        more = "&".join(f"{name}={value}" for name, value in options.items())
        return self.queue.replace("/queue/", "/stream/") + f"?{more}" * bool(more)

    @property
    def queue(self):
        return self.rabbitmq.address("amqp", self.name)

    def send(self, numbers, size=0):
        with sink_of(self.queue) as sink:
            sink.send([Message(body=f"{number} {'x' * size}".encode(), is_text=True) for number in numbers])

    def run(self, store, mode=Mode.EXACTLY_ONCE, **options):
        bridge = self.open(self.address(**options), store, mode=mode)
        bridge.run(stop_when_idle_secs=0)
        return bridge

    def open(self, from_, store, **options):
        return open_bridge(from_, f"file:{self.file}", store, BridgeOptions(connection_id=self.name, **options))

    def lines(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def numbers(self):
        """The numbers of the messages, in the order in which they took effect."""
        return [int(line["body"].partition(" ")[0]) for line in self.lines()]


@pytest.fixture
def stream(rabbitmq, tmp_path):
    return Stream(rabbitmq, tmp_path)


@pytest.fixture
def short_stream(rabbitmq, tmp_path):
    return Stream(rabbitmq, tmp_path, **SHORT)


def take_all(source):
    """Take and acknowledge all messages that are there."""
    taken, until = [], time.monotonic() + SOON_SECS
    while (more := source.take(7, wait_secs=0.3)) or source.is_settling:
        assert time.monotonic() < until
        source.acknowledge(more)
        taken += [delivery.message for delivery in more]
    return taken


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.APP_CONTROLLED, quick(Mode.EXACTLY_ONCE)])
def test_each_comes_once_and_in_order_from_bridge_to_bridge(stream, store, mode):
    """That holds although no message has an id, and the stream keeps them all."""
    stream.send(range(30))
    stream.run(store, mode)
    stream.run(store, mode)
    stream.send(range(30, 50))
    assert stream.run(store, mode).receiver.figures().rDupsDet == 0
    assert stream.numbers() == list(range(50))
    assert audit(store).findings == ()


def test_a_link_that_opens_before_anybody_waits_for_it_does_nothing_else_yet(stream, monkeypatch):
    """RabbitMQ soon ends a session that asks a stream for one message. Otherwise the answer might come too late."""
    start = AmqpLink._start

    def start_and_sleep(link, *arguments):
        start(link, *arguments)
        time.sleep(0.5)

    stream.send(range(30))
    monkeypatch.setattr(AmqpLink, "_start", start_and_sleep)
    with amqp_stream._Edge(BrokerAddress.parse(stream.address()), amqp_stream._FIRST) as edge:
        assert edge._granted == 0
        assert edge.offset() == 0


@pytest.mark.parametrize(("database", "bridges"), [("sqlite", 1), scaled("postgresql", 2)])
def test_each_takes_effect_once_through_kills(request, database, bridges, tmp_path, size):
    """Two bridges take the same messages, and both move one position."""
    url = request.getfixturevalue("sqlite_url" if database == "sqlite" else "fresh_postgres_url")
    stream = Stream(request.getfixturevalue("rabbitmq"), tmp_path, x_stream_max_segment_size_bytes=40_000)
    count = MESSAGES[size]
    lives = [
        MortalBridge(f"bridge-{number}", [stream.address(), f"file:{stream.file}", "--store", url])
        for number in range(bridges)
    ]
    try:
        for bridge in lives:
            bridge.start("--max-batch-size", "20")
        for kill in range(KILLS[size]):
            stream.send(range(kill * count // KILLS[size], (kill + 1) * count // KILLS[size]))
            wait_for(stream, kill * count // KILLS[size] + 1, lives)
            bridge = lives[kill % bridges]
            bridge.kill()
            bridge.start("--max-batch-size", "20")
        wait_for(stream, count, lives)
        for bridge in lives:
            bridge.kill()
        lives[0].start("--stop-when-idle", "0.5")
        lives[0].ends_in()
    finally:
        for bridge in lives:
            bridge.kill()
    assert stream.numbers() == list(range(count))
    assert audit(url).findings == ()
    survived({"kills -9 of bridges": KILLS[size]}, count)


def wait_for(stream, count, lives):
    until = time.monotonic() + PATIENCE_SECS
    while not stream.file.exists() or stream.file.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until, "\n".join(bridge.last_words() for bridge in lives)
        for bridge in lives:
            if bridge.has_refused():
                bridge.start("--max-batch-size", "20")
        time.sleep(0.02)


def test_a_bridge_hands_nothing_on_that_another_took_meanwhile(stream, store, caplog):
    stream.send(range(20))
    sources = []

    def connect():
        source = source_of(stream.address())
        take, is_first = source.take, not sources
        sources.append(source)

        def taking(at_most, *, wait_secs):
            taken = take(at_most, wait_secs=wait_secs)
            if is_first and taken and len(sources) == 1:
                sources.append(source)
                stream.run(store)
            return taken

        source.take = taking
        return source

    stream.open(Origin(connect, stream.name, f"queue://{stream.name}"), store).run(stop_when_idle_secs=0)
    assert stream.numbers() == list(range(20))
    assert len(sources) > 2
    assert "another has gone on" in caplog.text


def test_offsets_that_hold_no_message_are_passed(rabbitmq, tmp_path, sqlite_store, caplog):
    """RabbitMQ puts an entry of its own at the head of each segment."""
    stream = Stream(rabbitmq, tmp_path, **SMALL)
    for number in range(40):
        stream.send([number], 1_000)
    stream.run(sqlite_store)
    stream.send(range(40, 50), 1_000)
    stream.run(sqlite_store)
    assert stream.numbers() == list(range(50))
    assert "AMQP gets no messages" not in caplog.text


def test_ids_are_offsets_where_no_property_says_otherwise(stream):
    with stream.rabbitmq.connect() as connection:
        for body in (b"a", b"b"):
            connection.channel().basic_publish("", stream.name, body)
    with sink_of(stream.queue) as sink:
        sink.send([Message(body=b"c", properties={"uniqueMessageId": "7", "messageSourceId": "shop"})])
    with source_of(stream.address()) as source:
        arrived = take_all(source)
    ids = [IdRule().ids_of(message) for message in arrived]
    assert ids == [(f"{stream.name}-0", None), (f"{stream.name}-1", None), ("7", "shop")]


@pytest.mark.parametrize("before", [0, 10])
def test_a_bridge_that_begins_at_the_end_keeps_that_at_once(stream, store, before):
    stream.send(range(before))
    stream.run(store, start="latest")
    stream.send(range(before, before + 10))
    stream.run(store, start="latest")
    stream.run(store, start="earliest")
    assert stream.numbers() == list(range(before, before + 10))


def lost(stream, store, **options):
    """The offset to go on at, once retention deletes no more."""
    errors = [None]
    while len(errors) < 3 or errors[-1] != errors[-2]:
        with pytest.raises(MessagesLostError, match="are gone before they were taken") as caught:
            stream.run(store, **options)
        errors.append(str(caught.value))
        time.sleep(0.2)
    return int(caught.value.hint.partition("lost=")[2].split()[0])


def send_beyond_retention(stream, numbers):
    """Send more messages than retention keeps, and wait until it has deleted. The messages that stay have offsets
    above their numbers, because RabbitMQ adds entries of its own."""
    with sink_of(stream.queue) as sink:
        for number in numbers:  # otherwise all would be in one segment
            sink.send([Message(body=f"{number} {'x' * 1_000}".encode(), is_text=True)])
    until(lambda: first_offset(stream) >= numbers[-1])


def first_offset(stream):
    with amqp_stream._Edge(BrokerAddress.parse(stream.address()), "first") as edge:
        return edge.offset()


@pytest.mark.quick
def test_what_retention_has_taken_is_loud_until_a_person_says_to_go_on(short_stream, store):
    stream = short_stream
    stream.send(range(10))
    stream.run(store)
    send_beyond_retention(stream, range(10, 110))
    offset = lost(stream, store)
    assert lost(stream, store, start="latest") == offset
    assert lost(stream, store, lost=offset - 1) == offset
    assert stream.numbers() == list(range(10))
    stream.run(store, lost=offset)
    numbers = stream.numbers()
    assert numbers[:10] == list(range(10))
    assert 20 < numbers[10] <= 109
    assert numbers[10:] == list(range(numbers[10], 110))
    stream.send(range(110, 115))
    stream.run(store)
    assert stream.numbers() == [*numbers, *range(110, 115)]


def test_a_beginning_is_kept_before_the_first_message(short_stream, sqlite_store):
    """Otherwise messages that retention deletes before the first batch would be lost unseen."""
    short_stream.run(sqlite_store)
    send_beyond_retention(short_stream, range(100))
    assert lost(short_stream, sqlite_store) > 20


def test_what_retention_takes_while_a_bridge_sleeps_is_loud_too(short_stream, monkeypatch):
    few = replace(products.RABBITMQ, amqp=replace(products.RABBITMQ.amqp, prefetch=10))
    monkeypatch.setattr(products, "KNOWN", (few,))
    short_stream.send(range(10))
    with source_of(short_stream.address()) as source:
        assert len(take_all(source)) == 10
        send_beyond_retention(short_stream, range(10, 310))
        with pytest.raises(MessagesLostError, match="are gone before they were taken"):
            take_all(source)


def test_a_stream_made_anew_is_loud(stream, sqlite_store, monkeypatch):
    stream.send(range(10))
    stream.run(sqlite_store)
    stream.delete()
    stream.declare()
    stream.send(range(10, 15))
    monkeypatch.setattr(amqp_stream, "ANSWER_SECS", 0.5)
    with pytest.raises(MessagesLostError, match="ends before offset 10, where the bridge had come to"):
        stream.run(sqlite_store)
    assert stream.numbers() == list(range(10))


@pytest.mark.parametrize("digest", [True, False], ids=["", "by a position of an older version"])
def test_a_stream_made_anew_is_loud_where_it_has_more_than_was_taken(stream, sqlite_store, digest):
    """Its offsets belong to other messages. The first ten of these would be left out."""
    stream.send(range(10))
    stream.run(sqlite_store)
    if not digest:
        execute(sqlite_store, "UPDATE receiver_position SET position = CAST('10' AS BLOB)")
        stream.run(sqlite_store)
        stream.send(range(100, 101))
        stream.run(sqlite_store)
    taken = stream.numbers()
    stream.delete()
    stream.declare()
    stream.send(range(20, 40))
    wanted = len(taken)
    with pytest.raises(MessagesLostError, match=rf"offset {wanted - 1} now has another message.*lost={wanted} behind"):
        stream.run(sqlite_store)
    assert stream.numbers() == taken
    stream.run(sqlite_store, lost=wanted)
    assert stream.numbers() == [*taken, *range(20 + wanted, 40)]


def test_a_broker_that_is_slow_has_lost_nothing(stream, monkeypatch):
    stream.send(range(10))
    with source_of(stream.address()) as source:
        take_all(source)
        source.close()  # so that the next take attaches another reader
        monkeypatch.setattr(amqp_stream, "ANSWER_SECS", -1.0)
        monkeypatch.setattr(amqp_stream._Reader, "take", lambda *_, **__: [])
        assert source.take(1, wait_secs=0) == []
        monkeypatch.undo()
        stream.send(range(10, 12))
        assert [message.body[:2] for message in take_all(source)] == [b"10", b"11"]


def test_a_stream_that_is_called_a_queue_is_refused_and_a_queue_that_is_called_a_stream(stream):
    with pytest.raises(BrokerRefusedError, match=f"is a stream, .*write amqp://guest@.*/stream/{stream.name}"):
        source_of(stream.queue)
    classic = f"classic-{uuid.uuid4().hex}"
    stream.rabbitmq.declare(classic)
    address = stream.rabbitmq.address("amqp", classic)
    with pytest.raises(BrokerRefusedError, match=r"is a classic queue and no stream .write amqp://guest@.*/queue/"):
        source_of(address.replace("/queue/", "/stream/"))
    with source_of(address):
        pass
    with pytest.raises(
        BrokerRefusedError, match=r"not found .make the stream first: rabbitmqadmin .*queue_type=stream"
    ):
        source_of(address.replace(f"/queue/{classic}", "/stream/nowhere"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": "now"}, "start is earliest or latest"),
        ({"lost": "0:5"}, "lost is an OFFSET"),
        ({"lost": "9" * 5_000}, "lost is an OFFSET"),
        ({"selector": "a"}, "after \\? only start=earliest\\|latest, lost=OFFSET and vhost=NAME"),
        ({"subscription": "a"}, "after \\? only"),
    ],
)
def test_options_that_make_no_sense_are_refused(stream, options, problem):
    with pytest.raises(SettingsError, match=problem):
        source_of(stream.address(**options))


def test_a_stream_is_no_target_and_takes_no_part_without_a_store(stream):
    with pytest.raises(SettingsError, match=r"isn't named as a stream .write /queue/NAME"):
        sink_of(stream.address())
    with pytest.raises(SettingsError, match="BEST_EFFORT can't keep its position"):
        stream.open(stream.address(), None, mode=Mode.BEST_EFFORT)
    with pytest.raises(SettingsError, match="go on from a position"):
        probe(BrokerAddress.parse(stream.address()))
    with pytest.raises(SettingsError, match="is both source and target"):
        open_bridge(stream.address(), stream.queue, "sqlite:///never.db")
