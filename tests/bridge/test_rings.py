"""Bridges in a ring: a message that comes round is parked. It is never dropped, and never goes round for ever."""

import json
import logging
import uuid
from dataclasses import replace
from functools import partial

import pytest

from receiver.bridge.bridge import Bridge
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.received import PASSED, Passed
from receiver.bridge.targets.broker_target import BrokerTarget
from receiver.store.inbox import Inbox
from receiver.store.upkeep import parked_rows, retry_parked
from tests.bridge.bridged import DiedError, message, run_until
from tests.bridge.conftest import CONNECTORS, address_of
from tests.bridge.test_connectors import bodies, take, texts
from tests.brokers.memory import MemoryBroker

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(3)]

KEEPING = [Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED]


class Ring:
    """Queues of a broker in memory, and bridges between them that share a store."""

    def __init__(self, store: str, mode: Mode = Mode.EXACTLY_ONCE) -> None:
        self.store = store
        self.mode = mode
        self.broker = MemoryBroker()
        # A domain of its own, in a store that tests share. Not every protocol, list or database can hold these
        # characters.
        self.connection_id = f"{uuid.uuid4().hex},:\0\n\ud800"

    def domain(self, queue):
        return "{}:queue://{}".format(self.connection_id.replace(":", "\\:"), queue)

    def open(self, source, target, *, store=None, mode=None, domain="default") -> Bridge:
        mode = mode or self.mode
        to = BrokerTarget(
            f"amqp://memory/{target}", partial(self.broker.sink, target), IdRule(), adds_duplicate_ids=mode.detects
        )
        origin = Origin(partial(self.broker.source, source), self.connection_id, f"queue://{source}")
        where = None if mode is Mode.BEST_EFFORT else store or self.store
        return open_bridge(origin, to, where, BridgeOptions(mode=mode, domain=domain))

    def run(self, *ways, **options):
        """Run bridges one after the other, each until its queue is empty: `ab` leads from the queue a to the queue
        b."""
        for way in ways:
            self.open(*way, **options).run(stop_when_idle_secs=0)

    def send(self, queue, *messages):
        with self.broker.sink(queue) as sink:
            sink.send(messages)

    def queued(self, queue):
        return [waiting.body.decode() for waiting in self.broker.queue(queue)]

    def parked(self):
        return [row for row in parked_rows(self.store) if self.connection_id in (row.domain or "").replace("\\:", ":")]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "bridges" in record.getMessage()]


@pytest.mark.parametrize("mode", KEEPING)
def test_what_comes_round_is_parked_and_warned_of_once(store, mode, caplog):
    ring = Ring(store, mode)
    ring.send("a", *(message(id_) for id_ in ("1", "2", "3")))
    ring.run("ab", "ba")
    assert ring.queued("a") == ["1", "2", "3"]
    bridge = ring.open("a", "b")
    bridge.run(stop_when_idle_secs=0)
    assert ring.queued("a") == ring.queued("b") == []
    parked = ring.parked()
    assert [(row.unique_message_id, row.domain, row.tries) for row in parked] == [
        (id_, ring.domain("a"), 0) for id_ in ("1", "2", "3")
    ]
    assert all("it has come back to " in row.error for row in parked)
    assert (bridge.figures.parked, bridge.figures.delivered) == (3, 0)
    assert len(warnings(caplog)) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_without_any_id_it_is_noticed_too(store):
    ring = Ring(store)
    ring.send("a", message(None, body="x"))
    ring.run("ab", "bc", "ca", "ab")
    assert ring.queued("b") == []
    assert [row.target for row in ring.parked()] == ["amqp://memory/b"]


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_the_original_that_is_sent_again_stays_a_duplicate(store, mode):
    ring = Ring(store, mode)
    for _ in range(2):
        ring.send("a", message("1"))
        ring.run("ab")
    assert ring.queued("b") == ["1"]
    assert ring.parked() == []


@pytest.mark.parametrize("mode", KEEPING)
def test_it_is_parked_in_the_transaction_of_its_batch(store, mode, monkeypatch):
    ring = Ring(store, mode)
    ring.send("a", message("1"))
    ring.run("ab", "ba")
    park = Inbox.park

    def dying(inbox, connection, row, error):
        park(inbox, connection, row, error)
        raise DiedError

    with monkeypatch.context() as here:
        here.setattr(Inbox, "park", dying)
        with pytest.raises(DiedError):
            ring.run("ab")
    assert ring.parked() == []
    ring.run("ab")
    assert [row.unique_message_id for row in ring.parked()] == ["1"]
    assert ring.queued("b") == []


@pytest.mark.parametrize("mode", KEEPING)
def test_a_retry_hands_it_on_and_parks_what_comes_round_again(store, mode):
    ring = Ring(store, mode)
    ring.send("a", message("1"))
    ring.run("ab", "ba", "ab")
    retry_parked(store, [row.parked_id for row in ring.parked()])
    ring.run("ab")
    assert (ring.queued("b"), ring.parked()) == (["1"], [])
    ring.run("ba", "ab")
    assert [row.domain for row in ring.parked()] == [ring.domain("b")]
    assert ring.queued("a") == ring.queued("b") == []


