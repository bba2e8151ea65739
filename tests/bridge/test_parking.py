"""Messages that fail: tries are counted, their sources wait, and they are parked; and what becomes of parked
messages."""

import threading
import time

import pytest

from receiver.bridge import bridge as bridge_module
from receiver.bridge.connectors import Message
from receiver.bridge.modes import inbox_flow
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.bridge.targets import Outcome, Target, python_target
from receiver.errors import StoreBusyError
from receiver.retrying import Backoff
from receiver.settings import BridgeSettings
from receiver.store.upkeep import drop_parked, parked_rows, retry_parked
from tests.bridge.bridged import DiedError, Route, _die, message
from tests.bridge.test_id_functions import FAILING
from tests.patience import until

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(3)]

KEEPING = [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED]


class Desk:
    """An application that fails for these ids, so many times each; None for always."""

    def __init__(self, **failures: int | None) -> None:
        self.failures = failures
        self.booked: list[str] = []
        self.tried: list[str] = []

    def book(self, received) -> None:
        id_ = received.text
        self.tried.append(id_)
        left = self.failures.get(id_, 0)
        if left is None or left > 0:
            self.failures[id_] = None if left is None else left - 1
            raise ValueError(f"can't book {id_}")
        self.booked.append(id_)


@pytest.fixture
def route(tmp_path, sqlite_url):
    return Route(sqlite_url, tmp_path, "call")


def open_to(route, desk, *, mode=Mode.EXACTLY_ONCE, ids=None, policy=None, max_tries=5):
    options = BridgeOptions(mode=mode, ids=ids or IdRule(), policy=policy, settings=BridgeSettings(max_tries=max_tries))
    return open_bridge(route.origin, desk.book, None if mode is Mode.BEST_EFFORT else route.store, options)


def run_to(route, desk, **options):
    bridge = open_to(route, desk, **options)
    bridge.run(stop_when_idle_secs=0)
    return bridge


def send(route, *named):
    """Send messages by their ids: `a1` is of source a."""
    route.send(*(message(name, name[0]) for name in named))


def parked(route):
    return [row for row in parked_rows(route.store) if row.domain == route.domain]


def of_source(names, source):
    return [name for name in names if name[0] == source]


@pytest.mark.parametrize("mode", KEEPING)
def test_a_message_that_fails_is_tried_again_and_its_source_waits_for_it(tmp_path, store, mode):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=3)
    send(route, "a1", "b1", "a2", "b2")
    bridge = run_to(route, desk, mode=mode)
    # A function without connection is called again for messages that went well, if their batch is rolled back.
    firsts = list(dict.fromkeys(desk.booked))
    assert sorted(firsts) == ["a1", "a2", "b1", "b2"]
    assert (of_source(firsts, "a"), of_source(firsts, "b")) == (["a1", "a2"], ["b1", "b2"])
    assert desk.tried.index("a2") > max(at for at, name in enumerate(desk.tried) if name == "a1")
    assert parked(route) == []
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.waiting) == (4, 3, 0)


def test_others_go_on_meanwhile(route):
    desk = Desk(a1=2)
    send(route, "a1", "b1", "a2", "b2")
    run_to(route, desk)
    assert desk.booked == ["b1", "b2", "a1", "a2"]


def test_a_source_is_left_alone_until_it_is_due(route, monkeypatch):
    monkeypatch.setattr(inbox_flow, "_BACKOFF", Backoff(60, 60))
    desk = Desk(a1=1)
    send(route, "a1", "b1")
    bridge = open_to(route, desk)
    route.plan("acknowledged", lambda: send(route, "a2", "b2"))

    def stop_some_time_after_the_last():
        until(lambda: "b2" in desk.tried)
        time.sleep(0.3)
        bridge.stop()

    threading.Thread(target=stop_some_time_after_the_last, daemon=True).start()
    bridge.run()
    assert desk.tried == ["a1", "b1", "b2"]
    assert (route.queued, bridge.figures.waiting) == ([], 2)


def test_the_anonymous_source_waits_as_one(route):
    desk = Desk(x=1)
    route.send(message("x"), message("y"), message("a1", "a"))
    run_to(route, desk)
    assert desk.booked == ["a1", "x", "y"]


