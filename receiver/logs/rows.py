"""Makes a `LogBatch` of a format's raw columns, and checks every value, for all formats.

A row with a value that can't be read stops the run or is counted (`--on-error`). A problem of the whole file always stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.errors import LogFormatError
from receiver.logs import times
from receiver.logs.columns import COLUMNS, LogBatch, StatusLine, TimeUnit, ValueKind, bytes_of
from receiver.logs.options import MAP_IN_PYTHON, ReadOptions, map_options

_TRUTH = {"true": 1, "1": 1, "false": 0, "0": 0, "": 0}
_CAST = (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer, pa.types.is_null)
"""Types of text that are cast to `string`."""


_NOT_UTF8 = "not UTF-8"
BARE_RETURN = "a carriage return outside quotes"
ONE_OBJECT = "one object per line"
"""The form of JSON Lines, as the end of a problem with a row."""


class Unreadable(NamedTuple):
    """A row that a format's reader couldn't read at all."""

    line: int
    problem: str


@dataclass(slots=True)
class RawRows:
    """Rows as a format's reader gives them: Arrow columns of any types, nulls allowed, by canonical name."""

    columns: dict[str, pa.Array]
    line_of: Callable[[int], int]
    """The LINE of a row, by its index here."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Unreadable rows, in order of their lines. They aren't in the columns."""
    status_lines: list[StatusLine] = field(default_factory=list)


def not_utf8(error: UnicodeDecodeError) -> str:
    """The problem of a row that isn't UTF-8."""
    return f"{_NOT_UTF8}: byte 0x{error.object[error.start]:02x}, expected text in UTF-8"


def unreadable_row(name: str, line: int, problem: str, column_map: Mapping[str, str] | None = None) -> LogFormatError:
    """The error for a row that stops the run."""
    hint = "mend the row; with --on-error skip the command leaves such rows out"
    column = problem.partition(":")[0]
    if column_map and column in column_map:
        hint = f"check {map_options({column: column_map[column]})} {MAP_IN_PYTHON}, or {hint}"
    if line == 1 and problem.endswith(ONE_OBJECT):
        hint = f"JSON Lines have {ONE_OBJECT}: jq -c . makes them of longer objects, jq -c '.[]' of an array"
    if problem == BARE_RETURN:
        hint = "put the field in quotes; if all lines end so, tr '\\r' '\\n' mends the file"
    if problem.startswith(_NOT_UTF8):
        hint = "write the log as UTF-8, such as by iconv -f LATIN1 -t UTF-8; if it is no log, name those that are"
    return LogFormatError(f"{name}:{line}", problem, hint=hint)


def two_units(name: str, first: TimeUnit, second: TimeUnit) -> LogFormatError:
    """The error for a file with numeric times in two units."""
    return LogFormatError(
        name,
        f"times in two units: by its magnitude line {first.line} is in {first.unit}, line {second.line} in {second.unit}",
        hint="if all are in one unit, force it with --time-unit; in a frame, make them timestamps",
    )


class _Checked(NamedTuple):
    values: pa.Array | npt.NDArray[np.int64]
    bad: npt.NDArray[np.bool_]
    """The rows whose value can't be read."""


