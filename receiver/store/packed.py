"""Packs waiting messages into rows, usually a whole batch into one: a row for each message would cost ten times as much.

Most messages are delivered at once, a whole batch together, by the process that has them in memory: then nobody unpacks
them. A row has a column of values for each field, with one value if all messages have the same, and then all bodies.

Versions before 0009 of the tables have each message in a row of its own. During an upgrade, processes of such a version go on
writing and reading these rows beside newer processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, delete, func, select

from receiver.errors import StoreCorruptError
from receiver.store.codec import decoded_numbers, encoded_numbers, fields_of_kind, json_bytes, printable, revived
from receiver.store.databases import NONSENSE, database_of, nonsense_error
from receiver.store.messages import DEFAULTS, FIELDS, OF_MESSAGE, OF_RECEIPT, FlatMessage, Message, StoredMessage
from receiver.store.sql_rows import driver_of
from receiver.store.tables import PackedRow, message_codec, targets, unpacked, waiting

_MOST_MESSAGES = 1_000
_MOST_BODY_BYTES = 1 << 20
"""The most bytes of bodies in one row, unless it has a single message. To read one message, all of a row are unpacked."""
_COLUMNS = ("target_id", *PackedRow._fields)
_OBJECTS = fields_of_kind(FlatMessage, Mapping)
_BYTES = fields_of_kind(FlatMessage, bytes)
_AS_JSON = tuple(name for name in FIELDS if name not in {"sequence", "tries", *_OBJECTS, *_BYTES})
_ADDED_SINCE = {name: [default] for name, default in DEFAULTS.items()}
_OFTEN_PROPERTIES = ("unique_message_id", "message_source_id")
"""Columns that usually repeat a property. If they do, only the column's name is stored for the property."""
_TEXT = {str}
_contents_of = attrgetter(*OF_MESSAGE)
_END = b"\n"
"""Ends the JSON, which has no line break."""
_ROWS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 8 << 20
"""Bytes of messages in rows of their own that are packed at once."""
_SEQUENCE = unpacked.c.sequence.name
_NAMES = [name for name in FIELDS if name in unpacked.c]
_LATER = tuple(DEFAULTS[name] for name in FIELDS if name not in unpacked.c)
_SELECT = f"SELECT {', '.join(unpacked.c[name].name for name in _NAMES)} FROM {unpacked.name}"  # noqa: S608


def add_waiting(connection: Connection, target_id: int, messages: Sequence[StoredMessage]) -> None:
    """Add these messages to the inbox, in ascending order of sequence numbers, as one row or several."""
    insert = _insert(database_of(connection).rows.sql.placeholder)
    for row in packed_rows(messages):
        driver_of(connection).execute(insert, (target_id, *row))


@lru_cache
def _insert(placeholder: str) -> str:
    """The statement, made once as text: SQLAlchemy takes longer to compile it than the database to run it."""
    values = ", ".join([placeholder] * len(_COLUMNS))
    return f"INSERT INTO {waiting.name} ({', '.join(_COLUMNS)}) VALUES ({values})"  # noqa: S608


def packed_rows(messages: Sequence[StoredMessage]) -> Iterator[PackedRow]:
    """These messages in as few rows as possible. A message that was tried has a row of its own, which counts its tries."""
    part: list[StoredMessage] = []
    body_bytes = 0
    for each in messages:
        size = len(each.message.body)
        is_full = len(part) == _MOST_MESSAGES or body_bytes + size > _MOST_BODY_BYTES
        if part and (is_full or each.tries or part[0].tries):
            yield pack(part)
            part, body_bytes = [], 0
        part.append(each)
        body_bytes += size
    if part:
        yield pack(part)


def pack(messages: Sequence[StoredMessage]) -> PackedRow:
    """These messages in one row."""
    *of_receipts, contents = zip(*messages, strict=True)
    # By column, which is faster than message by message.
    columns = dict(zip(OF_RECEIPT, of_receipts, strict=True))
    columns |= dict(zip(OF_MESSAGE, zip(*map(_contents_of, contents), strict=True), strict=True))
    numbers = columns["sequence"]
    fields: dict[str, Any] = {name: _one_if_equal(columns[name]) for name in _AS_JSON}
    known = {name: columns[name] for name in _OFTEN_PROPERTIES}
    fields |= {name: _as_columns(columns[name], known) for name in _OBJECTS}
    parts = []
    for name in _BYTES:
        fields[name] = _one_if_equal([None if value is None else len(value) for value in columns[name]])
        parts += [value for value in columns[name] if value]
    return PackedRow(
        first_sequence=numbers[0],
        last_sequence=numbers[-1],
        received_at_us=min(columns["received_at_us"]),
        body_bytes=sum(map(len, columns["body"])),
        messages=len(numbers),
        runs=encoded_numbers(numbers),
        packed=b"".join([json_bytes(fields), _END, *parts]),
        tries=messages[0].tries,
        sources=json_bytes(sorted({source or "" for source in columns["message_source_id"]})),
    )


@lru_cache(maxsize=64)
def numbers_of(runs: str) -> Sequence[int]:
    """The sequence numbers of packed messages."""
    return decoded_numbers(runs)


def sources_of(sources: bytes | None) -> set[str] | None:
    """The sources of packed messages; None if an earlier version packed them without saying."""
    return None if sources is None else set(json.loads(sources))


