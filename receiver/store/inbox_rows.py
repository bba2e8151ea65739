"""The rows of messages that wait in an inbox: added, read and deleted past SQLAlchemy, many at a time and bodies of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from receiver.store.kept import driver_of
from receiver.store.sql_log import runs_of
from receiver.store.tables import inbox, text_of, to_bytes

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
    properties: str
    """JSON, ASCII."""
    is_text: bool
    """Whether the body was text, which is UTF-8 here."""
    body: bytes


_COLUMNS = ", ".join(InboxRow._fields)
# Built of the table's own names.
_VALUES = ", ".join("?" * (1 + len(InboxRow._fields)))
_INSERT = f"INSERT INTO {inbox.name} (target_id, {_COLUMNS}) VALUES ({_VALUES})"  # noqa: S608
_COPY = f"COPY {inbox.name} (target_id, {_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_COPIED_TYPES = (
    "int4",
    "int8",
    "int4",
    "bytea",
    "bytea",
    "int8",
    "bool",
    "int8",
    "bytea",
    "bytea",
    "text",
    "bool",
    "bytea",
)
_SELECT = f"SELECT {_COLUMNS} FROM {inbox.name} WHERE target_id ="  # noqa: S608
_DELETE = f"DELETE FROM {inbox.name} WHERE target_id ="  # noqa: S608
_TOAST_BYTES = 2_000
"""PostgreSQL keeps a large body in rows of about this size, which are deleted with it."""
_IN_A_RUN = "? AND place BETWEEN ? AND ?"
_AMONG = "%s AND place = ANY(%s::int8[])"
# The length of a body is known without reading it.
_DELETE_COUNTING = (
    f"WITH gone AS ({_DELETE} {_AMONG} RETURNING length(body) AS bytes)"  # noqa: S608
    f" SELECT coalesce(sum(1 + bytes / {_TOAST_BYTES}), 0) FROM gone"
)


def stored_row(row: InboxRow) -> tuple[Any, ...]:
    """The values of its columns."""
    place, tries, id_, source, received_at_us, redelivered, timestamp_ms, destination, message_id, *rest = row
    return (
        place,
        tries,
        None if id_ is None else to_bytes(id_),
        None if source is None else to_bytes(source),
        received_at_us,
        redelivered,
        timestamp_ms,
        to_bytes(destination),
        None if message_id is None else to_bytes(message_id),
        *rest,
    )


def _row_of(found: Sequence[Any]) -> InboxRow:
    place, tries, id_, source, received_at_us, redelivered, timestamp_ms, destination, message_id, *rest = found
    properties, is_text, body = rest
    return InboxRow(
        place,
        tries,
        None if id_ is None else text_of(id_),
        None if source is None else text_of(source),
        received_at_us,
        bool(redelivered),  # SQLite has numbers
        timestamp_ms,
        text_of(destination),
        None if message_id is None else text_of(message_id),
        properties,
        bool(is_text),
        body,
    )


def add_rows(connection: Connection, target_id: int, rows: Iterable[InboxRow]) -> None:
    driver = driver_of(connection)
    values = ((target_id, *stored_row(row)) for row in rows)
    if connection.dialect.name == "sqlite":
        driver.executemany(_INSERT, values)
        return
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_COPIED_TYPES)
        for row in values:
            copy.write_row(row)


def read_rows(connection: Connection, target_id: int, places: Iterable[int]) -> list[InboxRow]:
    """The rows of these places that are there, in order."""
    driver, ordered = driver_of(connection), sorted(places)
    if connection.dialect.name == "sqlite":
        sql = f"{_SELECT} {_IN_A_RUN} ORDER BY place"
        runs = runs_of(ordered) if ordered else []
        return [_row_of(found) for run in runs for found in driver.execute(sql, (target_id, *run))]
    with driver.cursor(binary=True) as cursor:
        return [_row_of(found) for found in cursor.execute(f"{_SELECT} {_AMONG} ORDER BY place", (target_id, ordered))]


def delete_rows(connection: Connection, target_id: int, places: Iterable[int]) -> int:
    """Delete the rows of these places; how many rows that left for PostgreSQL to vacuum."""
    driver, ordered = driver_of(connection), sorted(places)
    if connection.dialect.name == "sqlite":
        runs = runs_of(ordered) if ordered else []
        driver.executemany(f"{_DELETE} {_IN_A_RUN}", [(target_id, *run) for run in runs])
        return 0
    (vacuumable,) = driver.execute(_DELETE_COUNTING, (target_id, ordered)).fetchone()
    return int(vacuumable)