class BatchMaker:
    """Makes the batches of one file. Checks that the unit of numeric times is the same in the whole file."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        self._name = name
        self._options = options
        self._zone = ZoneInfo(options.time_zone)
        self._unit: TimeUnit | None = None

    def batch(self, raw: RawRows) -> LogBatch:
        """The readable rows. `LogFormatError` for the first unreadable one, unless such rows are skipped."""
        arrived = raw.columns["received_at"]
        text = as_text(arrived)
        read = times.read_times(arrived if text is None else text, self._options.time_unit, self._zone)
        if read is None:
            raise self._wrong_type("received_at", arrived, "a time")
        checked = {"received_at": _Checked(read.us, read.us < 0)}
        for column in COLUMNS:
            if column != "received_at" and column in raw.columns:
                checked[column] = self._checked(column, raw.columns[column])
        bad = np.logical_or.reduce([each.bad for each in checked.values()])
        stop = None
        if self._options.on_error == "stop":
            stop = next(iter(self._unreadable(raw, checked, np.flatnonzero(bad)[:1])), None)
        self._check_unit(read.units, ~bad, raw.line_of, before=stop.line if stop else None)
        if stop is not None:
            raise unreadable_row(self._name, stop.line, stop.problem, self._options.column_map)
        if self._options.on_skipped is not None:
            for skipped in self._unreadable(raw, checked, np.flatnonzero(bad)):
                self._options.on_skipped(self._name, skipped.line, skipped.problem)
        return _batch_of(checked, bad, raw, self._unit)

    def _checked(self, column: str, values: pa.Array) -> _Checked:
        form = _FORMS[COLUMNS[column].kind]
        read = form.read(values, self._zone)
        if read is None:
            raise self._wrong_type(column, values, form.of_column)
        return _Checked(read, _invalid_utf8(read) if isinstance(read, pa.Array) else read < 0)

    def _wrong_type(self, column: str, values: pa.Array, expected: str) -> LogFormatError:
        if COLUMNS[column].kind.unit and pa.types.is_floating(values.type):
            expected += " in 64 bits, because fewer round it by up to a minute"
        return LogFormatError(self._name, f"the column {column} is of type {values.type}, expected {expected}")

    def _unreadable(
        self, raw: RawRows, checked: dict[str, _Checked], bad_rows: npt.NDArray[np.int64]
    ) -> list[Unreadable]:
        """The rows that the format's reader couldn't read, and `bad_rows`, in order of their lines."""
        unreadable = list(raw.unreadable)
        for row in bad_rows.tolist():
            column = next(name for name, column in checked.items() if column.bad[row])
            unreadable.append(Unreadable(raw.line_of(row), self._problem(column, raw.columns[column][row])))
        return sorted(unreadable)

    def _problem(self, column: str, scalar: pa.Scalar) -> str:
        kind, value = COLUMNS[column].kind, _python(scalar)
        if kind is ValueKind.TIME:
            try:
                text = "" if value is None else value if isinstance(value, str) else repr(value)
                times.exact(text, self._options.time_unit, self._zone)
            except ValueError as error:
                return f"{column}: {error}"
            return f"{column} is {value!r:.80}, expected a time from the epoch to the year 9999"
        shown = "not UTF-8" if kind is ValueKind.TEXT else f"{value!r:.80}"
        return f"{column} is {shown}, expected {_FORMS[kind].of_value}"

    def _check_unit(
        self,
        units: npt.NDArray[np.uint8],
        good: npt.NDArray[np.bool_],
        line_of: Callable[[int], int],
        before: int | None,
    ) -> None:
        rows = np.flatnonzero(good & (units != times.NO_UNIT))
        if not len(rows):
            return
        if self._unit is None:
            self._unit = TimeUnit(times.UNITS[units[rows[0]]], line_of(int(rows[0])))
        other = rows[units[rows] != times.UNITS.index(self._unit.unit)]
        if not len(other) or (before is not None and line_of(int(other[0])) > before):
            return
        raise two_units(self._name, self._unit, TimeUnit(times.UNITS[units[other[0]]], line_of(int(other[0]))))


def _python(scalar: pa.Scalar) -> object:
    if isinstance(scalar, pa.DictionaryScalar):
        return _python(scalar.value)
    if pa.types.is_timestamp(scalar.type):
        # Python's datetime can't hold all times, nor all zones.
        return scalar.cast(pa.timestamp(scalar.type.unit)).cast(pa.string()).as_py()
    try:
        value = scalar.as_py()
    except UnicodeDecodeError:
        value = bytes(scalar.as_buffer())
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _number_of_each(text: pa.Array, number_of: Callable[[str], int]) -> npt.NDArray[np.int64]:
    """The number of each text. `number_of` is called once for each different text."""
    encoded = text.dictionary_encode()
    numbers = np.array([number_of(word) for word in encoded.dictionary.to_pylist()] or [0], dtype=np.int64)
    return np.asarray(numbers[encoded.indices.to_numpy()])


def as_text(values: pa.Array) -> pa.Array | None:
    """A column of text or bytes as `string` without nulls. Bytes that aren't UTF-8 become "?", which no such column accepts."""
    text = None if pa.types.is_integer(values.type) else _text_of(values)
    if text is None:
        return None
    text = _without_nulls(text)
    invalid = _invalid_utf8(text)
    if invalid.any():
        text = pc.if_else(pa.array(~invalid), text.cast(pa.binary()), b"?")
    return text.cast(pa.string())


