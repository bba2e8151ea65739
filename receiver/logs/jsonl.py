"""JSON Lines: one object per line.

msgspec's decoder reads every line: it keeps integers exact, refuses lone surrogates and skips fields that aren't wanted. It
gives up on integers of more than 4300 digits; lines with such an integer go through the standard library's decoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa
from msgspec import UNSET, Struct, UnsetType

from receiver.errors import SettingsError
from receiver.logs.columns import COLUMNS, LogBatch
from receiver.logs.options import ReadOptions, check_present, column_twice, spellings
from receiver.logs.rows import ONE_OBJECT, BatchMaker, RawRows, Unreadable, not_utf8
from receiver.logs.source import Block, LogSource, blocks_of

_ABSENT = frozenset({NoneType, UnsetType})
_TYPE_NAMES = {
    bool: "true or false",
    float: "a number with a fraction",
    int: "a whole number",
    str: "text",
    list: "an array",
    dict: "an object",
    NoneType: "null",
}
_TOO_DEEP = "nested too deeply, expected a plain object"
_MOST_DIGITS = 4_000
"""Python refuses to convert longer texts to numbers unless asked to, because that takes quadratic time."""


class _Decoded(NamedTuple):
    """The decoded lines of a block that are objects, and the problems of the others."""

    rows: list[Struct]
    numbers: Sequence[int]
    unreadable: list[Unreadable]

    @classmethod
    def of(cls, lines: Iterable[tuple[int, Struct | str]]) -> Self:
        """The lines by their numbers; a text is the problem of a line."""
        decoded = cls([], numbers := [], [])
        for number, line in lines:
            if isinstance(line, str):
                decoded.unreadable.append(Unreadable(number, line))
            else:
                decoded.rows.append(line)
                numbers.append(number)
        return decoded


def read_jsonl(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Rows of a JSON Lines log. A row without the id's key is unchecked; it is an error only if no row has the key."""
    reader = _JsonRows(source.name, options)
    batches = BatchMaker(source.name, options)
    for block in blocks_of(source):
        yield batches.batch(reader.raw(block))
    reader.check_columns()


