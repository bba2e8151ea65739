"""`--duplicates-to` keeps what a bridge drops: each duplicate at least once, whatever dies, and apart from the
messages."""

import json
import re
from collections import Counter

import pytest

from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.targets.broker_target import BrokerTarget
from receiver.errors import BrokerError, SettingsError
from receiver.quantities import moment
from receiver.settings import BridgeSettings
from receiver.store.upkeep import target_rows
from tests.bridge.bridged import STEPS, TEN, DiedError, Route, message, run_until, send
from tests.bridge.test_modes import OF_APP_CONTROLLED

pytestmark = pytest.mark.usefixtures("hasty")

DETECTING = [mode for mode in Mode if mode.detects]
STEPS_OF = {Mode.EXACTLY_ONCE: [step for step in STEPS if step != "committing"], Mode.APP_CONTROLLED: OF_APP_CONTROLLED}


class Keeping(Route):
    """A route whose duplicates also go to a target: a file, a queue or a function."""

    def __init__(self, store, folder, kind, mode, to="file"):
        super().__init__(store, folder, kind, mode)
        self.to = to
        self.again, self.called = folder / "again.jsonl", []
        self.is_down = False

    def keeping(self, **options):
        return open_bridge(
            self.origin,
            self._target(self.mode),
            self.store,
            BridgeOptions(mode=self.mode, duplicates_to=self._for_duplicates(), **options),
        )

    def _for_duplicates(self):
        if self.to == "file":
            return f"file:{self.again}"
        if self.to == "function":
            return self.call
        return BrokerTarget("amqp://memory/again", self._sink_again, IdRule(), adds_duplicate_ids=True)

    def _sink_again(self):
        sink = self.broker.sink("again")
        send = sink.send

        def sending(messages):
            if self.is_down:
                raise BrokerError("it is down")
            send(messages)
            self.reach("kept")

        sink.send = sending
        return sink

    def call(self, received):
        self.called.append(received)

    def hand_on(self, dies=None, **options):
        bridge = self.keeping(**options)
        if dies is not None:
            self.plan(dies, _die)
        try:
            bridge.run(stop_when_idle_secs=0)
        except DiedError:
            bridge.close()
        self._plan.clear()
        return bridge

    def kept(self):
        """The bodies of duplicates at their target, with their properties."""
        if self.to == "file":
            lines = self.again.read_text().splitlines() if self.again.exists() else []
            came = [(line["body"], line["properties"]) for line in map(json.loads, lines)]
        elif self.to == "function":
            came = [(received.text, received.properties) for received in self.called]
        else:
            came = [(arrived.body.decode(), arrived.properties) for arrived in self.broker.queue("again")]
        return [(body, said["receiverDuplicateOf"], said["receiverBodyDiffers"]) for body, said in came]


def _die():
    raise DiedError


@pytest.fixture(params=DETECTING)
def mode(request):
    return request.param


@pytest.mark.parametrize("to", ["file", "queue", "function"])
def test_each_duplicate_comes_with_what_is_known_of_its_id(store_url, tmp_path, mode, to):
    route = Keeping(store_url, tmp_path, "file", mode, to)
    events = []
    bodies = [("1", "a"), ("2", "b"), ("1", "a"), ("1", "other"), (None, "no id"), (None, "no id")]
    route.send(*(message(id_, body=body) for id_, body in bodies))
    bridge = route.keeping()
    bridge.receiver.session._on_duplicate = events.append
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["a", "b", "no id", "no id"]
    (first,) = {moment(event.first_received_at_us) for event in events}
    assert route.kept() == [("a", first, False), ("other", first, True)]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first)
    assert route.waiting() == 0
    assert (bridge.figures.delivered, bridge.figures.parked) == (4, 0)


