"""The bridge while brokers, stores and targets come and go: what it tries again, when it ends, what it counts."""

import signal
import sqlite3
import threading
import time
from types import SimpleNamespace

import pytest

from receiver import retrying
from receiver.bridge import bridge as bridge_module
from receiver.bridge.modes import inbox_flow
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import Mode
from receiver.bridge.targets.python_target import PythonTarget
from receiver.errors import (
    BrokerError,
    BrokerRefusedError,
    MessageRefusedError,
    StoreBusyError,
    StoreCorruptError,
)
from receiver.retrying import Backoff
from receiver.settings import BridgeSettings, ReceiverSettings, StoreSettings
from tests.bridge.bridged import TEN, Route, open_from, send
from tests.bridge.test_connectors import SOON_SECS

pytestmark = pytest.mark.usefixtures("hasty")


class Failing:
    """A callable that raises each given error once, and then calls the one behind it."""

    def __init__(self, behind, *errors):
        self._behind = behind
        self._errors = list(errors)
        self.calls = 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return self._behind(*arguments, **keywords)


DOWN, NO = BrokerError("it is down"), BrokerRefusedError("it says no")


def source_that(route, *, take=(), acknowledge=()):
    """Connect to sources whose calls fail with these errors, one after the other over all sources."""
    failing_take, failing_acknowledge = Failing(None, *take), Failing(None, *acknowledge)

    def connect():
        source = route.broker.source("orders")
        failing_take._behind, failing_acknowledge._behind = source.take, source.acknowledge
        source.take, source.acknowledge = failing_take, failing_acknowledge
        return source

    return connect


# Brokers that come and go


def test_a_broker_that_cannot_be_reached_at_the_start_is_an_error(route):
    with pytest.raises(BrokerError, match="it is down"):
        open_from(route, Failing(None, DOWN)).run()


def test_a_broker_that_is_gone_for_a_while_is_waited_for(route):
    send(route, *TEN)
    connect = Failing(source_that(route, take=[DOWN]), None, DOWN, DOWN, DOWN)
    bridge = open_from(route, connect)
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == TEN
    assert (connect.calls, bridge.figures.connection_errors) == (5, 4)


@pytest.mark.parametrize("errors", [[DOWN], [NO] * 4, [NO, NO, NO, NO, DOWN, NO]])
def test_an_acknowledgement_that_was_lost_doubles_nothing(route, errors):
    send(route, *TEN)
    bridge = open_from(route, source_that(route, acknowledge=errors))
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == TEN
    assert bridge.receiver.status().rDupsDet == 10 * len(errors)


FOUR = ReceiverSettings(dup_detection_per_source_expiry_window_size=4, dup_detection_expiry_time_secs=0)
FOUR_FOR_LONG = ReceiverSettings(dup_detection_per_source_expiry_window_size=4, dup_detection_expiry_time_secs=60)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_batch_has_no_more_messages_than_the_window_has_ids(route, mode, caplog):
    """Otherwise the end of a batch would push its beginning out of the window, and a message of the beginning would
    be new when it came again."""
    send(route, *TEN)
    connect = source_that(route, acknowledge=[DOWN, None, DOWN])
    bridge = open_from(route, connect, mode=mode, windows=FOUR, settings=BridgeSettings(max_batch_size=10))
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == TEN
    assert bridge.receiver.status().rDupsDet == 8
    assert caplog.text.count("batches have at most 4 messages") == 1


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({"windows": FOUR}, 4),
        ({"policy": "artemis:id_cache_size=4"}, 4),
        ({"windows": FOUR_FOR_LONG}, 4),
        ({"policy": "ttl:expiry=60"}, 10),
        ({"policy": "perfect"}, 10),
        ({"windows": FOUR, "mode": Mode.AT_LEAST_ONCE}, 10),
        ({"mode": Mode.EXACTLY_ONCE}, 10),
    ],
    ids=repr,
)
def test_batches_are_small_only_where_ids_are_few(route, options, largest, caplog):
    send(route, *TEN)
    sizes = []
    connect = source_that(route)

    def watched():
        source = connect()
        acknowledge = source.acknowledge
        source.acknowledge = lambda taken: [sizes.append(len(taken)), acknowledge(taken)]
        return source

    bridge = open_from(route, watched, settings=BridgeSettings(max_batch_size=10), **options)
    bridge.run(stop_when_idle_secs=0)
    assert max(sizes) == largest
    assert ("batches have at most" in caplog.text) == (largest < 10)
    assert route.effects() == TEN


@pytest.mark.parametrize("where", ["connect", "take", "acknowledge"])
def test_refusals_are_believed_after_a_while(route, where, monkeypatch):
    send(route, "1")
    refusals = [NO] * 1_000
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    if where == "connect":
        connect = Failing(source_that(route, take=[DOWN]), None, *refusals)
    else:
        connect = source_that(route, **{where: refusals})
    with pytest.raises(BrokerRefusedError):
        open_from(route, connect).run()
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 60.0)
    bridge = open_from(route, source_that(route, **({} if where == "connect" else {where: [*refusals[:4], DOWN, NO]})))
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["1"]


