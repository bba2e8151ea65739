"""What the tests on clusters rest on: nodes are killed, frozen, cut off and started again, and the others go on."""

import socket
import sys
import time
import uuid
from contextlib import closing

import pytest

from examples.demo.processes import HOST, Server, free_ports
from receiver.bridge import Message, sink_of, source_of
from tests.brokers.clients import SECS, Amqp, Kafka
from tests.brokers.cluster import Network, is_open, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTLES_SECS = 0.2
ECHOES = """
import socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""
ASKS = """
import socket, sys, time

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection, connection.makefile("rw") as lines:
    while True:
        print("hello", file=lines, flush=True)
        print(lines.readline(), end="", flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4()}"


@pytest.fixture
def network():
    network = Network()
    yield network
    network.close()


def launched(folder, name, program, port):
    node = Server(folder / name)
    node.launch([sys.executable, "-c", program, str(port)], lambda _: True)
    return node


@pytest.mark.quick
@pytest.mark.parametrize("away", ["asking", "asked"])
def test_who_is_cut_off_neither_hears_nor_is_heard_but_clients_reach_it(network, away, tmp_path):
    (port,) = free_ports(5000)
    asked = launched(tmp_path, "asked", ECHOES, port)
    until(lambda: is_open(port))
    seen = network.port_to(asked, port)
    network.start()
    asking = launched(tmp_path, "asking", ASKS, seen)
    try:
        until(lambda: "hello" in asking.said())
        network.cut_off({"asking": asking, "asked": asked}[away])
        time.sleep(SETTLES_SECS)
        said = asking.said()
        time.sleep(SETTLES_SECS)
        assert asking.said() == said
        with socket.create_connection((HOST, port)) as client:
            client.sendall(b"a client\n")
            assert client.recv(100) == b"a client\n"
        network.mend()
        until(lambda: len(asking.said()) > len(said))
    finally:
        asking.close()
        asked.close()


def sent(node, queue, body):
    with closing(Amqp(node, queue)) as client:
        client.send(body)


def taken(node, queue):
    with closing(Amqp(node, queue)) as client:
        return client.take()


def test_a_cluster_of_rabbitmq_goes_on_without_a_node(rabbitmq_cluster, name):
    nodes, queue = rabbitmq_cluster, f"/queues/{name}"
    nodes.nodes[0].declare(name, "quorum")
    for away, back in (
        (lambda node: node.kill(), nodes.start),
        (nodes.network.cut_off, lambda _: nodes.network.mend()),
        (nodes.freeze, nodes.thaw),
    ):
        leader = nodes.leader(name)
        sent(leader, queue, "10 EUR")
        away(leader)
        assert taken(nodes.leader(name), queue) == "10 EUR"
        back(leader)
        until(lambda back=leader: is_open(back.amqp_port))


def test_a_cluster_of_kafka_goes_on_without_a_node(kafka_cluster, name):
    nodes = kafka_cluster
    nodes.declare(name)
    client = Kafka(nodes, name)
    for away, back in (
        (lambda node: node.kill(), nodes.start),
        (nodes.network.cut_off, lambda _: nodes.network.mend()),
        (nodes.freeze, nodes.thaw),
    ):
        leader = nodes.leader(name)
        client.send("10 EUR")
        away(leader)
        until(lambda before=leader: nodes.leader(name) is not before)
        client.send("20 EUR")
        back(leader)
    assert client.take() == "10 EUR"


def test_the_backup_of_artemis_takes_over_and_gives_back(artemis_pair, name):
    pair = artemis_pair

    def sent(node, body):
        with sink_of(f"amqp://{HOST}:{node.amqp_port}/queue/{name}") as sink:
            sink.send([Message(body=body)])

    def taken(node):
        with source_of(f"amqp://{HOST}:{node.amqp_port}/queue/{name}") as source:
            (delivery,) = source.take(2, wait_secs=SECS)
            source.acknowledge([delivery])
            return delivery.message.body

    sent(pair.primary, b"10 EUR")
    pair.primary.kill()
    until(lambda: is_open(pair.backup.amqp_port))
    assert taken(pair.backup) == b"10 EUR"
    sent(pair.backup, b"20 EUR")
    pair.start(pair.primary)
    until(lambda: is_open(pair.primary.amqp_port))
    assert taken(pair.primary) == b"20 EUR"
    assert not is_open(pair.backup.amqp_port)
