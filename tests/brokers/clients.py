"""Clients that share no code with the bridge."""

import queue

import stomp
from confluent_kafka import Consumer, Producer
from proton import Message
from proton.utils import BlockingConnection

from examples.demo.processes import HOST

SECS = 120


class Amqp:
    """What any AMQP 1.0 client does. `node` is the product's own name of a queue."""

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