def test_a_targets_refusal_is_not_blamed_on_the_source(route, monkeypatch):
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.1)
    connect = Failing(source_that(route))
    send(route, "1")

    def refuse(_received):
        raise NO

    origin = Origin(connect, route.connection_id, "queue://orders")
    bridge = open_bridge(origin, refuse, route.store, BridgeOptions(mode=Mode.APP_CONTROLLED))
    with pytest.raises(BrokerRefusedError):
        bridge.run()
    assert connect.calls == 1
    assert route.queued == ["1"]


def test_refusals_with_hours_between_them_are_not_in_a_row(route, monkeypatch):
    monkeypatch.setattr(retrying, "_REFUSED_SECS", 0.01)
    monkeypatch.setattr(bridge_module, "_WELL_SECS", 0.0)
    behind = source_that(route)
    refusals = []

    def connect():
        source = behind()
        take = source.take

        def taking(at_most, *, wait_secs):
            if taking.asked:
                if len(refusals) == 8:
                    bridge.stop()
                else:
                    refusals.append(NO)
                    raise NO
            taking.asked = True
            return take(at_most, wait_secs=wait_secs)

        taking.asked = False
        source.take = taking
        return source

    bridge = open_from(route, connect)
    bridge.run()
    assert len(refusals) == 8


@pytest.mark.parametrize("where", ["take", "acknowledge"])
def test_a_connection_that_breaks_as_soon_as_it_is_used_is_made_less_and_less_often(route, where):
    send(route, "1")
    connect = Failing(source_that(route, **{where: [DOWN] * 10_000}))
    bridge = open_from(route, connect)
    threading.Timer(0.5, bridge.stop).start()
    bridge.run()
    assert connect.calls < 15


def test_a_message_that_cannot_be_taken_ends_it_at_once(route):
    send(route, "1")
    with pytest.raises(MessageRefusedError):
        open_from(route, source_that(route, take=[MessageRefusedError("too large")])).run()
    assert route.queued == ["1"]


# A store that comes and goes


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_busy_store_is_waited_for_and_nothing_acknowledged_meanwhile(tmp_path, sqlite_url, mode):
    route = Route(sqlite_url, tmp_path, "file", mode)
    send(route, *TEN)
    options = BridgeOptions(mode=mode, store_settings=StoreSettings(lock_timeout_secs=0.05))
    bridge = open_bridge(route.origin, f"file:{route.file}", sqlite_url, options)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    seen = []

    def keep():
        other.execute("BEGIN IMMEDIATE")
        later.start()

    def let_go():
        until = time.monotonic() + SOON_SECS
        while not bridge.figures.connection_errors and time.monotonic() < until:
            time.sleep(0.01)
        seen.append((list(route.broker.queue("orders")), route.effects()))
        other.execute("ROLLBACK")

    later = threading.Thread(target=let_go, daemon=True)
    route.plan("taken", keep)
    route.plan("acknowledged", lambda: seen.append("acknowledged"))
    bridge.run(stop_when_idle_secs=0)
    later.join()
    other.close()
    assert seen == [([], []), "acknowledged"]
    assert route.effects() == TEN
    assert bridge.figures.connection_errors > 0


def test_a_stop_while_the_store_is_busy_leaves_all_to_the_broker(route):
    send(route, *TEN)
    bridge = route.open()
    bridge._flow.before_acknowledging = Failing(None, *[StoreBusyError("busy")] * 10_000)
    threading.Timer(0.1, bridge.stop).start()
    bridge.run()
    assert route.queued == TEN


def test_a_damaged_store_is_not_waited_for(route):
    send(route, "1")
    bridge = route.open()
    bridge._flow.before_acknowledging = Failing(None, StoreCorruptError("damaged"))
    with pytest.raises(StoreCorruptError):
        bridge.run()
    assert route.queued == ["1"]


