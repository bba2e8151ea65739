"""Space that deleted rows leave behind, given back to the file or to new rows; between transactions, and cheap if there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["FileVacuum", "TableVacuum", "Vacuum"]

_FEW_PAGES = 16
_LONGEST_SECS = 0.03
"""How long pages are moved. Their commit takes about half as long again, and others wait for both."""
_LEAST_VACUUMED = 1_000


class Vacuum(Protocol):
    def note(self, deleted: int) -> None:
        """So many rows have been deleted."""

    def run_if_due(self, driver: Any) -> bool:
        """Give back space if there is much, between transactions; whether more is left to do, for the next time."""


class FileVacuum:
    """Gives an SQLite file's empty pages back once they are more than a quarter, some at a time until few are left."""

    def __init__(self, now_secs: Callable[[], float] = time.monotonic) -> None:
        self._now_secs = now_secs
        self._is_due = False
        self._has_begun = False

    def note(self, deleted: int) -> None:
        self._is_due = self._is_due or deleted > 0

    def run_if_due(self, driver: Any) -> bool:
        if not self._is_due:
            return False
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        if self._has_begun or _free_pages(driver) > max(_FEW_PAGES, pages // 4):
            self._give_back(driver)
            self._has_begun = _free_pages(driver) > _FEW_PAGES
        self._is_due = self._has_begun
        return self._is_due

    def _give_back(self, driver: Any) -> None:
        driver.execute("BEGIN IMMEDIATE")
        until_secs = self._now_secs() + _LONGEST_SECS
        # It keeps some, which the next batch needs.
        for _ in range(_free_pages(driver) - _FEW_PAGES // 2):
            driver.execute("PRAGMA incremental_vacuum")  # one page: as a script it would be all of them
            if self._now_secs() >= until_secs:
                break
        driver.execute("COMMIT")


class TableVacuum:
    """Lets new rows of a PostgreSQL table take the space of those deleted, once a quarter as many are as there are.

    Autovacuum does so too, but once a minute, which is late for a busy table.
    """

    def __init__(self, table: str, *, truncates: bool) -> None:
        """`truncates`: also shorten the table where its end is empty, for which others must be kept out."""
        self._sql_vacuum = f"VACUUM (SKIP_LOCKED, TRUNCATE {truncates}) {table}"
        self._sql_rows_left = f"SELECT reltuples FROM pg_class WHERE oid = '{table}'::regclass"
        self._deleted = 0
        self._due_after = _LEAST_VACUUMED

    def note(self, deleted: int) -> None:
        self._deleted += deleted

    def run_if_due(self, driver: Any) -> bool:
        """Whether more is left to do: never, for it does all of it."""
        if self._deleted <= self._due_after:
            return False
        self._deleted = 0
        driver.autocommit = True
        try:
            driver.execute(self._sql_vacuum)
            (rows,) = driver.execute(self._sql_rows_left).fetchone()
        finally:
            driver.autocommit = False
        self._due_after = max(_LEAST_VACUUMED, rows // 4)
        return False


def _free_pages(driver: Any) -> int:
    (free,) = driver.execute("PRAGMA freelist_count").fetchone()
    return int(free)