def test_best_effort_has_no_place_to_park_and_drops_nothing(caplog, sqlite_url):
    ring = Ring(sqlite_url, Mode.BEST_EFFORT)
    ring.send("a", message("1"), message("2"))
    bridge = ring.open("a", "b")
    passed = Passed(bridge.receiver.store_id)
    ring.send("a", *(message(id_, **{PASSED: passed.mark(id_, {})}) for id_ in ("3", "4")))
    bridge.run(stop_when_idle_secs=0)
    assert ring.queued("b") == ["1", "2", "3", "4"]
    assert len(warnings(caplog)) == 1


def test_one_bridge_that_keeps_stops_a_ring_of_others_that_do_not(store):
    ring = Ring(store)
    ring.send("a", message("1"))
    ring.run("ab")
    ring.run("bc", "ca", mode=Mode.BEST_EFFORT)
    ring.run("ab")
    assert [row.domain for row in ring.parked()] == [ring.domain("a")]


def test_two_bridges_in_a_row_that_share_a_domain(store, tmp_path):
    """The second bridge would take every message for a duplicate of the first one's. In another store it has another
    domain."""
    ring, shared = Ring(store), f"name:{uuid.uuid4().hex}"
    ring.send("a", message("1"))
    ring.run("ab", "bc", domain=shared)
    parked = [row for row in parked_rows(store) if row.domain == shared.removeprefix("name:")]
    assert [row.target for row in parked] == ["amqp://memory/c"]
    ring.send("a", message("2"))
    ring.run("ab", domain=shared)
    ring.run("bc", domain=shared, store=f"sqlite:///{tmp_path}/another.db")
    assert ring.queued("c") == ["2"]


def test_the_mark_is_bounded_and_notices_a_ring_of_64():
    domains = [Passed((1 << 62) + number) for number in range(70)]
    properties = {}
    for number, passed in enumerate(domains):
        assert not passed.has("1", properties)
        properties = {PASSED: passed.mark("1", properties)}
        assert [other.has("1", properties) for other in domains[: number + 1]][-64:] == [True] * min(64, number + 1)
    assert len(properties[PASSED]) == 64 * 17 - 1
    assert domains[-1].mark("1", properties) == properties[PASSED]


def test_what_an_application_makes_of_a_message_has_passed_nothing(sqlite_url):
    """An application's answer counts as a new message, even if it copies all properties except the id."""
    ring = Ring(sqlite_url)
    ring.send("a", message("1"))
    ring.run("ab")
    (came,) = ring.broker.queue("b")
    ring.send("a", replace(came, properties={**came.properties, "uniqueMessageId": "answer to 1"}))
    ring.run("ab")
    assert ring.queued("b") == ["1", "1"]
    assert ring.parked() == []


@pytest.mark.parametrize("theirs", [7, 1.5, True, b"7", None, "", "of the application's own", "," * 5_000, "F" * 5_000])
def test_a_property_that_is_no_mark_says_nothing(theirs):
    passed = Passed(7)
    assert not passed.has("1", {PASSED: theirs})
    assert passed.mark("1", {PASSED: theirs}) == passed.mark("1", {})


@pytest.mark.parametrize("kind", ["file", "call"])
def test_a_file_and_a_function_get_it_as_any_property(kind, tmp_path, sqlite_url):
    ring, seen = Ring(sqlite_url), []

    def see(received):
        seen.append(dict(received.properties))

    ring.send("a", message("1"))
    ring.run("ab")
    (mark,) = [str(waiting.properties[PASSED]) for waiting in ring.broker.queue("b")]
    origin = Origin(partial(ring.broker.source, "b"), "broker", "queue://b")
    ring.send("b", message("2"))
    open_bridge(origin, see if kind == "call" else f"file:{tmp_path}/b", sqlite_url).run(stop_when_idle_secs=0)
    if kind == "file":
        seen = [json.loads(line)["properties"] for line in (tmp_path / "b").read_text().splitlines()]
    assert [properties.get(PASSED) for properties in seen] == [mark, None]


@pytest.mark.thinned(4)
@pytest.mark.artemis
@pytest.mark.parametrize("back", CONNECTORS)
@pytest.mark.parametrize("forth", CONNECTORS)
def test_a_real_broker_carries_the_mark_by_either_protocol(running_artemis, sqlite_url, forth, back):
    name = uuid.uuid4().hex
    way = {"a": forth, "b": back}
    at = {queue: partial(address_of, running_artemis, path=f"queue/{queue}-{name}") for queue in way}

    def run(source, target, count, selector=""):
        taken = f"{at[source](protocol=way[source])}{selector}"
        bridge = open_bridge(taken, str(at[target](protocol=way[source])), sqlite_url)
        run_until(bridge, lambda: bridge.figures.delivered + bridge.figures.parked == count)

    with CONNECTORS[forth][1](at["a"](protocol=forth)) as sink:
        sink.send(texts("1", "2"))
    run("a", "b", 2)
    run("b", "a", 2)
    with CONNECTORS[forth][1](at["a"](protocol=forth)) as sink:
        sink.send(texts("3"))
    run("a", "b", 1, selector=f"?selector={PASSED}%20IS%20NULL")
    with CONNECTORS[back][0](at["b"](protocol=back)) as source:
        came = take(source, 1)
        assert bodies(came) == ["3"]
        source.acknowledge(came)
    run("a", "b", 2)
    assert [row.error[:20] for row in parked_rows(sqlite_url)] == ["it has come back to "] * 2
