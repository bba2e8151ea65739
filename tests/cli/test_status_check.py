"""`receiver status` and `receiver check`: what they print, how they exit, and that they change nothing."""

import json
import re
import sqlite3
import sys
from contextlib import closing
from importlib import metadata

import pytest
from running import complaint

from receiver.bridge.connectors.address import STREAM_POSITION, BrokerAddress
from receiver.durable.receiver import Receiver
from receiver.settings import ReceiverSettings
from receiver.store.inbox import Inbox
from receiver.store.tables import REVISION
from tests.store.waiting import opened_inbox, receive
from tests.stores import contents, execute

pytestmark = pytest.mark.thinned(3)

HOSTILE = "queue://\x1b[31m\r\n\u202eevil\0 [bold]\ud800é"
SETTINGS = ReceiverSettings(dup_detection_per_source_expiry_window_size=2, dup_detection_expiry_time_secs=0.5)
TEN_O_CLOCK_US = 1_777_629_600_000_000


def make(address: str, destination: str = "orders") -> None:
    channel = {"connection_id": "a", "destination": destination}
    with Receiver.open(address, **channel, settings=SETTINGS) as orders, orders.batch() as batch:
        batch.receive(None, received_at_us=TEN_O_CLOCK_US)
        for id_, digest in ("1", "x"), ("2", None), ("1", "y"), ("3", None), ("4", None):
            batch.receive(
                id_,
                received_at_us=TEN_O_CLOCK_US,
                body_digest=digest,
                redelivered=digest == "y",
                jms_timestamp_ms=1,
            )
        batch.receive("5", received_at_us=TEN_O_CLOCK_US - 1)


FIGURES = {
    "domain": "a:queue://orders",
    "key": "default",
    "policy": "apama:window=2,expiry=0.5",
    "window": 2,
    "expiry_secs": 0.5,
    "resizes": 0,
    "receipts": 7,
    "duplicates": 1,
    "unchecked": 1,
    "reused_ids": 1,
    "clock_clamped": 1,
    "redelivered": 1,
    "max_delivery_secs": TEN_O_CLOCK_US / 1e6 - 0.001,
    "window_need": 2,
    "window_need_is_lower_bound": False,
    "expiry_need_secs": 0.000001,
    "latest_received_at": "2026-05-01T10:00:00.000000Z",
    "sources": 1,
    "silent_sources": 0,
    "retired_sources": 0,
    "memory_limit_ids": 1_224_880,
    "secs_to_memory_limit": None,
    "rows": 5,
    "remembered_ids": 5,
    "rows_to_be_deleted": 0,
    "unfolded_receipts": 0,
    "unfolded_secs": None,
    "inbox": 0,
    "parked": 0,
    "positions": [],
    "nodes": [],
    "line": "JMS Status: r=1 rx=7 rRedel=1 rMaxDeliverySecs=1,777,629,600.0 rDupsDet=1 rDupIds=5",
}


