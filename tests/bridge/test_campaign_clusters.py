"""Campaigns on clusters: nodes are lost under load and bridges killed in between, and yet every message has one
effect."""

import uuid
from functools import partial

import pytest
from sqlalchemy import make_url

from receiver.bridge.options import Mode
from tests import standby
from tests.bridge import booking, effects
from tests.bridge.campaign import Event, Plan, Store, perform
from tests.bridge.cluster_campaign import ClusterCampaign, ClusterQueue, LogCampaign, StoreCampaign, Topic
from tests.postgres import shown
from tests.stores import execute

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ONE_OF_EACH = {Event.FAIL_OVER: 1, Event.CUT_OFF: 1, Event.KILL: 1}
OF_RABBITMQ = {
    "quick": ONE_OF_EACH,
    "small": {Event.FAIL_OVER: 2, Event.CUT_OFF: 1, Event.FREEZE: 1, Event.KILL: 3},
    "long": {Event.FAIL_OVER: 20, Event.CUT_OFF: 5, Event.FREEZE: 3, Event.ROLL: 1, Event.KILL: 20},
}
OF_ARTEMIS = {
    "quick": ONE_OF_EACH,
    "small": {Event.FAIL_OVER: 2, Event.CUT_OFF: 1, Event.KILL: 3},
    "long": {Event.FAIL_OVER: 20, Event.CUT_OFF: 3, Event.KILL: 20},
}
"""After each failover, the primary takes over again."""
OF_KAFKA = {
    "quick": {Event.FAIL_OVER: 1, Event.ROLL: 1, Event.KILL: 1},
    "small": {Event.FAIL_OVER: 2, Event.ROLL: 1, Event.CUT_OFF: 1, Event.KILL: 3, Event.STOP: 2},
    "long": {Event.FAIL_OVER: 20, Event.ROLL: 2, Event.CUT_OFF: 3, Event.FREEZE: 3, Event.KILL: 20, Event.STOP: 10},
}
"""Whenever a bridge joins or leaves the group, Kafka deals the partitions out anew."""


@pytest.fixture
def store(mortal_store):
    return mortal_store


@pytest.fixture
def rabbitmq_queue(rabbitmq_cluster, protocol):
    """A quorum queue on all three nodes."""
    name = f"orders-{uuid.uuid4().hex}"
    node = rabbitmq_cluster.nodes[0]
    for each in (name, f"{name}-out"):
        node.declare(each, "quorum", x_delivery_limit=-1)  # ten kills make no message poison
    return ClusterQueue(rabbitmq_cluster, protocol, name, f"{node.user}:{node.password}@")


@pytest.mark.parametrize(("protocol", "database"), [("amqp", "sqlite"), ("stomp", "postgresql")])
def test_exactly_once_from_a_cluster_of_rabbitmq(rabbitmq_queue, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=OF_RABBITMQ[size])
    perform(plan, rabbitmq_queue, store, seed, partial(effects.in_file, target), kind=ClusterCampaign)


@pytest.fixture
def stream(rabbitmq_cluster):
    """A stream on all three nodes."""
    name, node = f"orders-{uuid.uuid4().hex}", rabbitmq_cluster.nodes[0]
    node.declare(name, "stream")
    return ClusterQueue(rabbitmq_cluster, "amqp", name, f"{node.user}:{node.password}@", is_stream=True)


@pytest.mark.parametrize("database", ["postgresql"])
def test_exactly_once_from_a_stream_of_a_cluster(stream, store, size, seed, tmp_path):
    """Two bridges take the same messages, and both move one position."""
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=OF_RABBITMQ[size])
    perform(plan, stream, store, seed, partial(effects.in_file, target), kind=LogCampaign)


@pytest.fixture
def artemis_queue(artemis_pair, protocol):
    return ClusterQueue(artemis_pair, protocol, f"orders-{uuid.uuid4().hex}")


@pytest.mark.artemis
@pytest.mark.parametrize(("protocol", "database"), [("amqp", "postgresql"), ("stomp", "sqlite")])
def test_exactly_once_from_a_pair_of_artemis(artemis_queue, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=OF_ARTEMIS[size])
    perform(plan, artemis_queue, store, seed, partial(effects.in_file, target), kind=ClusterCampaign)


@pytest.mark.artemis
@pytest.mark.parametrize(("protocol", "database"), [("amqp", "sqlite")])
def test_exactly_once_to_a_pair_of_artemis(artemis_queue, store, size, seed):
    """The backup drops repeats by the ids that the primary has had."""
    target = artemis_queue.address(f"{artemis_queue.name}-out")
    plan = Plan(target=target, events=OF_ARTEMIS[size])
    perform(plan, artemis_queue, store, seed, partial(effects.in_queue, target), kind=ClusterCampaign)


@pytest.mark.parametrize("database", ["postgresql"])
def test_exactly_once_from_a_cluster_of_kafka(kafka_cluster, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=OF_KAFKA[size], bridges=3)
    topic = Topic(kafka_cluster, kafka_cluster.new_topic(3))
    perform(plan, topic, store, seed, partial(effects.in_file, target), kind=LogCampaign)


@pytest.mark.parametrize("database", ["sqlite"])
def test_exactly_once_to_a_cluster_of_kafka(kafka_cluster, store, size, seed):
    """The killed leaders of the source's topic also lead other partitions, and keep the state of transactions."""
    out = kafka_cluster.new_topic(3)
    plan = Plan(target=kafka_cluster.address(out), events=OF_KAFKA[size])
    topic = Topic(kafka_cluster, kafka_cluster.new_topic(3))
    read = partial(effects.in_topic, kafka_cluster.servers, out)
    perform(plan, topic, store, seed, read, kind=LogCampaign)


OF_POSTGRES = {
    "quick": {Event.FAIL_OVER: 1, Event.KILL: 1},
    "small": {Event.FAIL_OVER: 2, Event.KILL: 3},
    "long": {Event.FAIL_OVER: 20, Event.KILL: 20},
}


@pytest.mark.artemis
@pytest.mark.parametrize("protocol", ["amqp"])
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_exactly_once_in_a_table_of_a_primary_and_its_synchronous_standby(queue, mode, size, seed):
    """Bridges know both servers' addresses, but not which server is the primary."""
    with standby.primary_and_standby(is_synchronous=True) as pair:
        pair.primary.ask("CREATE DATABASE campaign")
        store = Store(shown(make_url(pair.hosts_url).set(database="campaign")))
        execute(store.url, booking.TABLE)
        plan = Plan(target=booking.FUNCTION, events=OF_POSTGRES[size], mode=mode)
        perform(plan, queue, store, seed, partial(effects.in_table, store.url), kind=partial(StoreCampaign, pair))