class _JsonRows:
    """Decodes blocks, and learns which spelling of each column the file uses."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        self._name = name
        self._options = options
        self._spellings = {column: spellings(column, options) for column in COLUMNS}
        fields = {field for known in self._spellings.values() for field in known}
        self._paths = {field: field.split(".") for field in options.column_map.values() if "." in field}
        """The path of keys to each nested field, by the field's name."""
        fields.update(path[0] for path in self._paths.values())
        self._attributes = {field: f"f{position}" for position, field in enumerate(sorted(fields))}
        self._row_type = _row_type(self._attributes)
        self._decode = msgspec.json.Decoder(self._row_type).decode
        self._spelling_of: dict[str, str] = {}
        self._first: tuple[int, bytes] | None = None

    def raw(self, block: Block) -> RawRows:
        texts = block.data.split(b"\n")
        if not texts[-1]:
            texts.pop()
        try:
            block.data.isascii() or block.data.decode()  # checks UTF-8: the decoder only looks at wanted fields
            lines = _Decoded([self._decode(text) for text in texts], range(block.line, block.line + len(texts)), [])
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            numbered = enumerate(texts, block.line)
            lines = _Decoded.of((number, self._row(text)) for number, text in numbered if text.strip(b" \t\r"))
        if self._first is None and lines.rows:
            self._first = lines.numbers[0], texts[lines.numbers[0] - block.line]
        columns = self._columns(lines.rows)
        if any(kinds - _ABSENT - COLUMNS[column].kind.json_types for column, (_values, kinds) in columns.items()):
            good = _Decoded.of(
                (number, self._wrong_type(row) or row) for number, row in zip(lines.numbers, lines.rows, strict=True)
            )
            lines = good._replace(unreadable=sorted(lines.unreadable + good.unreadable))
            columns = self._columns(lines.rows)
        arrays = {column: _array(values, kinds) for column, (values, kinds) in columns.items()}
        if "received_at" not in arrays and self._options.on_error == "stop":
            self.check_columns()  # its error says more than that the first row has no time
        for column, declared in COLUMNS.items():
            if declared.is_required:
                arrays.setdefault(column, pa.nulls(len(lines.rows), pa.string()))
        return RawRows(arrays, lines.numbers.__getitem__, lines.unreadable)

    def check_columns(self) -> None:
        """Raise `LogFormatError` for columns that the file should have, but no row had."""
        if self._first is not None:
            check_present(self._spelling_of, list(_decoded_slowly(self._first[1])), self._options, self._name)

    def _row(self, text: bytes) -> Struct | str:
        """One decoded line, or its problem."""
        try:
            text.decode()
            return self._decode(text)
        except UnicodeDecodeError as error:
            return not_utf8(error)
        except RecursionError:
            return _TOO_DEEP
        except msgspec.DecodeError as error:
            refusal = str(error)
        fields = _decoded_slowly(text)
        if isinstance(fields, str):
            return fields
        if "out of range" not in refusal:
            return f"not JSON: {refusal}, expected {ONE_OBJECT}"
        return self._row_type(**{name: fields[field] for field, name in self._attributes.items() if field in fields})

    def _columns(self, rows: list[Struct]) -> dict[str, tuple[list[Any], set[type]]]:
        """The values, and their types, of each column that the file has so far."""
        columns = {}
        for column, known in self._spellings.items():
            for field in known:
                values = self._values(rows, field)
                if values.count(UNSET) < len(values):
                    self._note(column, field)
                if self._spelling_of.get(column) == field:
                    columns[column] = values, set(map(type, values))
        return columns

    def _values(self, rows: list[Struct], field: str) -> list[Any]:
        """The value of a field in each row: under its name, or else at the end of its path."""
        values = list(map(attrgetter(self._attributes[field]), rows))
        if (path := self._paths.get(field)) is not None:
            outer = map(attrgetter(self._attributes[path[0]]), rows)
            pairs = zip(values, outer, strict=True)
            values = [_inside(whole, path[1:]) if value is UNSET else value for value, whole in pairs]
        return values

    def _note(self, column: str, field: str) -> None:
        """Note the field of a column; `LogFormatError` if the file has the column by another field too."""
        other = self._spelling_of.setdefault(column, field)
        if other != field:
            raise column_twice(column, [other, field], self._name)

    def _wrong_type(self, row: Struct) -> str | None:
        for column, known in self._spellings.items():
            for field in known:
                given, kind = type(self._values([row], field)[0]), COLUMNS[column].kind
                if given not in _ABSENT and given not in kind.json_types:
                    return f"{column} is {_TYPE_NAMES[given]}, expected {kind.expected}"
        return None


def _inside(value: Any, path: list[str]) -> Any:
    """The value at the end of a path of keys, through objects and texts that are JSON themselves; UNSET if there is none."""
    for key in path:
        if isinstance(value, str):
            value = _decoded_slowly(value.encode(errors="surrogatepass"))
        if not isinstance(value, dict) or key not in value:
            return UNSET
        value = value[key]
    return value


def _row_type(attributes: dict[str, str]) -> type[Struct]:
    try:
        return msgspec.defstruct(
            "Row",
            [(attribute, object, UNSET) for attribute in attributes.values()],
            rename={attribute: field for field, attribute in attributes.items()},
            gc=False,
        )
    except ValueError as error:
        raise SettingsError(f"a column can't be mapped to such a field of JSON: {error}") from error


def _array(values: list[Any], kinds: set[type]) -> pa.Array:
    if UnsetType in kinds:
        values = [None if value is UNSET else value for value in values]
    if len(kinds - _ABSENT) == 1 and str not in kinds:
        try:
            return pa.array(values)
        except (OverflowError, pa.ArrowInvalid):
            pass  # integers of more than 64 bits
    if kinds - _ABSENT <= {str}:
        return pa.array(values, pa.string())
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: str | float | bool) -> str:  # noqa: FBT001 - any value of JSON
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _decoded_slowly(text: bytes) -> dict[str, Any] | str:
    """A line that msgspec refused, decoded by the standard library: an object, or the line's problem."""
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        return _TOO_DEEP
    except UnicodeEncodeError:
        return "a lone surrogate, expected text that UTF-8 can hold"
    except ValueError as error:
        return f"not JSON: {error}, expected {ONE_OBJECT}"
    if not isinstance(value, dict):
        return f"not an object but {_TYPE_NAMES[type(value)]}, expected {ONE_OBJECT}"
    return value


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < _MOST_DIGITS else digits


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} isn't a JSON value")