def unpack(runs: str, packed: bytes, tries: int) -> list[StoredMessage]:
    """The messages of a row. Raises one of `receiver.store.databases.NONSENSE` if it is broken."""
    return _from_columns(_columns_of(numbers_of(runs), packed, tries))


def from_rows(rows: Iterable[Sequence[Any]]) -> list[StoredMessage]:
    """The messages with these values of `FIELDS`; there is at least one."""
    return _from_columns(dict(zip(FIELDS, zip(*rows, strict=True), strict=True)))


def _from_columns(columns: Mapping[str, Sequence[Any]]) -> list[StoredMessage]:
    contents = zip(*(columns[name] for name in OF_MESSAGE), strict=True)
    messages = [Message(**dict(zip(OF_MESSAGE, values, strict=True))) for values in contents]
    return list(map(StoredMessage, *(columns[name] for name in OF_RECEIPT), messages))


def corrupt_error(connection: Connection, target_id: int, number: int, error: Exception) -> StoreCorruptError:
    """The error for a broken waiting message."""
    name = connection.execute(select(targets.c.target).where(targets.c.target_id == target_id)).scalar_one()
    message = f"the message with the sequence number {number} that waits for {printable(name)}"
    return nonsense_error(f"{message} makes no sense", error)


def _columns_of(numbers: Sequence[int], packed: bytes, tries: int) -> Mapping[str, Sequence[Any]]:
    count = len(numbers)
    end = packed.index(_END)
    stored = _ADDED_SINCE | json.loads(packed[:end])
    fields: dict[str, Sequence[Any]] = {name: _one_for_each(stored[name], count) for name in (*_AS_JSON, *_BYTES)}
    for name in _OBJECTS:
        fields[name] = _objects(stored[name], fields, count)
    ends = list(accumulate((size or 0 for name in _BYTES for size in fields[name]), initial=end + 1))
    if ends[-1] != len(packed):
        raise ValueError(f"its bodies have {len(packed) - end - 1} bytes, not {ends[-1] - end - 1}")
    values = (packed[start:end] for start, end in pairwise(ends))
    for name in _BYTES:
        fields[name] = [None if size is None else value for size, value in zip(fields[name], values, strict=False)]
    fields |= {"sequence": numbers, "tries": [tries] * count}
    for column in fields.values():
        if len(column) != count:
            raise ValueError(f"it has {count} messages, and {len(column)} values of them")
    return fields


def _one_if_equal(values: Sequence[Any]) -> Sequence[Any]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _as_columns(objects: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[Any]]) -> Any:
    """The objects as a column for each name if all have the same names, as most have; otherwise as they are.

    A column that equals a `known` one is replaced by the name of that one.
    """
    if not any(objects):
        return {}
    names = list(objects[0])
    # No object has a name twice. So if the names of the first repeat this often, each object has all of them.
    if list(chain.from_iterable(objects)) != names * len(objects):
        return list(map(dict, objects))
    columns = {name: tuple([each[name] for each in objects]) for name in names}
    return {name: _equal_column(values, known) or values for name, values in columns.items()}


def _equal_column(values: Sequence[Any], known: Mapping[str, Sequence[Any]]) -> str | None:
    equal = (name for name, column in known.items() if values == column and _TEXT.issuperset(map(type, values)))
    return next(equal, None)


def _objects(stored: Any, known: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    if isinstance(stored, dict):
        columns = [known[values] if isinstance(values, str) else values for values in stored.values()]
        stored = [dict(zip(stored, values, strict=True)) for values in zip(*columns, strict=True)] or [{}] * count
    return list(map(revived, _one_for_each(stored, count)))


def _one_for_each(values: Sequence[Any], count: int) -> Sequence[Any]:
    return list(values) * (count if len(values) == 1 else 1)


def pack_of_target(connection: Connection, target_id: int) -> None:
    """Pack the unpacked messages that wait for a target, which is locked; `StoreCorruptError` if one is broken."""
    of_target = unpacked.c.target_id == target_id
    sizes = select(unpacked.c.sequence, func.length(unpacked.c.body)).where(of_target).order_by(unpacked.c.sequence)
    while there := connection.execute(sizes.limit(_ROWS_AT_ONCE)).all():
        ends = accumulate(size for _, size in there)
        numbers = [number for (number, _), end in zip(there, ends, strict=True) if end <= _BYTES_AT_ONCE]
        numbers = numbers or [there[0].sequence]
        add_waiting(connection, target_id, _read(connection, target_id, numbers))
        # By their numbers, because a process of an older version may have put others between them meanwhile.
        connection.execute(delete(unpacked).where(of_target, unpacked.c.sequence.in_(numbers)))


def _read(connection: Connection, target_id: int, numbers: Sequence[int]) -> list[StoredMessage]:
    among = ", ".join(map(str, numbers))
    rows: list[Any] = []
    for values in driver_of(connection).execute(
        f"{_SELECT} WHERE target_id = {target_id:d} AND {_SEQUENCE} IN ({among}) ORDER BY {_SEQUENCE}"
    ):
        try:
            rows.append(message_codec.read((*values, *_LATER)))
        except NONSENSE as error:
            raise corrupt_error(connection, target_id, values[0], error) from error
    return from_rows(rows)
