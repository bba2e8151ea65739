"""A failover of PostgreSQL to a standby that lacks the last commits: nothing is used that only memory still knows.

The new primary's data counts. A message whose id it lacks is new, because the effect went with the id. A message whose
id it has is a duplicate, even if the id came to another receiver since.
"""

import threading
import time
import uuid
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from receiver.bridge.opening import Origin, open_bridge
from receiver.bridge.received import Received, Taken
from receiver.bridge.targets.python_target import PythonTarget
from receiver.durable.audit import look
from receiver.durable.concurrent import _TAKE_OVER_SECS
from receiver.durable.forgetting import forget, retire_sources
from receiver.errors import StoreError
from receiver.store.inbox import Inbox
from receiver.store.schema import migrate
from tests.bridge.bridged import message
from tests.brokers.memory import MemoryBroker
from tests.durable.async_opened import orders_and_engine, run
from tests.durable.async_opened import send as async_send
from tests.durable.checks import assert_sound
from tests.durable.opened import DUPLICATE, NEW, opened, send, sizes, undone
from tests.durable.test_concurrent import waiting
from tests.patience import until
from tests.policies.cases import KINDS
from tests.postgres import shown
from tests.senders.making import application, billing, gateway, numbers
from tests.standby import primary_and_standby

pytestmark = [pytest.mark.costly, pytest.mark.thinned(3)]

LOST = ["lost 1", "lost 2", "lost 3"]
OTHERS = ["other 1", "other 2", "other 3"]
SAID = "the store has lost commits"
TAILS = pytest.mark.parametrize("tail", [[], ["the same"]], ids=["other tails", "one tail"])
"""With one tail, the newest row that memory knows exists again, byte for byte, behind rows that memory doesn't know."""


@pytest.fixture(scope="module")
def pair():
    with primary_and_standby() as pair:
        pair.primary.ask("CREATE DATABASE made")
        migrate(make_url(pair.primary.url).set(database="made"))
        yield pair


@pytest.fixture
def url(pair):
    """The address of a new database on the pair."""
    name = f"receiver_test_{uuid.uuid4().hex}"
    pair.primary.ask(f"CREATE DATABASE {name} TEMPLATE made")
    yield shown(make_url(pair.url).set(database=name))
    pair.primary.ask(f"DROP DATABASE {name} WITH (FORCE)")  # each that is left is copied to every new standby


@contextmanager
def lost(pair):
    """Lose what is committed inside the block: the standby takes over without it."""
    pair.detach()
    try:
        yield
    finally:
        pair.fail_over()
        pair.build_standby()


@TAILS
@pytest.mark.parametrize("only_follows", [False, True], ids=["writes", "follows"])
def test_batches_of_its_own(pair, url, tail, only_follows, caplog):
    with opened(url) as orders, opened(url) as another:
        send(orders, "kept")
        with lost(pair):
            send(another if only_follows else orders, *LOST, *tail)
            with orders.batch():  # reads the new rows, and records nothing
                pass
        with opened(url) as new:
            send(new, *OTHERS, *tail)
        assert send(orders, LOST[0], OTHERS[0], LOST[1], OTHERS[2], "kept") == [
            NEW,
            DUPLICATE,
            NEW,
            DUPLICATE,
            DUPLICATE,
        ]
        send(orders, LOST[0])
    assert caplog.text.count(SAID) == (not tail), "once, and only where the newest row shows it"
    assert_sound(url)


def test_a_standby_reached_by_mistake_is_left_whatever_the_default_isolation(pair, url):
    """A connection to it is ended, because its address may lead to the primary the next time."""
    database = make_url(url).database
    with opened(url) as orders:
        send(orders, "kept")
    pair.primary.ask(f"ALTER DATABASE {database} SET default_transaction_isolation = serializable")
    pair.catch_up()
    with opened(shown(make_url(pair.standby.url).set(database=database))) as orders:
        for _ in range(2):
            with pytest.raises(StoreError, match="read-only"):
                send(orders, "lost")


@pytest.fixture(scope="module")
def synchronous_pair():
    with primary_and_standby(is_synchronous=True) as pair:
        yield pair


