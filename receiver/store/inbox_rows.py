"""The rows of messages that wait in an inbox: added, read and deleted past SQLAlchemy, many at a time and bodies of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, LargeBinary, Text, select
from sqlalchemy.dialects import postgresql

from receiver.errors import StoreCorruptError
from receiver.store.as_json import dumped, loaded
from receiver.store.bulk import insert_rows
from receiver.store.engine import driver_of
from receiver.store.failures import NONSENSE
from receiver.store.sql_log import runs_of
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
_COLUMNS = ", ".join(InboxRow._fields)


def _of_type(kind: type) -> tuple[int, ...]:
    """Where in a row the columns of a type are."""
    return tuple(index for index, name in enumerate(InboxRow._fields) if type(inbox.c[name].type) is kind)


_JSON, _TRUTHS, _BYTES = _of_type(Text), _of_type(Boolean), _of_type(LargeBinary)
_TEXTS = tuple(index for index in _BYTES if InboxRow._fields[index] != "body")
# Built of the table's own names.
_INSERT = f"INSERT INTO {inbox.name} ({', '.join(_STORED)}) VALUES ({', '.join('?' * len(_STORED))})"  # noqa: S608
_COPY = f"COPY {inbox.name} ({', '.join(_STORED)}) FROM STDIN (FORMAT BINARY)"
_POSTGRESQL = postgresql.dialect()  # type: ignore[no-untyped-call]
_COPIED_TYPES = [inbox.c[name].type.compile(_POSTGRESQL).lower() for name in _STORED]
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
        values[index] = bool(values[index])  # SQLite has numbers
    return InboxRow._make(values)


def add_rows(connection: Connection, target_id: int, rows: Iterable[InboxRow]) -> None:
    driver = driver_of(connection)
    values = ((target_id, *stored_row(row)) for row in rows)
    if connection.dialect.name == "sqlite":
        insert_rows(driver, _INSERT, values)
        return
    with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_COPIED_TYPES)
        for row in values:
            copy.write_row(row)


def read_rows(connection: Connection, target_id: int, places: Iterable[int]) -> list[InboxRow]:
    """The rows of these places that are there, in order; `StoreCorruptError` where one is no message."""
    rows: list[InboxRow] = []
    for found in _found(connection, target_id, sorted(places)):
        try:
            rows.append(_row_of(found))
        except NONSENSE as error:
            raise _corrupt(connection, target_id, found[0], error) from error
    return rows


def _found(connection: Connection, target_id: int, ordered: list[int]) -> Iterator[Sequence[Any]]:
    driver = driver_of(connection)
    if connection.dialect.name == "sqlite":
        for run in runs_of(ordered) if ordered else []:
            yield from driver.execute(f"{_SELECT} {_IN_A_RUN} ORDER BY place", (target_id, *run))
        return
    with driver.cursor(binary=True) as cursor:
        yield from cursor.execute(f"{_SELECT} {_AMONG} ORDER BY place", (target_id, ordered))


def _corrupt(connection: Connection, target_id: int, place: int, error: Exception) -> StoreCorruptError:
    name = connection.execute(select(targets.c.target).where(targets.c.target_id == target_id)).scalar_one()
    return StoreCorruptError(
        f"the message at place {place} of those that wait for {told(name)} makes no sense: {error}",
        hint="`receiver check` says what is wrong; restore a copy",
    )


def delete_rows(connection: Connection, target_id: int, places: Iterable[int]) -> int:
    """Delete the rows of these places; how many rows that left to vacuum, in PostgreSQL those of large bodies too."""
    driver, ordered = driver_of(connection), sorted(places)
    if connection.dialect.name == "sqlite":
        runs = runs_of(ordered) if ordered else []
        driver.executemany(f"{_DELETE} {_IN_A_RUN}", [(target_id, *run) for run in runs])
        return len(ordered)
    (vacuumable,) = driver.execute(_DELETE_COUNTING, (target_id, ordered)).fetchone()
    return int(vacuumable)