def test_status_as_json(command, store_url):
    make(store_url)
    ran = command("status", store_url, "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    assert set(printed) == {"store", "version", "size_bytes", "domains"}
    assert printed["version"] == REVISION
    assert printed["size_bytes"] > 8_192
    assert printed["domains"] == [FIGURES]


def test_status_shows_at_which_node_a_bridge_is(command, store_url):
    address = "amqp://a:5672,b:5672/queue/orders"
    with (
        Receiver.open(store_url, connection_id="a:5672,b:5672", destination="orders", settings=SETTINGS) as orders,
        Inbox(store_url, domain_id=orders.domain_id, target="file:/out") as inbox,
    ):
        for node in ("a:5672", "b:5672"):
            inbox.note_node(address, node)
    (shown,) = [line.strip() for line in command("status", store_url).out.splitlines() if "amqp" in line]
    assert shown.startswith(f"{address}: at b:5672 since 2")
    (domain,) = json.loads(command("status", store_url, "--quick", "--json").out)["domains"]
    (node,) = domain["nodes"]
    assert (node["address"], node["node"], node["connected_at"][-1]) == (address, "b:5672", "Z")


def test_status_shows_how_far_kafka_and_streams_were_taken(command, store_url):
    positions = {
        BrokerAddress.parse("kafka://broker/orders?group=billing").positions_of: {"2": "17", "10": "1234567", "0": "0"},
        BrokerAddress.parse("amqp://broker/stream/a/b").positions_of: {STREAM_POSITION: "78"},
        "my log": {"offset": "page 7"},
    }
    with (
        Receiver.open(store_url, connection_id="a", destination="topic://orders", settings=SETTINGS) as orders,
        Inbox(store_url, domain_id=orders.domain_id, target="file:/out") as inbox,
    ):
        for source, at in positions.items():
            inbox.positions(source).begin(at)
    shown = [line.strip() for line in command("status", store_url).out.splitlines() if "offset" in line]
    assert shown == [
        "position of my log, offset: page 7",
        "topic orders, group billing, partition 0: next offset 0",
        "topic orders, group billing, partition 2: next offset 17",
        "topic orders, group billing, partition 10: next offset 1234567",
        "stream a/b: next offset 78",
    ]
    unknown = dict.fromkeys(["topic", "group", "partition", "stream", "next_offset"])
    (domain,) = json.loads(command("status", store_url, "--quick", "--json").out)["domains"]
    log, first, _, last, stream = domain["positions"]
    assert log == {"source": "my log", "name": "offset", "position": "page 7"} | unknown
    assert first["next_offset"] == 0
    assert last == {
        "source": "orders?group=billing",
        "name": "10",
        "position": "1234567",
        "topic": "orders",
        "group": "billing",
        "partition": 10,
        "stream": None,
        "next_offset": 1_234_567,
    }
    assert (stream["stream"], stream["topic"], stream["next_offset"]) == ("a/b", None, 78)


def test_status_in_a_hurry(command, store_url):
    """Figures for which all rows would have to be read are left out."""
    make(store_url)
    ran = command("status", store_url, "--quick", "--json")
    line = FIGURES["line"].removesuffix(" rDupIds=5")
    unknown = {
        "sources": None,
        "silent_sources": None,
        "remembered_ids": None,
        "rows_to_be_deleted": None,
        "line": line,
    }
    assert json.loads(ran.out)["domains"] == [FIGURES | unknown]
    assert re.search("ids remembered +-\n", command("status", store_url, "--quick").out)


def test_status_on_a_terminal(command, sqlite_url, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    make(sqlite_url)
    said = command("status", sqlite_url).out.splitlines()
    assert said[0].startswith(f"{sqlite_url}: version {REVISION}, 1 domain, ")
    assert said[1:] == [
        "",
        "a:queue://orders (key default)",
        "  apama:window=2,expiry=0.5",
        "  JMS Status: r=1 rx=7 rRedel=1 rMaxDeliverySecs=1,777,629,600.0 rDupsDet=1 rDupIds=5",
        "  needs W 2 of 2, E 1 µs of 500 ms",
        "  times changed          0  longest delivery           20,574 d 10 h",
        "  receipts               7  latest receipt, UTC  2026-05-01 10:00:00",
        "  duplicates             1  ids remembered                         5",
        "  without id             1  sources                                1",
        "  with another body      1  sources retired                        0",
        "  time ran backwards     1  rows                                   5",
        "  redelivered            1  rows to be deleted                     0",
    ]


def test_status_of_a_domain_with_a_bridge(command, sqlite_url, monkeypatch):
    """Waiting and parked messages have a line of their own, below the others."""
    monkeypatch.setenv("COLUMNS", "80")
    with opened_inbox(sqlite_url) as (orders, inbox):
        rows = receive(orders, inbox, b"0", b"1", b"2")
        with inbox.lease() as turn:
            turn.park(rows[0], "refused")
    last, in_all = command("status", sqlite_url).out.splitlines()[-2:]
    assert last.split() == ["redelivered", "0", "rows", "to", "be", "deleted", "0"]
    assert in_all.split() == ["in", "the", "inbox", "2", "parked", "1"]
    (printed,) = json.loads(command("status", sqlite_url, "--json").out)["domains"]
    assert (printed["inbox"], printed["parked"]) == (2, 1)


NEEDS = {
    (360, 41): ("needs W 176 of 360, E 20.5 s of 41 s", (176, False, 20.494116)),
    (100, 41): ("needs W more than 100 of 100, E 20.5 s of 41 s", (101, True, 20.494116)),
    (176, 0): ("needs W 176 of 176", (176, False, 20.494116)),
    (0, 41): ("needs E 20.5 s of 41 s", (1, True, 20.494116)),
    (10, 1): (None, (None, None, None)),
}
"""By W and E: the needs that are shown of a duplicate that came after 175 newer ids and 20.494116 s."""


@pytest.mark.parametrize("sizes", NEEDS)
def test_status_puts_what_was_needed_beside_what_there_is(sizes, command, store_url):
    shown, values = NEEDS[sizes]
    window, expiry_secs = sizes
    settings = ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=expiry_secs
    )
    with Receiver.open(store_url, connection_id="a", destination="orders", settings=settings) as orders:
        with orders.batch() as batch:
            for number in range(176):
                batch.receive(f"{number}", received_at_us=TEN_O_CLOCK_US + number * 20_494_116 // 175)
        with orders.batch() as batch:
            batch.receive("0", received_at_us=TEN_O_CLOCK_US + 60_000_000)
    for options in ((), ("--quick",)):
        said = [line.strip() for line in command("status", store_url, *options).out.splitlines()]
        assert [line for line in said if line.startswith("needs ")] == ([shown] if shown else [])
        (printed,) = json.loads(command("status", store_url, *options, "--json").out)["domains"]
        needs = ("window_need", "window_need_is_lower_bound", "expiry_need_secs")
        assert tuple(printed[name] for name in needs) == values


def test_needs_that_make_no_sense_are_left_out(command, store_url):
    make(store_url)
    execute(store_url, "UPDATE receiver_domain SET needs_by_hour = '[[1,2]]'")
    ran = command("status", store_url)
    assert (ran.status, "needs W" in ran.out, "receiver check" in ran.err) == (0, False, True)
    assert json.loads(command("status", store_url, "--json").out)["domains"][0]["window_need"] is None


def test_check_of_a_sound_store(command, store_url):
    make(store_url)
    ran = command("check", store_url)
    assert (ran.status, ran.err) == (0, "")
    assert "  a:queue://orders (key default): 5 rows, 5 ids remembered, 0 rows to be deleted\nSound: " in ran.out
    ran = command("check", store_url, "--json")
    assert (ran.status, ran.err) == (0, "")
    printed = json.loads(ran.out)
    assert set(printed) == {"store", "version", "size_bytes", "sound", "domains", "findings"}
    assert (printed["sound"], printed["findings"]) == (True, [])
    assert printed["domains"] == [
        {"domain": "a:queue://orders", "key": "default", "rows": 5, "remembered_ids": 5, "rows_to_be_deleted": 0}
    ]


def test_check_of_a_broken_store(command, store_url):
    make(store_url)
    execute(
        store_url,
        "UPDATE receiver_receipt SET body_digests = '[]'",
        "INSERT INTO receiver_joined VALUES (99, 2, 3, 4)",
    )
    ran = command("check", store_url)
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.splitlines()[2:] == [
        "Broken: 2 findings.",
        "- rows belong to no domain, or messages to no target (in receiver_joined, of domain_id 99)",
        "- a:queue://orders (key default): body digests are no list of different texts (5 times, the first: receipt 2: '[]')",
    ]
    ran = command("check", store_url, "--json")
    assert ran.status == 1
    printed = json.loads(ran.out)
    assert printed["sound"] is False
    assert printed["findings"][1] == {
        "kind": "digests",
        "problem": "body digests are no list of different texts",
        "domain": "a:queue://orders",
        "key": "default",
        "count": 5,
        "example": "receipt 2: '[]'",
    }
    assert (printed["findings"][0]["domain"], printed["findings"][0]["key"]) == (None, None)


def test_status_of_a_broken_store(command, store_url):
    """It shows what can be shown."""
    make(store_url)
    execute(store_url, "UPDATE receiver_receipt SET body_digests = '[]'")
    ran = command("status", store_url, "--json")
    assert ran.status == 0
    assert "receiver check" in ran.err
    assert json.loads(ran.out)["domains"][0]["receipts"] == 7
    assert json.loads(ran.out)["domains"][0]["remembered_ids"] is None


def test_a_time_beyond_the_calendar(command, store_url):
    make(store_url)
    execute(store_url, "UPDATE receiver_domain SET latest_us = 4611686018427387904")  # no receiver would
    printed = json.loads(command("status", store_url, "--json").out)
    assert printed["domains"][0]["latest_received_at"] is None
    assert command("status", store_url).status == 0


@pytest.mark.parametrize("name", ["status", "check"])
def test_hostile_names(name, command, store_url):
    make(store_url, HOSTILE)
    execute(store_url, "UPDATE receiver_domain SET latest_us = latest_us + 1")  # so that there is a finding to name
    said = command(name, store_url)
    assert "evil" in said.out
    assert all(char.isprintable() or char == "\n" for char in said.out)
    ran = command(name, store_url, "--json")
    assert all(char.isprintable() or char == "\n" for char in ran.out)
    printed = json.loads(ran.out)
    assert printed["domains"][0]["domain"] == f"a:{HOSTILE}"
    if name == "check":
        assert printed["findings"][0]["domain"] == f"a:{HOSTILE}"


@pytest.mark.parametrize("name", ["status", "check"])
def test_nothing_is_changed(name, command, sqlite_url, tmp_path):
    make(sqlite_url)
    before = contents(tmp_path)
    assert set(before) == {"receiver.db"}
    assert command(name, sqlite_url).status == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["status", "check"])
def test_nothing_is_changed_after_a_crash(name, command, sqlite_url, tmp_path):
    """The command reads what a receiver left in its write-ahead log, and leaves it there."""
    make(sqlite_url)
    with closing(sqlite3.connect(tmp_path / "receiver.db")) as other:
        other.execute(
            "SELECT count(*) FROM receiver_domain"
        ).fetchone()  # it keeps the log, since it isn't the last to close
        make(sqlite_url)
        left = contents(tmp_path)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for ending in ("", "-wal"):
        (crashed / f"receiver.db{ending}").write_bytes(left[f"receiver.db{ending}"])
    before = contents(crashed)
    ran = command(name, f"sqlite:///{crashed}/receiver.db", "--json")
    assert ran.status == 0
    assert {name: stored for name, stored in contents(crashed).items() if name in before} == before
    assert json.loads(ran.out)["domains"][0].get("receipts", 14) == 14


def a_damaged_file(file):
    content = bytearray(file.read_bytes())
    content[100:3000] = b"\xa5" * 2900
    file.write_bytes(content)


def another_text(file):
    file.write_text("receiver.db is a fine name for a letter, too.\n" * 100)


def changed(*statements):
    def change(file):
        execute(f"sqlite:///{file}", *statements)

    return change


REFUSED = {
    "no store": (lambda file: file.unlink(), "there is no store"),
    "an empty file": (lambda file: file.write_bytes(b""), "there is no store"),
    "a letter": (another_text, "it isn't a database"),
    "damage": (a_damaged_file, "it is damaged"),
    "a newer version": (changed("UPDATE receiver_alembic_version SET version_num = '0999'"), "version 0999"),
    "a foreign table": (changed("ALTER TABLE receiver_joined ADD letter TEXT"), "is another's"),
    "a table gone": (changed("DROP TABLE receiver_joined"), "is gone"),
}


@pytest.mark.parametrize("name", ["status", "check"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_store_of_ours(case, name, command, sqlite_url, tmp_path):
    spoil, problem = REFUSED[case]
    make(sqlite_url)
    spoil(tmp_path / "receiver.db")
    before = contents(tmp_path)
    said = complaint(command(name, sqlite_url))
    assert problem in said
    assert contents(tmp_path) == before


def test_a_standard_output_that_is_closed(command, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it then
    assert "can't write to standard output" in complaint(command("status", "sqlite:///receiver.db"))


def test_the_version(command):
    assert command("--version") == (0, f"receiver {metadata.version('reliable-receiver')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "refusing"), [([], "receiver"), (["chek"], "receiver"), (["check"], "receiver check")]
)
def test_a_command_line_that_wont_do_is_told_where_help_is(command, arguments, refusing):
    assert f"hint: {refusing} --help lists what there is" in complaint(command(*arguments))


def test_status_says_when_the_ids_fill_their_memory(command, store_url):
    """One domain remembers more than a day of ids, ten a second. The other forgets them in time."""
    for name, expiry_secs in (("grows", 10**6), ("is bounded", 60)):
        settings = ReceiverSettings(
            dup_detection_per_source_expiry_window_size=10, dup_detection_expiry_time_secs=expiry_secs
        )
        with (
            Receiver.open(
                store_url, connection_id="a", destination="q", domain=f"name:{name}", settings=settings
            ) as orders,
            orders.batch() as batch,
        ):
            batch.receive_many([(f"{n}", "s", TEN_O_CLOCK_US + 100_000 * n) for n in range(501)])
    grows, bounded = json.loads(command("status", store_url, "--json").out)["domains"]
    assert bounded["secs_to_memory_limit"] is None
    assert grows["secs_to_memory_limit"] == pytest.approx((grows["memory_limit_ids"] - 501) / 10, rel=0.01)
    said = [line.strip() for line in command("status", store_url).out.splitlines() if "fill the memory" in line]
    assert said == ["at the rate of the last hour, its ids fill the memory for 1,224,880 ids in 1 d 9 h"]
