"""A row that is found, or made by whoever asks for it first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, Select, Table

from receiver.store.engine import database_of, read_only

__all__ = ["found_or_made"]


def found_or_made(
    url: URL,
    engine: Engine,
    wanted: Select[Any],
    table: Table,
    new: Callable[[Connection], Mapping[str, Any]],
) -> int:
    """The number that `wanted` selects, of a row with the values of `new` if there was none; processes may race for it."""
    # Who only reads needn't wait for a batch under way: a second process can stand by.
    with read_only(url).connect() as connection:
        found: int | None = connection.execute(wanted).scalar()
    if found is None:
        with engine.begin() as connection:
            row = database_of(url).insert(table).values(new(connection))
            connection.execute(row.on_conflict_do_nothing())
            found = connection.execute(wanted).scalar_one()
    return found
