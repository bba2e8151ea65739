"""Several hosts in an address: which is connected to, which is next, and what is said of a list that is no cluster."""

import logging
import socket
import threading
from collections import Counter
from copy import copy

import pytest

from receiver.bridge.connectors.address import BrokerAddress, Node
from receiver.bridge.connectors.nodes import ConnectionFactory, Nodes
from receiver.errors import BrokerError, BrokerRefusedError, MessagesLostError, SettingsError

A, B, C = (Node(name, 5672) for name in "abc")
ADDRESS = BrokerAddress.parse("amqp://a,b,c/queue/orders")


class Cluster:
    """Nodes that are up, or else fail by an error; all of one product unless it is said."""

    def __init__(self, **errors):
        self.errors = errors
        self.products = {}
        self.tried = []
        self.asked = Counter()

    def make(self, address):
        self.tried.append(address.host)
        if address.host in self.errors:
            raise self.errors[address.host]
        return address

    def identity_at(self, address):
        self.asked[address.host] += 1
        if type(self.errors.get(address.host)) in {BrokerError, BrokerRefusedError}:
            raise self.errors[address.host]
        return self.products.get(address.host, "RabbitMQ")

    def factory(self, address=ADDRESS):
        return ConnectionFactory(Nodes(address, self.identity_at), self.make)


def down(host):
    return BrokerError(f"{host} can't be reached", hint="check that it runs")


def refused(host):
    return BrokerRefusedError(f"{host} refuses", hint="check the password")


def test_the_first_that_serves_is_taken():
    connect = Cluster(a=down("a")).factory()
    assert connect() == ADDRESS.at(B)
    assert (connect.nodes.at, connect.nodes.changes) == (B, 0)


def test_after_a_loss_the_next_ones_are_tried_first_even_if_the_lost_one_takes_connections():
    cluster = Cluster()
    connect = cluster.factory()
    assert [connect().host for _ in range(4)] == ["a", "b", "c", "a"]
    cluster.errors = {"b": down("b"), "c": down("c")}
    assert connect().host == "a"
    assert (connect.nodes.at, connect.nodes.changes) == (A, 3)


def test_each_change_of_node_is_warned_of_once(caplog):
    cluster = Cluster()
    first = cluster.factory()
    consumers = [copy(first) for _ in range(3)]
    for consumer in consumers:
        consumer()
    cluster.errors["a"] = down("a")
    for consumer in consumers:
        assert consumer().host == "b"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"{ADDRESS}: goes on at b:5672, no longer at a:5672"]
    assert first.nodes.changes == 1


def test_where_others_have_gone_one_goes_too():
    """They share what is known of the nodes, and each knows which it has lost."""
    connect = Cluster().factory()
    one, other = copy(connect), copy(connect)
    assert (one().host, other().host) == ("a", "a")
    assert (one().host, other().host) == ("b", "b")


def test_a_node_that_refuses_is_no_reason_to_end_while_another_may_come_back():
    with pytest.raises(BrokerError) as caught:
        Cluster(a=refused("a"), b=down("b"), c=refused("c")).factory()()
    assert type(caught.value) is BrokerError
    assert caught.value.message == "a refuses; b can't be reached; c refuses"


def test_all_that_refuse_refuse():
    with pytest.raises(BrokerRefusedError, match="a refuses; b refuses; c refuses") as caught:
        Cluster(a=refused("a"), b=refused("b"), c=refused("c")).factory()()
    assert caught.value.hint == "check the password"


@pytest.mark.parametrize("error", [SettingsError("no"), MessagesLostError("they are gone")])
def test_what_no_other_node_would_mend_is_said_at_once(error):
    cluster = Cluster()
    connect = cluster.factory()
    cluster.errors["a"] = error
    with pytest.raises(type(error)):
        connect()
    assert cluster.tried == ["a"]


def test_one_host_is_connected_to_without_a_look():
    cluster = Cluster()
    alone = BrokerAddress.parse("amqp://a/queue/orders")
    connect = cluster.factory(alone)
    assert [connect(), connect()] == [alone, alone]
    assert (cluster.asked, connect.nodes.at, connect.nodes.changes) == (Counter(), A, 0)
    cluster.errors["a"] = error = down("a")
    with pytest.raises(BrokerError) as caught:
        connect()
    assert caught.value is error


def test_hosts_of_several_products_are_refused_before_anything_is_taken():
    cluster = Cluster()
    cluster.products["c"] = "ActiveMQ Artemis"
    why = "isn't one cluster: a:5672 is RabbitMQ, b:5672 is RabbitMQ, c:5672 is ActiveMQ Artemis"
    with pytest.raises(SettingsError, match=why):
        cluster.factory()()
    assert cluster.tried == []


def test_a_host_of_another_product_that_was_away_at_first_is_refused_when_its_turn_comes():
    cluster = Cluster(b=down("b"))
    cluster.products["b"] = "ActiveMQ Artemis"
    connect = cluster.factory()
    assert connect().host == "a"
    cluster.errors = {}
    with pytest.raises(SettingsError, match="isn't one cluster"):
        connect()
    assert cluster.tried == ["a"]


def test_all_are_asked_once_and_at_once():
    together = threading.Barrier(3, timeout=10)
    cluster = Cluster()
    identity_at = cluster.identity_at
    cluster.identity_at = lambda address: (together.wait(), identity_at(address))[1]
    connect = cluster.factory()
    for _ in range(3):
        connect()
    assert cluster.asked == {"a": 1, "b": 1, "c": 1}


def test_who_does_not_answer_soon_is_asked_when_it_is_connected_to(monkeypatch):
    monkeypatch.setattr("receiver.bridge.connectors.nodes._LOOKS_SECS", 0.05)
    cluster, answers = Cluster(), threading.Event()
    identity_at = cluster.identity_at
    cluster.identity_at = lambda address: (address.host != "c" or answers.wait(10), identity_at(address))[1]
    connect = cluster.factory()
    assert connect().host == "a"
    cluster.products["c"] = "ActiveMQ Artemis"
    answers.set()
    with pytest.raises(SettingsError, match="isn't one cluster"):
        _ = [connect() for _ in range(2)]  # at the latest when it is connected to


def test_a_name_that_stands_for_nothing_is_said_in_one_line(caplog):
    unknown = down("b")
    unknown.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert Cluster(b=unknown, c=down("c")).factory()().host == "a"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "b can't be reached (check that it runs)"
    ]


def test_kafkas_client_gets_all_hosts_at_once():
    cluster, address = Cluster(), BrokerAddress.parse("kafka://a,b/orders?group=g")
    connect = cluster.factory(address)
    assert connect() == address
    assert connect.nodes.at is None
    assert cluster.asked == {"a": 1, "b": 1}