@pytest.mark.parametrize("concurrent", [False, True], ids=["exclusive", "concurrent"])
@pytest.mark.parametrize("ended_by", ["crash", "pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_whose_wait_for_the_standby_is_ended(synchronous_pair, ended_by, concurrent):
    """By then the commit is visible, but only on the primary. So it may still be lost."""
    pair = synchronous_pair
    waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    ended = []

    def work():
        with suppress(StoreError):
            ended.append(send(orders, "lost"))

    domain = f"name:{ended_by} {concurrent}"
    with opened(pair.url, domain=domain, concurrent=concurrent) as orders:
        send(orders, "kept")
        with lost(pair):
            working = threading.Thread(target=work)
            working.start()
            pair.primary.wait_until(f"SELECT count(*) > 0 {waits}")
            if ended_by == "crash":
                pair.primary.crash()
            else:
                pair.primary.ask(f"SELECT {ended_by}(pid) {waits}")
            if not concurrent:
                pair.primary.wait_until(f"SELECT count(*) > 0 {waits}")
        working.join()
        assert not ended, "who has acknowledged it would have lost it"
        assert send(orders, "kept", "lost") == [DUPLICATE, NEW]


@TAILS
def test_batches_in_the_callers_transactions(pair, url, tail):
    """Memory knows nothing of the callers' connections."""
    engine = create_engine(url, poolclass=NullPool)
    with opened(url) as orders:
        with lost(pair):
            with engine.begin() as connection:
                send(orders, *LOST, *tail, connection=connection)
            assert orders.status().rx == len(LOST) + len(tail), "known to be committed"
        with opened(url) as new:
            send(new, *OTHERS, *tail)
        with engine.begin() as connection:
            assert send(orders, LOST[0], OTHERS[0], connection=connection) == [NEW, DUPLICATE]
    assert_sound(url)


@TAILS
@pytest.mark.parametrize(("driver", "joins"), [("psycopg", False), ("psycopg", True), ("asyncpg", True)])
def test_tasks(pair, url, tail, driver, joins):
    async def received(orders, engine, *ids):
        if not joins:
            return await async_send(orders, *ids)
        async with engine.begin() as connection:
            return await async_send(orders, *ids, connection=connection)

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            with lost(pair):
                await received(orders, engine, *LOST, *tail)
                await orders.status()  # from here on it is known to be committed
            with opened(url) as new:
                send(new, *OTHERS, *tail)
            assert await received(orders, engine, LOST[0], OTHERS[0]) == [NEW, DUPLICATE]

    run(main())
    assert_sound(url)


@TAILS
def test_concurrent_receivers(pair, url, tail):
    """That includes the folding thread, which remembers what it has folded."""
    with opened(url, concurrent=True) as orders:
        send(orders, "kept")
        with lost(pair):
            send(orders, *LOST, *tail)
            until(lambda: waiting(url) == 0)
        with opened(url, concurrent=True) as new:
            send(new, *OTHERS, *tail)
        assert send(orders, LOST[0], OTHERS[0], "kept") == [NEW, DUPLICATE, DUPLICATE]
        until(lambda: waiting(url) == 0)
    (domain,) = look(url).domains
    assert domain.state.receipts == 1 + len(OTHERS) + len(tail) + 3
    assert_sound(url)


@TAILS
@pytest.mark.parametrize("policy", ["artemis:id_cache_size=100", "ttl:expiry=60", "solace-lookup"])
def test_other_policies(pair, url, tail, policy):
    with opened(url, policy=policy) as orders:
        with lost(pair):
            send(orders, *LOST, *tail)
        with opened(url) as new:
            send(new, *OTHERS, *tail)
        assert send(orders, LOST[0], OTHERS[0]) == [NEW, DUPLICATE]


@pytest.mark.parametrize("concurrent", [False, True], ids=["exclusive", "concurrent"])
def test_a_loss_is_said_though_nobody_has_been_there(pair, url, concurrent, caplog):
    with opened(url, concurrent=concurrent) as orders:
        with lost(pair):
            send(orders, *LOST)
            until(lambda: not concurrent or waiting(url) == 0)
        until(lambda: send(orders, OTHERS[0]) and SAID in caplog.text)


def loss_is_said(orders, pair, url, monkeypatch, caplog, *, folding, watching):
    """Lose what one receiver has folded. The other, which watches meanwhile, takes over and says so."""
    with lost(pair):
        send(orders, *LOST)
        until(lambda: waiting(url) == 0)
        monkeypatch.setattr(folding._folding, "_try_lock", lambda: False)
        time.sleep(2 * _TAKE_OVER_SECS)
    until(lambda: watching.is_folding)
    until(lambda: SAID in caplog.text)


def test_a_loss_is_said_by_whoever_folds_next(pair, url, monkeypatch, caplog):
    """That process may never have folded before."""
    with ExitStack() as receivers:
        orders = receivers.enter_context(opened(url, concurrent=True))
        until(lambda: orders.is_folding)
        next_one = receivers.enter_context(opened(url, concurrent=True))
        loss_is_said(orders, pair, url, monkeypatch, caplog, folding=orders, watching=next_one)


def test_a_loss_is_said_by_one_who_has_folded_long_before(pair, url, monkeypatch, caplog):
    """What it saw while it only watched counts, not what it had folded before that."""
    with ExitStack() as receivers:
        orders = receivers.enter_context(opened(url, concurrent=True))
        send(orders, "kept")
        until(lambda: waiting(url) == 0)
        next_one = receivers.enter_context(opened(url, concurrent=True))
        until(lambda: orders._folding._let_go() or next_one.is_folding)
        pair.catch_up()
        loss_is_said(orders, pair, url, monkeypatch, caplog, folding=next_one, watching=orders)


@pytest.mark.parametrize("joins", [False, True], ids=["own", "joined"])
def test_a_loss_is_said_though_a_batch_failed_with_the_server(pair, url, joins, caplog):
    """As under load: the failure drops the memory."""
    engine = create_engine(url, poolclass=NullPool)
    with opened(url) as orders, ExitStack() as failing:
        pair.detach()
        for ids in (LOST, ["lost too"]):
            with engine.begin() as connection:
                send(orders, *ids, connection=connection if joins else None)
        connection = failing.enter_context(engine.connect()) if joins else None
        with suppress(StoreError), orders.batch(connection) as batch:
            batch.receive("under way")
            pair.fail_over()
        pair.build_standby()
        for _ in range(2):
            assert undone(orders, "lost too") == [NEW]
    assert caplog.text.count(SAID) == 1


@pytest.mark.parametrize("policy", ["apama:window=9,expiry=0", "ttl:expiry=60"])
def test_a_loss_is_said_only_where_there_is_one(pair, url, policy, caplog):
    """Neither rows that were deleted nor an id forgotten by hand is one."""
    with opened(url, policy=policy) as orders, opened(url) as another:
        send(orders, *LOST)
        pair.catch_up()
        send(another, *map(str, range(100)))
        pair.catch_up()
        forget(url, "99")
        pair.catch_up()
        pair.fail_over()
        pair.build_standby()
        assert send(orders, "99", "new") == [NEW, NEW]
        assert send(another, "99", "new") == [DUPLICATE, DUPLICATE]
    assert SAID not in caplog.text


def test_nothing_is_lost_and_nobody_has_been_there(pair, url, caplog):
    """The last writer's random number proves it, so nothing is read anew."""
    with opened(url) as orders:
        send(orders, *OTHERS)
        with lost(pair):
            pass
        policy = orders.session.cache.policy
        assert send(orders, OTHERS[0], "new") == [DUPLICATE, NEW]
        assert orders.session.cache.policy is policy
    assert SAID not in caplog.text


def test_an_address_of_both_servers_leads_to_the_one_that_takes_writes(pair, url):
    hosts_url = shown(make_url(pair.hosts_url).set(database=make_url(url).database))
    with opened(hosts_url) as orders:
        send(orders, "kept")
        pair.catch_up()
        pair.fail_over()
        pair.build_standby()  # the address leads to the lost one's host
        assert send(orders, "kept", "new") == [DUPLICATE, NEW]
        pair.catch_up()
        pair.fail_over()
        assert send(orders, "kept", "new", "newer") == [DUPLICATE, DUPLICATE, NEW]
        pair.build_standby()
    with opened(hosts_url) as anew:
        assert undone(anew, "newer") == [DUPLICATE]


def test_a_cut_link_alone_costs_no_reading(pair, url):
    with opened(url) as orders, opened(url) as another:
        send(orders, *OTHERS)
        pair.proxy.cut()
        send(another, *LOST)
        policy = orders.session.cache.policy
        assert send(orders, OTHERS[0], LOST[0], "new") == [DUPLICATE, DUPLICATE, NEW]
        assert orders.session.cache.policy is policy


def test_a_server_that_recovers_has_another_run(pair, url):
    """It may have lost commits, if synchronous_commit is off."""
    with opened(url) as orders:
        send(orders, "1")
        before = orders.session.log.rows.server_run
        pair.primary.crash()
        assert send(orders, "1", "2") == [DUPLICATE, NEW]
        assert orders.session.log.rows.server_run != before


def test_sources_that_were_retired(pair, url):
    with opened(url, settings=sizes(2, 0)) as orders:
        with orders.batch() as batch:
            for source in ("a", "b"):
                batch.receive(f"of {source}", source, received_at_us=0)
        with lost(pair):
            retire_sources(url, sources=["a"])
            with orders.batch():
                pass
        retire_sources(url, sources=["b"])
        assert send(orders, "of a", "of b") == [DUPLICATE, NEW]


def test_sizes_that_were_changed(pair, url):
    with opened(url, settings=sizes(4, 0)) as orders:
        send(orders, "1", "2", "3", "4")
        with lost(pair), opened(url, settings=sizes(1, 0)), orders.batch():
            pass
        with opened(url, settings=sizes(3, 0)):
            pass
        assert undone(orders, "2") == [DUPLICATE]
        assert undone(orders, "1") == [NEW]


def test_numbers_never_go_back(pair, url):
    """The sender's own memory counts, whatever the store says."""
    with gateway(url) as ids:
        given = numbers([ids.next()])
        with lost(pair):
            given += numbers(ids.next_many(3))
        given += numbers([ids.next(), *ids.next_many(2)])
        assert given == [1, 2, 3, 4, 5, 6, 7]


def test_numbers_of_committed_transactions_never_go_back(pair, url):
    engine = application(url)
    with gateway(url) as ids:
        with lost(pair):
            with engine.begin() as connection:
                assert numbers(ids.next_many(2, connection=connection)) == [1, 2]
            with engine.connect() as connection:
                assert numbers([ids.next(connection=connection)]) == [3]
                connection.rollback()
                assert numbers([ids.next(connection=connection)]) == [3]
                connection.commit()
                assert numbers(ids.next_many(2, connection=connection)) == [4, 5]
                connection.rollback()
        with engine.begin() as connection:
            assert numbers([ids.next(connection=connection)]) == [4], "a gap, or a number twice"


@pytest.mark.parametrize("joins", [False, True], ids=["own", "joined"])
def test_keys_stay_the_same_until_they_are_confirmed(pair, url, joins):
    engine = application(url)
    with billing(url) as keys:

        def key_for(*references):
            with engine.begin() as connection:
                return [keys.key_for(each, connection=connection if joins else None) for each in references]

        with lost(pair):
            key, confirmed, _ = key_for("invoice 1", "invoice 2", "invoice 3")
            with engine.begin() as connection:
                keys.confirm("invoice 2", connection=connection if joins else None)
            with engine.connect() as connection:
                keys.confirm("invoice 1", connection=connection)
                connection.rollback()
        (again, other) = key_for("invoice 1", "invoice 2")
        assert again == key
        assert other != confirmed


def test_messages_that_wait_under_numbers_that_were_given_again(pair, url):
    """A bridge holds messages while its target is away. By then, another bridge's messages may have their numbers."""
    seen = []
    origin = Origin(MemoryBroker().source, "broker", "queue://orders")

    def bridge():
        return open_bridge(origin, PythonTarget("python:tests:see", lambda got: seen.append(got.text)), url)

    def taken(*ids):
        messages = [Received._make((None, 0, 0, id_, None, "queue://orders", message(id_))) for id_ in ids]
        return Taken(messages, [each.receipt() for each in messages])

    with closing(bridge()) as ours, closing(bridge()) as another:
        with lost(pair):
            ours._flow.before_acknowledging(taken(*LOST))
        another._flow.before_acknowledging(taken(*OTHERS))
        assert not ours._flow.deliver_waiting()
        assert seen == OTHERS
        ours._flow.before_acknowledging(taken(*LOST))
        assert not ours._flow.deliver_waiting()
        assert seen == OTHERS + LOST
    assert_sound(url)


def test_a_target_whose_number_is_anothers(fresh_postgres_url):
    """A restored standby may give the number again. Messages for the other target aren't ours to hand on."""
    with (
        opened(fresh_postgres_url) as orders,
        Inbox(fresh_postgres_url, domain_id=orders.domain_id, target="file:/a") as ours,
    ):
        with ours.lease():
            pass
        engine = create_engine(fresh_postgres_url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("UPDATE receiver_target SET target = '\\x6f74686572'"))
        with pytest.raises(StoreError, match="the target is gone"), ours.lease():
            pass


@contextmanager
def lost_unseen(url):
    """Lose what is committed inside the block, without a failover: as behind a pooler, or when an older copy
    replaces a file."""
    engine = create_engine(url, poolclass=NullPool)
    tables = ["receiver_domain", "receiver_receipt"]
    with engine.begin() as connection:
        copies = {name: connection.execute(text(f"SELECT * FROM {name}")).mappings().all() for name in tables}  # noqa: S608
    yield
    with engine.begin() as connection:
        for name, rows in copies.items():
            connection.execute(text(f"DELETE FROM {name}"))  # noqa: S608
            for row in rows:
                columns = ", ".join(row)
                values = ", ".join(f":{column}" for column in row)
                connection.execute(text(f"INSERT INTO {name} ({columns}) VALUES ({values})"), dict(row))  # noqa: S608


def test_a_loss_that_the_connection_does_not_show(store_url):
    """The rows show it."""
    with opened(store_url) as orders:
        send(orders, "kept")
        with lost_unseen(store_url):
            send(orders, *LOST)
        with opened(store_url) as new:
            send(new, *OTHERS)
        assert send(orders, LOST[0], OTHERS[0], "kept") == [NEW, DUPLICATE, DUPLICATE]
    assert_sound(store_url)


def test_a_loss_is_said_though_more_receipts_have_come_since(store_url, caplog):
    with opened(store_url) as orders:
        send(orders, "kept")
        with lost_unseen(store_url):
            send(orders, *LOST)
        with opened(store_url) as new:
            send(new, OTHERS[0], *[None] * len(LOST))
        send(orders, "kept")
    assert caplog.text.count(SAID) == 1


def test_a_loss_that_no_row_shows(store_url):
    """The clock shows it."""
    with opened(store_url, policy="cmq:retry=0,network=0") as orders:
        send(orders, "kept")
        with lost_unseen(store_url), orders.batch() as batch:
            batch.advance(min_msg_time_us=1)
        assert send(orders, "kept") == [DUPLICATE]
    assert_sound(store_url)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_loss_that_the_connection_does_not_show_under_any_policy(sqlite_url, kind, is_known):
    """Each receipt with an id leaves a row, and the row shows the loss."""
    kept, lost, *_ = kind.ids
    with opened(sqlite_url, policy=kind.text(*kind.roomy)) as orders:

        def received(id_, received_at_us):
            with orders.batch() as batch:
                return batch.receive(id_, received_at_us=received_at_us).verdict

        received(kept, 0)
        with lost_unseen(sqlite_url):
            received(kept if is_known else lost, 5)
        assert [received(lost, 1), received(kept, 1)] == [NEW, DUPLICATE]
    assert_sound(sqlite_url)
