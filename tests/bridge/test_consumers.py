"""A bridge with several consumers: many messages at once, and each effect once, whatever fails or dies."""

import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
from sqlalchemy import text

from receiver.bridge import bridge
from receiver.bridge.bridge import Pace
from receiver.bridge.connectors import sink_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.nodes import Nodes
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.bridge.targets.file_target import FileTarget
from receiver.durable.audit import audit
from receiver.errors import BrokerError, SettingsError
from receiver.settings import BridgeSettings, ReceiverSettings, StoreSettings
from receiver.store.upkeep import parked_rows, retry_parked
from tests.bridge import booking, effects
from tests.bridge.bridged import Route, message, send
from tests.bridge.campaign import Event, Plan, perform
from tests.bridge.conftest import PRODUCTS, REAL, address_of
from tests.durable.proxy import Cut, proxied
from tests.patience import until
from tests.stores import engine_of, execute

pytestmark = pytest.mark.usefixtures("hasty")

MANY = 4
NUMBERS = [str(number) for number in range(40)]


@pytest.fixture
def orders(tmp_path, fresh_postgres_url):
    """A route to the table `booked` in the store's database."""
    execute(fresh_postgres_url, booking.TABLE)
    return Route(fresh_postgres_url, tmp_path, "call", Mode.APP_CONTROLLED)


def opened(route, function=booking.book, *, consumers=MANY, store=None, **options):
    settings = BridgeSettings(**{key: options.pop(key) for key in ("max_tries", "max_batch_size") if key in options})
    return open_bridge(
        route.origin, function, store or route.store, BridgeOptions(consumers=consumers, settings=settings, **options)
    )


def run(route, function=booking.book, **options):
    bridge = opened(route, function, **options)
    bridge.run(stop_when_idle_secs=0.1)
    return bridge


@contextmanager
def running(bridge, **how):
    """Run a bridge in a thread. The block begins once it has started; afterwards it has ended."""
    thread = threading.Thread(target=partial(bridge.run, **how))
    thread.start()
    until(lambda: bridge.has_started)
    yield
    thread.join()


def booked(route):
    return sorted((effect.id for effect in effects.in_table(route.store)), key=int)


def parked(route):
    return {row.unique_message_id: row for row in parked_rows(route.store)}


class Failing:
    """Books each message. Then it fails for these ids, so many times each."""

    def __init__(self, *ids, times=100):
        self.left = dict.fromkeys(ids, times)
        self.calls = Counter()
        self.__qualname__ = "failing"
        self.__module__ = __name__

    def __call__(self, received, connection):
        id_ = received.unique_message_id
        booking.book(received, connection)
        self.calls[id_] += 1
        if self.left.get(id_, 0) > 0:
            self.left[id_] -= 1
            raise ValueError(f"not {id_}")


def test_messages_are_handled_at_once_and_each_once(orders):
    at_once = threading.Barrier(MANY)

    def book(received, connection):
        if int(received.unique_message_id) < MANY:
            at_once.wait(10)
        booking.book(received, connection)

    send(orders, *NUMBERS, *NUMBERS)
    bridge = run(orders, book)
    assert booked(orders) == NUMBERS
    assert orders.queued == []
    assert (bridge.figures.delivered, bridge.receiver.status().rDupsDet) == (40, 40)
    assert audit(orders.store).findings == ()


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_neither_mode_has_an_inbox(orders, mode):
    send(orders, "1", "2")
    run(orders, mode=mode)
    assert (booked(orders), orders.waiting()) == (["1", "2"], 0)


def test_a_message_that_fails_is_tried_and_parked_and_leaves_nothing_behind(orders):
    failing = Failing("2", "3")
    failing.left["3"] = 2
    send(orders, "1", "2", "3", "4")
    # Several messages at once are one turn first, whose failure counts as no try.
    bridge = run(orders, failing, max_tries=3, max_batch_size=1)
    assert booked(orders) == ["1", "3", "4"]
    assert failing.calls == {"1": 1, "2": 3, "3": 3, "4": 1}
    assert {id_: (row.tries, row.error) for id_, row in parked(orders).items()} == {"2": (3, "ValueError: not 2")}
    assert (bridge.figures.delivered, bridge.figures.failed, bridge.figures.parked) == (3, 5, 1)
    assert audit(orders.store).findings == ()


