"""Kill -9, cut links, lost servers, forks: no key is lost or made twice, and no number is given twice."""

import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from receiver import senders
from receiver.errors import ClosedError, StoreError
from tests.campaigns import survived
from tests.durable.checks import assert_sound
from tests.durable.forked import forked
from tests.durable.proxy import Cut, proxied
from tests.durable.worker import PATIENCE_SECS, PROCESSES, reporting
from tests.postgres import wait_for_the_dead
from tests.senders.making import application, billing, gateway, numbers, pending_keys

KILLS = {"quick": 5, "small": 5, "long": 100}
MESSAGES_PER_KILL = 8
MESSAGES = 30
LONGEST_PAUSE_SECS = 0.004
AT_ONCE = 4


class Broker:
    """A file that outlives its writers: all that a broker was sent, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, *words: str) -> None:
        with self._path.open("ab", buffering=0) as file:  # in one write, so whole or not at all
            file.write(json.dumps(words).encode() + b"\n")

    def sent(self) -> list[list[str]]:
        return [json.loads(line) for line in self._path.read_bytes().splitlines()] if self._path.exists() else []


@pytest.fixture
def broker(tmp_path):
    return Broker(tmp_path / "broker.jsonl")


@pytest.fixture
def kills(request):
    return KILLS[request.config.getoption("--campaign")]


def confirmed_up_to(engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalars(text("SELECT number FROM progress")).one())


@pytest.fixture
def engine(store_url):
    """The application's engine, with a table of its progress."""
    engine = application(store_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE progress (number INTEGER)"))
        connection.execute(text("INSERT INTO progress VALUES (0)"))
        connection.execute(text("CREATE TABLE outbox (id TEXT)"))
    return engine


def send_invoices(url, broker, count, stops_at, reports):
    """Send each invoice once, if nobody dies. Its confirmation is committed together with the application's
    progress."""
    engine = application(url)
    with billing(url) as keys:
        for number in range(confirmed_up_to(engine), count):
            reference = f"invoice {number}"
            key = keys.key_for(reference)
            reports.send(("made", reference, key))
            if stops_at == "made":
                time.sleep(PATIENCE_SECS)
            broker.send(reference, key)
            reports.send(("sent", reference, key))
            if stops_at == "sent":
                time.sleep(PATIENCE_SECS)
            with engine.begin() as connection:
                connection.execute(text("UPDATE progress SET number = :next"), {"next": number + 1})
                keys.confirm(reference, connection=connection)


@pytest.mark.parametrize("step", ["made", "sent"])
def test_killed_before_it_is_confirmed(store_url, broker, engine, step):
    """The key was made and not sent, or sent and not confirmed. The next process sends again with the same key."""
    with reporting(send_invoices, store_url, broker, MESSAGES, step) as sender:
        *_, (said, reference, key) = sender.listen(1 if step == "made" else 2)
        sender.kill()
    wait_for_the_dead(store_url)
    assert (said, reference) == (step, "invoice 0")
    assert pending_keys(store_url) == {reference: key}
    with reporting(send_invoices, store_url, broker, MESSAGES, None) as sender:
        assert sender.listen(1) == [("made", reference, key)]
        sender.listen()
    twice = step == "sent"
    assert broker.sent().count([reference, key]) == 1 + twice
    assert len(broker.sent()) == MESSAGES + twice
    assert confirmed_up_to(engine) == MESSAGES
    assert pending_keys(store_url) == {}


@pytest.mark.costly
@pytest.mark.scaled
@pytest.mark.thinned(2)
def test_keys_through_kills_at_random_moments(store_url, broker, engine, kills, seed):
    chosen, count = random.Random(seed), kills * MESSAGES_PER_KILL
    for _ in range(kills):
        with reporting(send_invoices, store_url, broker, count, None) as sender:
            sender.listen(chosen.randrange(1, 2 * MESSAGES_PER_KILL))
            time.sleep(chosen.uniform(0, LONGEST_PAUSE_SECS))
            sender.kill()
        wait_for_the_dead(store_url)
        pending = pending_keys(store_url)
        made = {reference: key for _, reference, key in sender.heard}
        unconfirmed = [f"invoice {number}" for number in range(confirmed_up_to(engine), count)]
        # Every key that was handed out is kept for a resend until it is confirmed. So is every key that was sent.
        for reference, key in (*made.items(), *broker.sent()):
            assert pending.get(reference) == (key if reference in unconfirmed else None)
    with reporting(send_invoices, store_url, broker, count, None) as sender:
        sender.listen()
    assert pending_keys(store_url) == {}
    keys_of = defaultdict(set)
    for reference, key in broker.sent():
        keys_of[reference].add(key)
    print(f"{len(broker.sent()) - count} of {len(broker.sent())} were sent again")
    assert list(keys_of) == [f"invoice {number}" for number in range(count)]
    assert {len(keys) for keys in keys_of.values()} == {1}
    assert len(set.union(*keys_of.values())) == count
    assert_sound(store_url)
    survived({"kills": kills}, count)


def send_numbered(url, broker, joins, reports):
    """For ever, send one message and several at once by turns: directly, or through an outbox."""
    engine = application(url)
    with gateway(url) as ids:
        while True:
            for count in (1, AT_ONCE):
                if joins:
                    with engine.begin() as connection:
                        for id_ in ids.next_many(count, connection=connection):
                            connection.execute(text("INSERT INTO outbox VALUES (:id)"), {"id": id_})
                else:
                    for id_ in ids.next_many(count):
                        broker.send(id_)
            reports.send("sent")


@pytest.mark.costly
@pytest.mark.scaled
@pytest.mark.thinned(2)
@pytest.mark.parametrize("joins", [False, True], ids=["own-transaction", "joined"])
def test_numbers_through_kills_at_random_moments(store_url, broker, engine, kills, seed, joins):  # noqa: PLR0917
    chosen = random.Random(seed)
    for _ in range(kills):
        with reporting(send_numbered, store_url, broker, joins) as sender:
            sender.listen(chosen.randrange(1, 8))
            time.sleep(chosen.uniform(0, LONGEST_PAUSE_SECS))
            sender.kill()
    wait_for_the_dead(store_url)
    if joins:
        with engine.connect() as connection:
            used = sorted(numbers(connection.scalars(text("SELECT id FROM outbox")).all()))
        assert used == list(range(1, len(used) + 1))
    else:
        used = numbers([id_ for (id_,) in broker.sent()])
        assert used == sorted(set(used))
        gaps = used[-1] - len(used)
        print(f"{gaps} of {used[-1]} numbers were never sent")
        assert gaps <= kills * AT_ONCE
    with gateway(store_url) as ids:
        assert numbers([ids.next()])[0] >= used[-1] + 1
    assert_sound(store_url)
    survived({"kills": kills}, len(used))


def make_together(url, start, rounds, reports):
    start.wait(PATIENCE_SECS)
    with billing(url) as keys, gateway(url) as ids:
        for number in range(rounds):
            reports.send((keys.key_for(f"{number}"), [ids.next(), *ids.next_many(AT_ONCE)]))


def test_processes_at_once(store_url):
    """From the making of the store on, there is one key for one reference, and no id is given twice."""
    rounds = 20
    start = PROCESSES.Barrier(2)
    with (
        reporting(make_together, store_url, start, rounds) as one,
        reporting(make_together, store_url, start, rounds) as two,
    ):
        made = [one.listen(), two.listen()]
    keys = [[key for key, _ in by_process] for by_process in made]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == rounds
    ids = [id_ for by_process in made for _, drawn in by_process for id_ in drawn]
    assert sorted(numbers(ids)) == list(range(1, 2 * rounds * (1 + AT_ONCE) + 1))
    assert_sound(store_url)


def test_threads_share_a_maker(store_url):
    made = []
    with billing(store_url) as keys, gateway(store_url) as ids:

        def make():
            made.extend((keys.key_for(f"{number}"), ids.next()) for number in range(10))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({key for key, _ in made}) == 10
    assert sorted(numbers([id_ for _, id_ in made])) == list(range(1, 41))


def test_threads_share_a_maker_that_has_given_as_many_keys_as_it_keeps(sqlite_url, monkeypatch):
    def let_others_go_on(frame, event, _of):
        if event == "c_return" and frame.f_code.co_filename == senders.__file__:
            time.sleep(0.001)

    def make(number):
        sys.setprofile(let_others_go_on)
        return keys.key_for(f"{number}")

    monkeypatch.setattr(senders, "_MOST_GIVEN", 1)
    with billing(sqlite_url) as keys, ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(make, range(100)))) == 100


