"""`receiver domain`: what it shows and drops, and how it refuses."""

import json
from functools import partial

import pytest
from running import complaint

from receiver.durable.audit import look
from tests.durable.opened import opened, send, sizes
from tests.store.waiting import opened_inbox, receive
from tests.stores import execute

ORDERS = "broker:queue://orders"


@pytest.fixture
def domain(command):
    return partial(command, "domain")


def make(url):
    """A domain with a bridge, a domain that never received, and a domain with the first one's name by another KEY."""
    with opened_inbox(url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"0", b"1", b"2")
        with inbox.lease() as turn:
            turn.park(rows[0], "refused")
    opened(url, destination="queue://other", settings=sizes(7, 5_000_000)).close()
    with opened(url, domain=f"name:{ORDERS}") as receiver:
        send(receiver, "0")


def numbers(url):
    return [figures.state.domain_id for figures in look(url, with_ids=False).domains]


def test_list_on_a_terminal(domain, sqlite_url):
    make(sqlite_url)
    ran = domain("list", sqlite_url)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[1:] == [
        "",
        f"1: {ORDERS} (key default)",
        "  apama:window=2000,expiry=120",
        "  3 receipts, the latest 2026-05-01 10:00:00 UTC",
        "  3 rows, 2 in the inbox, 1 parked",
        "",
        "2: broker:queue://other (key default)",
        "  apama:window=7,expiry=5",
        "  0 receipts",
        "  0 rows, 0 in the inbox, 0 parked",
        "",
        f"3: {ORDERS} (key name)",
        "  apama:window=2000,expiry=120",
        "  1 receipt, the latest 1970-01-01 00:00:00 UTC",
        "  1 row, 0 in the inbox, 0 parked",
    ]


def test_list_as_json(domain, store_url):
    make(store_url)
    printed = json.loads(domain("list", store_url, "--json").out)
    assert printed.keys() == {"store", "version", "size_bytes", "domains"}
    assert printed["domains"][0] == {
        "number": 1,
        "domain": ORDERS,
        "key": "default",
        "policy": "apama:window=2000,expiry=120",
        "window": 2000,
        "expiry_secs": 120.0,
        "receipts": 3,
        "latest_received_at": "2026-05-01T10:00:00.000002Z",
        "rows": 3,
        "inbox": 2,
        "parked": 1,
    }
    assert printed["domains"][1]["latest_received_at"] is None


def test_drop_asks(domain, store_url):
    """It asks, and says how many receipts and messages would be dropped."""
    make(store_url)
    said = complaint(domain("drop", store_url, "--domain", "1"))
    amounts = "3 stored receipts, 2 messages in the inbox and 1 parked"
    assert f"this drops {ORDERS} with {amounts}" in said
    assert "add --yes" in said
    assert numbers(store_url) == [1, 2, 3]
    ran = domain("drop", store_url, "--domain", "1", "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.endswith(f": dropped {amounts}\n")
    assert numbers(store_url) == [2, 3]
    assert domain("drop", store_url, "--domain", ORDERS, "--yes").status == 0
    assert domain("drop", store_url, "--domain", "broker:queue://other", "--yes").status == 0
    assert numbers(store_url) == []


def test_a_name_of_other_digits_is_no_number(domain, sqlite_url):
    """An Arabic three is a name, not the number of the third domain. Otherwise that domain would be dropped."""
    make(sqlite_url)
    opened(sqlite_url, domain="name:\u0663").close()
    domain("drop", sqlite_url, "--domain", "\u0663", "--yes")
    assert numbers(sqlite_url) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--domain", "9"], "there is no domain '9'"),
        (["--domain", "broker"], "there is no domain 'broker'"),
        (["--domain", "9" * 5_000], "there is no domain '999"),
        (["--domain", ORDERS], f"several are called '{ORDERS}': 1, 3"),
        ([], "Missing option"),
    ],
)
def test_what_cant_be_meant(domain, sqlite_url, arguments, problem):
    make(sqlite_url)
    said = complaint(domain("drop", sqlite_url, *arguments, "--yes"))
    assert problem in said
    assert "hint: " in said
    assert numbers(sqlite_url) == [1, 2, 3]


def test_what_is_broken_is_told(domain, sqlite_url):
    make(sqlite_url)
    execute(sqlite_url, "UPDATE receiver_domain SET receipts = -1 WHERE domain_id = 1")
    ran = domain("list", sqlite_url)
    assert ran.err == "note: the store is broken: receiver check says where\n"
