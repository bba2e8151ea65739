"""End to end through a real broker, whoever dies: every message takes effect once, or at least once, as its mode says."""

import json
import subprocess
import sys
import uuid
from functools import partial

import pytest

from receiver.bridge.mode import Mode
from receiver.demo.artemis import new_broker
from receiver.durable.audit import audit
from receiver.logs import ReadOptions, read_logs
from tests.bridge import booking, effects
from tests.bridge.broker_proxy import broker_proxy
from tests.bridge.campaign import FOR_EVER, Campaign, Event, Plan, Queue, Store
from tests.bridge.conftest import address_of
from tests.durable.proxy import proxied
from tests.stores import execute

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

FULL = {
    "small": {Event.KILL: 3, Event.STOP: 1, Event.KILL_BROKER: 1, Event.CUT: 1},
    "long": {Event.KILL: 100, Event.STOP: 10, Event.KILL_BROKER: 10, Event.CUT: 30},
}
SHORT = {
    "small": {Event.KILL: 2, Event.CUT: 1},
    "long": {Event.KILL: 30, Event.STOP: 3, Event.KILL_BROKER: 3, Event.CUT: 10},
}
STOPS = {
    "small": {Event.STOP: 2},
    "long": {Event.STOP: 30, Event.KILL_BROKER: 10},
}
STORE_CUTS = {"small": 1, "long": 20}


@pytest.fixture(scope="module")
def mortal_broker(artemis_home):
    with new_broker(artemis_home) as broker:
        broker.start(properties=FOR_EVER)
        yield broker


@pytest.fixture
def queue(protocol, mortal_broker):
    """A new queue behind a proxy."""
    port = {"amqp": mortal_broker.amqp_port, "stomp": mortal_broker.stomp_port}[protocol]
    with broker_proxy(port) as proxy:
        yield Queue(mortal_broker, proxy, protocol, f"orders-{uuid.uuid4().hex}")


@pytest.fixture
def size(request):
    return request.config.getoption("--campaign")


@pytest.fixture
def store(database, request):
    """A new one, PostgreSQL behind a proxy."""
    if database == "sqlite":
        yield Store(request.getfixturevalue("sqlite_url"))
        return
    url = request.getfixturevalue("fresh_postgres_url")
    with proxied(url) as proxy:
        yield Store(url, proxy)


def straight(queue, name):
    """The address of a queue, past the proxy."""
    return str(address_of(queue.broker, queue.protocol, f"queue/{name}"))


def perform(plan, queue, store, seed, read_effects):
    """A campaign after which every message has taken effect, and nothing is left anywhere on the way; and the effects."""
    campaign = Campaign(plan, queue, store, seed)
    campaign.run()
    found, counts = read_effects(), store.counts()
    print(campaign.totals(len(found)))
    doubles = effects.check(found, campaign.ids())
    assert doubles == (counts["duplicates"] if plan.mode is Mode.AT_LEAST_ONCE else 0)
    assert effects.in_queue(straight(queue, queue.name)) == []
    assert (counts["receiver_inbox"], counts["receiver_parked"]) == (0, 0)
    assert counts["receipts"] - counts["duplicates"] == len(campaign.ids())
    assert audit(store.url).findings == ()
    return campaign, found


def recorded_receipts(folder):
    """How many `receiver simulate` finds there."""
    command = [sys.executable, "-m", "receiver", "simulate", str(folder), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["log"]["receipts"]


@pytest.mark.parametrize("protocol", ["amqp", "stomp"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_exactly_once_in_a_file(queue, store, size, seed, tmp_path):
    target, record = tmp_path / "orders.jsonl", tmp_path / "receipts"
    record.mkdir()
    events = FULL[size] | {Event.CUT_STORE: STORE_CUTS[size] if store.proxy else 0}
    plan = Plan(target=f"file:{target}", events=events, record=record)
    perform(plan, queue, store, seed, partial(effects.in_file, target))
    assert recorded_receipts(record) == store.counts()["receipts"]


@pytest.mark.parametrize(("protocol", "database"), [("stomp", "postgresql")])
def test_at_least_once_in_a_file(queue, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=SHORT[size], mode=Mode.AT_LEAST_ONCE)
    perform(plan, queue, store, seed, partial(effects.in_file, target))


@pytest.mark.parametrize(("protocol", "database"), [("amqp", "sqlite"), ("stomp", "postgresql")])
def test_exactly_once_in_another_queue(queue, store, size, seed):
    out = f"{queue.name}-out"
    plan = Plan(target=queue.address(out), events=SHORT[size])
    perform(plan, queue, store, seed, partial(effects.in_queue, straight(queue, out)))


@pytest.mark.parametrize(
    ("protocol", "database", "mode"),
    [("stomp", "sqlite", Mode.EXACTLY_ONCE), ("amqp", "postgresql", Mode.APP_CONTROLLED)],
)
def test_exactly_once_in_a_table(queue, store, mode, size, seed):
    execute(store.url, booking.TABLE)
    plan = Plan(target=booking.FUNCTION, events=SHORT[size], mode=mode)
    perform(plan, queue, store, seed, partial(effects.in_table, store.url))


@pytest.mark.parametrize(("protocol", "database"), [("amqp", "postgresql")])
def test_one_bridge_keeps_the_order_of_each_source(queue, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=SHORT[size], bridges=1)
    _, found = perform(plan, queue, store, seed, partial(effects.in_file, target))
    effects.check_order(found)


@pytest.mark.parametrize(("protocol", "database"), [("stomp", "sqlite")])
def test_one_bridge_keeps_the_order_of_receipt(queue, store, size, seed, tmp_path):
    """By STOMP, Artemis itself may hold back a message for a consumer that is gone, and send it when it's restarted."""
    target, record = tmp_path / "orders.jsonl", tmp_path / "receipts"
    record.mkdir()
    plan = Plan(target=f"file:{target}", events=STOPS[size], bridges=1, record=record)
    _, found = perform(plan, queue, store, seed, partial(effects.in_file, target))
    batches = read_logs([str(record)], ReadOptions())
    received = [id_ for batch in batches for id_ in batch.unique_message_id.tolist()]
    assert [effect.id for effect in found] == list(dict.fromkeys(received))
