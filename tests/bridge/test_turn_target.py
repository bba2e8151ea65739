"""Turns to a broker in memory: two notes show what the broker has, whichever sender died, was overtaken, or was
forgotten."""

import logging
import sqlite3
from contextlib import closing

import pytest

from receiver.bridge.connectors import TurnForgottenError
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule
from receiver.bridge.targets import broker_target
from receiver.bridge.targets.broker_target import TurnTarget
from receiver.errors import BrokerError, MessageRefusedError, MessageUnfitError
from receiver.settings import BridgeSettings
from receiver.store.inbox import Inbox
from receiver.store.upkeep import drop_waiting, parked_rows, retry_parked, target_rows
from tests.bridge.bridged import TEN, DiedError, Route, _die, message, send
from tests.brokers.memory import MemoryTurns

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(2)]

TO = "kafka://memory/out"
MAY_COME_TWICE = "may come twice"


@pytest.fixture
def route(store, tmp_path):
    return Route(store, tmp_path, "topic")


@pytest.fixture
def file_route(sqlite_url, tmp_path):
    """A route with a store that can be copied."""
    return Route(sqlite_url, tmp_path, "topic")


def warnings(caplog):
    """The warnings of the target."""
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    return [warning for warning in said if warning.startswith(TO)]


class Choosy(MemoryTurns):
    """Refuses turns that have certain messages, and notes how many messages each turn had."""

    def __init__(self, route, unfit=()):
        super().__init__(route.broker, "out")
        self.unfit = set(unfit)
        self.sizes = []

    def send_turn(self, messages, **more):
        if messages:
            self.sizes.append(len(messages))
        bodies = {each.body.decode() for each in messages}
        if bodies & self.unfit and len(messages) == 1:
            raise MessageUnfitError("it is too large")
        if bodies & self.unfit or any("poison" in body for body in bodies):
            raise MessageRefusedError("one is refused")
        return super().send_turn(messages, **more)

    def close(self):
        """Do nothing: the test uses it again."""


class Forgetful(Choosy):
    """A broker that has forgotten how the last turn ended, until that turn is abandoned."""

    has_abandoned = False

    def begin(self, name):
        note = super().begin(name)
        if not self.has_abandoned:
            raise TurnForgottenError(BrokerAddress.parse(TO), note)
        return note

    def abandon_turn(self):
        self.has_abandoned = True


def open_to(route, turns, **settings):
    target = TurnTarget(TO, lambda: turns, IdRule())
    return open_bridge(route.origin, target, route.store, BridgeOptions(settings=BridgeSettings(**settings)))


def run_to(route, turns, **settings):
    bridge = open_to(route, turns, **settings)
    bridge.run(stop_when_idle_secs=0)
    return bridge


# Senders that ended between the two commits


def test_what_was_sent_and_not_confirmed_is_there(route, caplog):
    send(route, *TEN)
    route.run(dies="delivered")
    assert (route.effects(), route.waiting()) == (TEN, 10)
    with caplog.at_level(logging.INFO, "receiver.bridge"):
        route.run()
    assert (route.effects(), route.waiting()) == (TEN, 0)
    assert "has the 10 messages that were sent and not confirmed" in caplog.text
    assert warnings(caplog) == []


def test_a_turn_that_ends_before_it_is_there_is_sent_again(route, caplog):
    send(route, *TEN)
    route.run(dies="delivering")
    assert (route.effects(), route.waiting()) == ([], 10)
    route.run()
    assert (route.effects(), route.waiting()) == (TEN, 0)
    assert warnings(caplog) == []


def test_gaps_between_numbers_are_no_part_of_a_turn(route):
    """A turn has ended unconfirmed. A parked message that waits again has a number between those of the turn."""
    turns = Choosy(route)
    route.send(message("1", "a"), message("poison", "b"), message("2", "a"), message("2", "a"), message("3", "a"))
    run_to(route, turns, max_tries=1)
    assert route.effects() == ["1", "2", "3"]
    (row,) = [row for row in parked_rows(route.store) if row.domain == route.domain]
    send(route, "4", "5")
    route.run(dies="delivered")
    retry_parked(route.store, [row.parked_id])
    route.run()
    assert route.effects() == ["1", "2", "3", "4", "5", "poison"]


