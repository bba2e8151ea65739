"""The rows of messages that wait in an inbox: added, read and deleted past SQLAlchemy, many at a time and bodies of any size."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select

from receiver.errors import StoreCorruptError
from receiver.store.connections import driver_of
from receiver.store.engine import database_of
from receiver.store.failures import NONSENSE
from receiver.store.tables import InboxRow, inbox_rows, printable, targets

__all__ = ["add_rows", "delete_rows", "read_rows"]

_COLUMNS = ("target_id", *inbox_rows.columns)


def add_rows(connection: Connection, target_id: int, rows: Iterable[InboxRow]) -> None:
    values = ((target_id, *inbox_rows.stored(row)) for row in rows)
    database_of(connection).add_waiting(driver_of(connection), _COLUMNS, values)


def read_rows(connection: Connection, target_id: int, numbers: Iterable[int]) -> list[InboxRow]:
    """The rows of these sequence numbers that are there, in order; `StoreCorruptError` where one is no message."""
    rows: list[InboxRow] = []
    driver = driver_of(connection)
    for values in database_of(connection).waiting(driver, inbox_rows.columns, target_id, sorted(numbers)):
        try:
            rows.append(inbox_rows.read(values))
        except NONSENSE as error:
            raise _corrupt(connection, target_id, InboxRow._make(values).sequence, error) from error
    return rows


def _corrupt(connection: Connection, target_id: int, number: int, error: Exception) -> StoreCorruptError:
    name = connection.execute(select(targets.c.target).where(targets.c.target_id == target_id)).scalar_one()
    return StoreCorruptError(
        f"the message with the sequence number {number} that waits for {printable(name)} makes no sense: {error}",
        hint="`receiver check` says what is wrong; restore a copy",
    )


def delete_rows(connection: Connection, target_id: int, numbers: Iterable[int]) -> int:
    """Delete the rows of these sequence numbers; how many rows that left to vacuum."""
    return database_of(connection).delete_waiting(driver_of(connection), target_id, sorted(numbers))
