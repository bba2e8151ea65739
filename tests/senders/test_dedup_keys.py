"""A key for each act of sending. It is persisted before it is handed out. Resends have the same key, the next act
another."""

import re

import pytest
from sqlalchemy import insert

from receiver.senders import Pending
from receiver.store.tables import dedup_keys
from tests.durable.checks import assert_sound
from tests.senders.making import application, billing, pending_keys

AS_THEY_STAND = ["NaN", "007", "7", " 7", "7 ", "a:b", "é", "e\u0301", "A", "a", "\0", "a\0", "\ud800", "\n", "ß" * 500]


def test_the_same_until_it_is_confirmed(keys):
    key = keys.key_for("invoice-17")
    assert [keys.key_for("invoice-17") for _ in range(3)] == [key] * 3
    assert keys.key_for("invoice-18") != key
    keys.confirm("invoice-17")
    assert keys.key_for("invoice-17") != key


@pytest.mark.parametrize("joins", [False, True])
def test_another_after_another_maker_has_confirmed_it(keys, store_url, joins):
    """Another process may have confirmed the pending keys. With the same key, the next message would count as a
    resend."""
    key = keys.key_for("invoice-17")
    with billing(store_url) as others:
        others.confirm("invoice-17")
    with application(store_url).begin() as connection:
        new = keys.key_for("invoice-17", connection=connection if joins else None)
    assert new != key
    assert keys.key_for("invoice-17") == new == pending_keys(store_url)["invoice-17"]


def test_the_form_of_a_key(keys):
    assert all(re.fullmatch("[0-9a-f]{32}", keys.key_for(reference)) for reference in AS_THEY_STAND)


def test_persisted_before_it_is_handed_out(keys, store_url):
    """Another connection, as after a crash, sees the key at once, and sees it gone after the confirmation."""
    for reference in ("a", "b", "c"):
        assert pending_keys(store_url).get(reference) is None
        assert keys.key_for(reference) == pending_keys(store_url)[reference]
    keys.confirm("b")
    assert list(pending_keys(store_url)) == ["a", "c"]


def test_through_a_restart(store_url):
    with billing(store_url) as keys:
        made = {reference: keys.key_for(reference) for reference in AS_THEY_STAND}
    with billing(store_url) as keys:
        assert {pending.reference: pending.key for pending in keys.pending()} == made
        assert {reference: keys.key_for(reference) for reference in AS_THEY_STAND} == made
    assert_sound(store_url)


def test_references_are_exact_text(keys):
    assert len({keys.key_for(reference) for reference in AS_THEY_STAND}) == len(AS_THEY_STAND)
    for reference in AS_THEY_STAND[::2]:
        keys.confirm(reference)
    assert [pending.reference for pending in keys.pending()] == AS_THEY_STAND[1::2]


def test_senders_are_apart(keys, store_url):
    with billing(store_url, sender="billing ") as others:
        key = keys.key_for("a")
        assert others.pending() == []
        assert others.key_for("a") != key
        others.confirm("a")
        assert others.pending() == []
        assert keys.key_for("a") == key


def test_confirming_what_is_not_pending(keys):
    keys.confirm("never made")
    keys.key_for("a")
    keys.confirm("a")
    keys.confirm("a")
    assert keys.pending() == []


def test_oldest_first(keys, store_url):
    """They are in the order in which the keys were made, whatever the references are and whichever process made
    them."""
    key = keys.key_for("m")
    ((_, _, made_at_us),) = keys.pending()
    with application(store_url).begin() as connection:
        for reference, later_us in ((b"z", -2), (b"a", 1), (b"b", -1)):
            row = {"reference": reference, "dedup_key": reference.hex() * 16, "made_at_us": made_at_us + later_us}
            connection.execute(insert(dedup_keys).values(sender=b"billing", **row))
    keys.key_for("m")  # sending again makes it no younger
    assert [pending.reference for pending in keys.pending()] == ["z", "b", "m", "a"]
    assert keys.pending()[2] == Pending("m", key, made_at_us)


def test_the_same_body_twice_on_purpose(keys):
    """Two acts of sending have two keys. Each is received once, however often it is sent."""
    received: dict[str, str] = {}

    def send(body, reference):
        received[keys.key_for(reference)] = body

    for reference in ("first", "second", "first", "second"):
        send("10 EUR", reference)
    assert list(received.values()) == ["10 EUR", "10 EUR"]