@pytest.mark.parametrize("dies", ["delivering", "delivered"])
def test_a_parked_message_that_is_tried_again_comes_once(route, dies):
    """It comes once, although its number is far below those in the topic."""
    turns = Choosy(route)
    route.send(message("poison", "b"), *(message(id_, "a") for id_ in TEN))
    run_to(route, turns, max_tries=1)
    (row,) = [row for row in parked_rows(route.store) if row.domain == route.domain]
    retry_parked(route.store, [row.parked_id])
    route.run(dies=dies)
    route.run()
    assert sorted(route.effects()) == [*TEN, "poison"]


def test_a_part_that_waits_for_its_turn_is_no_part_of_another(route):
    """One of two sources waits, because its message has failed. The other source's turn ends unconfirmed."""
    turns = Choosy(route)
    route.send(message("poison", "b"), message("b2", "b"), message("a1", "a"), message("a2", "a"))
    bridge = open_to(route, turns, max_tries=1_000_000)  # it waits even on a slow machine
    send_turn = turns.send_turn

    def dying(messages, **more):
        sent = send_turn(messages, **more)
        if any(each.body == b"a2" for each in messages):
            raise DiedError
        return sent

    turns.send_turn = dying
    with pytest.raises(DiedError):
        bridge.run(stop_when_idle_secs=0)
    assert "a2" in route.effects()
    assert "b2" not in route.effects()
    run_to(route, Choosy(route), max_tries=2)
    assert sorted(route.effects()) == ["a1", "a2", "b2"]
    assert route.waiting() == 0


def test_a_commit_to_the_store_that_failed_is_made_up_for_by_the_same_process(route, monkeypatch):
    """The bridge goes on. It reads the topic's note before it sends anything."""
    send(route, *TEN)
    bridge, confirm, broken = route.open(), broker_target.Lease.save_turn, []

    def breaking(lease, note):
        confirm(lease, note)
        if note != broker_target._FIRST_NOTE and not broken:
            broken.append(note)
            raise BrokerError("the store is gone, say")

    monkeypatch.setattr(broker_target.Lease, "save_turn", breaking)
    bridge.run(stop_when_idle_secs=0)
    assert broken
    assert (route.effects(), route.waiting()) == (TEN, 0)


# Senders that were overtaken


def test_two_bridges_of_a_store_take_turns(route, caplog):
    one, other = Choosy(route), Choosy(route)
    bridges = [open_to(route, turns) for turns in (one, other)]
    for bridge in bridges:
        assert bridge.begin(waits=False)
    for number in range(6):
        send(route, f"{number}")
        bridge = bridges[number % 2]
        bridge._handle(bridge._take())
    for bridge in bridges:
        bridge.close()
    assert route.effects() == [str(number) for number in range(6)]
    assert len(one.sizes), len(other.sizes) == (3, 3)
    assert warnings(caplog) == []


def test_whoever_has_lost_its_lease_sends_nothing(route):
    """It has read the waiting messages, and slept. Meanwhile the server gave its lease to another bridge, which sent
    these messages and more."""
    send(route, *TEN)
    bridge = route.open()
    target = bridge._target
    deliver = target.deliver

    def overtaken(messages, lease):
        target.deliver = deliver
        turns = route.broker.turns_to("out")
        turns.begin(lease.target_key)
        turns.send_turn([message("of another")], note="another's", number=1)
        return deliver(messages, lease)

    target.deliver = overtaken
    route.plan("delivered", _die)  # the turn has been refused by then
    with pytest.raises(DiedError):
        bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["of another"]


def test_the_lease_is_looked_at_again_once_others_can_send_no_more(route, monkeypatch):
    order = []
    begin, look_again = MemoryTurns.begin, broker_target.Lease.look_again
    numbers = broker_target.Lease.sequence_numbers
    monkeypatch.setattr(MemoryTurns, "begin", lambda self, name: order.append("begin") or begin(self, name))
    monkeypatch.setattr(broker_target.Lease, "look_again", lambda self: order.append("look") or look_again(self))
    monkeypatch.setattr(
        broker_target.Lease, "sequence_numbers", lambda self, *a, **k: order.append("read") or numbers(self, *a, **k)
    )
    send(route, *TEN)
    route.run()
    assert order[:3] == ["begin", "look", "read"]


def test_two_stores_have_names_of_their_own(tmp_path, caplog):
    one, other = (Route(f"sqlite:///{tmp_path}/{name}.db", tmp_path, "topic") for name in ("one", "other"))
    other.broker, other.connection_id = one.broker, one.connection_id
    for ids in (TEN[:5], TEN[5:]):
        for route in (one, other):
            send(route, *ids)
            route.run(dies="delivered")
    for route in (one, other):
        route.run()
    assert sorted(one.effects()) == sorted(TEN * 2)
    assert len(one.broker.notes) == 2
    assert warnings(caplog) == []


