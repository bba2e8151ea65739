"""What each mode promises, whichever step of a message's way a bridge dies at; `tests/README.md` cites these tests."""

import re

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import Mode
from receiver.bridge.received import PASSED
from receiver.errors import SettingsError, StoreError
from tests.bridge.bridged import STEPS, TEN, Route, message, watch_commits
from tests.choosing import cases

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(3)]

KINDS = ["file", "queue", "table", "call"]
ONCE = ["file", "queue", "table"]
"""The targets that can have a message exactly once; a function without the connection can't."""
ANYWHERE = [*(("sqlite", kind) for kind in KINDS), ("postgresql", "file"), ("postgresql", "table")]
SOMEWHERE = [where for where in ANYWHERE if where != ("postgresql", "file")]
ONCE_ANYWHERE = [*(where for where in ANYWHERE if where[1] in ONCE), ("sqlite", "topic"), ("postgresql", "topic")]
"""To a topic, EXACTLY_ONCE alone sends in turns."""
"""Kinds of stores and of targets; on the slower store, those that are bound up with its transactions."""
UNTIL_COMMITTED = STEPS[: STEPS.index("committed")]
OF_APP_CONTROLLED = ["taken", "delivering", "delivered", "committed", "acknowledged"]


def send(route, ids=TEN):
    """From three sources in turn."""
    route.send(*(message(id_, f"source {int(id_) % 3}") for id_ in ids))


def in_order(effects):
    """Whether the first effects of each source's messages are in the order in which they were sent."""
    firsts = list(dict.fromkeys(effects))
    of_sources = [[int(id_) for id_ in firsts if int(id_) % 3 == source] for source in range(3)]
    return all(of_source == sorted(of_source) for of_source in of_sources)


# BEST_EFFORT


@pytest.mark.parametrize("kind", ["file", "queue", "call"])
def test_best_effort_hands_on_everything_while_nothing_breaks(tmp_path, kind):
    route = Route("", tmp_path, kind, Mode.BEST_EFFORT)
    send(route, [*TEN, "3"])
    bridge = route.run()
    assert route.effects() == [*TEN, "3"]
    assert bridge.receiver.status().rDupsDet == 1
    assert route.queued == []


@pytest.mark.parametrize("kind", ["file", "queue", "call"])
def test_best_effort_acknowledges_before_it_hands_on(tmp_path, kind):
    route = Route("", tmp_path, kind, Mode.BEST_EFFORT)
    send(route)
    seen = []
    route.plan("acknowledged", lambda: seen.append((route.queued, route.effects())))
    route.run()
    assert seen == [([], [])]


@pytest.mark.parametrize("kind", ["file", "queue", "call"])
def test_best_effort_loses_what_was_under_way_and_nothing_else(tmp_path, kind):
    route = Route("", tmp_path, kind, Mode.BEST_EFFORT)
    send(route, TEN[:5])
    route.run(dies="acknowledged")
    send(route, TEN[5:])
    route.run()
    assert route.effects() == TEN[5:]


@pytest.mark.parametrize("kind", ["file", "queue", "call"])
def test_best_effort_leaves_to_the_broker_what_it_has_not_acknowledged(tmp_path, kind):
    route = Route("", tmp_path, kind, Mode.BEST_EFFORT)
    send(route)
    route.run(dies="committed")
    assert route.effects() == []
    route.run()
    assert route.effects() == TEN


def test_best_effort_keeps_nothing(tmp_path):
    route = Route("", tmp_path, "file", Mode.BEST_EFFORT)
    send(route)
    route.run()
    assert [file.name for file in tmp_path.iterdir()] == ["orders.jsonl"]


