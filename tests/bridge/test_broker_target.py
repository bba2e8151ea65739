"""A broker as a target: which messages it refuses, and which go out to it."""

import json
import logging
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import text

from receiver.bridge import bridge as bridge_module
from receiver.bridge.bridge import Bridge
from receiver.bridge.connectors import DUPLICATE_ID, Message, check_body
from receiver.bridge.connectors import nodes as nodes_module
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.nodes import ConnectionFactory, Nodes
from receiver.bridge.modes import inbox_flow
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule, Mode
from receiver.bridge.received import PASSED
from receiver.bridge.targets import broker_target
from receiver.bridge.targets.broker_target import ORIGINAL_DUPLICATE_ID, BrokerTarget
from receiver.errors import BrokerError, MessageRefusedError, StoreError
from receiver.retrying import Backoff
from receiver.settings import ReceiverSettings
from receiver.store.inbox import Lease
from receiver.store.upkeep import parked_rows
from tests.bridge.bridged import TEN, Route, message, send
from tests.brokers.memory import MemoryBroker, MemorySink
from tests.patience import PATIENCE_SECS, until
from tests.stores import engine_of, execute

pytestmark = pytest.mark.usefixtures("hasty")


class Choosy:
    """A sink that refuses messages with the body "poison", just as a protocol may refuse what it can't express."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def send(self, messages):
        for number, sent in enumerate(messages):
            if sent.body == b"poison":
                self._sink.send(messages[:number])
                self._sink.close()
                raise MessageRefusedError("it can't be expressed")
        self._sink.send(messages)

    def close(self):
        self._sink.close()


class Full:
    """A sink that takes the first of the messages that it is given, as many as it has room for."""

    def __init__(self, sink, room):
        self._sink, self._room = sink, room

    def send(self, messages):
        taken = messages[: self._room]
        self.accepted = len(taken)
        self._sink.send(taken)
        if len(messages) > self._room:
            raise BrokerError("it is full")

    def close(self):
        self._sink.close()


@pytest.mark.parametrize("mode", Mode)
def test_a_message_that_its_target_can_not_have_is_not_tried_again(tmp_path, sqlite_url, mode, monkeypatch, caplog):
    route = Route(sqlite_url, tmp_path, "queue", mode)

    def send(sink, messages):
        for sent in messages:
            check_body(sent, "STOMP")
        put(sink, messages)

    put = MemorySink.send
    for number in range(3):
        route.send(Message(body=b"%d" % number, properties={"uniqueMessageId": str(number)}))
    route.send(Message(body=b"x", body_kind="amqp-value", properties={"uniqueMessageId": "map"}))
    monkeypatch.setattr(MemorySink, "send", send)
    target = BrokerTarget("stomp://out", lambda: route.broker.sink("out"), IdRule(), adds_duplicate_ids=False)
    bridge = open_bridge(route.origin, target, sqlite_url if mode.keeps else None, BridgeOptions(mode=mode))
    bridge.run(stop_when_idle_secs=0)
    assert sorted(route.effects()) == ["0", "1", "2"]
    assert (bridge.figures.failed, bridge.figures.parked) == (1, 1)
    assert "'map' can't go there, and is" in caplog.text
    if mode.keeps:
        assert [(row.unique_message_id, row.tries) for row in parked_rows(sqlite_url)] == [("map", 1)]


@pytest.mark.parametrize("mode", Mode)
def test_a_broker_that_has_room_for_a_few_gets_each_message_once(tmp_path, sqlite_url, mode):
    route = Route(sqlite_url, tmp_path, "queue", mode)
    route.send(*(message(str(number)) for number in range(5)))
    target = BrokerTarget("amqp://full", lambda: Full(route.broker.sink("out"), 2), IdRule(), adds_duplicate_ids=False)
    bridge = open_bridge(route.origin, target, sqlite_url if mode.keeps else None, BridgeOptions(mode=mode))
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["0", "1", "2", "3", "4"]
    assert (bridge.figures.delivered, bridge.figures.connection_errors) == (5, 2)


@pytest.mark.parametrize("mode", Mode)
def test_a_full_broker_that_hides_what_it_has_gets_few_messages_again(tmp_path, sqlite_url, mode):
    """By STOMP a full queue of RabbitMQ ends the connection, and the receipts of what it took are lost."""
    route = Route(sqlite_url, tmp_path, "queue", mode)
    send(route, *TEN)
    rooms = iter([3] * 8)

    class Hiding(Full):
        def send(self, messages):
            room = self._room - len(messages)
            try:
                super().send(messages)
            finally:
                self._room, self.accepted = room, 0

    def connect():
        return Hiding(route.broker.sink("out"), next(rooms, len(TEN)))

    target = BrokerTarget("stomp://full", connect, IdRule(), adds_duplicate_ids=False)
    open_bridge(route.origin, target, sqlite_url if mode.keeps else None, BridgeOptions(mode=mode)).run(
        stop_when_idle_secs=0
    )
    effects = route.effects()
    assert sorted(set(effects), key=int) == TEN
    assert max(map(effects.count, TEN)) <= 3


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_what_a_broker_refuses_but_keeps_the_id_of_gets_another_one(tmp_path, sqlite_url, mode, ends):
    """Else the broker would confirm the next try, and drop it. So it is if another bridge makes that try."""
    route = Route(sqlite_url, tmp_path, "queue", mode)
    send(route, *TEN)
    full, ids = iter([True]), []

    class Refusing(Full):
        def send(self, messages):
            ids.append([sent.properties["_AMQ_DUPL_ID"] for sent in messages])
            if next(full, False):
                self.accepted, self.spent_ids = 1, [2, 3]
                self._sink.send([*messages[:2], *messages[4:]])
                if ends:
                    bridge.stop()
                raise BrokerError("it is full")
            self._sink.send(messages)

    for _ in range(1 + ends):
        target = BrokerTarget(
            "amqp://full", lambda: Refusing(route.broker.sink("out"), 0), IdRule(), adds_duplicate_ids=True
        )
        bridge = open_bridge(route.origin, target, sqlite_url, BridgeOptions(mode=mode))
        bridge.run(stop_when_idle_secs=0)
    first, second = ids
    assert second[-9:] == [first[1], f"{first[2]}-1", f"{first[3]}-1", *first[4:]]
    assert sorted(set(route.effects()), key=int) == TEN


def test_the_note_of_refusals_stays_short(tmp_path, sqlite_url, monkeypatch):
    """A bridge that was refused messages doesn't see that another has sent them."""
    monkeypatch.setattr(broker_target, "_MOST_REFUSALS", 15)
    route = Route(sqlite_url, tmp_path, "queue")

    class Refusing(Full):
        def send(self, messages):
            self.accepted, self.spent_ids = 1, range(1, len(messages))
            self._sink.send(messages[:1])
            bridge.stop()
            raise BrokerError("it is full")

    def target_of(kind):
        return BrokerTarget(
            "amqp://full", lambda: kind(route.broker.sink("out"), 10), IdRule(), adds_duplicate_ids=True
        )

    targets = target_of(Refusing), target_of(Full)
    for tens in range(5):
        send(route, *(f"{tens}{ones}" for ones in TEN))
        for target in targets:
            bridge = open_bridge(route.origin, target, sqlite_url, BridgeOptions())
            bridge.run(stop_when_idle_secs=0)
    assert len(route.effects()) == 50
    with engine_of(sqlite_url).connect() as connection:
        note = connection.scalar(text("SELECT last_turn FROM receiver_target"))
    assert len(json.loads(note)) <= 15


