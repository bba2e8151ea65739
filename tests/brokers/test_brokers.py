"""What the other tests of real brokers rest on: each keeps what is durable through kill -9, at the same address."""

import queue
import uuid
from importlib import import_module

import pytest
import stomp
from confluent_kafka import Consumer, Producer
from proton import Message
from proton.utils import BlockingConnection

from examples.demo.processes import HOST
from receiver.errors import MissingProgramError

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECS = 60


class Amqp:
    """What any AMQP 1.0 client does; `node` is the product's own name of a queue."""

    def __init__(self, broker, node):
        self.node = node
        self.connection = BlockingConnection(
            f"amqp://{HOST}:{broker.amqp_port}", SECS, user=broker.user, password=broker.password
        )

    def send(self, body):
        self.connection.create_sender(self.node).send(Message(body, durable=True))

    def take(self):
        receiver = self.connection.create_receiver(self.node)
        body = receiver.receive(SECS).body
        receiver.accept()
        return body

    def close(self):
        self.connection.close()


class Stomp:
    """What any STOMP client does."""

    def __init__(self, broker, node):
        self.node = node
        self.arrived = queue.Queue()
        self.connection = stomp.Connection12([(HOST, broker.stomp_port)], vhost="/")
        self.connection.set_listener("", self)
        self.connection.connect(broker.user, broker.password, wait=True)

    def send(self, body):
        self.connection.send(self.node, body, headers={"persistent": "true", "receipt": "sent"})
        assert self.arrived.get(timeout=SECS) == "sent"

    def take(self):
        self.connection.subscribe(self.node, "1", ack="client-individual")
        frame = self.arrived.get(timeout=SECS)
        self.connection.ack(frame.headers["ack"], receipt="taken")
        assert self.arrived.get(timeout=SECS) == "taken"
        return frame.body

    def close(self):
        self.connection.disconnect()

    def on_message(self, frame):
        self.arrived.put(frame)

    def on_receipt(self, frame):
        self.arrived.put(frame.headers["receipt-id"])

    def __getattr__(self, name):
        """Nothing else that stomp.py calls back is of interest."""
        if name.startswith("on_"):
            return lambda *_: None
        raise AttributeError(name)


class Kafka:
    """What any client of Kafka does."""

    def __init__(self, broker, node):
        self.node = node
        self.to = {"bootstrap.servers": broker.servers}

    def send(self, body):
        producer = Producer(self.to | {"acks": "all"})
        producer.produce(self.node, body)
        assert producer.flush(SECS) == 0

    def take(self):
        consumer = Consumer(self.to | {"group.id": self.node, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.node])
        message = consumer.poll(SECS)
        consumer.close()
        assert message.error() is None
        return message.value().decode()

    def close(self):
        pass


def check_kept_through_a_kill(broker, *ways):
    """By each way, a client and the name of a queue to it, a message is sent before and taken after."""
    for client, node in ways:
        client(broker, node).send(f"10 EUR to {node}")
    broker.kill()
    broker.start()
    for client, node in ways:
        taker = client(broker, node)
        try:
            assert taker.take() == f"10 EUR to {node}"
        finally:
            taker.close()


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4()}"


def test_rabbitmq_keeps_messages(rabbitmq, name):
    for kind in ("classic", "quorum"):
        rabbitmq.declare(f"{name}-{kind}", kind)
    ways = [(Amqp, f"/queues/{name}-classic"), (Amqp, f"/queues/{name}-quorum"), (Stomp, f"/queue/{name}")]
    check_kept_through_a_kill(rabbitmq, *ways)


def test_rabbitmq_stops_and_starts(rabbitmq, name):
    rabbitmq.declare(name, "stream")
    rabbitmq.stop()
    rabbitmq.start()
    assert f"{name}\tstream" in rabbitmq.ctl("list_queues", "name", "type")


def test_classic_keeps_messages(classic, name):
    check_kept_through_a_kill(classic, (Amqp, f"queue://{name}-amqp"), (Stomp, f"/queue/{name}-stomp"))


def test_qpid_keeps_a_message(qpid, name):
    check_kept_through_a_kill(qpid, (Amqp, name))


def test_kafka_keeps_a_message(kafka, name):
    kafka.declare(name, partitions=2)
    check_kept_through_a_kill(kafka, (Kafka, name))


@pytest.mark.quick
@pytest.mark.parametrize("product", ["rabbitmq", "classic", "qpid", "kafka"])
def test_without_its_programs_it_can_not_be_fetched_and_leaves_nothing(product, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingProgramError, match=r"debootstrap|root|Java"):
        import_module(f"tests.brokers.{product}").fetch(tmp_path / "cache")
    assert list(tmp_path.rglob("*/*")) == []
