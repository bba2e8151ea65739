"""An id that comes with another body: what a bridge reports and does, in each mode."""

import logging

import pytest

from receiver import Receiver
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import Mode
from receiver.logs import ReadOptions, read_logs
from tests.bridge.bridged import Route, message

REUSED = [("1", "pay 10"), ("2", "pay 20"), ("1", "pay 10"), ("1", "pay 99"), ("2", "pay 20"), ("1", "pay 99")]
"""Ids and bodies. The fourth is another message with a known id. The sixth repeats the fourth."""


@pytest.fixture(params=Mode)
def mode(request):
    return request.param


@pytest.fixture
def route(store_url, tmp_path, mode):
    return Route(store_url, tmp_path, "file", mode)


def bridged(route, *messages, **options):
    """A bridge, after it has handed these messages on."""
    route.send(*(message(id_, body=body) for id_, body in messages))
    store = route.store if route.mode.keeps else None
    options = BridgeOptions(mode=route.mode, **options)
    bridge = open_bridge(route.origin, f"file:{route.file}", store, options)
    bridge.run(stop_when_idle_secs=0)
    return bridge


def reused_ids(bridge):
    return bridge.receiver.status().reused_ids


@pytest.mark.parametrize("id_reuse", [None, "duplicate", "deliver"])
def test_it_is_counted_warned_of_and_handed_on_where_that_is_wanted(route, id_reuse, caplog):
    caplog.set_level(logging.WARNING, "receiver")
    bridge = bridged(route, *REUSED, id_reuse=id_reuse)
    assert reused_ids(bridge) == 1
    assert caplog.text.count("its body is another one") == 1
    new, all_of_them = ["pay 10", "pay 20"], [body for _, body in REUSED]
    once = [*new, "pay 99"] if id_reuse == "deliver" else new
    assert route.effects() == (once if route.mode.detects else all_of_them)


def test_it_is_in_the_recording(route, tmp_path):
    recording = str(tmp_path / "receipts.jsonl.zst")
    bridged(route, *REUSED, record=recording)
    digests = [digest for batch in read_logs([recording], ReadOptions()) for digest in batch.body_digest.tolist()]
    assert list(map(len, digests)) == [64] * 6
    assert digests[0] == digests[2] != digests[3] == digests[5]
    assert digests[1] == digests[4] != digests[0]


@pytest.mark.parametrize("id_reuse", ["duplicate", "deliver"])
def test_nothing_is_claimed_of_ids_that_have_no_digest_yet(route, mode, id_reuse):
    """An earlier version's store has such ids: nobody knows the bodies that came with them."""
    if not mode.detects:
        pytest.skip("it delivers everything")
    with (
        Receiver.open(route.store, connection_id=route.connection_id, destination="queue://orders") as receiver,
        receiver.batch() as batch,
    ):
        batch.receive("1")
        batch.receive("2")
    bridge = bridged(route, *REUSED, ("3", "pay 30"), ("3", "pay 33"), id_reuse=id_reuse)
    assert reused_ids(bridge) == 1
    assert route.effects() == ["pay 30", "pay 33"][: 1 + (id_reuse == "deliver")]


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_broker_that_drops_known_ids_takes_each_body(store_url, tmp_path, mode):
    route = Route(store_url, tmp_path, "queue", mode)
    route.send(*(message(id_, body=body) for id_, body in REUSED))
    options = BridgeOptions(mode=mode, id_reuse="deliver")
    open_bridge(route.origin, route._target(mode), store_url, options).run(stop_when_idle_secs=0)
    assert route.effects() == ["pay 10", "pay 20", "pay 99"]
