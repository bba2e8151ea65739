"""Many rows inserted into SQLite at a time are exactly the given ones, whatever their number."""

import sqlite3
from contextlib import closing

import pytest

from receiver.store.databases.sqlite import insert_rows


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 100, 149])
def test_each_row_is_there_once_and_in_order(count):
    with closing(sqlite3.connect(":memory:")) as driver:
        driver.execute("CREATE TABLE item (number INTEGER, name TEXT)")
        rows = [(number, f"item {number}") for number in range(count)]
        insert_rows(driver, "INSERT INTO item (number, name) VALUES (?, ?)", iter(rows))
        assert driver.execute("SELECT number, name FROM item ORDER BY rowid").fetchall() == rows