@pytest.mark.parametrize("mode", KEEPING)
def test_it_is_parked_after_the_last_try_and_its_source_goes_on(tmp_path, store, mode):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None)
    send(route, "a1", "a2", "b1")
    bridge = run_to(route, desk, mode=mode, max_tries=3)
    assert sorted(set(desk.booked)) == ["a2", "b1"]
    assert desk.tried.count("a1") == 3
    (row,) = parked(route)
    assert (row.unique_message_id, row.message_source_id, row.tries) == ("a1", "a", 3)
    assert row.error == "ValueError: can't book a1"
    assert (bridge.figures.parked, bridge.figures.failed, bridge.figures.waiting) == (1, 3, 0)
    assert (route.waiting(), route.queued) == (0, [])


@pytest.mark.parametrize("mode", KEEPING)
def test_what_has_had_its_tries_has_no_more_while_its_source_fails_on(tmp_path, store, mode):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None, a2=None)
    send(route, "a1", "a2")
    run_to(route, desk, mode=mode, max_tries=3)
    assert desk.tried == ["a1"] * 3 + ["a2"] * 3
    assert [(row.unique_message_id, row.tries) for row in parked(route)] == [("a1", 3), ("a2", 3)]


@pytest.mark.parametrize("mode", KEEPING)
def test_many_that_fail_in_one_batch_take_no_more_tries_than_one(tmp_path, store, mode):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None, b1=None, c1=None)
    send(route, "a1", "b1", "c1", "d1")
    run_to(route, desk, mode=mode, max_tries=3)
    assert [desk.tried.count(name) for name in ("a1", "b1", "c1")] == [3, 3, 3]
    assert sorted(row.unique_message_id for row in parked(route)) == ["a1", "b1", "c1"]


def test_app_controlled_counts_the_tries_of_each_batch_by_themselves(route):
    desk = Desk(a1=2, b1=2)
    send(route, "a1", "b1")
    options = BridgeOptions(mode=Mode.APP_CONTROLLED, settings=BridgeSettings(max_tries=3, max_batch_size=1))
    open_bridge(route.origin, desk.book, route.store, options).run(stop_when_idle_secs=0)
    assert desk.booked == ["a1", "b1"]


def test_tries_are_counted_through_restarts(tmp_path, store):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None)
    send(route, "a1")
    for _ in range(2):
        _one_try(open_to(route, desk, max_tries=3))
    assert desk.tried == ["a1", "a1"]
    run_to(route, desk, max_tries=3)
    assert desk.tried == ["a1", "a1", "a1"]
    assert [row.tries for row in parked(route)] == [3]


def _one_try(bridge):
    """Have the bridge die as soon as a try is counted."""
    release, target = bridge._target.release, bridge._target
    deliver, failed = target.deliver, []

    def delivering(messages, lease):
        outcome = deliver(messages, lease)
        failed.extend(outcome.failed)
        return outcome

    def releasing():
        release()
        if failed:
            raise DiedError

    target.deliver, target.release = delivering, releasing
    with pytest.raises(DiedError):
        bridge.run(stop_when_idle_secs=0)


def test_what_is_sent_back_is_delivered_before_what_came_later(tmp_path, store):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None)
    send(route, "a1", "a2")
    run_to(route, desk, max_tries=2)
    (row,) = parked(route)
    send(route, "a3")
    desk.failures.clear()
    assert retry_parked(store, [row.parked_id]) == 1
    run_to(route, desk)
    assert desk.booked == ["a2", "a1", "a3"]
    assert parked(route) == []


def test_what_is_sent_back_while_a_bridge_runs_is_delivered_by_it(route):
    desk = Desk(a1=None)
    send(route, "a1")
    bridge = open_to(route, desk, max_tries=1)
    tend = bridge._flow.tend

    def mended():
        if parked(route):
            desk.failures.clear()
            retry_parked(route.store, None)
        tend()

    bridge._flow.tend = mended
    bridge.run(stop_when_idle_secs=0.2)
    assert desk.booked == ["a1"]
    assert bridge.figures.delivered == 1


def test_what_is_sent_back_and_fails_again_has_all_its_tries(route):
    desk = Desk(a1=None)
    send(route, "a1")
    run_to(route, desk, max_tries=2)
    retry_parked(route.store, None)
    run_to(route, desk, max_tries=2)
    assert desk.tried == ["a1"] * 4
    assert [row.tries for row in parked(route)] == [2]


@pytest.mark.parametrize("mode", KEEPING)
def test_what_is_parked_or_dropped_is_remembered(tmp_path, store, mode):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None)
    send(route, "a1")
    run_to(route, desk, max_tries=1, mode=mode)
    (row,) = parked(route)
    drop_parked(store, [row.parked_id])
    desk.failures.clear()
    send(route, "a1")
    bridge = run_to(route, desk, mode=mode)
    assert bridge.receiver.status().rDupsDet == 1
    assert desk.booked == (["a1"] if mode is Mode.AT_LEAST_ONCE else [])


