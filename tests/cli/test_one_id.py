"""`receiver lookup` and `receiver forget`: what they say, their exit statuses, and how they refuse."""

import json
from functools import partial

import pytest
from running import complaint

from receiver import Receiver
from receiver.durable import forgetting
from receiver.errors import StoreBusyError

HOSTILE = "\x1b[31mevil"


@pytest.fixture
def lookup(command):
    return partial(command, "lookup")


@pytest.fixture
def forget(command):
    return partial(command, "forget")


@pytest.fixture
def store(store_url):
    for name in ("orders", HOSTILE):
        with Receiver.open(store_url, connection_id="a", destination="q", domain=f"name:{name}") as receiver:
            with receiver.batch() as batch:
                batch.receive("4711", "gateway-1", received_at_us=1_777_629_600_000_000)
            with receiver.batch() as batch:
                batch.receive("4711", HOSTILE, received_at_us=1_777_629_601_500_000)
                batch.receive(name, received_at_us=0)
    return store_url


def test_where_an_id_is_remembered(lookup, store):
    ran = lookup(store, "4711")
    assert (ran.status, ran.err) == (0, "")
    said = "remembered by the source tier, first received 2026-05-01T10:00:00.000000Z, last 2026-05-01T10:00:01.500000Z from"
    assert ran.out == f"orders: {said} \\x1b[31mevil\n\\x1b[31mevil: {said} \\x1b[31mevil\n"
    ran = lookup(store, "orders")
    assert ran.status == 0
    assert ran.out.splitlines()[0].endswith("from the anonymous source")
    assert ran.out.splitlines()[1] == "\\x1b[31mevil: not remembered"
    ran = lookup(store, "4712")
    assert (ran.status, ran.err) == (1, "")


def test_a_store_without_a_domain(command, lookup, sqlite_url):
    command("migrate", sqlite_url)
    ran = lookup(sqlite_url, "4711")
    assert (ran.status, ran.out) == (1, f"{sqlite_url}: there is no domain yet\n")


def test_the_same_for_programs(lookup, store):
    ran = lookup(store, "4711", "--json", "--domain", "orders")
    assert json.loads(ran.out)["domains"] == [
        {
            "domain": "orders",
            "remembered": True,
            "tier": "source",
            "first_received_at": "2026-05-01T10:00:00.000000Z",
            "latest_received_at": "2026-05-01T10:00:01.500000Z",
            "message_source_id": HOSTILE,
        }
    ]
    ran = lookup(store, "4712", "--json")
    assert ran.status == 1
    assert [each["remembered"] for each in json.loads(ran.out)["domains"]] == [False, False]


def test_an_id_is_forgotten_on_purpose(forget, lookup, store):
    assert "the next message with this id will be new in orders, so it needs --yes" in complaint(
        forget(store, "4711", "--domain", "orders")
    )
    assert lookup(store, "4711", "--domain", "orders").status == 0
    ran = forget(store, "4711", "--domain", "orders", "--yes")
    assert (ran.status, ran.out) == (0, "orders: forgotten\n")
    assert lookup(store, "4711", "--domain", "orders").status == 1
    assert lookup(store, "4711").status == 0
    ran = forget(store, "4711", "--yes")
    assert ran.out == "\\x1b[31mevil: forgotten\n"
    ran = forget(store, "4711", "--yes")
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.endswith("no domain remembers it\n")


def test_what_one_domain_has_forgotten_is_printed_though_the_next_fails(forget, store, monkeypatch):
    forget_in = forgetting.forget_in

    def failing(log, cache, state, id_):
        if state.domain_name == HOSTILE:
            raise StoreBusyError("others hold it")
        return forget_in(log, cache, state, id_)

    monkeypatch.setattr(forgetting, "forget_in", failing)
    ran = forget(store, "4711", "--yes")
    assert (ran.status, ran.out) == (2, "orders: forgotten\n")


@pytest.mark.parametrize("name", ["lookup", "forget"])
def test_what_is_refused(command, name, store):
    assert "has no domain" in complaint(command(name, store, "4711", "--domain", "none"))
    assert "is empty" in complaint(command(name, store, ""))


@pytest.mark.parametrize("address", ["sqlite:///receiver.db", "postgresql://u:secret@h/d"])
@pytest.mark.parametrize(
    "command_line", [("lookup",), ("forget",), ("inbox", "drop"), ("inbox", "move", "3")], ids=" ".join
)
def test_an_address_that_stands_behind_what_is_asked_of_it(command, command_line, address):
    said = complaint(command(*command_line, "order-4711", address))
    assert "hint: the store comes first: " in said
    assert "secret" not in said
