"""`receiver parked`: what it shows, sends back and drops, and how it refuses."""

import json
from functools import partial

import pytest
from running import at_a_terminal, complaint

from receiver.store.upkeep import parked_rows
from tests.store.waiting import as_retried, message, opened_inbox, receive, waiting_in
from tests.stores import execute

pytestmark = pytest.mark.thinned(3)

HOSTILE = "\x1b[31m\r\n\u202eevil\0 [bold]\ud800é"


@pytest.fixture
def parked(command):
    return partial(command, "parked")


def park(address, target="file:orders.jsonl"):
    """Add three messages and park two of them. Returns the numbers of the parked ones."""
    with opened_inbox(address, target) as (receiver, inbox):
        rows = receive(receiver, inbox, b"x" * 1_234, b"", b"y", source="gateway")
        with inbox.lease() as turn:
            turn.park(rows[0]._replace(tries=5), "ValueError: no amount")
            turn.park(rows[2]._replace(tries=1, unique_message_id=None, message_source_id=None), HOSTILE)
    execute(address, "UPDATE receiver_parked SET parked_at_us = 1777629605000000")
    return [row.parked_id for row in parked_rows(address)]


def test_list_on_a_terminal(parked, sqlite_url):
    assert park(sqlite_url) == [1, 2]
    ran = parked("list", sqlite_url)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"{sqlite_url}: 2 messages parked",
        "",
        "1: 0:gateway",
        "  from gateway by queue://orders, for file:orders.jsonl",
        "  received 2026-05-01 10:00:00, parked 2026-05-01 10:00:05 UTC, tried 5 times, 1.23 kB",
        "  ValueError: no amount",
        "",
        "2: (no id, JMSMessageID ID:broker-1)",
        "  by queue://orders, for file:orders.jsonl",
        "  received 2026-05-01 10:00:00, parked 2026-05-01 10:00:05 UTC, tried 1 time, 1 B",
        "  \\x1b[31m\\r\\n\\u202eevil\\x00 [bold]\\ud800é",
    ]


def test_list_as_json(parked, store_url):
    numbers = park(store_url, HOSTILE)
    ran = parked("list", store_url, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert all(char.isprintable() or char == "\n" for char in ran.out)
    printed = json.loads(ran.out)
    assert set(printed) == {"store", "parked"}
    assert [message["number"] for message in printed["parked"]] == numbers
    assert printed["parked"][0] == {
        "number": numbers[0],
        "domain": "broker:queue://orders",
        "key": "default",
        "target": HOSTILE,
        "unique_message_id": "0:gateway",
        "message_source_id": "gateway",
        "destination": "queue://orders",
        "message_id": "ID:broker-1",
        "received_at": "2026-05-01T10:00:00.000000Z",
        "parked_at": "2026-05-01T10:00:05.000000Z",
        "tries": 5,
        "body_bytes": 1_234,
        "error": "ValueError: no amount",
    }


def test_none(parked, store_url):
    with opened_inbox(store_url):
        pass
    assert "0 messages parked\n" in parked("list", store_url).out
    assert "0 messages dropped\n" in parked("drop", store_url, "--all").out


def test_list_of_what_a_damaged_store_still_knows(parked, store_url):
    park(store_url)
    execute(store_url, "DELETE FROM receiver_target", "UPDATE receiver_parked SET received_at_us = 4611686018427387904")
    ran = parked("list", store_url)
    assert ran.status == 0
    assert "for (a target that the store doesn't know)\n  received -, parked" in ran.out
    assert json.loads(parked("list", store_url, "--json").out)["parked"][0]["domain"] is None


def test_retry_and_drop(parked, store_url):
    first, second = park(store_url)
    assert parked("retry", store_url, first).out.endswith(": 1 message sent back to the inbox\n")
    with opened_inbox(store_url) as (_, inbox):
        assert waiting_in(inbox) == [as_retried(message(0, "gateway", b"x" * 1_234)), message(1, "gateway", b"")]
    assert parked("drop", store_url, second, "--yes").out.endswith(": 1 message dropped\n")
    assert parked_rows(store_url) == []


@pytest.mark.parametrize("way", ["retry", "drop"])
def test_all_of_them(way, parked, store_url):
    park(store_url)
    yes = ["--yes"] if way == "drop" else []
    assert ": 2 messages " in parked(way, store_url, "--all", *yes).out
    assert parked_rows(store_url) == []


@pytest.mark.parametrize(
    ("which", "many"),
    [(["--all"], "2 parked messages"), (["1", "2"], "2 parked messages"), (["2", "2"], "1 parked message")],
)
def test_they_are_dropped_only_after_a_yes(which, many, parked, store_url):
    """If nobody can be asked, they stay."""
    park(store_url)
    before = parked_rows(store_url)
    said = complaint(parked("drop", store_url, *which))
    assert f"this deletes {many} for good" in said
    assert "hint: add --yes" in said
    assert parked_rows(store_url) == before


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 2, 2), ("", 2, 2)])
def test_who_sits_at_a_terminal_is_asked(tmp_path, answer, status, left):
    address = f"sqlite:///{tmp_path}/receiver.db"
    park(address)
    ran_status, said = at_a_terminal("parked", "drop", address, "--all", answer=answer)
    assert "this deletes 2 parked messages for good. Go on? [y/N]" in said
    assert ran_status == status
    assert len(parked_rows(address)) == left


@pytest.mark.parametrize("way", ["retry", "drop"])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "say which: either their numbers or --all"),
        (["1", "--all"], "say which: either their numbers or --all"),
        (["1", "77"], "no message is parked under 77"),
        (["0"], "no message is parked under 0"),
        (["one"], "valid integer"),
    ],
)
def test_what_cant_be_meant(way, arguments, problem, parked, sqlite_url):
    park(sqlite_url)
    before = parked_rows(sqlite_url)
    said = complaint(parked(way, sqlite_url, *arguments))
    assert problem in said
    assert "hint: " in said
    assert parked_rows(sqlite_url) == before


def test_a_command_line_that_wont_do_is_told_where_help_is(parked):
    assert "hint: receiver parked --help lists what there is" in complaint(parked())
    assert "hint: receiver parked --help lists what there is" in complaint(parked("lits"))


def test_status_counts_what_waits_and_what_is_parked(command, store_url, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    park(store_url)
    (domain,) = json.loads(command("status", store_url, "--json").out)["domains"]
    assert (domain["inbox"], domain["parked"]) == (1, 2)
    said = command("status", store_url, "--quick").out.splitlines()
    assert said[-1].split() == ["in", "the", "inbox", "1", "parked", "2"]
    assert said[5].split()[:4] == ["times", "changed", "0", "longest"]
