"""Messages in rows of their own, as before version 0009 of the tables, are packed, and nothing is lost."""

import json

import pytest
from sqlalchemy import text

from receiver.durable.audit import audit
from receiver.errors import StoreCorruptError
from receiver.store import packed
from receiver.store.databases import store_url as url_of
from receiver.store.schema import migrate
from receiver.store.tables import REVISION
from receiver.store.upkeep import drop_waiting, move_waiting, retry_parked, target_rows
from tests.durable.checks import assert_sound
from tests.store.waiting import TARGET, inbox_of, message, opened_inbox, receive, unpack_all, waiting_in
from tests.stores import engine_of

HOSTILE = "queue://\x1b[31m\r\n\u202e\0\ud800é😀"
NOW_US = message(0).received_at_us


def leave_unpacked(url):
    """Store the waiting messages as a process of an older version would have."""
    with engine_of(url).begin() as connection:
        unpack_all(connection)


def table(url, name):
    with engine_of(url).connect() as connection:
        return connection.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608


ROW = """
    INSERT INTO receiver_inbox (place, received_at_us, jms_timestamp_ms, target_id, tries, redelivered, is_text,
        unique_message_id, message_source_id, destination, message_id, headers, properties, body, body_kind, amqp)
    VALUES (:place, :received_at_us, NULL, :target_id, :tries, :redelivered, :is_text, :id, :source, :destination, NULL,
        :headers, :properties, :body, :body_kind, :amqp)
"""
BUNDLE = """
    INSERT INTO receiver_bundle
        (first_sequence, last_sequence, received_at_us, body_bytes, messages, runs, packed, target_id)
    VALUES (:first, :last, :received_at_us, 8, 8, :runs, :packed, :target_id)
"""


def write_as_0008(url, target_id):
    """Add rows with tries and all kinds of values, and a row of several messages, as version 0008 wrote both."""
    rows = [
        {
            "place": number,
            "received_at_us": NOW_US + number,
            "target_id": target_id,
            "tries": tries,
            "redelivered": bool(tries),
            "is_text": False,
            "id": f"{number}:gateway".encode(),
            "source": None if source is None else source.encode("utf-8", "surrogatepass"),
            "destination": HOSTILE.encode("utf-8", "surrogatepass"),
            "headers": json.dumps({"JMSType": HOSTILE}),
            "properties": json.dumps({"bytes": {"base64": "AP8="}, "n": -1.5, "none": None}),
            "body": body,
            "body_kind": "amqp-value" if number % 2 else None,
            "amqp": b"\0" if number % 2 else None,
        }
        for number, (tries, source, body) in enumerate(
            [(0, "a", b"0"), (2, "a", b""), (0, HOSTILE, b"\xff" * 3_000), (5, None, b"3"), (0, None, b"4")]
        )
    ]
    numbers = [*range(5, 9), *range(10, 14)]
    fields = {
        "received_at_us": [NOW_US + number for number in numbers],
        "jms_timestamp_ms": [None],
        "redelivered": [False],
        "is_text": [True],
        "unique_message_id": [f"{number}:gateway" for number in numbers],
        "message_source_id": ["a"],
        "destination": ["queue://orders"],
        "message_id": ["ID:broker-1"],
        "body_kind": [None],
        "headers": {},
        "properties": {"id": "unique_message_id"},
        "body": [1],
        "amqp": [None],
    }
    values = {
        "first": 5,
        "last": 13,
        "received_at_us": NOW_US + 5,
        "runs": "[[5,8],[10,13]]",
        "packed": json.dumps(fields).encode() + b"\n56789abc",
        "target_id": target_id,
    }
    with engine_of(url).begin() as connection:
        connection.execute(text(ROW), [rows[index] for index in (3, 0, 4, 1, 2)])
        connection.execute(text(BUNDLE), values)
    of_rows = [
        message(
            row["place"],
            None if row["source"] is None else row["source"].decode("utf-8", "surrogatepass"),
            row["body"],
            tries=row["tries"],
            redelivered=row["redelivered"],
            destination=HOSTILE,
            message_id=None,
            headers={"JMSType": HOSTILE},
            properties={"bytes": b"\0\xff", "n": -1.5, "none": None},
            body_kind=row["body_kind"],
            amqp=row["amqp"],
        )
        for row in rows
    ]
    return of_rows + [
        message(number, "a", body.encode(), is_text=True, properties={"id": f"{number}:gateway"})
        for number, body in zip(numbers, "56789abc", strict=True)
    ]