def test_app_controlled_delivers_what_is_sent_back(tmp_path, store):
    route, desk = Route(store, tmp_path, "call"), Desk(a1=None)
    send(route, "a1")
    run_to(route, desk, max_tries=1, mode=Mode.APP_CONTROLLED)
    desk.failures.clear()
    retry_parked(store, [row.parked_id for row in parked(route)])
    run_to(route, desk, mode=Mode.APP_CONTROLLED)
    assert desk.booked == ["a1"]


def test_app_controlled_delivers_what_waits_before_what_is_new(tmp_path, store, monkeypatch):
    """It does so even if that takes many leases."""
    monkeypatch.setattr(python_target, "_LONG_SECS", 0.0)
    route, desk = Route(store, tmp_path, "call"), Desk()
    send(route, "a1", "a2", "a3", "b1")
    route.plan("committed", _die)
    with pytest.raises(DiedError):
        run_to(route, desk)
    send(route, "a4", "b2")
    bridge = run_to(route, desk, mode=Mode.APP_CONTROLLED)
    assert desk.booked == ["a1", "a2", "a3", "b1", "a4", "b2"]
    assert (bridge.receiver.status().rDupsDet, route.waiting(), route.queued) == (4, 0, [])


def test_app_controlled_delivers_what_is_sent_back_before_what_is_new(route, monkeypatch):
    monkeypatch.setattr(bridge_module, "_TEND_SECS", 0.0)
    desk = Desk(a1=None)
    send(route, "a1")
    run_to(route, desk, max_tries=1, mode=Mode.APP_CONTROLLED)
    desk.failures.clear()
    send(route, "a2")
    bridge = open_to(route, desk, mode=Mode.APP_CONTROLLED)
    route.plan("taken", lambda: retry_parked(route.store, None))
    bridge.run(stop_when_idle_secs=0)
    assert desk.booked == ["a1", "a2"]


@pytest.mark.parametrize("mode", list(Mode))
def test_each_try_that_fails_is_logged_with_its_number(route, mode, caplog):
    desk = Desk(a1=None, b1=2)
    send(route, "a1", "b1", "c1")
    bridge = open_to(route, desk, mode=mode, max_tries=3)
    bridge.run(stop_when_idle_secs=0)
    logged = [(record.levelname, record.getMessage()) for record in caplog.records if " times" in record.getMessage()]
    fate = "dropped" if mode is Mode.BEST_EFFORT else "parked"
    name = bridge._target.name
    assert sorted(logged) == [
        ("ERROR", f"{name}: 'a1' failed 3 of 3 times, and is {fate}: ValueError: can't book a1"),
        *(
            ("WARNING", f"{name}: '{id_}' failed {tries} of 3 times, and is tried again: ValueError: can't book {id_}")
            for id_ in ("a1", "b1")
            for tries in (1, 2)
        ),
    ]


def test_best_effort_counts_the_tries_of_each_message_by_themselves(tmp_path):
    route, desk = Route("", tmp_path, "call"), Desk(a1=None, a2=2, b1=1, b2=2)
    send(route, "a1", "a2", "b1", "b2")
    bridge = run_to(route, desk, mode=Mode.BEST_EFFORT, max_tries=3)
    assert sorted(desk.booked) == ["a2", "b1", "b2"]
    assert [desk.tried.count(name) for name in ("a1", "a2", "b1", "b2")] == [3, 3, 2, 3]
    assert (bridge.figures.failed, bridge.figures.parked) == (8, 1)


def test_best_effort_drops_and_says_so(tmp_path, caplog):
    route, desk = Route("", tmp_path, "call"), Desk(a1=None, b1=1)
    send(route, "a1", "b1", "a2")
    bridge = run_to(route, desk, mode=Mode.BEST_EFFORT, max_tries=3)
    assert desk.booked == ["b1", "a2"]
    assert "'a1' failed 3 of 3 times, and is dropped" in caplog.text
    assert (bridge.figures.parked, bridge.figures.delivered, bridge.figures.waiting) == (1, 2, 0)