def link_of(maker):
    """The driver's connection that a maker keeps."""
    return maker._kept._kept.connection.dbapi_connection


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_off(store_url):
    """It is refused its parent's makers, may close them without effect, and opens its own."""
    with billing(store_url) as keys, gateway(store_url) as ids:
        key = keys.key_for("a")
        ids.next()
        links = [link_of(maker) for maker in (keys, ids)]

        def child():
            for use in (lambda: keys.key_for("a"), lambda: keys.confirm("a"), keys.pending, ids.next):
                with pytest.raises(ClosedError, match="open another in the new process"):
                    use()
            keys.close()
            ids.close()
            with billing(store_url) as own_keys, gateway(store_url) as own_ids:
                return [own_keys.key_for("a"), own_ids.next()]

        assert forked(child)() == [key, "2:gateway:1"]
        assert keys.key_for("a") == key
        assert numbers([ids.next()]) == [3]
        # The child ended no connection.
        assert links == [link_of(maker) for maker in (keys, ids)]
    assert_sound(store_url)


@pytest.mark.parametrize("cut", Cut)
def test_a_link_cut_at_the_commit(fresh_postgres_url, cut):
    """The outcome is unknown, so it is an error. The next call gives the persisted key, and a number that was never
    given."""
    with proxied(fresh_postgres_url) as proxy, billing(proxy.url) as keys, gateway(proxy.url) as ids:
        keys.key_for("before")
        ids.next()
        for use in (lambda: keys.key_for("a"), ids.next):
            proxy.arm(cut)
            with pytest.raises(StoreError):
                use()
            assert not proxy.armed
        assert pending_keys(fresh_postgres_url).keys() >= {"before"}
        key = keys.key_for("a")
        assert pending_keys(fresh_postgres_url)["a"] == key
        assert numbers(ids.next_many(2)) == ([2, 3] if cut is Cut.BEFORE_COMMIT else [3, 4])


def test_a_link_cut_while_idle(fresh_postgres_url):
    """Nothing is lost, so there is no error."""
    with proxied(fresh_postgres_url) as proxy, billing(proxy.url) as keys, gateway(proxy.url) as ids:
        key = keys.key_for("a")
        made = [ids.next()]
        for _ in range(2):
            proxy.cut()
            assert keys.key_for("a") == key
            made.append(ids.next())
        assert numbers(made) == [1, 2, 3]