def test_what_is_parked_is_claimed_and_what_is_tried_again_is_handed_on(orders):
    failing = Failing("1", "2", times=1)
    send(orders, "1", "2")
    run(orders, failing, max_tries=1)
    send(orders, "1", "2")
    run(orders, failing, max_tries=1)
    assert (booked(orders), len(parked(orders))) == ([], 2)
    with running(bridge := opened(orders, failing)):
        assert retry_parked(orders.store, None) == 2
        assert audit(orders.store).findings == ()
        until(lambda: booked(orders) == ["1", "2"])
        bridge.stop()
    assert (booked(orders), parked(orders), orders.waiting()) == (["1", "2"], {}, 0)


def test_a_store_is_sound_while_what_was_parked_waits_again(orders):
    send(orders, "1", "2")
    run(orders, Failing("1", "2"), max_tries=1)
    assert retry_parked(orders.store, None) == 2
    assert orders.waiting() == 2
    assert audit(orders.store).findings == ()


def test_other_consumers_go_on_while_one_waits_for_its_next_try(orders):
    failing = Failing("0", times=3)
    send(orders, *NUMBERS)
    run(orders, failing)
    assert (booked(orders), failing.calls["0"]) == (NUMBERS, 4)


@pytest.fixture
def quick_at_all(monkeypatch):
    """Every function counts as quick, so each consumer's batches have 1, 2, 4, 8 messages."""
    monkeypatch.setattr(bridge, "_AIM_SECS", 1_000)


@pytest.mark.usefixtures("quick_at_all")
def test_messages_of_a_batch_do_not_wait_for_the_next_try_of_one_that_fails(orders):
    """They aren't tried more often because of it either."""
    failing, at_last = Failing("9"), []

    def book(received, connection):
        if received.unique_message_id == "9" and failing.calls["9"]:
            at_last[:] = booked(orders)
        failing(received, connection)

    send(orders, *NUMBERS)
    ran = run(orders, book, consumers=1, max_tries=3)
    assert at_last == [number for number in NUMBERS[:15] if number != "9"]
    assert booked(orders) == [number for number in NUMBERS if number != "9"]
    assert {id_: row.tries for id_, row in parked(orders).items()} == {"9": 3}
    assert (ran.figures.delivered, ran.figures.failed, ran.figures.parked) == (39, 3, 1)
    assert ran.receiver.status().rDupsDet == 0
    assert audit(orders.store).findings == ()


@pytest.mark.usefixtures("quick_at_all")
def test_messages_of_a_batch_do_not_wait_for_a_lock_that_one_needs(orders):
    """It is tried for as long as others have the lock, and isn't parked."""
    execute(orders.store, "CREATE TABLE held (number INTEGER)")
    others = engine_of(orders.store).connect()
    others.execute(text("LOCK TABLE held"))
    waits, at_last = [], []

    def book(received, connection):
        booking.book(received, connection)
        if received.unique_message_id == "9":
            waits.append(1)
            if len(waits) == 4:
                at_last[:] = booked(orders)
                others.close()
            connection.execute(text("INSERT INTO held VALUES (1)"))

    send(orders, *NUMBERS)
    ran = run(orders, book, consumers=1, max_tries=2, store_settings=StoreSettings(lock_timeout_secs=0.05))
    assert at_last == [number for number in NUMBERS[:15] if number != "9"]
    assert booked(orders) == NUMBERS
    assert (ran.figures.delivered, ran.figures.failed, ran.figures.parked) == (40, 0, 0)
    assert audit(orders.store).findings == ()


@pytest.mark.usefixtures("quick_at_all")
def test_what_cannot_be_judged_is_parked_once_where_its_batch_fails(orders):
    orders.send(message("1"), message(None, body="without"), message("2"), message("2"))
    run(orders, Failing("2", times=3), consumers=1, ids=IdRule(missing=MissingIds.REFUSE))
    (row,) = parked_rows(orders.store)
    assert (booked(orders), row.unique_message_id) == (["1", "2"], None)