# AT_LEAST_ONCE and EXACTLY_ONCE


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE])
def test_nothing_is_acknowledged_before_it_is_kept(tmp_path, store, mode):
    route = Route(store, tmp_path, "file", mode)
    send(route)
    seen = []
    route.plan("committed", lambda: seen.append((route.waiting(), route.effects())))
    route.run()
    assert seen == [(10, [])]
    assert route.waiting() == 0


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE])
@pytest.mark.parametrize("step", UNTIL_COMMITTED)
def test_what_was_not_kept_is_the_brokers(tmp_path, store, monkeypatch, mode, step):
    route = Route(store, tmp_path, "file", mode)
    watch_commits(monkeypatch, route)
    send(route)
    route.run(dies=step)
    assert route.waiting() == 0
    assert sorted(route.queued) == TEN


def test_at_least_once_hands_on_duplicates_and_counts_them(tmp_path, store):
    route = Route(store, tmp_path, "file", Mode.AT_LEAST_ONCE)
    send(route, [*TEN, "3", "3"])
    bridge = route.run()
    assert route.effects() == [*TEN, "3", "3"]
    assert bridge.receiver.status().rDupsDet == 2


@pytest.mark.parametrize(("store", "kind"), SOMEWHERE, indirect=["store"])
@pytest.mark.parametrize("step", STEPS)
def test_at_least_once_loses_nothing_wherever_it_dies(tmp_path, store, monkeypatch, kind, step):
    route = Route(store, tmp_path, kind, Mode.AT_LEAST_ONCE)
    watch_commits(monkeypatch, route)
    send(route)
    route.run(dies=step)
    route.run()
    assert sorted(set(route.effects())) == TEN
    assert in_order(route.effects())
    assert (route.waiting(), route.queued) == (0, [])


@pytest.mark.parametrize(("store", "kind"), ANYWHERE, indirect=["store"])
def test_exactly_once_hands_on_no_duplicate(tmp_path, store, kind):
    route = Route(store, tmp_path, kind)
    send(route, [*TEN, "3"])
    send(route, TEN)
    bridge = route.run(max_batch_size=4)
    assert route.effects() == TEN
    assert bridge.receiver.status().rDupsDet == 11


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("store", "kind"), ONCE_ANYWHERE, indirect=["store"])
@pytest.mark.parametrize("step", STEPS)
def test_exactly_once_has_each_effect_once_wherever_it_dies(tmp_path, store, monkeypatch, kind, step):
    route = Route(store, tmp_path, kind)
    watch_commits(monkeypatch, route)
    send(route)
    route.run(dies=step, max_batch_size=6)
    route.run(max_batch_size=6)
    assert sorted(route.effects()) == TEN
    assert in_order(route.effects())
    assert (route.waiting(), route.queued) == (0, [])


@pytest.mark.parametrize(("store", "kind"), ONCE_ANYWHERE, indirect=["store"])
def test_exactly_once_delivers_what_was_kept_before_anything_new(tmp_path, store, kind):
    route = Route(store, tmp_path, kind)
    send(route, TEN[:4])
    route.run(dies="acknowledged")
    send(route, TEN[4:])
    route.run()
    assert route.effects() == TEN


def test_exactly_once_keeps_message_and_properties_until_the_target_has_them(tmp_path, store):
    route = Route(store, tmp_path, "queue")
    sent = message("1", "s", body="a\0b", text="x", whole=2**62, part=0.5, yes=True, raw=b"\0\xff", none=None)
    route.send(sent)
    route.run(dies="acknowledged")
    route.run()
    (seen,) = route.broker.queue("out")
    assert (seen.body, seen.is_text) == (b"a\0b", True)
    properties = dict(seen.properties)
    assert re.fullmatch("[0-9a-f]+-0-[0-9a-f]+", properties.pop("_AMQ_DUPL_ID"))
    assert re.fullmatch("[0-9a-f]{16}", properties.pop(PASSED))
    assert properties == sent.properties
    assert [type(value) for value in properties.values()] == [type(value) for value in sent.properties.values()]


def test_exactly_once_by_a_function_without_the_connection_is_at_least_once(tmp_path, store):
    route = Route(store, tmp_path, "call")
    send(route)
    route.run(dies="delivered")
    route.run()
    assert route.effects() == TEN + TEN


