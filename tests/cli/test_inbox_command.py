"""`receiver inbox`: what it shows, moves and drops, and how it refuses."""

import json
from functools import partial

import pytest
from running import complaint

from receiver.store.upkeep import target_rows
from tests.durable.opened import opened
from tests.store.waiting import inbox_of, opened_inbox, receive

pytestmark = pytest.mark.thinned(3)

OLD, NEW = "amqp://old:5672/queue/out", "stomp://new:61613/queue/out"


@pytest.fixture
def inbox(command):
    return partial(command, "inbox")


def leave(url):
    """Three messages for a target that no bridge serves any more, and one for another domain's target with the same
    name."""
    with opened_inbox(url, OLD) as (receiver, old), opened(url, destination="queue://other") as other:
        receive(receiver, old, b"x" * 1_200, b"x" * 34, b"")
        with inbox_of(receiver, url, NEW), inbox_of(other, url, OLD) as beside:
            receive(other, beside, b"y")


def waiting(url):
    return {row.number: row.waiting for row in target_rows(url)}


def test_list_on_a_terminal(inbox, sqlite_url):
    leave(sqlite_url)
    ran = inbox("list", sqlite_url)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"{sqlite_url}: 3 targets, 4 messages in the inbox",
        "",
        f"1: {OLD}",
        "  of broker:queue://orders (key default)",
        "  3 messages, 1.23 kB, the oldest received 2026-05-01 10:00:00 UTC",
        "",
        f"2: {NEW}",
        "  of broker:queue://orders (key default)",
        "  nothing waits",
        "",
        f"3: {OLD}",
        "  of broker:queue://other (key default)",
        "  1 message, 1 B, the oldest received 2026-05-01 10:00:00 UTC",
    ]


def test_list_as_json(inbox, store_url):
    leave(store_url)
    printed = json.loads(inbox("list", store_url, "--json").out)
    assert printed.keys() == {"store", "targets"}
    assert printed["targets"][:2] == [
        {
            "number": 1,
            "target": OLD,
            "domain": "broker:queue://orders",
            "key": "default",
            "waiting": 3,
            "oldest_received_at": "2026-05-01T10:00:00.000000Z",
            "body_bytes": 1_234,
        },
        {
            "number": 2,
            "target": NEW,
            "domain": "broker:queue://orders",
            "key": "default",
            "waiting": 0,
            "oldest_received_at": None,
            "body_bytes": 0,
        },
    ]


@pytest.mark.parametrize("to", ["2", NEW, "stomp://user:secret@new/out"])
def test_move(inbox, store_url, to):
    """The new target is given by its number, by its name, or as for a bridge."""
    leave(store_url)
    ran = inbox("move", store_url, "1", to)
    assert ran.status == 0
    assert ran.out.endswith(f": 3 messages moved to {NEW}\n")
    assert "EXACTLY_ONCE can't hold across two targets" in ran.err
    assert "secret" not in ran.out + ran.err
    assert waiting(store_url) == {1: 0, 2: 3, 3: 1}
    assert inbox("move", store_url, "1", to).out.endswith(f": 0 messages moved to {NEW}\n")


def test_move_to_a_new_target(inbox, sqlite_url, tmp_path):
    leave(sqlite_url)
    assert inbox("move", sqlite_url, "1", "file:orders.jsonl").status == 0
    assert [row.name for row in target_rows(sqlite_url) if row.waiting == 3] == [f"file:{tmp_path}/orders.jsonl"]
    assert not (tmp_path / "orders.jsonl").exists()


def test_drop_asks(inbox, store_url):
    """It asks, and says which messages and how many would be deleted."""
    leave(store_url)
    said = complaint(inbox("drop", store_url, "1"))
    assert (
        f"this deletes what waits for {OLD}: 3 messages, 1.23 kB, the oldest received 2026-05-01 10:00:00 UTC" in said
    )
    assert "add --yes" in said
    assert waiting(store_url) == {1: 3, 2: 0, 3: 1}
    assert inbox("drop", store_url, "1", "--yes").out.endswith(": 3 messages dropped\n")
    assert inbox("drop", store_url, "1").out.endswith(": 0 messages dropped\n")
    assert waiting(store_url) == {1: 0, 2: 0, 3: 1}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["drop", "9", "--yes"], "there is no target '9'"),
        (["drop", "amqp://nobody", "--yes"], "there is no target 'amqp://nobody'"),
        (["drop", OLD, "--yes"], f"several are called '{OLD}': 1, 3"),
        (["drop"], "Missing argument"),
        (["move", "1", "3"], "target 3 is of another domain"),
        (["move", "1", "1"], "already"),
        (["move", "1", "9"], "there is no target '9'"),
        (["move", "1", "out.jsonl"], "'out.jsonl' isn't a target"),
        (["move", OLD, "2"], "several are called"),
        (["move", "1"], "Missing argument"),
    ],
)
def test_what_cant_be_meant(inbox, sqlite_url, arguments, problem):
    leave(sqlite_url)
    before = target_rows(sqlite_url)
    said = complaint(inbox(arguments[0], sqlite_url, *arguments[1:]))
    assert problem in said
    assert "hint: " in said
    assert target_rows(sqlite_url) == before
