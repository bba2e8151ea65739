"""A batch's messages wait in one row. A change to one message rewrites the row, which is invisible from outside."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import text

from receiver.durable.audit import audit
from receiver.errors import StoreCorruptError
from receiver.store import inbox as of_store
from receiver.store import packed
from receiver.store.databases import NONSENSE
from receiver.store.messages import DEFAULTS, FIELDS
from receiver.store.packed import packed_rows, unpack
from tests.store.waiting import all_of, message, opened_inbox, receive, waiting_in
from tests.stores import engine_of

TEN = [str(number).encode() for number in range(10)]


def rows_in(url):
    """The number of messages in each row, and their tries."""
    with engine_of(url).connect() as connection:
        rows = connection.execute(text("SELECT messages, tries FROM receiver_bundle ORDER BY first_sequence"))
        return list(map(tuple, rows))


@pytest.mark.parametrize("what", ["confirmed", "failed", "parked", "left out"])
def test_what_happens_to_one_alone_leaves_the_others(store_url, what):
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, *TEN)
        assert rows_in(store_url) == [(10, 0)]
        with inbox.lease() as lease:
            if what == "confirmed":
                lease.confirm([3])
            elif what == "failed":
                assert lease.tries_failed([3]) == {3: 1}
            elif what == "parked":
                lease.park(rows[3], "refused")
            else:
                assert lease.sequence_numbers(20, but_of=["a"]) == list(range(10))
        left = [row for row in rows if row.sequence != 3 or what in {"failed", "left out"}]
        assert waiting_in(inbox) == [row._replace(tries=int(what == "failed" and row.sequence == 3)) for row in left]
    expected = {"failed": [(3, 0), (1, 1), (6, 0)], "left out": [(10, 0)]}
    assert rows_in(store_url) == expected.get(what, [(9, 0)])


def test_only_so_many_are_listed(store_url, monkeypatch):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        receive(receiver, inbox, b"10")
        assert rows_in(store_url) == [(10, 0), (1, 0)]
        with inbox.lease() as lease:
            assert (lease.sequence_numbers(20), lease.has_more) == (list(range(11)), False)
            assert (lease.sequence_numbers(4), lease.has_more) == ([0, 1, 2, 3], True)
            monkeypatch.setattr(of_store, "_BYTES_AT_ONCE", 1)
            assert (lease.sequence_numbers(20), lease.has_more) == ([0], True)


def test_all_of_them_go_with_their_row(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        with inbox.lease() as lease:
            lease.confirm(range(10))
        assert (waiting_in(inbox), rows_in(store_url)) == ([], [])


def test_a_damaged_one_is_named(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        with engine_of(store_url).begin() as connection:
            connection.execute(text("UPDATE receiver_bundle SET packed = :value"), {"value": b"{}\n"})
        with pytest.raises(StoreCorruptError, match="sequence number 0 that waits"), inbox.lease() as lease:
            all_of(lease)


def having(row, properties):
    return row._replace(message=replace(row.message, properties=properties))


def unpacked(rows):
    return [each for row in rows for each in unpack(row.runs, row.packed, row.tries)]


def test_every_value_comes_back_as_it_was():
    odd = {"a": 1, "b": True, "c": 1.0, "d": -0.0, "e": b"\xff", "f": None, "g": "\ud800", "": "1:gateway"}
    rows = [
        message(
            7 * number,
            [None, "", "a\0"][number % 3],
            bytes(number),
            properties=dict(list(odd.items())[: number + 1]) if number % 2 else {"id": f"{7 * number}:gateway"},
            headers={"JMSType": "é"} if number % 3 else {},
            amqp=None if number % 2 else b"\0",
            body_kind="amqp-value" if number % 2 else None,
            jms_timestamp_ms=number or None,
        )
        for number in range(12)
    ]
    same_names = [
        having(
            row._replace(message_source_id="é\0"),
            {"id": row.unique_message_id, "from": "é\0", "n": row.sequence % 2 == 0, "to": "from"},
        )
        for row in rows
    ]
    # Objects read one after the other may have equal names.
    cycling = [
        having(row, dict.fromkeys(names, "1"))
        for row, names in zip(rows, ["ab", "a", "ba", "b", *["ab"] * 8], strict=True)
    ]
    for each in (rows, same_names, cycling):
        back = unpacked(packed_rows(each))
        assert back == each
        assert list(map(repr, back)) == list(map(repr, each))


BY_EARLIER_VERSIONS = {
    # Objects one by one, as table version 0008 first packed them.
    "objects": {"headers": [{"JMSType": "a"}], "properties": [{"id": f"{number}:gateway"} for number in range(8)]},
    # Properties by name; a column with equal values is named instead.
    "by name": {"headers": {"JMSType": ["a"] * 8}, "properties": {"id": "unique_message_id"}},
}


@pytest.mark.parametrize("lacking", [[], ["body_kind"], ["amqp"], ["body_kind", "amqp"]], ids=" ".join)
@pytest.mark.parametrize("form", BY_EARLIER_VERSIONS)
def test_what_earlier_versions_packed_is_read(store_url, form, lacking):
    """A field that was added since gets its default."""
    fields = {
        "received_at_us": [1_777_629_600_000_000 + number for number in range(8)],
        "jms_timestamp_ms": [None],
        "redelivered": [False],
        "is_text": [True],
        "unique_message_id": [f"{number}:gateway" for number in range(8)],
        "message_source_id": [None],
        "destination": ["queue://orders"],
        "message_id": ["ID:broker-1"],
        "body": [1],
        "body_kind": [None],
        "amqp": [None],
    } | BY_EARLIER_VERSIONS[form]
    packed = (
        json.dumps({name: values for name, values in fields.items() if name not in lacking}).encode() + b"\n01234567"
    )
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN[:8])
        with engine_of(store_url).begin() as connection:
            connection.execute(text("UPDATE receiver_bundle SET packed = :packed"), {"packed": packed})
        assert waiting_in(inbox) == [
            message(
                number,
                body=str(number).encode(),
                is_text=True,
                headers={"JMSType": "a"},
                properties={"id": f"{number}:gateway"},
            )
            for number in range(8)
        ]


@pytest.mark.parametrize("missing", sorted({*FIELDS} - DEFAULTS.keys() - {"sequence", "tries"}))
def test_a_field_that_was_always_there_has_no_default(missing):
    """A row without such a field is damaged."""
    (row,) = packed_rows([message(number) for number in range(8)])
    head, end, bodies = row.packed.partition(b"\n")
    fields = json.loads(head)
    del fields[missing]
    with pytest.raises(NONSENSE):
        unpack(row.runs, json.dumps(fields).encode() + end + bodies, 0)


@pytest.mark.parametrize("values", [{"destination": ["a"] * 7}, {"headers": [{}] * 7}])
def test_values_that_are_missing_are_noticed(values):
    (row,) = packed_rows([message(number) for number in range(8)])
    head, end, bodies = row.packed.partition(b"\n")
    with pytest.raises(ValueError, match="8 messages"):
        unpack(row.runs, json.dumps(json.loads(head) | values).encode() + end + bodies, 0)


def test_two_ids_never_become_one():
    """JSON may spell a character like the two surrogates of its UTF-16 form."""
    ids = ["\ud83d\ude00", "😀", "\ud83d", "\ude00"]
    rows = [message(number, id_, unique_message_id=id_, destination=id_) for number, id_ in enumerate(ids)]
    assert unpacked(packed_rows(rows)) == rows


def test_a_row_has_no_more_than_whoever_needs_one_of_them_should_read(monkeypatch):
    monkeypatch.setattr(packed, "_MOST_MESSAGES", 3)
    monkeypatch.setattr(packed, "_MOST_BODY_BYTES", 10)
    sizes = [1, 1, 1, 1, 9, 1, 11, 1, 10, 0]
    rows = list(packed_rows([message(number, body=bytes(size)) for number, size in enumerate(sizes)]))
    assert [row.messages for row in rows] == [3, 2, 1, 1, 1, 2]
    assert [row.body_bytes for row in rows] == [3, 10, 1, 11, 1, 10]


def test_sources_that_wait_are_not_read_again(store_url):
    """A row with only their messages isn't read again. A row that has others' messages too is."""
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN, source="a")
        rows = receive(receiver, inbox, b"10", b"11", source="b")
        with engine_of(store_url).begin() as connection:
            connection.execute(text("UPDATE receiver_bundle SET packed = :value WHERE messages = 10"), {"value": b"x"})
        with inbox.lease() as lease:
            assert lease.sequence_numbers(20, but_of=["a"]) == [10, 11]
            assert lease.messages([10, 11]) == rows
            assert lease.sequence_numbers(20, but_of=["b"]) == list(range(10))
            assert lease.sequence_numbers(20, but_of=["c"]) == list(range(12))
            assert lease.sequence_numbers(20, but_of=["a", "b"]) == []


def test_numbers_of_several_rows_come_in_order(store_url):
    """A parked message that is retried stands between others."""
    with opened_inbox(store_url) as (_, inbox):
        with inbox.lease() as lease:
            inbox.add(lease.connection, [message(number) for number in (0, 2, 4, 6, 8)])
            inbox.add(lease.connection, [message(number) for number in (1, 3, 9)])
            inbox.add(lease.connection, [message(5)])
        with inbox.lease() as lease:
            for most in range(1, 10):
                assert lease.sequence_numbers(most) == [0, 1, 2, 3, 4, 5, 6, 8, 9][:most]
            assert [row.sequence for row in lease.messages([9, 5, 0, 4])] == [0, 4, 5, 9]
            lease.confirm([0, 1, 5, 9])
        assert [row.sequence for row in waiting_in(inbox)] == [2, 3, 4, 6, 8]


def test_messages_that_came_apart_stay_apart(store_url):
    """So a person can drop the messages that wait at a look, without later ones."""
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, *TEN[:3])
        rows += receive(receiver, inbox, *TEN[3:6])
        with inbox.lease() as lease:
            lease.confirm([1, 4])
            assert lease.tries_failed([0, 5]) == {0: 1, 5: 1}
        assert rows_in(store_url) == [(1, 1), (1, 0), (1, 0), (1, 1)]
        assert [row._replace(tries=0) for row in waiting_in(inbox)] == [rows[index] for index in (0, 2, 3, 5)]


def test_a_message_in_two_rows_is_found(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        with inbox.lease() as lease:
            inbox.add(lease.connection, [message(5)])
    (finding,) = audit(store_url).findings
    assert (finding.kind, finding.count) == ("messages", 1)
    assert "the one at 5 is in another row too" in finding.example
