from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from receiver.bridge.address import BrokerAddress
from receiver.bridge.memory import MemoryBroker
from receiver.bridge.stomp_connector import StompSink, StompSource
from tests.artemis.broker import HOST, Broker, new_broker


@pytest.fixture(scope="session")
def running_artemis(artemis_home):
    """A real broker that runs for the whole session."""
    with new_broker(artemis_home) as broker:
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


def stomp_address(broker: Broker, name: str) -> BrokerAddress:
    return BrokerAddress.parse(f"stomp://{HOST}:{broker.stomp_port}/queue/{name}")


@pytest.fixture(params=["memory", pytest.param("stomp", marks=[pytest.mark.artemis, pytest.mark.slow])])
def broker(request):
    """Something that has sources and sinks of queues: each test of connectors runs on every kind."""
    if request.param == "memory":
        return MemoryBroker()
    artemis = request.getfixturevalue("running_artemis")
    return Connected(lambda name: stomp_address(artemis, name), StompSource, StompSink)
