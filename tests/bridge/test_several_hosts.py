"""A bridge with several hosts in its addresses. One broker behind two proxies stands for the nodes of a cluster."""

import json
import threading
import uuid
from contextlib import ExitStack

import pytest

from examples.demo.processes import HOST
from receiver.bridge import open_bridge, sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress, Node
from receiver.bridge.opening import BridgeOptions
from receiver.bridge.probing import Ending, probe
from receiver.durable.audit import look
from receiver.errors import SettingsError
from tests.bridge.bridged import message
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.conftest import CONNECTORS, address_of
from tests.patience import until

pytestmark = [pytest.mark.artemis, pytest.mark.slow]


@pytest.fixture
def hosts(running_artemis, protocol):
    with ExitStack() as opened:
        port = getattr(running_artemis, f"{protocol}_port")
        yield [opened.enter_context(broker_proxy(port)) for _ in range(2)]


@pytest.fixture
def address(hosts, protocol):
    """The address of a new queue, with both hosts."""
    listed = ",".join(f"{HOST}:{proxy.port}" for proxy in hosts)
    return f"{protocol}://{listed}/queue/orders-{uuid.uuid4().hex}"


def send(address, *bodies):
    with sink_of(address) as sink:
        sink.send([message(body, "desk") for body in bodies])


def bodies(file):
    return [json.loads(line)["body"] for line in file.read_text().splitlines()] if file.exists() else []


def lose(proxy):
    proxy.reachable = False
    proxy.cut()


@pytest.mark.quick
def test_a_bridge_goes_on_at_another_host(address, hosts, sqlite_url, tmp_path, caplog):
    """Its source and its target lose their host, and yet neither is made anew."""
    file, first, second = tmp_path / "out.jsonl", *(Node(HOST, proxy.port) for proxy in hosts)
    bridge = open_bridge(address, f"file:{file}", sqlite_url, BridgeOptions())
    running = threading.Thread(target=bridge.run)
    running.start()
    try:
        send(address, "1")
        until(lambda: bodies(file) == ["1"])
        (at_first,) = look(sqlite_url).domains[0].nodes
        lose(hosts[0])
        send(address, "2")
        until(lambda: bodies(file) == ["1", "2"])
    finally:
        bridge.stop()
        running.join()
    nodes = bridge.figures.nodes["source"]
    assert (nodes.at, nodes.changes) == (second, 1)
    (at_last,) = look(sqlite_url).domains[0].nodes
    assert (at_first.node, at_last.node, at_last.address) == (str(first), str(second), address)
    assert bridge.receiver.domain.startswith(f"{HOST}\\:{first.port},{HOST}\\:{second.port}:queue://orders-")
    changes = [record.getMessage() for record in caplog.records if "no longer at" in record.getMessage()]
    assert changes == [f"{address}: goes on at {second}, no longer at {first}"]


@pytest.mark.quick
def test_a_target_goes_on_at_another_host(address, hosts, sqlite_url, running_artemis, protocol):
    """It sends unconfirmed messages again with the same `_AMQ_DUPL_ID`, whichever host they go to."""
    source = str(address_of(running_artemis, protocol, f"queue/in-{uuid.uuid4().hex}"))
    bridge = open_bridge(source, address, sqlite_url, BridgeOptions())
    running = threading.Thread(target=bridge.run)
    running.start()
    try:
        send(source, *map(str, range(20)))
        until(lambda: bridge.figures.delivered == 20)
        lose(hosts[0])
        send(source, *map(str, range(20, 40)))
        until(lambda: bridge.figures.delivered == 40)
        until(lambda: [row.node for row in look(sqlite_url).domains[0].nodes] == [f"{HOST}:{hosts[1].port}"])
    finally:
        bridge.stop()
        running.join()
    with source_of(address) as taking:
        taken = taking.take(100, wait_secs=10)
        while len(taken) < 40:
            taken += taking.take(100, wait_secs=10)
        assert sorted(int(each.message.body) for each in taken) == list(range(40))
        assert taking.take(1, wait_secs=0.3) == []


def test_who_takes_connections_and_ends_them_keeps_nobody_from_another(address, hosts, sqlite_url, tmp_path):
    file = tmp_path / "out.jsonl"
    send(address, "1")
    lose(hosts[0])  # its port takes connections and ends them at once
    bridge = open_bridge(address, f"file:{file}", sqlite_url, BridgeOptions())
    bridge.run(stop_when_idle_secs=0)
    assert bodies(file) == ["1"]


def test_a_name_that_stands_for_nothing_is_warned_of_in_one_line(address, hosts, sqlite_url, tmp_path, caplog):
    file, misspelt = tmp_path / "out.jsonl", address.replace(f"{HOST}:{hosts[0].port}", "no-such-host.invalid:1")
    send(address, "1")
    open_bridge(misspelt, f"file:{file}", sqlite_url, BridgeOptions()).run(stop_when_idle_secs=0)
    assert bodies(file) == ["1"]
    (warning,) = [said for record in caplog.records if "no-such-host" in (said := record.getMessage())]
    assert "no-such-host.invalid:1" in warning
    assert "can't be reached" in warning
    assert "\n" not in warning


def test_a_probe_keeps_to_one_host(address, hosts):
    lose(hosts[0])
    seen = probe(BrokerAddress.parse(address), messages=100, endings=[Ending.CLOSED])
    assert f"{HOST}:{hosts[1].port}/" in seen.address
    assert f":{hosts[0].port}" not in seen.address


@pytest.mark.broker
@pytest.mark.parametrize("protocol", CONNECTORS)
def test_hosts_of_two_products_are_refused_in_one_line(running_artemis, rabbitmq, protocol, tmp_path, sqlite_url):
    name = f"orders-{uuid.uuid4().hex}"
    rabbitmq.declare(name)
    ports = [getattr(broker, f"{protocol}_port") for broker in (rabbitmq, running_artemis)]
    listed = ",".join(f"{HOST}:{port}" for port in ports)
    bridge = open_bridge(f"{protocol}://guest:guest@{listed}/queue/{name}", f"file:{tmp_path / 'x'}", sqlite_url)
    said = rf"isn't one cluster: {HOST}:{ports[0]} is RabbitMQ, {HOST}:{ports[1]} is ActiveMQ Artemis \(name"
    with pytest.raises(SettingsError, match=said) as caught:
        bridge.run()
    assert "\n" not in str(caught.value)