@pytest.mark.parametrize("mode", Mode)
def test_pauses_do_not_grow_while_a_broker_takes_a_few_each_time(tmp_path, sqlite_url, mode, monkeypatch, caplog):
    """Otherwise a queue that is full, and that others empty fast, would soon get a few messages every 30 seconds. It is
    warned of now and then."""
    for longest_secs, warnings in ((30, 1), (0, len(TEN) - 1)):
        caplog.clear()
        pauses = []
        monkeypatch.setattr(bridge_module, "_BACKOFF", Backoff(0.001, longest_secs))
        monkeypatch.setattr(Bridge, "_stops_within", lambda _bridge, secs: pauses.append(secs))  # noqa: B023
        route = Route(sqlite_url, tmp_path, f"queue{longest_secs}", mode)
        send(route, *TEN)
        target = BrokerTarget(
            "amqp://full",
            lambda broker=route.broker: Full(broker.sink("out"), 1),
            IdRule(),
            adds_duplicate_ids=False,
        )
        bridge = open_bridge(route.origin, target, sqlite_url if mode.keeps else None, BridgeOptions(mode=mode))
        bridge.run(stop_when_idle_secs=0)
        assert len(pauses) == len(TEN) - 1
        assert max(pauses) <= 0.001
        said = [record.levelno for record in caplog.records if record.message == "it is full"]
        assert said.count(logging.WARNING) == warnings


