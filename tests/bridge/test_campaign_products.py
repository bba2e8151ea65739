"""The campaign on each broker product that is supported. From a product each message has one effect; to a product
none is lost."""

import uuid
from functools import partial
from typing import NamedTuple

import pytest

from tests.bridge import effects
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.campaign import Event, Plan, Queue, perform
from tests.choosing import scaled

pytestmark = [pytest.mark.broker, pytest.mark.slow]

FULL = {
    "quick": {Event.KILL: 1, Event.CUT: 1},
    "small": {Event.KILL: 10, Event.CUT: 2, Event.KILL_BROKER: 1},
    "long": {Event.KILL: 100, Event.CUT: 30, Event.KILL_BROKER: 10},
}
AS_TARGET = {
    "quick": {Event.KILL: 1},
    "small": {Event.KILL: 2, Event.CUT: 1},
    "long": {Event.KILL: 30, Event.CUT: 10, Event.KILL_BROKER: 3},
}


class Product(NamedTuple):
    broker: str
    """The name of the broker's fixture."""
    protocol: str
    declared: str | None = None
    """The kind of its queues, if queues must be made."""


PRODUCTS = {
    "rabbitmq-classic-amqp": Product("rabbitmq", "amqp", "classic"),
    "rabbitmq-quorum-amqp": Product("rabbitmq", "amqp", "quorum"),
    "rabbitmq-quorum-stomp": Product("rabbitmq", "stomp", "quorum"),
    "classic-amqp": Product("classic", "amqp"),
    "classic-stomp": Product("classic", "stomp"),
    "qpid-amqp": Product("qpid", "amqp"),
}
DATABASES = ("sqlite", "postgresql")
_CELLS = [(product, database) for product in PRODUCTS for database in DATABASES]
CELLS = [cell for number, cell in enumerate(_CELLS) if number % 4 in {0, 3}]
"""Each product and protocol, with one database."""
OTHER_CELLS = [cell for cell in _CELLS if cell not in CELLS]
"""Each product and protocol, with the other database."""
FIRST_SOURCES = {"rabbitmq-quorum-amqp", "qpid-amqp"}
FIRST_TARGETS = {"classic-stomp"}
"""The products that the quick run tries too: each product is in one of these two sets."""


def in_both_runs(names, cells):
    return [scaled(*cell) if cell[0] in names else cell for cell in cells]


@pytest.fixture
def store(mortal_store):
    return mortal_store


@pytest.fixture
def queue(product, request):
    """A new queue behind a proxy."""
    kind = PRODUCTS[product]
    broker = request.getfixturevalue(kind.broker)
    port = {"amqp": broker.amqp_port, "stomp": getattr(broker, "stomp_port", 0)}[kind.protocol]
    name = f"orders-{uuid.uuid4().hex}"
    for each in (name, f"{name}-out"):
        if kind.declared == "quorum":
            broker.declare(each, "quorum", x_delivery_limit=-1)  # ten kills make no message poison
        elif kind.declared:
            broker.declare(each, kind.declared)
    with broker_proxy(port) as proxy:
        login = f"{broker.user}:{broker.password}@"
        yield Queue(broker, proxy, port, kind.protocol, name, login, {})


@pytest.mark.parametrize(("product", "database"), in_both_runs(FIRST_SOURCES, CELLS))
def test_exactly_once_from_each_product(queue, store, size, seed, tmp_path):
    from_each_product(queue, store, size, seed, tmp_path)


@pytest.mark.parametrize(("product", "database"), OTHER_CELLS)
def test_exactly_once_from_each_product_on_the_other_database(queue, store, size, seed, tmp_path):
    if size != "long":
        pytest.skip("the other database is for --campaign=long")
    from_each_product(queue, store, size, seed, tmp_path)


def from_each_product(queue, store, size, seed, folder):
    target = folder / "orders.jsonl"
    perform(Plan(target=f"file:{target}", events=FULL[size]), queue, store, seed, partial(effects.in_file, target))


@pytest.mark.parametrize(("product", "database"), in_both_runs(FIRST_TARGETS, OTHER_CELLS))
def test_nothing_is_lost_on_the_way_to_each_product(queue, store, size, seed):
    """No product drops a message that is sent again, so it may come twice."""
    out = f"{queue.name}-out"
    plan = Plan(target=queue.address(out), events=AS_TARGET[size], drops_known_ids=False)
    perform(plan, queue, store, seed, partial(effects.in_queue, queue.straight(out)))
