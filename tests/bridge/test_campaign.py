"""End to end through a real broker, whichever process dies: every message takes effect once, or at least once in
that mode."""

import json
import subprocess
import sys
from functools import partial

import pytest

from receiver.bridge.options import Mode
from receiver.logs import ReadOptions, read_logs
from tests.bridge import booking, effects
from tests.bridge.campaign import Event, Plan, perform
from tests.choosing import scaled
from tests.stores import execute

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

FULL = {
    "quick": {Event.KILL: 1, Event.CUT: 1},
    "small": {Event.KILL: 3, Event.STOP: 1, Event.KILL_BROKER: 1, Event.CUT: 1},
    "long": {Event.KILL: 100, Event.STOP: 10, Event.KILL_BROKER: 10, Event.CUT: 30},
}
SHORT = {
    "quick": {Event.KILL: 1},
    "small": {Event.KILL: 2, Event.CUT: 1},
    "long": {Event.KILL: 30, Event.STOP: 3, Event.KILL_BROKER: 3, Event.CUT: 10},
}
STOPS = {
    "quick": {Event.STOP: 1},
    "small": {Event.STOP: 2},
    "long": {Event.STOP: 30, Event.KILL_BROKER: 10},
}
STORE_CUTS = {"quick": 1, "small": 1, "long": 20}


@pytest.fixture
def store(mortal_store):
    return mortal_store


def recorded_receipts(folder):
    """How many receipts `receiver simulate` reads in a folder."""
    command = [sys.executable, "-m", "receiver", "simulate", str(folder), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)["log"]["receipts"]


@pytest.mark.parametrize(
    ("protocol", "database"),
    [("amqp", "sqlite"), ("stomp", "postgresql"), ("stomp", "sqlite"), scaled("amqp", "postgresql")],
)
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


@pytest.mark.parametrize(("protocol", "database"), [scaled("amqp", "sqlite"), ("stomp", "postgresql")])
def test_exactly_once_in_another_queue(queue, store, size, seed):
    out = f"{queue.name}-out"
    plan = Plan(target=queue.address(out), events=SHORT[size])
    perform(plan, queue, store, seed, partial(effects.in_queue, queue.straight(out)))


@pytest.mark.parametrize(
    ("protocol", "database", "way"),
    [
        scaled("stomp", "sqlite", (Mode.EXACTLY_ONCE, booking.FUNCTION)),
        ("amqp", "postgresql", (Mode.EXACTLY_ONCE, booking.FUNCTION_OF_MANY)),
        ("amqp", "postgresql", (Mode.APP_CONTROLLED, booking.FUNCTION)),
    ],
)
def test_exactly_once_in_a_table(queue, store, way, size, seed):
    mode, target = way
    execute(store.url, booking.TABLE)
    plan = Plan(target=target, events=SHORT[size], mode=mode)
    perform(plan, queue, store, seed, partial(effects.in_table, store.url))


@pytest.mark.parametrize(("protocol", "database"), [("amqp", "postgresql")])
def test_one_bridge_keeps_the_order_of_each_source(queue, store, size, seed, tmp_path):
    target = tmp_path / "orders.jsonl"
    plan = Plan(target=f"file:{target}", events=SHORT[size], bridges=1)
    _, arrived = perform(plan, queue, store, seed, partial(effects.in_file, target))
    effects.check_order(arrived)


@pytest.mark.parametrize(("protocol", "database"), [("stomp", "sqlite")])
def test_one_bridge_keeps_the_order_of_receipt(queue, store, size, seed, tmp_path):
    """By STOMP, Artemis may hold back a message for a consumer that is gone, and send it only after a restart."""
    target, record = tmp_path / "orders.jsonl", tmp_path / "receipts"
    record.mkdir()
    plan = Plan(target=f"file:{target}", events=STOPS[size], bridges=1, record=record)
    _, arrived = perform(plan, queue, store, seed, partial(effects.in_file, target))
    batches = read_logs([str(record)], ReadOptions())
    received = [id_ for batch in batches for id_ in batch.unique_message_id.tolist()]
    assert [effect.id for effect in arrived] == list(dict.fromkeys(received))
