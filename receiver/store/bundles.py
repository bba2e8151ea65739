"""All messages of a batch packed into one row: that costs a tenth of a row for each, to write and to delete.

Most messages are delivered at once, all of a batch together, by the process that has them in memory: then nobody unpacks
them. A packed column has the values of all messages, or one value where they are all the same; then follow all bodies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

from receiver.store.codec import fields_of_kind
from receiver.store.sql_log import runs_of
from receiver.store.tables import BundleRow, InboxColumns, InboxRow
from receiver.store.values import encoded, revived

__all__ = ["bundle_of", "columns_of", "numbers_of", "rows_of"]

_LEAST_MESSAGES = 8
"""Fewer are faster as rows of their own."""
_MOST_BODY_BYTES = 4 << 20
"""Larger messages cost so much by themselves that packing them gains nothing."""
_TEXTS = fields_of_kind(InboxRow, str)
_OBJECTS = fields_of_kind(InboxRow, Mapping)
_BYTES = fields_of_kind(InboxRow, bytes)
_AS_JSON = tuple(name for name in InboxRow._fields if name not in {"sequence", "tries", *_OBJECTS, *_BYTES})
_ADDED_SINCE = {name: [default] for name, default in InboxRow._field_defaults.items()}
"""What a bundle that an earlier version packed may lack: fields whose values are those of all its messages then."""
_OFTEN_PROPERTIES = ("unique_message_id", "message_source_id")
"""Columns whose values a property mostly repeats. The bundle then has the column's name, not the values."""
_TEXT = {str}
_END = b"\n"
"""Of the JSON, which has none."""


def bundle_of(columns: InboxColumns) -> BundleRow | None:
    """These messages in one row; None where they are to be rows of their own. Their sequence numbers ascend."""
    numbers = columns["sequence"]
    if len(numbers) < _LEAST_MESSAGES:
        return None
    body_bytes = sum(map(len, columns["body"]))
    if body_bytes > _MOST_BODY_BYTES or any(columns["tries"]) or not _are_exact_in_json(columns):
        return None
    fields: dict[str, Any] = {name: _shortened(columns[name]) for name in _AS_JSON}
    known = {name: columns[name] for name in _OFTEN_PROPERTIES}
    fields |= {name: _by_name(columns[name], known) for name in _OBJECTS}
    parts = []
    for name in _BYTES:
        fields[name] = _shortened([None if value is None else len(value) for value in columns[name]])
        parts += [value for value in columns[name] if value]
    return BundleRow(
        numbers[0],
        numbers[-1],
        min(columns["received_at_us"]),
        body_bytes,
        len(numbers),
        encoded(runs_of(numbers)),
        b"".join([encoded(fields).encode(), _END, *parts]),
    )


def numbers_of(runs: str) -> list[int]:
    """The sequence numbers in a bundle's `runs`."""
    return list(chain.from_iterable(range(first, last + 1) for first, last in json.loads(runs)))


def columns_of(runs: str, packed: bytes) -> InboxColumns:
    """The messages of a bundle; where it makes no sense, one of `receiver.store.engine.NONSENSE` is raised."""
    numbers = numbers_of(runs)
    count = len(numbers)
    head, _, rest = packed.partition(_END)
    stored = _ADDED_SINCE | json.loads(head)
    fields: dict[str, Sequence[Any]] = {name: _lengthened(stored[name], count) for name in (*_AS_JSON, *_BYTES)}
    for name in _OBJECTS:
        fields[name] = _objects(stored[name], fields, count)
    ends = list(accumulate((size or 0 for name in _BYTES for size in fields[name]), initial=0))
    if ends[-1] != len(rest):
        raise ValueError(f"its bodies have {len(rest)} bytes, not {ends[-1]}")
    values = (rest[start:end] for start, end in pairwise(ends))
    for name in _BYTES:
        fields[name] = [None if size is None else value for size, value in zip(fields[name], values, strict=False)]
    fields |= {"sequence": numbers, "tries": [0] * count}
    for column in fields.values():
        if len(column) != count:
            raise ValueError(f"it has {count} messages, and {len(column)} values of them")
    return fields


def rows_of(columns: InboxColumns) -> list[InboxRow]:
    """The same messages one by one."""
    return [InboxRow(*values) for values in zip(*(columns[name] for name in InboxRow._fields), strict=True)]


def _are_exact_in_json(columns: InboxColumns) -> bool:
    """Whether every text comes back as it was: JSON spells a character and the two surrogates of its UTF-16 form alike."""
    try:
        for name in _TEXTS:
            "".join(filter(None, columns[name])).encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(values: Sequence[Any]) -> Sequence[Any]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _by_name(objects: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[Any]]) -> Any:
    """The values of all objects by name, where all have the same names, as most do; else the objects.

    For values that are those of a `known` column there is that one's name.
    """
    if not any(objects):
        return {}
    names = list(objects[0])
    # No object has a name twice. So where these names repeat so often, each object has all of them.
    if list(chain.from_iterable(objects)) != names * len(objects):
        return list(map(dict, objects))
    columns = {name: tuple([each[name] for each in objects]) for name in names}
    return {name: _name_of(values, known) or values for name, values in columns.items()}


def _name_of(values: Sequence[Any], known: Mapping[str, Sequence[Any]]) -> str | None:
    equal = (name for name, column in known.items() if values == column and _TEXT.issuperset(map(type, values)))
    return next(equal, None)


def _objects(stored: Any, known: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    if isinstance(stored, dict):
        columns = [known[values] if isinstance(values, str) else values for values in stored.values()]
        stored = [dict(zip(stored, values, strict=True)) for values in zip(*columns, strict=True)] or [{}] * count
    return list(map(revived, _lengthened(stored, count)))


def _lengthened(values: Sequence[Any], count: int) -> Sequence[Any]:
    return list(values) * (count if len(values) == 1 else 1)
