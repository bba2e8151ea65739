"""The basis of the tests on clusters: nodes are killed, frozen, cut off and started again, and the others go on."""

import socket
import sys
import time
import uuid
from contextlib import closing

import pytest

from examples.demo.processes import HOST, Server, free_ports
from receiver.bridge import Message, sink_of, source_of
from tests.brokers.artemis_pair import running
from tests.brokers.clients import Amqp, Kafka
from tests.brokers.cluster import Network, is_open
from tests.patience import until

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


@pytest.fixture
def lockless_pair(artemis_home):
    with running(artemis_home, has_locks=False) as pair:
        yield pair


def address(node, queue):
    return f"amqp://{HOST}:{node.amqp_port}/queue/{queue}"


def send(node, queue, *bodies):
    with sink_of(address(node, queue)) as sink:
        sink.send([Message(body=body.encode()) for body in bodies])


def waiting(node, queue):
    """The messages in the queue, which stay there."""
    taken: list[str] = []
    with source_of(address(node, queue)) as source:
        while more := source.take(10, wait_secs=1):
            taken += [each.message.body.decode() for each in more]
    return taken


def test_the_backup_of_artemis_takes_over_and_gives_back(artemis_pair, name):
    pair = artemis_pair
    send(pair.primary, name, "10 EUR")
    pair.primary.kill()
    until(lambda: pair.backup.is_active)
    assert waiting(pair.backup, name) == ["10 EUR"]
    send(pair.backup, name, "20 EUR")
    pair.start(pair.primary)
    until(lambda: pair.primary.is_active)
    assert waiting(pair.primary, name) == ["10 EUR", "20 EUR"]
    assert not pair.backup.is_active


def test_without_locks_both_of_artemis_serve_at_once_and_what_one_confirmed_is_lost(lockless_pair, name):
    """Both serve as soon as they don't hear each other. Messages that both have come twice, until one broker follows
    the other again."""
    pair = lockless_pair
    send(pair.primary, name, "10 EUR")
    pair.network.cut_off(pair.primary)
    until(lambda: pair.backup.is_active)
    send(pair.primary, name, "20 EUR")
    send(pair.backup, name, "30 EUR")
    assert (waiting(pair.primary, name), waiting(pair.backup, name)) == (["10 EUR", "20 EUR"], ["10 EUR", "30 EUR"])
    pair.network.mend()
    pair.primary.stop()
    pair.start(pair.primary)
    pair.settle()
    assert waiting(pair.primary, name) == ["10 EUR", "30 EUR"]