@pytest.mark.parametrize("dies", sorted({step for steps in STEPS_OF.values() for step in steps}))
@pytest.mark.parametrize("to", ["file", "queue"])
def test_whatever_dies_each_is_kept_at_least_once_and_nothing_else(sqlite_url, tmp_path, mode, to, dies):
    if dies not in STEPS_OF[mode]:
        pytest.skip(f"{mode} has no such step")
    route = Keeping(sqlite_url, tmp_path, "file", mode, to)
    send(route, *TEN, "3", "7", "3")
    for step in (dies, None):
        route.hand_on(step)
    assert route.effects() == TEN
    kept = Counter(body for body, _, _ in route.kept())
    twice = Counter({"3": 2, "7": 1})
    if dies == "committed":  # all of it comes again, as duplicates
        twice += Counter([*TEN, *twice.elements()])
    assert kept == twice


def test_a_death_before_it_is_confirmed_that_a_duplicate_is_kept(sqlite_url, tmp_path, mode):
    """The duplicate is sent again with the same name, so that a broker may drop it."""
    route = Keeping(sqlite_url, tmp_path, "file", mode, "queue")
    send(route, *TEN, "3")
    route.hand_on("kept")
    assert route.waiting() == 1
    assert len(route.kept()) == 1
    route.broker.caches.clear()  # as a broker that drops nothing
    route.hand_on()
    assert [body for body, _, _ in route.kept()] == ["3", "3"]
    assert len({arrived.properties["_AMQ_DUPL_ID"] for arrived in route.broker.queue("again")}) == 1


def test_a_target_that_is_down_holds_the_bridge_back(sqlite_url, tmp_path, mode):
    route = Keeping(sqlite_url, tmp_path, "file", mode, "queue")
    send(route, "1", "1", "2", "3")
    route.is_down = True
    bridge = route.keeping(settings=BridgeSettings(max_batch_size=2))
    run_until(bridge, lambda: bridge.figures.connection_errors > 2)
    assert (route.effects(), route.kept(), route.queued) == (["1"], [], ["2", "3"])
    route.is_down = False
    route.hand_on()
    assert route.effects() == ["1", "2", "3"]
    assert [body for body, _, _ in route.kept()] == ["1"]


def test_what_is_delivered_all_the_same_is_not_kept(sqlite_url, tmp_path, mode):
    route = Keeping(sqlite_url, tmp_path, "file", mode)
    route.send(message("1", body="a"), message("1", body="b"), message("1", body="a"))
    route.hand_on(id_reuse="deliver")
    assert route.effects() == ["a", "b"]
    assert [(body, differs) for body, _, differs in route.kept()] == [("a", False)]


def test_a_bridge_without_the_option_says_what_still_waits(sqlite_url, tmp_path, caplog):
    route = Keeping(sqlite_url, tmp_path, "file", Mode.EXACTLY_ONCE)
    send(route, "1", "1")
    route.hand_on("delivered")  # the message is handed on, and its duplicate isn't
    assert [row.waiting for row in target_rows(sqlite_url)] == [1, 1]
    route.run()
    assert f"the inbox holds 1 message for file:{route.again}" in caplog.text
    caplog.clear()
    route.hand_on()
    assert "the inbox holds" not in caplog.text
    assert len(route.kept()) == 1


@pytest.mark.parametrize("mode", [Mode.AT_LEAST_ONCE, Mode.BEST_EFFORT])
def test_a_mode_that_drops_nothing_refuses_it(tmp_path, sqlite_url, mode):
    options = BridgeOptions(mode=mode, duplicates_to=f"file:{tmp_path}/again")
    with pytest.raises(SettingsError, match="drops no duplicates"):
        open_bridge(Route(sqlite_url, tmp_path, "file").origin, f"file:{tmp_path}/orders", sqlite_url, options)


@pytest.mark.parametrize(
    ("to", "duplicates_to", "why"),
    [
        ("file:orders", "file:./orders", "for messages and for duplicates"),
        ("amqp://h/orders", "stomp://h/orders", "for messages and for duplicates"),
        ("file:orders", "amqp://h/in", "both source and target"),
        ("file:orders", "nonsense", "isn't a target"),
        ("-", "-", "for messages and for duplicates"),
    ],
)
def test_what_is_no_target_of_its_own_is_refused(tmp_path, monkeypatch, to, duplicates_to, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=why):
        open_bridge("amqp://h/in", to, "sqlite:///store.db", BridgeOptions(duplicates_to=duplicates_to))
    assert list(tmp_path.iterdir()) == []
