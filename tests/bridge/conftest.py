import threading
import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from examples.demo.artemis import Broker, new_broker
from examples.demo.processes import HOST
from receiver.bridge import bridge as bridge_module
from receiver.bridge.connectors import sink_of, sockets, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.modes import inbox_flow
from receiver.bridge.targets import python_target
from receiver.retrying import Backoff
from tests.bridge.bridged import Route
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.campaign import FOR_EVER, Queue, Store
from tests.brokers.memory import MemoryBroker
from tests.durable.proxy import proxied
from tests.made import fresh_postgres_url, made_database, made_file, sqlite_url
from tests.patience import until
from tests.postgres import fresh_database

__all__ = ["fresh_postgres_url", "made_database", "made_file", "sqlite_url"]


@pytest.fixture(scope="session")
def artemis_with_login(artemis_home):
    with new_broker(artemis_home, require_login=True) as broker:
        broker.start()
        yield broker


class Connected(NamedTuple):
    """A broker through the connectors of one protocol."""

    address: Callable[[str], BrokerAddress]
    """Makes the address of a queue with this name. The queue exists then."""
    make_source: Callable[[BrokerAddress], Any]
    make_sink: Callable[[BrokerAddress], Any]
    lacks: frozenset[str] = frozenset()
    """What the product doesn't do, as in `LACKS`."""

    def source(self, name: str) -> Any:
        return self.make_source(self.address(name))

    def sink(self, name: str) -> Any:
        return self.make_sink(self.address(name))


def address_of(broker: Broker, protocol: str, path: str, login: str = "") -> BrokerAddress:
    """The address of `queue/NAME` or `topic/NAME`. `login` is `USER:PASSWORD@`."""
    port = getattr(broker, f"{protocol}_port")
    return BrokerAddress.parse(f"{protocol}://{login}{HOST}:{port}/{path}")


CONNECTORS = dict.fromkeys(("stomp", "amqp"), (partial(source_of, durable=False), sink_of))
REAL = [pytest.param(protocol, marks=pytest.mark.artemis) for protocol in CONNECTORS]
LACKS = {
    "amqp-rabbitmq": frozenset({"known ids"}),
    "amqp-rabbitmq-quorum": frozenset({"known ids"}),
    "amqp-classic": frozenset({"known ids"}),
    "amqp-qpid": frozenset({"known ids"}),
    "stomp-rabbitmq": frozenset({"known ids", "large bodies", "long headers"}),
    "stomp-rabbitmq-quorum": frozenset({"known ids", "large bodies", "long headers"}),
    "stomp-classic": frozenset({"known ids"}),
}
"""What products other than Artemis don't do by a protocol: drop known ids; take bodies above 4 MiB; take headers
above 255 bytes, and a slash in JMSReplyTo."""
PRODUCTS = [pytest.param(name, marks=[pytest.mark.broker, pytest.mark.slow]) for name in LACKS]


def product_of(request, name):
    """The connectors for `PROTOCOL-PRODUCT`. The fixture with the product's name is its broker."""
    protocol, product, *kind = name.split("-")
    running = request.getfixturevalue(product)

    def address(name):
        if product == "rabbitmq":
            running.declare(name, *kind)
        return address_of(running, protocol, f"queue/{name}", f"{running.user}:{running.password}@")

    return Connected(cache(address), *CONNECTORS[protocol], LACKS[name])


@pytest.fixture(params=CONNECTORS)
def protocol(request):
    return request.param


@pytest.fixture(params=["memory", *REAL, *PRODUCTS])
def broker(request):
    """A broker with sources and sinks of queues. Each test of connectors runs on every kind."""
    if request.param == "memory":
        return MemoryBroker()
    if request.param in LACKS:
        return product_of(request, request.param)
    artemis = request.getfixturevalue("running_artemis")
    return Connected(lambda name: address_of(artemis, request.param, f"queue/{name}"), *CONNECTORS[request.param])


def answer_within(monkeypatch, secs):
    """Limit how long connectors wait for an answer."""
    monkeypatch.setattr(sockets, "ANSWER_SECS", secs)


@pytest.fixture
def impatient(monkeypatch):
    answer_within(monkeypatch, 0.5)


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory):
    """The address of a database that many tests share. Each test has its own domain in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('shared') / 'receiver.db'}"


@pytest.fixture(scope="module")
def postgresql_store(postgres_url):
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def hasty(monkeypatch):
    """Bridges that hardly wait, so that a bridge's whole life takes no time. Only slow functions get their usual
    time."""
    monkeypatch.setattr(bridge_module, "_WAIT_SECS", 0.002)
    monkeypatch.setattr(bridge_module, "_TEND_SECS", 0.01)
    monkeypatch.setattr(inbox_flow, "_BACKOFF", Backoff(0.005, 30))
    monkeypatch.setattr(bridge_module, "_BACKOFF", Backoff(0.002, 30))
    monkeypatch.setattr(python_target, "_LONG_SECS", 60.0)


@pytest.fixture
def route(tmp_path, sqlite_url):
    """A route to a file, with its own store."""
    return Route(sqlite_url, tmp_path, "file")


@pytest.fixture(scope="module")
def mortal_broker(artemis_home):
    with new_broker(artemis_home) as broker:
        broker.start(properties=FOR_EVER)
        yield broker


@pytest.fixture
def queue(protocol, mortal_broker):
    """A new queue for a campaign, behind a proxy."""
    port = {"amqp": mortal_broker.amqp_port, "stomp": mortal_broker.stomp_port}[protocol]
    with broker_proxy(port) as proxy:
        yield Queue(mortal_broker, proxy, port, protocol, f"orders-{uuid.uuid4().hex}")


@pytest.fixture
def size(request):
    return request.config.getoption("--campaign")


@pytest.fixture
def mortal_store(database, request):
    """A new store for a campaign. PostgreSQL is behind a proxy."""
    if database == "sqlite":
        yield Store(request.getfixturevalue("sqlite_url"))
        return
    url = request.getfixturevalue("fresh_postgres_url")
    with proxied(url) as proxy:
        yield Store(url, proxy)


@pytest.fixture
def nothing_is_left():
    """No thread is left. Python warns of a socket that is left, and a warning is an error here."""
    before = set(threading.enumerate())
    yield
    until(lambda: before.issuperset(threading.enumerate()), lambda: f"{threading.enumerate()}")
