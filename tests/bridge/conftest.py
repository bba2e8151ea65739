from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from receiver.bridge.address import BrokerAddress
from receiver.bridge.amqp_connector import AmqpSink, AmqpSource
from receiver.bridge.memory import MemoryBroker
from receiver.bridge.stomp_connector import StompSink, StompSource
from receiver.demo.artemis import HOST, Broker, new_broker


@pytest.fixture(scope="session")
def running_artemis(artemis_home):
    """A real broker that runs for the whole session."""
    with new_broker(artemis_home) as broker:
        broker.start()
        yield broker


@pytest.fixture(scope="session")
def artemis_with_login(artemis_home):
    with new_broker(artemis_home, require_login=True) as broker:
        broker.start()
        yield broker


class Connected(NamedTuple):
    """A broker through the connectors of one protocol."""

    address: Callable[[str], BrokerAddress]
    make_source: Callable[[BrokerAddress], Any]
    make_sink: Callable[[BrokerAddress], Any]

    def source(self, name: str) -> Any:
        return self.make_source(self.address(name))

    def sink(self, name: str) -> Any:
        return self.make_sink(self.address(name))


def address_of(broker: Broker, protocol: str, path: str, login: str = "") -> BrokerAddress:
    """Of `queue/NAME` or `topic/NAME`; login is `USER:PASSWORD@`."""
    port = {"stomp": broker.stomp_port, "amqp": broker.amqp_port}[protocol]
    return BrokerAddress.parse(f"{protocol}://{login}{HOST}:{port}/{path}")


CONNECTORS = {"stomp": (StompSource, StompSink), "amqp": (AmqpSource, AmqpSink)}
REAL = [pytest.param(protocol, marks=[pytest.mark.artemis, pytest.mark.slow]) for protocol in CONNECTORS]


@pytest.fixture(params=["memory", *REAL])
def broker(request):
    """Something that has sources and sinks of queues: each test of connectors runs on every kind."""
    if request.param == "memory":
        return MemoryBroker()
    artemis = request.getfixturevalue("running_artemis")
    return Connected(lambda name: address_of(artemis, request.param, f"queue/{name}"), *CONNECTORS[request.param])