def test_exactly_once_by_a_broker_needs_one_that_drops_what_carries_a_known_id(tmp_path, store):
    route = Route(store, tmp_path, "queue")
    send(route)
    route.run(dies="delivered")
    route.broker.caches.clear()
    route.run()
    assert route.effects() == TEN + TEN


def test_a_message_without_any_id_comes_again_where_its_acknowledgement_was_lost(tmp_path, store):
    route = Route(store, tmp_path, "file")
    route.send(message(None, body="a"))
    route.run(dies="committed")
    bridge = route.run()
    assert route.effects() == ["a", "a"]
    assert bridge.receiver.status().unchecked == 1


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("step", STEPS[STEPS.index("acknowledged") :])
def test_a_message_without_any_id_is_numbered_for_a_broker(tmp_path, store, step, kind):
    route = Route(store, tmp_path, kind)
    route.send(message(None, body="a"), message(None, body="b"), message("1"))
    route.run(dies=step)
    route.run()
    assert route.effects() == ["a", "b", "1"]
    ids = [arrived.properties["uniqueMessageId"] for arrived in route.broker.queue("out")]
    first = int(ids[0].partition(":")[0])
    assert ids == [f"{first}:{route.domain}", f"{first + 1}:{route.domain}", "1"]


def test_two_bridges_share_what_waits_whoever_took_it(tmp_path, store):
    """The first dies once its batch is kept, and the second delivers it although it never took it."""
    route = Route(store, tmp_path, "file")
    send(route)
    route.run(dies="acknowledged")
    other = route.run()
    assert route.effects() == TEN
    assert other.receiver.status().rx == 0


def test_one_bridge_delivers_for_the_other_while_that_is_busy(tmp_path, store):
    route = Route(store, tmp_path, "file")
    send(route)
    route.plan("acknowledged", route.run)
    first = route.run()
    assert route.effects() == TEN
    assert (first.figures.delivered, first.figures.waiting) == (0, 0)


# APP_CONTROLLED


@pytest.mark.parametrize(("store", "kind"), ANYWHERE, indirect=["store"])
def test_app_controlled_hands_on_before_it_acknowledges(tmp_path, store, kind):
    route = Route(store, tmp_path, kind, Mode.APP_CONTROLLED)
    send(route, [*TEN, "3"])
    seen = []
    route.plan("committed", lambda: seen.append((route.effects(), route.waiting())))
    bridge = route.run()
    assert seen == [(TEN, 0)]
    assert route.effects() == TEN
    assert bridge.receiver.status().rDupsDet == 1
    assert bridge.figures.delivered == 10


@pytest.mark.parametrize("step", OF_APP_CONTROLLED)
def test_app_controlled_commits_rows_and_ids_together(tmp_path, store, step):
    route = Route(store, tmp_path, "table", Mode.APP_CONTROLLED)
    send(route)
    route.run(dies=step)
    assert len(route.effects()) == route.ids_kept()
    assert route.ids_kept() == (10 if step in {"committed", "acknowledged"} else 0)
    route.run()
    assert route.effects() == TEN


@pytest.mark.parametrize(
    ("store", "kind"), [("sqlite", "file"), ("sqlite", "queue"), ("postgresql", "file")], indirect=["store"]
)
@pytest.mark.parametrize("step", OF_APP_CONTROLLED)
def test_app_controlled_has_each_effect_once_wherever_it_dies(tmp_path, store, kind, step):
    route = Route(store, tmp_path, kind, Mode.APP_CONTROLLED)
    send(route)
    route.run(dies=step, max_batch_size=6)
    route.run(max_batch_size=6)
    assert sorted(route.effects()) == TEN
    assert in_order(route.effects())
    assert route.queued == []


# Of several modes


