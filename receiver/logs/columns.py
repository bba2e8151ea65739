"""The names of a log's columns: by our names, by those of JMS and Apama, or by `--map`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from receiver.errors import LogFormatError, SettingsError
from receiver.logs.batch import ReadOptions

__all__ = [
    "COLUMNS",
    "FEW_VALUES",
    "OPTIONAL",
    "REQUIRED",
    "SCHEMA",
    "TEXT",
    "checked_map",
    "fields_of",
    "missing",
    "spellings",
]

_ALIASES = {
    "received_at": None,
    "unique_message_id": "uniqueMessageId",
    "message_source_id": "messageSourceId",
    "connection_id": "connectionId",
    "destination": "JMSDestination",
    "receiver_id": "receiverId",
    "jms_redelivered": "JMSRedelivered",
    "jms_timestamp": "JMSTimestamp",
    "body_digest": None,
}
COLUMNS = tuple(_ALIASES)
REQUIRED = ("received_at", "unique_message_id")
OPTIONAL = tuple(column for column in COLUMNS if column not in REQUIRED)
TEXT = ("unique_message_id", "message_source_id", "connection_id", "destination", "receiver_id", "body_digest")
FEW_VALUES = frozenset({"message_source_id", "connection_id", "destination", "receiver_id", "jms_redelivered"})
"""Columns of few different values, which are cheaper as dictionaries."""
_WORDS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    {
        "received_at": pa.timestamp("us", "UTC"),
        "unique_message_id": pa.string(),
        "message_source_id": _WORDS,
        "connection_id": _WORDS,
        "destination": _WORDS,
        "receiver_id": _WORDS,
        "jms_redelivered": pa.bool_(),
        "jms_timestamp": pa.int64(),
        "body_digest": pa.string(),
    }
)
"""The columns of a log that we write, in their usual order."""

_NAMES_SHOWN = 20


def checked_map(options: ReadOptions) -> ReadOptions:
    """The same options with every mapped column under its canonical name; `SettingsError` for an unknown one."""
    canonical = {alias: column for column, alias in _ALIASES.items() if alias} | {column: column for column in COLUMNS}
    mapped: dict[str, str] = {}
    for name, field in options.column_map.items():
        if name not in canonical:
            near = difflib.get_close_matches(name, canonical, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(COLUMNS)}"
            raise SettingsError(f"there is no column {name!r} to map", hint=hint)
        if not field or mapped.get(canonical[name], field) != field:
            raise SettingsError(f"the column {name!r} must be mapped to one field", hint="write --map COLUMN=FIELD")
        mapped[canonical[name]] = field
    return replace(options, column_map=mapped)


def spellings(column: str, options: ReadOptions) -> tuple[str, ...]:
    """The fields that a column may stand under: the mapped one alone, or its own name and that of JMS or Apama."""
    mapped = options.column_map.get(column)
    if mapped is not None:
        return (mapped,)
    alias = _ALIASES[column]
    return (column, alias) if alias else (column,)


def fields_of(names: Sequence[str], options: ReadOptions, place: str) -> dict[str, int]:
    """The position of each column that is there; `LogFormatError` where one is missing or there twice."""
    found: dict[str, int] = {}
    for column in COLUMNS:
        known = spellings(column, options)
        positions = [position for position, name in enumerate(names) if name in known]
        if len(positions) > 1:
            twice = " and ".join(repr(names[position]) for position in positions)
            raise LogFormatError(place, f"the column {column} is there twice, as {twice}", hint="rename one of them")
        if positions:
            found[column] = positions[0]
        elif column in REQUIRED or column in options.column_map:
            raise missing(column, names, options, place)
    return found


def missing(column: str, names: Sequence[str], options: ReadOptions, place: str) -> LogFormatError:
    """The error for a column that isn't there: says what is, and which name comes nearest."""
    wanted = spellings(column, options)
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    field = f" (field {wanted[0]!r})" if column in options.column_map else ""
    return LogFormatError(place, f"no column {column}{field}; there is: {shown}", hint=_hint(column, wanted, names))


def _hint(column: str, wanted: Sequence[str], names: Sequence[str]) -> str:
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            return f"the header looks separated by {name}; separate by commas"
    folded = {name.casefold().replace("_", "").strip(): name for name in names}
    for spelling in wanted:
        near = difflib.get_close_matches(spelling.casefold().replace("_", ""), folded, 1)
        if near:
            return f"did you mean {folded[near[0]]!r}? --map {column}={folded[near[0]]}"
    return f"tell where it is with --map {column}=FIELD"
