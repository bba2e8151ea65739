"""Space that deleted rows leave behind, given back to the file or to new rows; between transactions, and cheap if there is none."""

from __future__ import annotations

from typing import Any

__all__ = ["Vacuum", "shrink_file"]

_FEW_PAGES = 16
_LEAST_VACUUMED = 1_000


def shrink_file(driver: Any) -> None:
    """Give an SQLite file's empty pages back where they are more than a quarter."""
    (pages,) = driver.execute("PRAGMA page_count").fetchone()
    (free,) = driver.execute("PRAGMA freelist_count").fetchone()
    if free > max(_FEW_PAGES, pages // 4):
        # As a script, for a plain `execute` gives back one page. It keeps some, which the next batch needs.
        driver.executescript(f"PRAGMA incremental_vacuum({free - _FEW_PAGES // 2})")


class Vacuum:
    """Lets new rows of a PostgreSQL table take the places of those deleted, once a quarter as many are as there are.

    Autovacuum does so too, but once a minute, which is late for a busy table.
    """

    def __init__(self, table: str, *, truncates: bool) -> None:
        """`truncates`: also shorten the table where its end is empty, for which others must be kept out."""
        self._sql_vacuum = f"VACUUM (SKIP_LOCKED, TRUNCATE {truncates}) {table}"
        self._sql_rows_left = f"SELECT reltuples FROM pg_class WHERE oid = '{table}'::regclass"  # noqa: S608
        self._deleted = 0
        self._due_after = _LEAST_VACUUMED

    def note(self, deleted: int) -> None:
        self._deleted += deleted

    def run_if_due(self, driver: Any) -> None:
        if self._deleted <= self._due_after:
            return
        self._deleted = 0
        driver.autocommit = True
        try:
            driver.execute(self._sql_vacuum)
            (rows,) = driver.execute(self._sql_rows_left).fetchone()
        finally:
            driver.autocommit = False
        self._due_after = max(_LEAST_VACUUMED, rows // 4)