def test_best_effort_says_what_a_stop_has_lost(tmp_path, caplog):
    route, desk = Route("", tmp_path, "call"), Desk(a1=None)
    send(route, "a1", "a2")
    bridge = open_to(route, desk, mode=Mode.BEST_EFFORT, max_tries=10**9)
    route.plan("acknowledged", bridge.stop)
    bridge.run()
    assert "2 messages are lost" in caplog.text


def test_best_effort_pauses_before_it_tries_again_what_others_hold(tmp_path, caplog):
    """A stop may come in the pause."""
    route, tried = Route("", tmp_path, "call", Mode.BEST_EFFORT), []

    class Busy(Target):
        name = "busy"

        def deliver(self, messages, _lease):
            tried.append(len(messages))
            assert len(tried) < 10
            if len(tried) == 3:
                bridge.stop()
            return Outcome(held={0: StoreBusyError("others hold it")})

    send(route, "a1", "a2")
    bridge = open_bridge(route.origin, Busy(), None, BridgeOptions(mode=Mode.BEST_EFFORT))
    bridge.run()
    assert tried == [2, 2, 2]
    assert "others hold it" in caplog.text
    assert "2 messages are lost" in caplog.text
    assert (bridge.figures.failed, bridge.figures.delivered) == (0, 0)


# Messages that can't be judged


REFUSED = {
    "bytes": ({"uniqueMessageId": b"1"}, {}, "neither text nor a whole number"),
    "a truth value": ({"uniqueMessageId": True}, {}, "neither text nor a whole number"),
    "a fraction": ({"uniqueMessageId": 1.5}, {}, "neither text nor a whole number"),
    "a source of bytes": ({"uniqueMessageId": "1", "messageSourceId": b"1"}, {}, "neither text nor a whole number"),
    "no id where ids are required": ({}, {"ids": IdRule(missing=MissingIds.REFUSE)}, "ids are required"),
    "an empty id where ids are required": (
        {"uniqueMessageId": ""},
        {"ids": IdRule(missing=MissingIds.REFUSE)},
        "ids are required",
    ),
    "an id of another form": ({"uniqueMessageId": "x"}, {"policy": "sequence"}, "seqNo"),
    **{
        f"a function for ids: {what}": ({}, {"ids": IdRule(function=FAILING[what][0])}, FAILING[what][1])
        for what in ("text with U+0000", "a coroutine")
    },
}


@pytest.mark.parametrize(
    ("store", "mode"),
    [("sqlite", Mode.AT_LEAST_ONCE), ("postgresql", Mode.EXACTLY_ONCE), ("sqlite", Mode.APP_CONTROLLED)],
    indirect=["store"],
)
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_judged_is_parked_and_the_rest_goes_on(tmp_path, store, mode, what):
    properties, options, why = REFUSED[what]
    route, desk = Route(store, tmp_path, "call"), Desk()
    route.send(message("1:a"), Message(body=b"odd", is_text=True, properties=properties), message("2:a"))
    bridge = run_to(route, desk, mode=mode, **options)
    assert desk.booked == ["1:a", "2:a"]
    (row,) = parked(route)
    assert why in row.error
    assert (bridge.figures.parked, bridge.receiver.status().unchecked, route.queued) == (1, 1, [])
    retry_parked(store, [row.parked_id])
    run_to(route, desk, mode=mode, **options)
    assert desk.booked == ["1:a", "2:a", "odd"]


def test_ids_of_any_length_and_kind_are_kept(tmp_path, store):
    route, desk = Route(store, tmp_path, "call"), Desk()
    odd = ["x" * 200_000, "\0", "\ud800", "a\nb", "é", " "]
    for name in odd:
        route.send(message(name, source=name, body=f"{len(name)}"), message(name, source=name, body="again"))
    run_to(route, desk)
    assert desk.booked == [f"{len(name)}" for name in odd]


def test_where_ids_are_looked_for(route):
    desk = Desk()
    ids = IdRule(id_property="order", source_property="desk")
    route.send(Message(body=b"1", properties={"order": 7, "desk": 3}), Message(body=b"2", properties={"order": "7"}))
    bridge = run_to(route, desk, ids=ids)
    assert desk.booked == ["1"]
    assert bridge.receiver.status().rDupsDet == 1


@pytest.mark.parametrize(("message_id", "booked"), [("ID:7", ["x"]), ("7", ["x", "x"]), (None, ["x", "x"])])
def test_the_brokers_own_id_is_taken_only_where_it_is_like_no_other(route, message_id, booked):
    desk = Desk()
    route.send(*(Message(body=b"x", message_id=message_id) for _ in range(2)))
    run_to(route, desk)
    assert desk.booked == booked