@pytest.mark.parametrize("mode", Mode)
def test_what_arrived_before_a_refused_message_is_not_sent_again(tmp_path, sqlite_url, mode):
    route = Route(sqlite_url, tmp_path, "queue", mode)
    fails = iter([BrokerError("the link is gone")])

    class Choosy:
        """A sink that refuses "poison", and fails once at the message behind it."""

        def send(self, messages):
            self.accepted = 0
            for sent in messages:
                if sent.body == b"poison":
                    raise MessageRefusedError("it can't be expressed")
                if sent.body == b"4" and (error := next(fails, None)):
                    raise error
                with route.broker.sink("out") as sink:
                    sink.send([sent])
                self.accepted += 1

        def close(self):
            pass

    route.send(*(message(id_, id_) for id_ in ["1", "2", "poison", "3", "4", "5"]))
    target = BrokerTarget("amqp://choosy", Choosy, IdRule(), adds_duplicate_ids=False)
    bridge = open_bridge(route.origin, target, sqlite_url if mode.keeps else None, BridgeOptions(mode=mode))
    bridge.run(stop_when_idle_secs=0)
    assert route.effects() == ["1", "2", "3", "4", "5"]
    assert (bridge.figures.delivered, bridge.figures.parked, bridge.figures.connection_errors) == (5, 1, 1)


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_a_message_that_a_broker_refuses_is_found_and_the_others_go(tmp_path, store, mode):
    route = Route(store, tmp_path, "queue", mode)
    target = BrokerTarget(
        "amqp://choosy", lambda: Choosy(route.broker.sink("out")), IdRule(), adds_duplicate_ids=mode.detects
    )
    sent = [("1", "a"), ("2", "b"), ("poison", "a"), ("3", "a"), ("4", "b"), ("5", None)]
    route.send(*(message(id_, source) for id_, source in sent))
    bridge = open_bridge(route.origin, target, store, BridgeOptions(mode=mode))
    bridge.run(stop_when_idle_secs=0)
    assert sorted(route.effects()) == ["1", "2", "3", "4", "5"]
    of_a = [id_ for id_ in route.effects() if id_ in {"1", "3"}]
    assert of_a == ["1", "3"]
    parked = [row for row in parked_rows(store) if row.domain == route.domain]
    assert [(row.unique_message_id, row.tries) for row in parked] == [("poison", 5)]
    assert "can't be expressed" in parked[0].error
    assert (bridge.figures.delivered, bridge.figures.parked) == (5, 1)