def test_a_store_of_the_version_before_is_upgraded(store_url):
    """Waiting messages keep their order and tries, and parked ones stay as they were: there, back and there again."""
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, *[b""] * 20)
        with inbox.lease() as lease:
            lease.confirm(range(20))
            lease.park(rows[19]._replace(tries=3), "refused")
        parked = table(store_url, "receiver_parked")
        migrate(url_of(store_url), "0008")
        expected = write_as_0008(store_url, inbox.target_id)
    for back in ("0008", "0007", REVISION):
        migrate(url_of(store_url), REVISION)
        assert table(store_url, "receiver_inbox") == []
        assert [(row.waiting, row.newest_sequence) for row in target_rows(store_url)] == [(13, 13)]
        with opened_inbox(store_url) as (_, inbox):
            assert list(map(repr, waiting_in(inbox))) == list(map(repr, expected))
        assert_sound(store_url)
        assert table(store_url, "receiver_parked") == parked
        if migrate(url_of(store_url), back).after != REVISION:
            assert len(table(store_url, "receiver_inbox")) == 13
            assert [row.tries for row in table(store_url, "receiver_inbox") if row.place < 5] == [0, 2, 0, 5, 0]
    assert retry_parked(store_url, None) == 1
    with opened_inbox(store_url) as (_, inbox):
        assert [row.tries for row in waiting_in(inbox)] == [row.tries for row in expected] + [0]


def test_a_damaged_message_does_not_keep_a_store_from_its_upgrade(store_url):
    """The message only can't be handed on."""
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"0", b"1")
        other = inbox_of(receiver, store_url, "file:other")
        good = receive(receiver, other, b"2")
        migrate(url_of(store_url), "0008")
        with engine_of(store_url).begin() as connection:
            connection.execute(text("UPDATE receiver_inbox SET headers = 'x' WHERE place = 1"))
    migrate(url_of(store_url), REVISION)
    with opened_inbox(store_url, "file:other") as (_, other):
        assert waiting_in(other) == good
    with opened_inbox(store_url) as (_, inbox):
        with pytest.raises(StoreCorruptError, match="sequence number 1"):
            waiting_in(inbox)
        assert {finding.kind for finding in audit(store_url).findings} == {"messages"}
        of = next(row for row in target_rows(store_url) if row.number == inbox.target_id)
        assert drop_waiting(store_url, of) == len(rows)
        assert waiting_in(inbox) == []


def test_what_an_older_process_leaves_is_delivered_in_its_place(store_url, monkeypatch):
    monkeypatch.setattr(packed, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(packed, "_BYTES_AT_ONCE", 10)
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"0", bytes(11), b"2", b"3", b"4")
        leave_unpacked(store_url)
        rows += receive(receiver, inbox, b"5")
        assert (inbox.has_waiting(), inbox.waiting()) == (True, 6)
        assert waiting_in(inbox) == rows
        assert table(store_url, "receiver_inbox") == []


def test_what_an_older_process_leaves_is_moved(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, b"0", b"1")
        with inbox.lease() as lease:
            lease.tries_failed([1])
        leave_unpacked(store_url)
        (of,) = target_rows(store_url)
        assert move_waiting(store_url, of, "file:other") == 2
        with inbox_of(receiver, store_url, "file:other") as other:
            assert waiting_in(other) == rows


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("properties", "{", "Expecting property name"),
        ("properties", "[]", "has no attribute 'items'"),
        ("properties", '{"a": {"base64": "a"}}', "base64"),
        ("properties", '{"a": {"base": "a"}}', "base64"),
        ("headers", "", "Expecting value"),
        ("destination", b"\xff", "can't decode"),
    ],
)
def test_a_damaged_message_is_named(store_url, column, value, problem):
    """It ends the bridge, because nobody knows what to deliver. To leave the message out would lose it."""
    change = text(f"UPDATE receiver_inbox SET {column} = :value WHERE place = 1")  # noqa: S608
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, b"1", b"2", b"3")
        with engine_of(store_url).begin() as connection:
            unpack_all(connection)
            connection.execute(change, {"value": value})
        with pytest.raises(StoreCorruptError, match=f"sequence number 1 that waits for {TARGET} .*{problem}") as caught:
            waiting_in(inbox)
        assert "receiver check" in caught.value.hint
        assert {finding.kind for finding in audit(store_url).findings} & {"messages", "types"}
        assert inbox.waiting() == 3
