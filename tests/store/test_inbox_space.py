"""Inboxes with large bodies, and the space that they give back."""

import os
import random
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from receiver.store.upkeep import parked_rows, retry_parked
from tests.durable.opened import opened, send
from tests.postgres import needs_counts_at_once
from tests.store.waiting import as_retried, opened_inbox, receive
from tests.stores import engine_of

MEGABYTE = 1_000_000


def bytes_taken(url):
    """The size of the inbox and what belongs to it. In SQLite, the size of the whole file and its log."""
    if url.startswith("sqlite"):
        file = make_url(url).database
        return sum(path.stat().st_size for path in (Path(file), Path(f"{file}-wal")) if path.exists())
    with engine_of(url).connect() as connection:
        return connection.scalar(
            text("SELECT pg_total_relation_size('receiver_inbox') + pg_total_relation_size('receiver_bundle')")
        )


def checkpoint(url):
    """Do what SQLite does by itself every 1,000 pages of its log. Its file doesn't shrink before."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(make_url(url).database)) as connection:
            connection.execute("PRAGMA wal_checkpoint")


def give_back_all(inbox):
    while inbox.give_back_space():
        pass


def test_only_what_is_asked_for_is_read(store_url):
    with opened_inbox(store_url) as (receiver, inbox):
        rows = receive(receiver, inbox, *[os.urandom(MEGABYTE)] * 20)
        with inbox.lease() as lease:
            tracemalloc.start()
            try:
                assert lease.sequence_numbers(100) == list(range(20))
                assert lease.messages([7, 99]) == [rows[7]]
                _, most_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert lease.messages([]) == []
            lease.confirm([])
    assert most_bytes < 4 * MEGABYTE


@pytest.mark.slow
def test_a_body_of_100_megabytes(store_url, seed):
    """It is kept exactly, parked, retried and delivered. Then its space is given back."""
    random_ = random.Random(seed)  # noqa: S311 - draws by seed
    body = random_.randbytes(100 * MEGABYTE)
    with opened_inbox(store_url) as (receiver, inbox):
        before = bytes_taken(store_url)
        (row,) = receive(receiver, inbox, body)
        assert bytes_taken(store_url) > 100 * MEGABYTE
        with inbox.lease() as lease:
            assert lease.messages([0]) == [row]
            lease.park(row, "too large")
        (parked,) = parked_rows(store_url)
        assert parked.body_bytes == 100 * MEGABYTE
        assert retry_parked(store_url, None) == 1
        with inbox.lease() as lease:
            assert lease.messages([0]) == [as_retried(row)]
            lease.confirm([0])
        give_back_all(inbox)
        receive(receiver, inbox, b"next")  # SQLite shortens its log when it begins the log anew
        checkpoint(store_url)
        assert bytes_taken(store_url) < before + 20 * MEGABYTE


def come_and_go(url, count, size, rounds=1):
    """In each round, receive so many messages and hand them on. Returns the largest size while they waited."""
    full = 0
    with opened_inbox(url) as (receiver, inbox):
        for _ in range(rounds):
            rows = receive(receiver, inbox, *[os.urandom(size)] * count)
            full = max(full, bytes_taken(url))
            with inbox.lease() as lease:
                lease.confirm([row.sequence for row in rows])
            give_back_all(inbox)
    with opened(url) as receiver:  # who opens or closes a file last updates its size
        send(receiver, "last")
    return full


def is_given_back(url, full, count, size):
    """Whether the space is given back, at once or by further rounds.

    PostgreSQL keeps deleted rows for any statement that began earlier, such as an ANALYZE of autovacuum.
    """
    for _ in range(5):
        if bytes_taken(url) < full / 5:
            return True
        come_and_go(url, count, size)
    return False


@pytest.mark.parametrize(("count", "size"), [(3_000, 500), (40, 200_000)])
def test_space_is_given_back(store_url, count, size):
    """The space of many small bodies is, and that of a few large ones."""
    full = come_and_go(store_url, count, size, rounds=3)
    assert full > count * size
    assert is_given_back(store_url, full, count, size)


def test_what_a_reader_kept_is_given_back_later(fresh_postgres_url):
    with engine_of(fresh_postgres_url).connect() as reader:
        reader.execution_options(isolation_level="REPEATABLE READ")
        reader.execute(text("SELECT FROM pg_class"))
        full = come_and_go(fresh_postgres_url, 3_000, 500)
        assert bytes_taken(fresh_postgres_url) >= full
    assert is_given_back(fresh_postgres_url, full, 3_000, 500)


def test_giving_back_costs_nothing_where_there_is_nothing(fresh_postgres_url):
    vacuums = text("SELECT pg_stat_force_next_flush(), vacuum_count FROM pg_stat_user_tables WHERE relname = :table")
    with opened_inbox(fresh_postgres_url) as (receiver, inbox):
        for _ in range(10):
            rows = receive(receiver, inbox, *[b"small"] * 50)
            with inbox.lease() as lease:
                lease.confirm([row.sequence for row in rows])
            inbox.give_back_space()
    with engine_of(fresh_postgres_url).connect() as connection:
        needs_counts_at_once(connection)
        assert connection.execute(vacuums, {"table": "receiver_inbox"}).one().vacuum_count == 0