def test_two_targets_of_a_domain_have_names_of_their_own(route):
    with Inbox(route.store, domain_id=domain_id(route), target="kafka://a/out") as a, a.lease() as lease:
        name = lease.target_key
    with Inbox(route.store, domain_id=domain_id(route), target="kafka://b/out") as b, b.lease() as lease:
        assert lease.target_key != name


def domain_id(route):
    bridge = route.open()
    bridge.close()
    return bridge.receiver.domain_id


# Brokers that forget


def test_a_note_that_the_broker_has_forgotten_doubles_nothing_where_nothing_waits(route, caplog):
    send(route, *TEN[:5])
    route.run()
    route.broker.notes.clear()
    route.run()
    route.broker.notes.clear()
    send(route, *TEN[5:])
    route.run()
    assert route.effects() == TEN
    assert warnings(caplog) == []


def test_a_note_that_is_forgotten_while_messages_wait_is_said(route, caplog):
    send(route, *TEN)
    route.run(dies="delivered")
    route.broker.notes.clear()
    route.run()
    assert route.effects() == TEN * 2
    (warning,) = warnings(caplog)
    assert "no longer says what was sent last" in warning
    assert MAY_COME_TWICE in warning
    caplog.clear()
    send(route, "10")
    route.run()
    assert warnings(caplog) == []


@pytest.mark.parametrize("before", [[], ["before"]])
def test_a_turn_that_the_broker_forgot_to_end_is_sent_again(route, before, caplog):
    send(route, *before)
    route.run()
    send(route, *TEN)
    route.run(dies="delivering")
    run_to(route, Forgetful(route))
    assert route.effects() == before + TEN
    (warning,) = warnings(caplog)
    assert "forgotten how the last turn ended" in warning
    assert MAY_COME_TWICE in warning


def test_a_forgotten_turn_leaves_the_one_before_it_as_it_was(route):
    """The turn before it is there, and its sender ended before it could confirm it."""
    send(route, *TEN)
    route.run(dies="delivered")
    run_to(route, Forgetful(route))
    assert (route.effects(), route.waiting()) == (TEN, 0)


def test_a_forgotten_turn_that_the_store_has_confirmed_is_not_abandoned(route):
    """Its messages don't wait any more, so they could not be sent again."""
    send(route, "0")
    route.run()
    before = dict(route.broker.notes)
    send(route, "1")
    route.run()
    send(route, "2")
    route.run(dies="acknowledged")
    route.broker.notes.update(before)
    turns = Forgetful(route)
    with pytest.raises(TurnForgottenError, match="forgotten how the last transaction ended"):
        run_to(route, turns)
    assert (turns.has_abandoned, route.waiting()) == (False, 1)


@pytest.mark.parametrize("note", ["", "x", "x [[0,9]]", 'x [["0",9]]', "x [[0,1000000000000]]", "x {}", "x [0]", "x 7"])
def test_a_note_of_others_is_no_note_of_ours(route, note, caplog):
    send(route, *TEN)
    route.run(dies="acknowledged")
    bridge = route.open()
    with bridge._flow._dispatcher.inbox.lease() as lease:
        route.broker.notes[lease.target_key] = note
    bridge.close()
    route.run()
    assert route.effects() == TEN
    assert [MAY_COME_TWICE in warning for warning in warnings(caplog)] == [True]


def copied(tmp_path):
    """Copy the store. Returns a function that puts the copy back."""
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(tmp_path / "receiver.db")) as database:
        database.execute(f"VACUUM INTO '{copy}'")

    def put_back():
        for file in tmp_path.glob("receiver.db*"):
            file.unlink()
        copy.rename(tmp_path / "receiver.db")

    return put_back


@pytest.mark.parametrize("turns_since", [1, 2])
@pytest.mark.parametrize("died_since", [False, True])
def test_a_store_that_is_put_back_gives_old_numbers_to_new_messages_and_loses_none(
    file_route, tmp_path, turns_since, died_since
):
    """The new messages wait already when a bridge first reads the note, which names their numbers."""
    route = file_route
    send(route, "1")
    route.run()
    put_back = copied(tmp_path)
    for number in range(turns_since):
        send(route, f"lost {number}")
        route.run(dies="delivered" if died_since and number == turns_since - 1 else None)
    put_back()
    send(route, "2", "3")
    route.run(dies="acknowledged", max_batch_size=1)
    route.run()
    assert route.effects()[-2:] == ["2", "3"]
    assert route.waiting() == 0


