"""A batch's messages wait in one row until something happens to one of them alone; nobody can tell from outside."""

import json

import pytest
from sqlalchemy import text

from receiver.errors import StoreCorruptError
from receiver.store import inbox as of_store
from receiver.store.bundles import bundle_of, columns_of, rows_of
from receiver.store.engine import NONSENSE
from receiver.store.tables import InboxRow
from tests.store.waiting import all_of, in_columns, message, opened_inbox, receive, waiting_in
from tests.stores import engine_of

TEN = [str(number).encode() for number in range(10)]


def in_bundles(url):
    with engine_of(url).connect() as connection:
        return connection.scalar(text("SELECT coalesce(sum(messages), 0) FROM receiver_bundle"))


@pytest.mark.parametrize("what", ["confirmed", "failed", "parked", "left out"])
def test_what_happens_to_one_alone_leaves_the_others(store_url, what):
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, *TEN)
        assert in_bundles(store_url) == 10
        with inbox.lease() as lease:
            if what == "confirmed":
                lease.confirm([3])
            elif what == "failed":
                assert lease.try_failed(3) == 1
            elif what == "parked":
                lease.park(rows[3], "refused")
            else:
                assert lease.sequence_numbers(20, but_of=["a"]) == list(range(10))
        left = [row for row in rows if row.sequence != 3 or what in {"failed", "left out"}]
        assert waiting_in(inbox) == [row._replace(tries=int(what == "failed" and row.sequence == 3)) for row in left]
        assert in_bundles(store_url) == 0


def test_only_so_many_are_listed(store_url, monkeypatch):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        receive(receiver, inbox, b"10")
        assert in_bundles(store_url) == 10
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
        assert (waiting_in(inbox), in_bundles(store_url)) == ([], 0)


def test_a_damaged_one_is_named(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        receive(receiver, inbox, *TEN)
        with engine_of(store_url).begin() as connection:
            connection.execute(text("UPDATE receiver_bundle SET packed = :value"), {"value": b"{}\n"})
        with pytest.raises(StoreCorruptError, match="sequence number 0 that waits"), inbox.lease() as lease:
            all_of(lease)


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
        row._replace(
            message_source_id="é\0",
            properties={"id": row.unique_message_id, "from": "é\0", "n": row.sequence % 2 == 0, "to": "from"},
        )
        for row in rows
    ]
    # Read one after the other, their names are those of equal objects.
    cycling = [
        row._replace(properties=dict.fromkeys(names, "1"))
        for row, names in zip(rows, ["ab", "a", "ba", "b", *["ab"] * 8], strict=True)
    ]
    for each in (rows, same_names, cycling):
        bundle = bundle_of(in_columns(each))
        back = rows_of(columns_of(bundle.runs, bundle.packed))
        assert back == each
        assert list(map(repr, back)) == list(map(repr, each))


BY_EARLIER_VERSIONS = {
    # Objects one by one, as the first version of the table 0008 packed them.
    "objects": {"headers": [{"JMSType": "a"}], "properties": [{"id": f"{number}:gateway"} for number in range(8)]},
    # Properties by name, with the name of a column that has the same values.
    "by name": {"headers": {"JMSType": ["a"] * 8}, "properties": {"id": "unique_message_id"}},
}


@pytest.mark.parametrize("lacking", [[], ["body_kind"], ["amqp"], ["body_kind", "amqp"]], ids=" ".join)
@pytest.mark.parametrize("form", BY_EARLIER_VERSIONS)
def test_what_earlier_versions_packed_is_read(store_url, form, lacking):
    """A field that was added since has its default."""
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


@pytest.mark.parametrize(
    "missing", sorted(set(InboxRow._fields) - InboxRow._field_defaults.keys() - {"sequence", "tries"})
)
def test_a_field_that_was_always_there_has_no_default(missing):
    """A bundle without it is damaged."""
    bundle = bundle_of(in_columns([message(number) for number in range(8)]))
    head, end, bodies = bundle.packed.partition(b"\n")
    fields = json.loads(head)
    del fields[missing]
    with pytest.raises(NONSENSE):
        columns_of(bundle.runs, json.dumps(fields).encode() + end + bodies)


@pytest.mark.parametrize("values", [{"destination": ["a"] * 7}, {"headers": [{}] * 7}])
def test_values_that_are_missing_are_noticed(values):
    bundle = bundle_of(in_columns([message(number) for number in range(8)]))
    head, end, bodies = bundle.packed.partition(b"\n")
    with pytest.raises(ValueError, match="8 messages"):
        columns_of(bundle.runs, json.dumps(json.loads(head) | values).encode() + end + bodies)


def test_two_ids_never_become_one():
    """JSON spells a character as it spells the two surrogates of its UTF-16 form."""
    rows = [message(number, unique_message_id="\ud83d\ude00") for number in range(8)]
    assert bundle_of(in_columns(rows)) is None
    assert bundle_of(in_columns(rows[:7])) is None
