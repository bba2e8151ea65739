"""The rows of messages that wait in an inbox: added, read and deleted past SQLAlchemy, many at a time and bodies of any size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, LargeBinary, Text, select

from receiver.errors import StoreCorruptError
from receiver.store.as_json import dumped, loaded
from receiver.store.connections import driver_of
from receiver.store.engine import database_of
from receiver.store.failures import NONSENSE
from receiver.store.tables import inbox, targets, text_of, to_bytes, told

__all__ = ["InboxRow", "add_rows", "delete_rows", "read_rows", "stored_row"]


class InboxRow(NamedTuple):
    """A message that waits, column by column as in `tables.inbox`."""

    place: int
    """In the order of the domain's receipts; given to no other message, ever."""
    tries: int
    """How often its delivery has failed."""
    unique_message_id: str | None
    message_source_id: str | None
    received_at_us: int
    redelivered: bool
    jms_timestamp_ms: int | None
    destination: str
    message_id: str | None
    headers: Mapping[str, str]
    properties: Mapping[str, Any]
    """Values that JSON has, and bytes."""
    is_text: bool
    """Whether the body was text, which is UTF-8 here."""
    body: bytes


_STORED = ("target_id", *InboxRow._fields)


def _of_type(kind: type) -> tuple[int, ...]:
    """Where in a row the columns of a type are."""
    return tuple(index for index, name in enumerate(InboxRow._fields) if type(inbox.c[name].type) is kind)


_JSON, _TRUTHS, _BYTES = _of_type(Text), _of_type(Boolean), _of_type(LargeBinary)
_TEXTS = tuple(index for index in _BYTES if InboxRow._fields[index] != "body")


def stored_row(row: InboxRow) -> list[Any]:
    """The values of its columns."""
    values: list[Any] = list(row)
    for index in _TEXTS:
        if (text := values[index]) is not None:
            values[index] = to_bytes(text)
    for index in _JSON:
        values[index] = dumped(values[index])
    return values


def _row_of(found: Sequence[Any]) -> InboxRow:
    values = list(found)
    for index in _TEXTS:
        if (stored := values[index]) is not None:
            values[index] = text_of(stored)
    for index in _JSON:
        values[index] = loaded(values[index])
    for index in _TRUTHS:
        values[index] = bool(values[index])  # a database may have numbers
    return InboxRow._make(values)


def add_rows(connection: Connection, target_id: int, rows: Iterable[InboxRow]) -> None:
    values = ((target_id, *stored_row(row)) for row in rows)
    database_of(connection).add_waiting(driver_of(connection), _STORED, values)


def read_rows(connection: Connection, target_id: int, places: Iterable[int]) -> list[InboxRow]:
    """The rows of these places that are there, in order; `StoreCorruptError` where one is no message."""
    rows: list[InboxRow] = []
    driver = driver_of(connection)
    for found in database_of(connection).waiting(driver, InboxRow._fields, target_id, sorted(places)):
        try:
            rows.append(_row_of(found))
        except NONSENSE as error:
            raise _corrupt(connection, target_id, found[0], error) from error
    return rows


def _corrupt(connection: Connection, target_id: int, place: int, error: Exception) -> StoreCorruptError:
    name = connection.execute(select(targets.c.target).where(targets.c.target_id == target_id)).scalar_one()
    return StoreCorruptError(
        f"the message at place {place} of those that wait for {told(name)} makes no sense: {error}",
        hint="`receiver check` says what is wrong; restore a copy",
    )


def delete_rows(connection: Connection, target_id: int, places: Iterable[int]) -> int:
    """Delete the rows of these places; how many rows that left to vacuum."""
    return database_of(connection).delete_waiting(driver_of(connection), target_id, sorted(places))
