"""A store needs as much room as its live ids, however many have come and gone."""

import random
import sqlite3
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from receiver.errors import StoreError
from tests.durable.opened import opened, remembered, send, sizes

SOURCES = [f"gateway-{number:02}.example:4711" for number in range(50)]
GAP_US = 1_000


def feed(receiver, receipts, batch_size, random_, start=0):
    """Receive new ids from many sources, one a millisecond."""
    for first in range(start, start + receipts, batch_size):
        numbers = range(first, min(first + batch_size, start + receipts))
        with receiver.batch() as batch:
            batch.receive_many((f"{n}:order", random_.choice(SOURCES), n * GAP_US) for n in numbers)


def rows_in(url):
    engine = create_engine(url)
    with engine.connect() as connection:
        count = connection.execute(text("SELECT count(*) FROM receiver_receipt")).scalar_one()
    engine.dispose()
    return count


def bytes_of(sqlite_url):
    return Path(make_url(sqlite_url).database).stat().st_size


def bytes_needed(sqlite_url, folder):
    """The size of a store that never held any rows but this store's live ones."""
    copy = folder / "needed.db"
    opened(f"sqlite:///{copy}").close()
    with sqlite3.connect(copy) as connection:
        connection.execute("ATTACH ? AS used", (make_url(sqlite_url).database,))
        connection.execute("INSERT INTO main.receiver_receipt SELECT * FROM used.receiver_receipt ORDER BY seq")
    connection.close()
    return copy.stat().st_size


@pytest.mark.costly
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("settings", "batch_size"),
    [
        (sizes(2, 0), 1_000),
        (sizes(40, 2_000_000), 1_000),
        (sizes(40, 2_000_000), 20_000),
        (sizes(0, 3_000_000), 1_000),
        (sizes(200, 0), 7),
    ],
)
def test_a_file_is_at_most_twice_what_its_live_ids_need(sqlite_url, tmp_path, seed, settings, batch_size):
    receipts = 60_000 if batch_size > 100 else 20_000
    with opened(sqlite_url, settings=settings) as receiver:
        feed(receiver, receipts, batch_size, random.Random(seed))
    assert bytes_of(sqlite_url) <= 2 * bytes_needed(sqlite_url, tmp_path)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("batch_size", [1, 50, 5_000])
def test_no_more_than_a_quarter_waits_to_be_deleted(store_url, seed, batch_size):
    with opened(store_url, settings=sizes(20, 300_000)) as receiver:
        feed(receiver, 10_000 if batch_size > 1 else 3_000, batch_size, random.Random(seed))
        live = receiver.status().rDupIds
        assert live <= rows_in(store_url) <= live * 5 // 4
    assert rows_in(store_url) == live, "closing leaves nothing to be deleted"


def test_what_is_forgotten_within_its_batch_is_never_appended(store_url):
    with opened(store_url, settings=sizes(1, 0)) as receiver:
        send(receiver, "a", "b")
        assert rows_in(store_url) == 1


def test_what_a_batch_forgot_that_failed_is_not_deleted(store_url):
    with opened(store_url, settings=sizes(8, 0)) as receiver:
        send(receiver, *"abcdefgh")
        with pytest.raises(StoreError), receiver.batch() as batch:  # noqa: PT012
            batch.receive("i", received_at_us=0)
            batch.connection.execute(text("ALTER TABLE receiver_receipt RENAME TO gone"))
        assert receiver.status().batches_failed == 1
    assert remembered(store_url, *"abi") == ["a", "b"]


def test_bodies_of_forgotten_ids_leave_memory(any_url):
    with opened(any_url, settings=sizes(10, 0)) as receiver:
        for start in range(0, 6_000, 2_000):
            with receiver.batch() as batch:
                batch.receive_many((f"{n}", None, n, False, None, "body") for n in range(start, start + 2_000))
        assert len(receiver.session.cache._histories) == 10


def test_a_file_shrinks_with_its_domain(sqlite_url, seed):
    with opened(sqlite_url, settings=sizes(400, 0)) as receiver:
        feed(receiver, 30_000, 1_000, random.Random(seed))
    large = bytes_of(sqlite_url)
    with opened(sqlite_url, settings=sizes(10, 0)) as receiver:
        for number in range(20):  # each batch gives a little of it back
            send(receiver, str(number))
    assert bytes_of(sqlite_url) < large / 5


def test_postgresql_stays_flat_when_it_is_vacuumed(fresh_postgres_url, seed):
    address = make_url(fresh_postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    random_ = random.Random(seed)
    sizes_seen = []
    with (
        opened(fresh_postgres_url, settings=sizes(40, 2_000_000)) as receiver,
        psycopg.connect(address, autocommit=True) as operator,
    ):
        # An ANALYZE of autovacuum would keep deleted rows.
        operator.execute("ALTER TABLE receiver_receipt SET (autovacuum_enabled = off)")
        for turn in range(8):
            feed(receiver, 5_000, 500, random_, start=turn * 5_000)
            operator.execute("VACUUM receiver_receipt")  # as autovacuum does later
            (size,) = operator.execute("SELECT pg_total_relation_size('receiver_receipt')").fetchone()
            sizes_seen.append(size)
    assert max(sizes_seen[2:]) <= 1.3 * sizes_seen[1]