def test_an_error_that_nobody_foresaw_loses_nothing_either(route):
    send(route, "1")
    bridge = route.open()
    bridge._flow.before_acknowledging = Failing(None, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        bridge.run()
    assert route.queued == ["1"]
    route.run()
    assert route.effects() == ["1"]


@pytest.mark.parametrize("kind", ["table", "file"])
def test_bridges_at_one_store_finish_together(tmp_path, store, kind):
    """They share the table or the file."""
    route = Route(store, tmp_path, kind)
    ids = [str(number) for number in range(200)]
    send(route, *ids, *ids)
    bridges = [route.open(max_batch_size=9) for _ in range(3)]
    threads = [threading.Thread(target=bridge.run, kwargs={"stop_when_idle_secs": 0.1}) for bridge in bridges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(route.effects(), key=int) == ids
    assert [bridge.figures.waiting for bridge in bridges] == [0, 0, 0]
    assert sum(bridge.figures.delivered for bridge in bridges) == len(ids)
    assert sum(bridge.receiver.status().rDupsDet for bridge in bridges) == 200


def test_what_another_has_delivered_waits_no_longer(route, monkeypatch):
    """It notices without counting the inbox, which it has no time for under load."""
    send(route, *TEN)
    bridge = route.open()
    route.plan("acknowledged", route.run)
    monkeypatch.setattr(bridge._flow, "tend", lambda: None)
    late = threading.Timer(20, bridge.stop)
    late.start()
    bridge.run(stop_when_idle_secs=0)
    late.cancel()
    assert not bridge.is_stopping
    assert (bridge.figures.delivered, bridge.figures.waiting) == (0, 0)


# The end


def test_a_stop_finishes_the_batch_under_way(route):
    send(route, *TEN)
    bridge = route.open(max_batch_size=4)
    route.plan("committed", bridge.stop)
    bridge.run()
    assert route.effects() == TEN[:4]
    assert (route.queued, route.waiting()) == (TEN[4:], 0)
    assert bridge.is_stopping


def test_a_stop_waits_for_what_is_handed_on_and_not_for_all_that_waits(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(inbox_flow, "_AT_ONCE", 2)
    route = Route(sqlite_url, tmp_path, "call")
    send(route, *TEN)
    bridge = open_bridge(route.origin, PythonTarget("python:tests:see", lambda got: see(got.text)), route.store)

    def see(body):
        route.seen.append(body)
        bridge.stop()

    bridge.run()
    assert route.effects() == TEN[:2]
    assert route.waiting() == len(TEN[2:])


def test_a_stop_before_the_start_takes_nothing(route):
    send(route, "1")
    bridge = route.open()
    bridge.stop()
    bridge.run()
    assert (route.queued, route.effects()) == (["1"], [])


def test_a_stop_while_the_target_is_down_ends_soon_and_loses_nothing(tmp_path, store):
    route = Route(store, tmp_path, "queue")
    send(route, *TEN)
    bridge = route.open()
    bridge._target._connect = Failing(bridge._target._connect, None, *[DOWN] * 10_000)
    stopping = threading.Timer(0.3, bridge.stop)

    def lose_target():
        bridge._target.close()
        stopping.start()

    route.plan("acknowledged", lose_target)
    bridge.run()
    assert (route.waiting(), route.queued, route.effects()) == (10, [], [])
    route.run()
    assert route.effects() == TEN


def test_a_target_that_cannot_be_reached_at_the_start_is_an_error(route):
    route.kind = "queue"
    send(route, "1")
    bridge = route.open()
    bridge._target._connect = Failing(None, DOWN)
    with pytest.raises(BrokerError, match="it is down"):
        bridge.run()
    assert route.queued == ["1"]


def test_a_signal_may_stop_it_wherever_it_is(route):
    """A signal handler runs in the thread that it interrupts, whatever lock that thread has just taken."""
    bridge = open_from(route, Failing(source_that(route, take=[DOWN]), None, *[DOWN] * 10_000))
    before = signal.signal(signal.SIGALRM, lambda *_: bridge.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        bridge.run()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_idle_is_counted_from_the_last_message_or_connection(route, monkeypatch):
    """A broker that was away couldn't show that messages wait. The test sets the clock."""
    now_secs = 0.0

    def wait(secs):
        nonlocal now_secs
        now_secs += secs
        return False

    monkeypatch.setattr(bridge_module, "time", SimpleNamespace(monotonic=lambda: now_secs, time_ns=time.time_ns))
    monkeypatch.setattr(bridge_module, "_WAIT_SECS", 0.05)
    monkeypatch.setattr(bridge_module, "_BACKOFF", Backoff(0.1, 30))
    monkeypatch.setattr(bridge_module.Bridge, "_stops_within", lambda _bridge, secs: wait(secs))
    behind = source_that(route, take=[DOWN])

    def slow_to_show():
        source = behind()
        take, shown_at = source.take, now_secs + 0.15

        def taking(at_most, *, wait_secs):
            taken = take(at_most, wait_secs=0) if now_secs > shown_at else []
            return taken or wait(wait_secs) or []

        source.take = taking
        return source

    send(route, "1")
    open_from(route, Failing(slow_to_show, None, *[DOWN] * 6)).run(stop_when_idle_secs=0.3)
    assert route.effects() == ["1"]
    assert now_secs > 3


def test_what_was_running_is_closed_whatever_ends_it(route):
    bridge = open_from(route, source_that(route, take=[ZeroDivisionError()]))
    with pytest.raises(ZeroDivisionError):
        bridge.run()
    assert bridge.receiver.is_closed
