"""An SQLite file gives its free pages back a little at a time, so that nobody waits long. In the end only a few are
left."""

import os
import sqlite3
from contextlib import closing, contextmanager
from itertools import count

from receiver.store.databases import sqlite
from receiver.store.databases.sqlite import FileVacuum
from receiver.store.upkeep import retry_parked
from tests.durable.opened import opened, send, sizes
from tests.store.waiting import opened_inbox, receive
from tests.stores import engine_of

PAGES_AT_ONCE = 3


def ticking():
    """A vacuum whose time ends after three pages."""
    ticks = count()
    return FileVacuum(now_secs=lambda: next(ticks) * 0.0101)


def free_pages(driver):
    return driver.execute("PRAGMA freelist_count").fetchone()[0]


@contextmanager
def connected(url):
    """The driver's connection, without a receiver."""
    with closing(engine_of(url).raw_connection()) as connection:
        yield connection.driver_connection


def fill(driver, free):
    """Leave so many of about 1,000 pages free."""
    driver.execute("CREATE TABLE body (number INTEGER PRIMARY KEY, bytes BLOB)")
    driver.executemany("INSERT INTO body VALUES (?, ?)", [(number, os.urandom(3_900)) for number in range(1_000)])
    driver.execute("DELETE FROM body WHERE number < ?", (free,))


def test_one_call_frees_few_pages_and_many_free_all_but_a_few(sqlite_url):
    with connected(sqlite_url) as driver:
        fill(driver, 500)
        vacuum, left = ticking(), [free_pages(driver)]
        vacuum.note(1)
        while vacuum.run_if_due(driver):
            left.append(free_pages(driver))
            assert left[-2] - left[-1] == PAGES_AT_ONCE
            assert not driver.in_transaction
        assert left[0] >= 490
        assert 0 < free_pages(driver) <= 16
        assert driver.execute("SELECT count(*) FROM body").fetchone() == (500,)
        assert driver.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_it_begins_above_a_quarter_and_where_something_was_deleted(sqlite_url):
    with connected(sqlite_url) as driver:
        fill(driver, 200)
        vacuum, before = ticking(), free_pages(driver)
        vacuum.note(1)
        assert not vacuum.run_if_due(driver)
        driver.execute("DELETE FROM body WHERE number < 500")
        assert not vacuum.run_if_due(driver), "nothing was noted"
        vacuum.note(300)
        assert vacuum.run_if_due(driver)
        assert free_pages(driver) > before


def test_each_batch_gives_some_back_and_later_ones_the_rest(sqlite_url, monkeypatch):
    """Batches that delete nothing do so too."""
    with opened(sqlite_url, settings=sizes(10_000, 0)) as receiver:
        send(receiver, *map(str, range(10_000)))
    monkeypatch.setattr(sqlite, "FileVacuum", ticking)
    with connected(sqlite_url) as driver, opened(sqlite_url, settings=sizes(10, 0)) as receiver:
        left = [free_pages(driver)]
        while left[-1] > 16:
            send(receiver, "1")
            left.append(free_pages(driver))
            assert 0 < left[-2] - left[-1] <= PAGES_AT_ONCE
    assert left[0] > 20


def test_an_inbox_says_whether_more_is_left(sqlite_url):
    with opened_inbox(sqlite_url) as (receiver, inbox):
        inbox.vacuum = ticking()
        rows = receive(receiver, inbox, *[os.urandom(10_000)] * 30)
        assert not inbox.give_back_space(), "nothing is deleted"
        with inbox.lease() as lease:
            lease.confirm([row.sequence for row in rows])
        times = 1
        while inbox.give_back_space():
            times += 1
        assert times > 10


def test_an_applications_file_keeps_its_free_pages(tmp_path):
    """Its pages can't be given back, so it mustn't be asked again and again."""
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as driver:
        fill(driver, 500)
        vacuum, before = ticking(), free_pages(driver)
        vacuum.note(1)
        assert not vacuum.run_if_due(driver)
        assert free_pages(driver) == before


def test_upkeep_of_an_applications_file_ends(tmp_path):
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as driver:
        fill(driver, 500)
    store = f"sqlite:///{tmp_path / 'app.db'}"
    with opened_inbox(store):
        pass
    assert retry_parked(store, None) == 0
