"""End to end through the brokers of other products: whoever dies, every message takes effect once."""

import uuid
from functools import partial

import pytest

from tests.bridge import effects
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.campaign import Event, Plan, Queue, perform

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EVENTS = {"small": {Event.KILL: 2, Event.CUT: 1}, "long": {Event.KILL: 100, Event.STOP: 10, Event.CUT: 30}}


@pytest.fixture
def queue(request, protocol, product):
    """A new one behind a proxy; `rabbitmq-quorum` is one without a delivery limit."""
    product, _, kind = product.partition("-")
    broker, name = request.getfixturevalue(product), f"orders-{uuid.uuid4().hex}"
    if product == "rabbitmq":
        broker.declare(name, kind, **({"x_delivery_limit": -1} if kind == "quorum" else {}))
    port = getattr(broker, f"{protocol}_port")
    with broker_proxy(port) as proxy:
        yield Queue(broker, proxy, port, protocol, name, f"{broker.user}:{broker.password}@")


@pytest.mark.parametrize(
    ("protocol", "product", "database"),
    [
        ("amqp", "rabbitmq-classic", "sqlite"),
        ("amqp", "rabbitmq-quorum", "postgresql"),
        ("amqp", "classic", "postgresql"),
        ("amqp", "qpid", "sqlite"),
    ],
)
def test_exactly_once_from_each_product(queue, mortal_store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=EVENTS[size])
    perform(plan, queue, mortal_store, seed, partial(effects.in_file, target))