def test_a_store_that_is_put_back_says_what_may_come_twice(file_route, tmp_path, caplog):
    route = file_route
    send(route, "1")
    route.run(dies="acknowledged")
    put_back = copied(tmp_path)
    route.run()
    send(route, "2")
    route.run()
    put_back()
    route.run()
    assert route.effects() == ["1", "2", "1"]
    (warning,) = warnings(caplog)
    assert "differ on what was sent last" in warning


def test_a_store_that_is_put_back_says_so_before_anything_waits(file_route, tmp_path, caplog):
    """A broker that keeps every message gives again those that were acknowledged since then."""
    route = file_route
    send(route, "0")
    route.run()
    put_back = copied(tmp_path)
    for id_ in "1", "2":
        send(route, id_)
        route.run()
    put_back()
    route.run()
    (warning,) = warnings(caplog)
    assert MAY_COME_TWICE in warning
    send(route, "3")
    route.run()
    assert route.effects() == ["0", "1", "2", "3"]
    assert len(warnings(caplog)) == 1


def test_a_store_that_is_put_back_by_one_turn_doubles_nothing(file_route, tmp_path, caplog):
    route = file_route
    send(route, "1")
    route.run(dies="acknowledged")
    put_back = copied(tmp_path)
    route.run()
    put_back()
    route.run()
    assert route.effects() == ["1"]
    assert warnings(caplog) == []


def test_what_a_person_has_dropped_is_looked_for_in_vain(route):
    send(route, *TEN)
    route.run(dies="delivered")
    (target,) = [row for row in target_rows(route.store) if row.domain == route.domain]
    assert drop_waiting(route.store, target) == 10
    send(route, "10")
    route.run()
    assert route.effects() == [*TEN, "10"]


# Refusals


def test_who_is_to_blame_is_found_and_the_others_go(route):
    turns = Choosy(route)
    ids = [f"{number}" for number in range(40)]
    route.send(*(message(id_, f"source {int(id_) % 3}") for id_ in ids[:20]), message("poison", "source 0"))
    route.send(*(message(id_, f"source {int(id_) % 3}") for id_ in ids[20:]))
    bridge = run_to(route, turns, max_tries=3)
    assert sorted(route.effects(), key=int) == ids
    for source in range(3):
        own = [int(id_) for id_ in route.effects() if int(id_) % 3 == source]
        assert own == sorted(own)
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (40, 3, 1)
    (row,) = [row for row in parked_rows(route.store) if row.domain == route.domain]
    assert (row.unique_message_id, row.tries, row.error) == ("poison", 3, "one is refused")


def test_who_is_too_large_alone_is_parked_at_once(route):
    turns = Choosy(route, unfit=["5"])
    route.send(*(message(id_, "a") for id_ in TEN))
    bridge = run_to(route, turns)
    assert route.effects() == [id_ for id_ in TEN if id_ != "5"]
    assert (bridge.figures.failed, bridge.figures.parked) == (1, 1)


def test_turns_grow_again(route):
    turns = Choosy(route, unfit=["0"])
    route.send(*(message(str(number), str(number)) for number in range(60)))
    run_to(route, turns)
    assert max(turns.sizes[: turns.sizes.index(1)]) == 60
    assert turns.sizes[turns.sizes.index(1) + 1 :] == [1, 2, 4, 8, 16, 28]


def test_a_turn_that_failed_is_tried_with_fewer(route):
    """For example, a turn takes longer than the broker allows."""
    turns = Choosy(route)
    send_turn = turns.send_turn

    def slow(messages, **more):
        if len(messages) > 3:
            turns.sizes.append(len(messages))
            raise BrokerError("it took too long")
        return send_turn(messages, **more)

    turns.send_turn = slow
    send(route, *TEN)
    run_to(route, turns)
    assert route.effects() == TEN
    assert turns.sizes[:3] == [10, 5, 2]


def test_a_note_that_would_be_too_long_makes_a_turn_shorter(route, monkeypatch):
    """Every second number is a duplicate's. So each message is a run of numbers by itself, which makes notes long."""
    monkeypatch.setattr(broker_target, "_LONGEST_NOTE", 100)
    turns = Choosy(route)
    for id_ in TEN:
        send(route, id_, id_)
    run_to(route, turns)
    assert route.effects() == TEN
    assert turns.sizes == [5, 2, 3]
