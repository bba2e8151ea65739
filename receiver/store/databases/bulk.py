"""Many rows inserted into SQLite by few statements.

`executemany` lets go of the interpreter's lock at each row, and where another thread is busy, such as a connector that
takes in messages, it waits to have it back as often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

__all__ = ["insert_rows"]

_ROWS_AT_ONCE = 50
"""With which even an SQLite that takes no more than 999 values in a statement can do."""


def insert_rows(driver: Any, insert: str, rows: Iterable[Sequence[Any]]) -> None:
    """As `executemany`; the statement must end with its `VALUES (?, …)`."""
    left = iter(rows)
    while len(some := list(islice(left, _ROWS_AT_ONCE))) == _ROWS_AT_ONCE:
        driver.execute(_of_many(insert), list(chain.from_iterable(some)))
    driver.executemany(insert, some)


@lru_cache
def _of_many(insert: str) -> str:
    one = insert[insert.rindex("(") :]
    return insert + f", {one}" * (_ROWS_AT_ONCE - 1)