def test_what_goes_out_carries_its_id_and_its_senders_duplicate_id_by_another_name(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue")
    route.send(Message(body=b"x", properties={"uniqueMessageId": 7, "_AMQ_DUPL_ID": "theirs", "messageSourceId": 8}))
    route.send(Message(body=b"y", message_id="ID:9"))
    route.run()
    arrived = [dict(came.properties) for came in route.broker.queue("out")]
    assert [len(came.pop(PASSED)) for came in arrived] == [16, 16]
    domain, sequence, time = arrived[0]["_AMQ_DUPL_ID"].split("-")
    assert (len(domain) > 8, sequence, len(time) > 8) == (True, "0", True)
    assert arrived == [
        {
            "uniqueMessageId": 7,
            "_AMQ_DUPL_ID": f"{domain}-0-{time}",
            "messageSourceId": 8,
            "receiverOriginalDuplicateId": "theirs",
        },
        {"uniqueMessageId": "ID:9", "_AMQ_DUPL_ID": f"{domain}-1-{time}"},
    ]


def test_the_headers_of_jms_go_along(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue")
    headers = {"JMSCorrelationID": "order 17", "JMSReplyTo": "queue://answers", "JMSType": "Order"}
    route.send(Message(body=b"x", headers=headers), Message(body=b"y"))
    route.run(dies="delivering")
    route.run()
    assert [arrived.headers for arrived in route.broker.queue("out")] == [headers, {}]


def test_at_least_once_sends_what_came_twice_twice(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue", Mode.AT_LEAST_ONCE)
    send(route, "1", "1")
    route.run()
    assert route.effects() == ["1", "1"]
    assert all("_AMQ_DUPL_ID" not in came.properties for came in route.broker.queue("out"))


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
@pytest.mark.parametrize("step", ["delivering", "delivered", "confirmed"])
def test_equal_ids_of_two_domains_all_arrive_and_none_twice(tmp_path, store, mode, step):
    one, other = (Route(store, tmp_path, "queue", mode) for _ in range(2))
    other.broker = one.broker
    for route in (one, other):
        send(route, "1", "2", "3")
        route.run(dies=step)
        route.run()
    assert one.effects() == ["1", "2", "3"] * 2


def test_equal_ids_of_two_stores_all_arrive(tmp_path):
    """Domains of two stores may have the same name and number."""
    one, other = (Route(f"sqlite:///{tmp_path}/{name}.db", tmp_path, "queue") for name in ("one", "other"))
    other.broker, other.connection_id = one.broker, one.connection_id
    for route in (one, other):
        send(route, "1", "2")
        route.run()
    assert one.effects() == ["1", "2"] * 2


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_an_id_that_is_forgotten_and_used_again_arrives(tmp_path, store, kind):
    route = Route(store, tmp_path, kind)
    windows = ReceiverSettings(dup_detection_per_source_expiry_window_size=1, dup_detection_expiry_time_secs=0)
    send(route, "1", "2", "1")
    route.run(dies="delivered", windows=windows)
    route.run(windows=windows)
    assert route.effects() == ["1", "2", "1"]


def test_an_id_by_the_brokers_own_property_isnt_sent_on_where_duplicates_are_to_pass(tmp_path, sqlite_url):
    ids, out = IdRule(id_property="_AMQ_DUPL_ID"), MemoryBroker()
    for body in (b"1", b"2"):
        route = Route(sqlite_url, tmp_path, "queue", Mode.AT_LEAST_ONCE)
        route.send(Message(body=body, properties={"_AMQ_DUPL_ID": "of the queue"}))
        target = BrokerTarget("amqp://memory/out", partial(out.sink, "out"), ids, adds_duplicate_ids=False)
        options = BridgeOptions(mode=Mode.AT_LEAST_ONCE, ids=ids)
        open_bridge(route.origin, target, sqlite_url, options).run(stop_when_idle_secs=0)
    assert [arrived.body for arrived in out.queue("out")] == [b"1", b"2"]
    assert [arrived.properties[ORIGINAL_DUPLICATE_ID] for arrived in out.queue("out")] == ["of the queue"] * 2


@pytest.mark.parametrize("theirs", ["order 17", b"order 17\xff"])
def test_a_senders_duplicate_id_is_judged_and_outlives_two_bridges(tmp_path, sqlite_url, theirs):
    """The second bridge knows the id by the property that the first bridge has set."""

    def sent_on(messages, judged_by):
        route = Route(sqlite_url, tmp_path, "queue")
        route.send(*messages)
        ids = IdRule(function=lambda message: (message.properties[judged_by], None))
        route.run(ids=ids)
        return [replace(arrived, body=b"") for arrived in route.broker.queue("out")]

    of_sender = [Message(body=b"", properties={DUPLICATE_ID: id_}) for id_ in (theirs, "another")]
    first = sent_on(of_sender, DUPLICATE_ID)
    second = sent_on([*first, first[0]], ORIGINAL_DUPLICATE_ID)
    for arrived in (first, second):
        assert [message.properties[ORIGINAL_DUPLICATE_ID] for message in arrived] == [theirs, "another"]
    assert not {message.properties[DUPLICATE_ID] for message in first + second} & {theirs, "another"}


class Forgetful(Choosy):
    drops_known_ids = False


@pytest.mark.parametrize(("mode", "warnings"), [(Mode.EXACTLY_ONCE, 1), (Mode.AT_LEAST_ONCE, 0)])
def test_a_target_that_drops_nothing_is_warned_of_once(tmp_path, sqlite_url, mode, warnings, caplog):
    route = Route(sqlite_url, tmp_path, "queue", mode)
    target = BrokerTarget(
        "amqp://forgetful", lambda: Forgetful(route.broker.sink("out")), IdRule(), adds_duplicate_ids=mode.detects
    )
    route.send(message("1"), message("poison"), message("2"))
    open_bridge(route.origin, target, sqlite_url, BridgeOptions(mode=mode)).run(stop_when_idle_secs=0)
    assert caplog.text.count("amqp://forgetful doesn't drop what is sent again") == warnings
    caplog.clear()
    route.run()
    assert "doesn't drop" not in caplog.text


@pytest.mark.parametrize(("is_backup", "warnings"), [(False, 1), (True, 0)])
def test_hosts_that_serve_at_once_are_warned_of(tmp_path, sqlite_url, is_backup, warnings, caplog):
    """Nodes of Artemis know ids of their own. A primary and its backup never serve at once."""
    route = Route(sqlite_url, tmp_path, "queue")

    def identity_at(address):
        if is_backup and address.host == "b":
            raise BrokerError("it stands by")
        return "ActiveMQ Artemis"

    nodes = Nodes(BrokerAddress.parse("amqp://a,b/queue/out"), identity_at)
    connect = ConnectionFactory(nodes, lambda _address: Choosy(route.broker.sink("out")))
    target = BrokerTarget("amqp://a,b", connect, IdRule(), adds_duplicate_ids=True)
    route.send(message("1"), message("poison"), message("2"))
    open_bridge(route.origin, target, sqlite_url).run(stop_when_idle_secs=0)
    assert caplog.text.count("amqp://a,b doesn't drop at one host what another has had") == warnings


def test_a_host_that_answers_late_is_warned_of_once_it_does(monkeypatch, caplog):
    monkeypatch.setattr(nodes_module, "_LOOKS_SECS", 0)
    answers = threading.Event()

    def identity_at(address):
        assert address.host == "a" or answers.wait(PATIENCE_SECS)
        return "ActiveMQ Artemis"

    nodes = Nodes(BrokerAddress.parse("amqp://a,b/queue/out"), identity_at)
    connect = ConnectionFactory(nodes, lambda _address: object())
    target = BrokerTarget("amqp://a,b", connect, IdRule(), adds_duplicate_ids=True)
    target.connect()
    assert "doesn't drop" not in caplog.text
    answers.set()
    until(lambda: nodes.serve_at_once)
    target.connect()
    assert "doesn't drop at one host what another has had" in caplog.text


def test_what_it_has_is_not_sent_again_while_the_store_is_full(tmp_path, sqlite_url, monkeypatch):
    """The store can't note then that the target has it, and each lease ends without a commit."""
    route, delete, fulls = Route(sqlite_url, tmp_path, "queue", Mode.AT_LEAST_ONCE), Lease.confirm, []

    def confirm(lease, numbers):
        fulls.append(1)
        room = 1_000_000 if len(fulls) == 5 else 1
        lease.connection.exec_driver_sql(f"PRAGMA max_page_count = {room}")
        lease.connection.exec_driver_sql("INSERT INTO large VALUES (zeroblob(100000))")
        delete(lease, numbers)

    monkeypatch.setattr(Lease, "confirm", confirm)
    execute(sqlite_url, "CREATE TABLE large (body BLOB)")
    send(route, *TEN)
    bridge = route.run()
    assert (route.effects(), route.waiting(), len(fulls)) == (TEN, 0, 5)
    assert bridge.figures.delivered == len(TEN)


def test_what_it_has_is_not_sent_again_once_an_earlier_message_is_due(tmp_path, sqlite_url, monkeypatch):
    """Those before it may fill a lease that is committed."""
    route, leases, deleted = Route(sqlite_url, tmp_path, "call", Mode.AT_LEAST_ONCE), [], Lease.confirm

    def see(received):
        route.seen.append(received.text)
        if route.seen == ["1"]:
            raise ValueError

    def confirm(lease, numbers):
        deleted(lease, numbers)
        leases.append(len(numbers))
        if leases == [0, 1]:
            time.sleep(1)  # now the first message is due again
            raise StoreError("full")

    monkeypatch.setattr(Lease, "confirm", confirm)
    monkeypatch.setattr(inbox_flow, "_AT_ONCE", 2)
    monkeypatch.setattr(inbox_flow, "_BACKOFF", Backoff(1, 1))
    monkeypatch.setattr(route, "_see", see)
    route.send(*(message(number, "a") for number in "123"), message("4", "b"))
    bridge = route.run()
    assert route.seen == ["1", "4", "1", "2", "3"]
    assert (bridge.figures.delivered, bridge.figures.failed, route.waiting()) == (4, 1, 0)
