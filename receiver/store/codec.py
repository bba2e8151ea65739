"""How values and records are stored: text as bytes, objects as JSON, numbers as runs, a record's fields as columns of a table.

Ids and names are bytes: UTF-8 that may also hold lone surrogates. Two different ids must never become equal, but
PostgreSQL's text can't hold U+0000, and neither database's text can hold lone surrogates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, Table, Text
from sqlalchemy.types import TypeEngine

from receiver.message import ASCII

_R = TypeVar("_R", bound=tuple[Any, ...])
_T = TypeVar("_T")


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def printable(stored: bytes) -> str:
    """The text for people to read, even if a damaged store holds other bytes."""
    try:
        return text_of(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace")


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _in_base64(value: bytes) -> dict[str, str]:
    return {"base64": base64_of(value)}


ascii_json = json.JSONEncoder(separators=(",", ":"), default=_in_base64).encode
"""A value as JSON, all of it ASCII; bytes are in base64."""
_unicode_json = json.JSONEncoder(separators=(",", ":"), default=_in_base64, ensure_ascii=False).encode


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8. ASCII would spell a character like the two surrogates of its UTF-16 form."""
    return to_bytes(_unicode_json(value))


def dumped(values: Mapping[str, Any]) -> str:
    """An object as JSON, all of it ASCII, so that any text is stored as it was."""
    return ascii_json(dict(values))


def loaded(text: str) -> dict[str, Any]:
    """The object that was dumped."""
    return revived(json.loads(text))


