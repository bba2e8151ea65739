"""A long log that is read back, at once or little by little, gives the memory of the receiver that wrote it."""

from contextlib import closing, suppress

import pytest

from receiver.durable.cache import DomainCache
from receiver.message import Receipt
from receiver.store.databases import postgres
from tests.durable.opened import UndoError, opened, sizes

SIZES = sizes(400, 500_000)
BATCH = 300
STRANGE_IDS = ["\ud800", "\0", "id 7\n"]
SOURCES = [None, "a", "b", "\udfff"]
RECEIPTS = [
    Receipt(
        STRANGE_IDS[number // 100] if number % 100 == 0 and number < 300 else f"id {number * 7 % 1_900}",
        SOURCES[number % 5 % 4],
        received_at_us=number * 1_000,
        body_digest=f"body {number}" if number % 11 == 0 else None,
    )
    for number in range(3_000)
]
"""Each id comes again after 1,900 receipts, when ids of the anonymous source are forgotten. Few rows have bodies."""


def batches():
    return [RECEIPTS[start : start + BATCH] for start in range(0, len(RECEIPTS), BATCH)]


def receive(receiver, receipts):
    with receiver.batch() as batch:
        batch.receive_many(receipts)


def look(receiver):
    """Read on, by an empty batch."""
    with receiver.batch():
        pass


def judged(receiver):
    """The decisions on all of them, each with another body. Nothing is recorded."""
    asked = [receipt._replace(received_at_us=3_000_000, body_digest="other") for receipt in reversed(RECEIPTS)]
    with suppress(UndoError), receiver.batch() as batch:
        decisions = batch.receive_many(asked)
        raise UndoError
    return decisions


def test_read_back_whole_or_bit_by_bit(store_url):
    with closing(opened(store_url, settings=SIZES)) as writer, closing(opened(store_url)) as follower:
        for number, receipts in enumerate(batches()):
            receive(writer, receipts)
            if number in {1, 2, 4}:
                look(follower)
        expected = judged(writer)
        assert {decision.body_differs for decision in expected} == {None, True, False}
        assert {decision.tier for decision in expected} >= {"source", "time", None}
        assert judged(follower) == expected
        with closing(opened(store_url)) as reopened:
            assert judged(reopened) == expected


def test_an_old_libpq_passes_rows_on_one_by_one(fresh_postgres_url, monkeypatch):
    monkeypatch.setattr(postgres, "_streamed_at_once", lambda: 1)
    with closing(opened(fresh_postgres_url, settings=SIZES)) as writer:
        receive(writer, RECEIPTS)
        expected = judged(writer)
    with closing(opened(fresh_postgres_url)) as reopened:
        assert judged(reopened) == expected


def test_reading_that_is_broken_off_begins_anew(store_url, monkeypatch):
    """That holds even while the server still sends rows: nothing is half read, and the domain is free at once."""
    with closing(opened(store_url, settings=SIZES)) as writer, closing(opened(store_url)) as follower:
        for receipts in batches():
            receive(writer, receipts)
        expected, noted = judged(writer), []

        def interrupted(_cache, columns):
            noted.append(columns)
            if len(noted) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(DomainCache, "_note_histories", interrupted)
            with pytest.raises(KeyboardInterrupt):
                look(follower)
        assert judged(writer) == expected
        assert judged(follower) == expected