def _flags(values: pa.Array, _zone: ZoneInfo) -> npt.NDArray[np.int64] | None:
    """1 or 0 for each value, -1 for an invalid one; None for a type without truth values."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return np.asarray(values.cast(pa.int64()).fill_null(0))
    if pa.types.is_integer(kind):
        numbers = values.fill_null(0).to_numpy()
        return np.where((numbers == 0) | (numbers == 1), numbers.astype(np.int64), -1)
    text = as_text(values)
    return None if text is None else _number_of_each(text, lambda word: _TRUTH.get(word.lower(), -1))


def _milliseconds(values: pa.Array, zone: ZoneInfo) -> npt.NDArray[np.int64] | None:
    """Whole milliseconds: 0 for a missing value, -1 for an invalid one; None for a type without numbers."""
    kind, largest = values.type, ValueKind.MILLISECONDS.largest
    if pa.types.is_timestamp(kind):
        read = times.read_times(values, None, zone)
        assert read is not None  # noqa: S101 - timestamps are always read
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return np.where(missing, 0, np.where(read.us < 0, -1, read.us // 1_000))
    if pa.types.is_integer(kind) or pa.types.is_float64(kind):
        numbers = values.fill_null(0).to_numpy()
        # Some tools write whole numbers as doubles if others are missing.
        good = (numbers >= 0) & (numbers <= largest) & (numbers == np.floor(numbers))
        return np.where(good, numbers, -1).astype(np.int64)
    text = as_text(values)
    if text is None:
        return None
    if times.all_digits(text) and pc.min(pc.binary_length(text)).as_py():
        with suppress(pa.ArrowInvalid):  # more digits than fit 64 bits
            numbers = text.cast(pa.int64()).to_numpy()
            return np.where(numbers <= largest, numbers, -1)

    def number_of(word: str) -> int:
        is_whole = word.isascii() and word.isdigit() and len(word) <= 20  # noqa: PLR2004 - 64 bits
        number = int(word) if is_whole else -1 if word else 0
        return number if number <= largest else -1

    return _number_of_each(text, number_of)


def _batch_of(
    checked: dict[str, _Checked], bad: npt.NDArray[np.bool_], raw: RawRows, time_unit: TimeUnit | None
) -> LogBatch:
    skipped = len(raw.unreadable) + int(bad.sum())
    values = {column: each.values for column, each in checked.items()}
    if bad.any():
        good, mask = ~bad, pa.array(~bad)
        values = {
            column: array.filter(mask) if isinstance(array, pa.Array) else array[good]
            for column, array in values.items()
        }
    columns: dict[str, Any] = {
        COLUMNS[column].attribute: array.astype(bool) if COLUMNS[column].kind is ValueKind.FLAG else array
        for column, array in values.items()
    }
    return LogBatch(**columns, skipped=skipped, status_lines=raw.status_lines, time_unit=time_unit)


def _text_of(values: pa.Array) -> pa.Array | None:
    """Text, bytes and whole numbers as `string` or `dictionary<int32, string>`, not yet checked; None for other types."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if values.dictionary.null_count:
            return _text_of(values.dictionary_decode())
        words = _text_of(values.dictionary)
        return None if words is None else pa.DictionaryArray.from_arrays(values.indices.cast(pa.int32()), words)
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return values.cast(pa.binary()).view(pa.string())
    if any(is_kind(kind) for is_kind in _CAST):
        return values.cast(pa.string())
    return None


def _exact_text(values: pa.Array, _zone: ZoneInfo) -> pa.Array | None:
    text = _text_of(values)
    if text is None:
        return None
    text = _without_nulls(text)
    # A dictionary may hold words of other rows: one that isn't UTF-8 would stay when its row is left out.
    is_to_unpack = pa.types.is_dictionary(text.type) and _invalid_utf8(text.dictionary).any()
    return text.dictionary_decode() if is_to_unpack else text


def _without_nulls(text: pa.Array) -> pa.Array:
    """The column with empty text for missing values. A dictionary gets no second entry for empty text."""
    if not text.null_count:
        return text
    if not pa.types.is_dictionary(text.type):
        return text.fill_null("")
    words = text.dictionary
    empty = pc.index(words, "").as_py()
    if empty < 0:
        empty, words = len(words), pa.concat_arrays([words, pa.array([""])])
    return pa.DictionaryArray.from_arrays(text.indices.fill_null(empty), words)


def _invalid_utf8(text: pa.Array) -> npt.NDArray[np.bool_]:
    """The rows whose bytes aren't UTF-8."""
    if pa.types.is_dictionary(text.type):
        return np.asarray(_invalid_utf8(text.dictionary)[text.indices.to_numpy()])
    if bytes_of(text).max(initial=0) >= 128:  # noqa: PLR2004 - not all ASCII
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:
            values = text.view(pa.binary()).to_pylist()
            return np.array([value.decode(errors="ignore").encode() != value for value in values])
    return np.zeros(len(text), np.bool_)


class _Form(NamedTuple):
    """How values of a kind are read, and described in errors."""

    read: Callable[[pa.Array, ZoneInfo], pa.Array | npt.NDArray[np.int64] | None]
    """Returns text, or numbers, with -1 for an unreadable value; None for a type without such values."""
    of_column: str
    """A column of them, as errors describe it."""
    of_value: str


_FORMS = {
    ValueKind.TEXT: _Form(_exact_text, "text or whole numbers", "text in UTF-8"),
    ValueKind.FLAG: _Form(_flags, ValueKind.FLAG.expected, "true, false, 1, 0 or nothing"),
    ValueKind.MILLISECONDS: _Form(
        _milliseconds,
        f"{ValueKind.MILLISECONDS.expected} since the epoch",
        f"{ValueKind.MILLISECONDS.expected} since the epoch, or nothing",
    ),
}
"""The forms by kind. Times aren't here: only `received_at` has them, with their unit."""
