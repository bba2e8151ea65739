"""Waiting messages in rows of their own, as versions before 0009 of the tables have them.

A process of such a version, at work beside newer ones while they are replaced, goes on writing and reading these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from receiver.errors import StoreCorruptError
from receiver.store.engine import NONSENSE
from receiver.store.messages import DEFAULTS, FIELDS, StoredMessage, flat, from_rows
from receiver.store.packed import add_waiting, corrupt, unpack
from receiver.store.sql_rows import driver_of
from receiver.store.tables import message_rows, targets, unpacked, waiting

_AT_ONCE = 1_000
_BYTES_AT_ONCE = 8 << 20
_SEQUENCE = unpacked.c.sequence.name
_NAMES = [name for name in FIELDS if name in unpacked.c]
_LATER = tuple(DEFAULTS[name] for name in FIELDS if name not in unpacked.c)
_SELECT = f"SELECT {', '.join(unpacked.c[name].name for name in _NAMES)} FROM {unpacked.name}"  # noqa: S608


def pack_all(connection: Connection) -> None:
    """Pack what waits for any target. All targets are locked."""
    for target_id in connection.scalars(select(targets.c.target_id)).all():
        with suppress(StoreCorruptError):  # which ends the bridge that is to deliver it
            pack_of_target(connection, target_id)


def pack_of_target(connection: Connection, target_id: int) -> None:
    """Pack what waits for a target, which is locked; `StoreCorruptError` where a message makes no sense."""
    of_target = unpacked.c.target_id == target_id
    sizes = select(unpacked.c.sequence, func.length(unpacked.c.body)).where(of_target).order_by(unpacked.c.sequence)
    while there := connection.execute(sizes.limit(_AT_ONCE)).all():
        ends = accumulate(size for _, size in there)
        numbers = [number for (number, _), end in zip(there, ends, strict=True) if end <= _BYTES_AT_ONCE]
        numbers = numbers or [there[0].sequence]
        add_waiting(connection, target_id, _read(connection, target_id, numbers))
        # By their numbers, for a process of an older version may have put others between them meanwhile.
        connection.execute(delete(unpacked).where(of_target, unpacked.c.sequence.in_(numbers)))


def _read(connection: Connection, target_id: int, numbers: Sequence[int]) -> list[StoredMessage]:
    among = ", ".join(map(str, numbers))
    rows: list[Any] = []
    for values in driver_of(connection).execute(
        f"{_SELECT} WHERE target_id = {target_id:d} AND {_SEQUENCE} IN ({among}) ORDER BY {_SEQUENCE}"
    ):
        try:
            rows.append(message_rows.read((*values, *_LATER)))
        except NONSENSE as error:
            raise corrupt(connection, target_id, values[0], error) from error
    return from_rows(rows)


def unpack_all(connection: Connection) -> None:
    """Have each message that waits in a row of its own again. All targets are locked."""
    for target_id, first in connection.execute(select(waiting.c.target_id, waiting.c.first_sequence)).all():
        this = (waiting.c.target_id == target_id) & (waiting.c.first_sequence == first)
        row = connection.execute(select(waiting.c.runs, waiting.c.packed, waiting.c.tries).where(this)).one()
        try:
            messages = unpack(*row)
        except NONSENSE as error:
            raise corrupt(connection, target_id, first, error) from error
        values = [dict(zip(FIELDS, message_rows.stored(flat(each)), strict=True)) for each in messages]
        of_rows = [{name: each[name] for name in _NAMES} | {"target_id": target_id} for each in values]
        connection.execute(insert(unpacked), of_rows)
        connection.execute(delete(waiting).where(this))