def revived(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object decoded from JSON, with its bytes, which are in base64 there, as bytes."""
    return {
        name: base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
        for name, value in values.items()
    }


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of each run of consecutive numbers; there is at least one number."""
    breaks = [index for index in range(1, len(numbers)) if numbers[index] != numbers[index - 1] + 1]
    return [(numbers[first], numbers[end - 1]) for first, end in pairwise([0, *breaks, len(numbers)])]


def parts_of(values: Sequence[_T], most: int) -> Iterator[Sequence[_T]]:
    """The values in parts of at most so many, in their order."""
    return (values[first : first + most] for first in range(0, len(values), most))


MOST_NUMBERS = 1_000_000
"""The most numbers that are encoded together. Broken runs may stand for more than memory has room for."""


def encoded_numbers(numbers: Sequence[int]) -> str:
    """Numbers as JSON, all of it ASCII: the first and the last of each run of consecutive numbers."""
    return ascii_json(runs_of(numbers))


def decoded_numbers(stored: str | bytes) -> tuple[int, ...]:
    """The numbers that were encoded. Raises one of `receiver.store.databases.NONSENSE` if they are broken."""
    runs = (range(first, last + 1) for first, last in json.loads(stored))
    numbers = tuple(islice(chain.from_iterable(runs), MOST_NUMBERS + 1))
    if len(numbers) > MOST_NUMBERS:
        raise ValueError(f"its runs hold more than {MOST_NUMBERS:,} numbers")
    return numbers


class _Kind(NamedTuple):
    """How values of one Python type are stored: in which column, and by which conversions, if any."""

    column: type[TypeEngine[Any]]
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


_KINDS: dict[object, _Kind] = {
    int: _Kind(BigInteger),
    bool: _Kind(Boolean, decode=bool),  # a database may have numbers
    bytes: _Kind(LargeBinary),
    str: _Kind(LargeBinary, to_bytes, text_of),
    ASCII: _Kind(Text),
    Mapping: _Kind(Text, dumped, loaded),
}


class _Field(NamedTuple):
    name: str
    kind: _Kind
    is_nullable: bool


def _fields(record: type[tuple[Any, ...]]) -> list[_Field]:
    """The fields by their annotations: `int`, `str | None`, `Annotated[str, ASCII]`, `Mapping[str, Any]`."""
    fields = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        is_nullable = NoneType in get_args(hint)
        (kind,) = [option for option in get_args(hint) if option is not NoneType] if is_nullable else [hint]
        if get_origin(kind) is Annotated:
            kind = kind.__metadata__[0]
        fields.append(_Field(name, _KINDS[get_origin(kind) or kind], is_nullable))
    return fields


def record_columns(record: type[tuple[Any, ...]], **options: Mapping[str, Any]) -> list[Column[Any]]:
    """The columns of a record's fields, in their order; `options` has arguments of `Column` by field."""
    columns = []
    for name, kind, is_nullable in _fields(record):
        made = {"name": name, "type_": kind.column, "nullable": is_nullable, **options.get(name, {})}
        columns.append(Column(**made, key=name))  # `Table.c` has the column under the field's name
    return columns


def fields_of_kind(record: type[tuple[Any, ...]], kind: type, *, is_nullable: bool | None = None) -> tuple[str, ...]:
    """The names of a record's fields of one type, in their order: all, or those that may be None, or those that may not."""
    of_kind = [field for field in _fields(record) if field.kind is _KINDS[kind]]
    return tuple(field.name for field in of_kind if is_nullable is None or field.is_nullable is is_nullable)


def value_types(table: Table, names: Iterable[str]) -> tuple[tuple[type, ...], ...]:
    """The types of a driver's values in a sound store, for each of these columns; a boolean may be a number."""
    return tuple(
        (int if column.type.python_type is bool else column.type.python_type,) + (NoneType,) * bool(column.nullable)
        for column in (table.c[name] for name in names)
    )


class Codec(Generic[_R]):
    """Converts between a record and a driver's values, which are in the order of the fields."""

    def __init__(self, record: type[_R], table: Table, *, few: Iterable[str] = ()) -> None:
        """`few`: fields with few different values in many rows; each value is converted once."""
        fields = _fields(record)
        names = [field.name for field in fields]
        self.columns: tuple[str, ...] = tuple(table.c[name].name for name in names)
        columns = [table.c[name] for name in names]
        self.selected = ", ".join(c.name if c.name == c.key else f"{c.name} AS {c.key}" for c in columns)
        """The columns for a SELECT, each under the name of its field."""
        self._record = record
        self._encoders = _converters(fields, attrgetter("encode"), few)
        self._decoders = _converters(fields, attrgetter("decode"), few)

    def stored(self, row: Sequence[Any]) -> list[Any]:
        """The values of a row."""
        return _converted(row, self._encoders)

    def stored_columns(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """The values of each column of the rows."""
        return _columns_converted(rows, self._encoders)

    def read(self, values: Sequence[Any]) -> _R:
        """The row with these values. Raises one of `receiver.store.databases.NONSENSE` if they are broken."""
        # As `_make` of a named tuple, which the type bound of `_R` lacks.
        return tuple.__new__(self._record, _converted(values, self._decoders))

    def read_columns(self, rows: Sequence[Sequence[Any]]) -> Any:
        """The columns of the rows with these values: a tuple with a sequence for each field; empty without rows."""
        return tuple(_columns_converted(rows, self._decoders))


class _Converter(NamedTuple):
    field_index: int
    """The field's index in the record."""
    one: Callable[[Any], Any]
    many: Callable[[Sequence[Any]], list[Any]]


_METHODS: dict[object, Callable[..., Any]] = {to_bytes: str.encode, text_of: bytes.decode}


def _converters(
    fields: Sequence[_Field], convert_of: Callable[[_Kind], Callable[[Any], Any] | None], few: Iterable[str]
) -> list[_Converter]:
    return [
        _converter(index, field, convert, is_few=field.name in few)
        for index, field in enumerate(fields)
        if (convert := convert_of(field.kind)) is not None
    ]


def _converter(index: int, field: _Field, convert: Callable[[Any], Any], *, is_few: bool) -> _Converter:
    def one_or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    one = one_or_none if field.is_nullable else convert
    if is_few:  # each different value is converted once, and looked up for each row
        return _Converter(index, one, lambda values: list(map({v: one(v) for v in set(values)}.__getitem__, values)))
    # Most values are ids. Converting them inline, without a call of our function for each, costs half.
    method = _METHODS.get(convert)
    if method is not None and not field.is_nullable:
        return _Converter(index, one, lambda values: [method(v, "utf-8", "surrogatepass") for v in values])
    return _Converter(index, one, lambda values: list(map(one, values)))


def _converted(values: Iterable[Any], converters: Sequence[_Converter]) -> list[Any]:
    converted = list(values)
    for index, one, _ in converters:
        converted[index] = one(converted[index])
    return converted


def _columns_converted(rows: Sequence[Sequence[Any]], converters: Sequence[_Converter]) -> list[Sequence[Any]]:
    """The columns of the rows, each converted as a whole, which is faster than row by row."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for index, _, many in converters if columns else ():
        columns[index] = many(columns[index])
    return columns