def test_a_mode_goes_on_where_another_has_stopped(tmp_path, store):
    route = Route(store, tmp_path, "file")
    send(route, TEN[:3])
    route.run(dies="acknowledged", mode=Mode.AT_LEAST_ONCE)
    send(route, TEN[:6])
    route.run(dies="acknowledged")
    send(route, TEN)
    route.run(mode=Mode.APP_CONTROLLED)
    assert route.effects() == TEN


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.BEST_EFFORT])
def test_all_but_best_effort_need_a_store_that_keeps(mode):
    for store in (None, "memory://"):
        with pytest.raises(SettingsError, match="needs a store"):
            open_bridge("amqp://h/q", "file:x", store, BridgeOptions(mode=mode))


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.BEST_EFFORT])
def test_all_but_best_effort_need_a_subscription_of_a_topic(mode, sqlite_url):
    with pytest.raises(SettingsError, match="subscription=NAME"):
        open_bridge("amqp://h/topic/prices", "file:x", sqlite_url, BridgeOptions(mode=mode))


def test_a_commit_of_unknown_outcome_is_tried_again_and_nothing_doubled(tmp_path, store, monkeypatch):
    """The ids were recorded and the messages kept; then the link to the store broke, so that nobody could tell."""
    route = Route(store, tmp_path, "file")
    send(route)
    bridge = route.open()
    before, broken = bridge._flow.before_acknowledging, []

    def breaking(taken):
        before(taken)
        if not broken:
            broken.append(taken)
            raise StoreError("whether it was committed isn't known")

    monkeypatch.setattr(bridge._flow, "before_acknowledging", breaking)
    bridge.run(stop_when_idle_secs=0)
    assert broken
    assert route.effects() == TEN


# All of it at random

IDS = st.sampled_from(["1", "2", "3", "4", "5", "6", None])
LIVES = st.tuples(st.sampled_from([*STEPS, None]), st.integers(1, 2), st.sampled_from([*STEPS, None]))
ENTRIES = st.lists(st.lists(IDS, max_size=6) | LIVES, max_size=8)


class Expected:
    """What the target must have, by the words of the promise: no more than what was sent is known."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.without_id = 0

    def hold(self, mode: Mode, kind: str, effects: list[str]) -> None:
        of_ids = [body for body in effects if body in self.ids]
        nameless = [body for body in effects if body not in self.ids]
        assert set(of_ids) == self.ids
        assert len(set(nameless)) == self.without_id
        if mode is not Mode.AT_LEAST_ONCE and kind in {*ONCE, "topic"}:
            assert len(of_ids) == len(self.ids)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *((mode, kind) for mode in (Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED) for kind in KINDS),
        (Mode.EXACTLY_ONCE, "topic"),
    ],
)
@cases(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.tuples(st.integers(1, 4), ENTRIES))
def test_any_script_of_sends_deaths_and_competitors(tmp_path_factory, sqlite_store, mode, kind, script):
    """Whatever is sent, wherever bridges die, and wherever another takes over: the target has what the mode promises."""
    route, expected = Route(sqlite_store, tmp_path_factory.mktemp("script"), kind, mode), Expected()
    with pytest.MonkeyPatch.context() as patch:
        watch_commits(patch, route)
        batch_size, entries = script
        for entry in entries:
            if isinstance(entry, list):
                _send(route, expected, entry)
            else:
                _live(route, batch_size, *entry)
        route.run(max_batch_size=batch_size)
    expected.hold(mode, kind, route.effects())
    assert route.queued == []


def _send(route, expected, ids):
    for id_ in ids:
        if id_ is None:
            expected.without_id += 1
            route.send(message(None, body=f"nameless {expected.without_id}"))
        else:
            expected.ids.add(id_)
            route.send(message(id_, f"source {int(id_) % 2}"))


def _live(route, batch_size, dies, at, competes):
    """One bridge's life: another comes in between where nothing is locked, and it may die."""
    if competes in {"taken", "committed", "acknowledged", "confirmed"}:
        route.plan(competes, lambda: route.run(max_batch_size=batch_size))
    try:
        route.run(dies=dies if dies != competes else None, at=at, max_batch_size=batch_size)
    except AssertionError as error:
        assert "it never came to" in str(error)  # noqa: PT017 - fewer batches than that
