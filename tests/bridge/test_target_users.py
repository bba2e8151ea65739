"""Another user of the same broker takes over the waiting messages, and hands none on twice."""

import pytest
from sqlalchemy import text

from receiver.bridge.opening import BridgeOptions, open_bridge, target_name
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.targets.broker_target import BrokerTarget
from receiver.errors import SettingsError
from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from receiver.store.upkeep import move_waiting, target_rows
from tests.bridge.bridged import TEN, DiedError, Route, send
from tests.stores import engine_of

FEW = TEN[:7]
"""So few messages that a bridge keeps each in its own row, as older versions do."""

OUT = "amqp://memory:5672/queue/out"


def bridge_to(route, name):
    target = BrokerTarget(name, route._sink, IdRule(), adds_duplicate_ids=True)
    return open_bridge(route.origin, route._watched(target), route.store, BridgeOptions(mode=Mode.EXACTLY_ONCE))


def test_the_user_is_no_part_of_the_name(sqlite_url, tmp_path):
    route = Route(sqlite_url, tmp_path, "queue")
    for login in ("", "alice@", "bob:secret@", "%40@"):
        open_bridge(route.origin, f"amqp://{login}memory:5672/queue/out", sqlite_url, BridgeOptions()).close()
    assert [row.name for row in target_rows(sqlite_url)] == [OUT]


def test_a_target_has_the_name_that_bridges_give_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert target_name("file:orders.jsonl") == f"file:{tmp_path.resolve()}/orders.jsonl"
    assert target_name("stomp://u:p@h/orders") == "stomp://h:61613/queue/orders"
    assert target_name("python:os.path:join") == "python:os.path:join"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match="isn't a target"):
        target_name("orders.jsonl")


@pytest.mark.parametrize("died", ["delivering", "delivered"])
def test_what_was_handed_on_before_the_migration_is_not_again(store_url, tmp_path, died):
    """A message's name for the broker consists of its domain, sequence number and time, which the migration keeps."""
    route = Route(store_url, tmp_path, "queue")
    bridge_to(route, "amqp://new@memory:5672/queue/out").close()
    send(route, *FEW)
    bridge = bridge_to(route, "amqp://old@memory:5672/queue/out")
    route.plan(died, _die)
    with pytest.raises(DiedError):
        bridge.run(stop_when_idle_secs=0)
    migrate(url_of(store_url), "0003")
    migrate(url_of(store_url), "0004")
    with engine_of(store_url).connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM receiver_inbox")).scalar_one() == len(FEW)
    bridge_to(route, OUT).run(stop_when_idle_secs=0)
    assert (route.effects(), route.waiting()) == (FEW, 0)


def test_what_is_moved_by_hand_is_delivered_by_a_running_bridge(store_url, tmp_path):
    route = Route(store_url, tmp_path, "queue")
    send(route, *TEN)
    bridge = bridge_to(route, "amqp://memory:1/queue/out")
    route.plan("committed", _die)
    with pytest.raises(DiedError):
        bridge.run(stop_when_idle_secs=0)
    running = bridge_to(route, OUT)
    running._flow.prepare()
    assert route.effects() == []
    (old,) = [row for row in target_rows(store_url) if row.waiting]
    assert move_waiting(store_url, old, OUT) == 10
    running.run(stop_when_idle_secs=0)
    assert route.effects() == TEN


def _die():
    raise DiedError