def test_a_pace_goes_by_what_batches_take():
    pace = Pace()
    taken = []
    for secs in (0.01, 0.01, 0.3, 0.6, 0.01):
        taken.append(pace.at_once)
        pace.took(pace.at_once, secs)
    assert taken == [1, 2, 4, 4, 2]
    pace.took(1, 0.01)  # no more messages came, so nothing is known of larger batches
    assert pace.at_once == 4
    for _ in range(4):
        pace.took(1, 10)
    assert pace.at_once == 1


def test_a_function_of_many_has_a_transaction_for_each_batch(orders):
    sizes = []

    def book_all(messages, connection):
        sizes.append(len(messages))
        booking.book_all(messages, connection)
        if any(each.unique_message_id == "7" for each in messages):
            raise ValueError("not 7")

    send(orders, *NUMBERS, *NUMBERS)
    run(orders, book_all, max_tries=2, max_batch_size=20)
    assert booked(orders) == [number for number in NUMBERS if number != "7"]
    assert max(sizes) > 1
    assert parked(orders).keys() == {"7"}


def test_a_small_window_is_shared(orders):
    sizes = []

    def count_all(messages, _connection):
        sizes.append(len(messages))

    windows = ReceiverSettings(dup_detection_per_source_expiry_window_size=20, dup_detection_expiry_time_secs=0)
    send(orders, *NUMBERS)
    run(orders, count_all, windows=windows)
    assert (sum(sizes), max(sizes)) == (40, 20 // MANY)


def test_messages_that_cannot_be_judged_are_parked(orders):
    orders.send(message(None, body="without"), message("1"))
    run(orders, ids=IdRule(missing=MissingIds.REFUSE))
    (row,) = parked_rows(orders.store)
    assert (booked(orders), row.unique_message_id) == (["1"], None)


def test_what_a_bridge_with_an_inbox_has_left_is_handed_on(orders):
    failing = Failing("1")
    send(orders, "1", "2")
    before = open_bridge(orders.origin, failing, orders.store, BridgeOptions(settings=BridgeSettings(max_tries=100)))
    with running(before):
        until(lambda: failing.calls["1"])
        before.stop()
    assert orders.waiting() == 2  # one behind the other, of one source
    failing.left.clear()
    send(orders, "1", "3")
    run(orders, failing)
    assert (booked(orders), orders.waiting()) == (["1", "2", "3"], 0)
    send(orders, "1", "3", "4")
    after = open_bridge(orders.origin, failing, orders.store, BridgeOptions())
    after.run(stop_when_idle_secs=0)
    assert booked(orders) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("cut", Cut)
def test_a_commit_of_unknown_outcome_is_tried_again_and_nothing_doubled(orders, cut):
    with proxied(orders.store) as proxy:
        bridge = opened(orders, store=proxy.url, store_settings=StoreSettings(lock_timeout_secs=2))
        with running(bridge, stop_when_idle_secs=0.5):
            proxy.arm(cut)
            send(orders, *NUMBERS)
    assert not proxy.armed
    assert (booked(orders), orders.queued, parked(orders)) == (NUMBERS, [], {})


def test_an_outage_of_the_database_is_waited_for(orders):
    def book(received, connection):
        time.sleep(0.01)
        booking.book(received, connection)

    with proxied(orders.store) as proxy:
        bridge = opened(orders, book, store=proxy.url, store_settings=StoreSettings(lock_timeout_secs=2))
        with running(bridge, stop_when_idle_secs=0.5):
            send(orders, *NUMBERS)
            until(lambda: booked(orders))
            proxy.reachable = False
            proxy.cut()
            until(bridge.health.why_unready)
            time.sleep(0.5)
            proxy.reachable = True
    assert (booked(orders), orders.queued) == (NUMBERS, [])
    assert bridge.figures.connection_errors


def test_a_connection_that_the_function_loses_is_no_fault_of_the_message(orders):
    lost = set()

    def book(received, connection):
        id_ = received.unique_message_id
        if id_ in "123" and id_ not in lost:
            lost.add(id_)
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        booking.book(received, connection)

    send(orders, "1", "2", "3", "4")
    bridge = run(orders, book)
    assert (booked(orders), bridge.figures.failed) == (["1", "2", "3", "4"], 0)


def test_connections_to_the_broker_that_break_are_made_again(orders):
    connect, sources = orders.origin.connect, []

    def connecting():
        sources.append(connect())
        return sources[-1]

    def book(received, connection):
        booking.book(received, connection)
        if received.unique_message_id in "123":  # so that all are taken, and acknowledging fails for more than one
            for source in sources:
                source.close()

    send(orders, *NUMBERS)
    origin = Origin(connecting, orders.connection_id, "queue://orders")
    bridge = open_bridge(origin, book, orders.store, BridgeOptions(consumers=MANY))
    bridge.run(stop_when_idle_secs=0.2)
    assert (booked(orders), orders.queued) == (NUMBERS, [])
    assert len(sources) > MANY


def test_each_consumer_connects_by_the_object_that_the_caller_has(orders):
    class Connecting:
        made = 0

        def __call__(self):
            self.made += 1
            return orders.origin.connect()

    connecting = Connecting()
    origin = Origin(connecting, orders.connection_id, "queue://orders")
    open_bridge(origin, booking.book, orders.store, BridgeOptions(consumers=MANY)).run(stop_when_idle_secs=0.1)
    assert connecting.made == MANY


def test_stopping_waits_for_what_is_under_way(orders):
    begun = threading.Semaphore(0)

    def book(received, connection):
        begun.release()
        time.sleep(0.3)
        booking.book(received, connection)

    send(orders, *NUMBERS)
    bridge = opened(orders, book)
    with running(bridge):
        for _ in range(MANY):
            begun.acquire()
        bridge.stop()
    done = booked(orders)
    assert MANY <= len(done) <= 2 * MANY
    assert sorted([*done, *orders.queued], key=int) == NUMBERS
    assert bridge.figures.delivered == len(done)


def test_idle_is_whoever_is_not_at_work(orders):
    """Consumers that wait while others work are ready for the next messages."""
    at_once = threading.Barrier(3)

    def book(received, connection):
        time.sleep(1)
        if received.unique_message_id in {"3", "4", "5"}:
            at_once.wait(60)
        booking.book(received, connection)
        send(orders, *{"1": ["2"], "2": ["3", "4", "5"]}.get(received.unique_message_id, []))

    send(orders, "1")
    run(orders, book)
    assert booked(orders) == ["1", "2", "3", "4", "5"]


def test_if_one_fails_for_good_all_end(orders):
    def commits(received, connection):
        if received.unique_message_id == "5":
            connection.commit()

    send(orders, *NUMBERS)
    with pytest.raises(SettingsError, match="ended the transaction"):
        opened(orders, commits).run()


def test_a_function_without_a_connection_gets_only_the_messages_that_fail_again(orders):
    calls, bad = Counter(), {"9", "17", "25", "34"}

    def post(received):
        calls[received.unique_message_id] += 1
        if received.unique_message_id in bad:
            raise ValueError("not this one")

    send(orders, *NUMBERS)
    run(orders, post, consumers=1, max_tries=3)
    assert calls == dict.fromkeys(NUMBERS, 1) | dict.fromkeys(bad, 3)
    assert parked(orders).keys() == bad


def test_a_consumer_connects_while_another_serves_the_inbox(orders):
    cluster = Nodes(BrokerAddress.parse("amqp://a,b/queue/orders"), str)
    cluster.note(cluster.address.nodes[0])
    bridge = opened(orders, store_settings=StoreSettings(lock_timeout_secs=0.1))
    consumer = bridge._each[1]
    consumer._flow.figures.nodes = {"from": cluster}
    with consumer._flow._dispatcher.inbox.lease():
        assert consumer.begin(waits=False)
    bridge.close()


def test_a_broker_that_cannot_be_reached_at_the_start_is_an_error(orders):
    def refuse():
        raise BrokerError("nobody is there")

    origin = Origin(refuse, orders.connection_id, "queue://orders")
    with pytest.raises(BrokerError):
        open_bridge(origin, booking.book, orders.store, BridgeOptions(consumers=MANY)).run()


@pytest.mark.parametrize(
    "options",
    [
        {"mode": Mode.BEST_EFFORT},
        {"mode": Mode.AT_LEAST_ONCE},
        {"duplicates_to": "file:again.jsonl"},
        {"id_reuse": "deliver"},
        {"policy": "artemis:id_cache_size=100"},
        {"consumers": 0},
        {"consumers": True},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(orders, options):
    with pytest.raises(SettingsError):
        open_bridge(orders.origin, booking.book, orders.store, BridgeOptions(**{"consumers": 2} | options))


@pytest.mark.parametrize(
    "address",
    ["amqp://h/topic/t?subscription=s", "amqp://h/stream/s", "kafka://h/t?group=g", "stomp://h/topic/t?subscription=s"],
)
def test_sources_that_one_consumer_reads_are_refused(orders, address):
    with pytest.raises(SettingsError, match="--consumers"):
        open_bridge(address, booking.book, orders.store, BridgeOptions(consumers=2))


def test_other_targets_and_stores_are_refused(orders, tmp_path, sqlite_url):
    file = FileTarget(tmp_path / "orders.jsonl")
    for target, store in [(file, orders.store), ("amqp://h/queue/q", orders.store), (booking.book, sqlite_url)]:
        with pytest.raises(SettingsError, match="--consumers"):
            open_bridge(orders.origin, target, store, BridgeOptions(consumers=2))


@pytest.mark.parametrize("broker", [*REAL, *PRODUCTS], indirect=True)
def test_a_source_that_is_to_spare_others_gets_few_at_once(broker, request):
    at_first = 5 if "amqp-rabbitmq" in request.node.name else 2  # RabbitMQ sends five messages before it is asked
    address = broker.address(f"spared-{uuid.uuid4().hex}")
    with broker.sink(address.name) as sink:
        sink.send([message(number) for number in NUMBERS])
    with broker.make_source(address, most_ahead=2) as one, broker.make_source(address, most_ahead=2) as other:
        shares = [[*source.take(40, wait_secs=2), *source.take(40, wait_secs=0.3)] for source in (one, other)]
        assert [1 <= len(share) <= at_first for share in shares] == [True, True]
        left = len(NUMBERS)
        while left:
            for source, share in zip((one, other), shares, strict=True):
                left -= len(share)
                source.acknowledge(share)
                share[:] = source.take(40, wait_secs=0.5)
                assert len(share) <= 2


@pytest.mark.artemis
@pytest.mark.parametrize("protocol", ["amqp", "stomp"])
def test_a_real_broker_shares_its_messages_out(running_artemis, fresh_postgres_url, protocol):
    """Also messages that waited before the first consumer came are shared."""
    execute(fresh_postgres_url, booking.TABLE)
    address: BrokerAddress = address_of(running_artemis, protocol, f"queue/shared-{uuid.uuid4().hex}")
    by_thread = Counter()

    def book(received, connection):
        by_thread[threading.current_thread().name] += 1
        time.sleep(0.05)
        connection.execute(text("INSERT INTO booked VALUES (:id, '')"), {"id": received.unique_message_id})

    with sink_of(address) as sink:
        sink.send([message(number, "s") for number in [*NUMBERS, *NUMBERS]])
    bridge = open_bridge(str(address), book, fresh_postgres_url, BridgeOptions(consumers=MANY))
    bridge.run(stop_when_idle_secs=2)
    assert sorted((effect.id for effect in effects.in_table(fresh_postgres_url)), key=int) == NUMBERS
    assert effects.has_nothing(str(address))
    assert len(by_thread) == MANY
    assert max(by_thread.values()) < 2 * len(NUMBERS) / MANY


KILLS = {
    "quick": {Event.KILL: 1, Event.CUT: 1, Event.CUT_STORE: 1},
    "small": {Event.KILL: 3, Event.STOP: 1, Event.KILL_BROKER: 1, Event.CUT: 1, Event.CUT_STORE: 1},
    "long": {Event.KILL: 60, Event.STOP: 6, Event.KILL_BROKER: 6, Event.CUT: 20, Event.CUT_STORE: 20},
}


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "database", "function"),
    [("amqp", "postgresql", booking.FUNCTION), ("stomp", "postgresql", booking.FUNCTION_OF_MANY)],
)
def test_each_effect_once_whoever_is_killed(queue, mortal_store, function, size, seed):
    execute(mortal_store.url, booking.TABLE)
    plan = Plan(target=function, events=KILLS[size], mode=Mode.APP_CONTROLLED, consumers=MANY)
    perform(plan, queue, mortal_store, seed, partial(effects.in_table, mortal_store.url))
