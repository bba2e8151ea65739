"""Options for reading a log of any format, and which fields hold its columns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from receiver.errors import LogFormatError, SettingsError, first_few
from receiver.logs.columns import COLUMNS
from receiver.logs.times import UNITS

_NAMES_SHOWN = 20
_WORDS = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_TIME_OR_NUMBER = re.compile(r"\d[\d.:/TZ +-]*")
_LAST_WORDS = {
    "unique_message_id": (["id"], ["key"], ["uuid"], ["guid"]),
    "received_at": (["at"], ["time"], ["timestamp"], ["ts"], ["date"]),
}
"""How names of fields end that may hold the required columns: `OrderId`, `event_time`."""
_NAMES_WHO = frozenset({"account", "client", "customer", "producer", "sender", "session", "source", "user"})
"""Words in names of ids that don't identify a message."""
_CANONICAL = {name: name for name in COLUMNS} | {each.jms_name: name for name, each in COLUMNS.items() if each.jms_name}
"""Each name of a column -> its canonical name."""
BODY_FIELD = "Body:"
"""The beginning of a field that is searched in the body of a correlator's message, by the regular expression that follows."""
MAP_IN_PYTHON = "(in Python: column_map)"
"""The end of a hint on `--map`, for callers of functions."""

OnError = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a log of any format; `SettingsError` for invalid values. Mapped columns have their canonical names."""

    time_unit: Literal["s", "ms", "us"] | None = None
    """The unit of times that are numbers; None judges it by each value's magnitude."""
    time_zone: str = "UTC"
    """The zone of times without one, by its IANA name."""
    on_error: OnError = "stop"
    column_map: dict[str, str] = field(default_factory=dict)
    """Column, by any of its names -> the field from which to read it (`--map`)."""
    on_skipped: Callable[[str, int, str], None] | None = None
    """Called for each unreadable row that is left out, with the file, the line and the problem."""

    def __post_init__(self) -> None:
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise SettingsError(f"unknown time unit {self.time_unit!r}", hint=f"one of {', '.join(UNITS)}")
        if self.on_error not in get_args(OnError):
            raise SettingsError(f"unknown treatment of unreadable rows: {self.on_error!r}", hint="stop or skip")
        try:
            ZoneInfo(self.time_zone)
        except (KeyError, ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise SettingsError(
                f"unknown time zone {self.time_zone!r}", hint="an IANA name such as Europe/Paris"
            ) from error
        object.__setattr__(self, "column_map", _canonical(self.column_map))


def _canonical(column_map: Mapping[str, str]) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for name, source_field in column_map.items():
        if name not in _CANONICAL:
            near = difflib.get_close_matches(name, _CANONICAL, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(COLUMNS)}"
            if source_field in _CANONICAL:
                hint = f"did you mean {map_options({source_field: name})}? {MAP_IN_PYTHON}"
            raise SettingsError(f"there is no column {name!r} to map", hint=hint)
        if not source_field or mapped.get(_CANONICAL[name], source_field) != source_field:
            raise SettingsError(
                f"the column {name!r} must be mapped to one field", hint=f"write --map COLUMN=FIELD {MAP_IN_PYTHON}"
            )
        if source_field.startswith(BODY_FIELD):
            try:
                re.compile(source_field.removeprefix(BODY_FIELD))
            except re.error as error:
                raise SettingsError(
                    f"the column {name!r} is mapped to {source_field!r}, which is no regular expression: {error}"
                ) from error
        mapped[_CANONICAL[name]] = source_field
    return mapped


def spellings(column: str, options: ReadOptions) -> tuple[str, ...]:
    """The fields that may hold a column: only the mapped one, or its own name and that in JMS or Apama."""
    mapped = options.column_map.get(column)
    return _own_names(column) if mapped is None else (mapped,)


def _own_names(column: str) -> tuple[str, ...]:
    jms_name = COLUMNS[column].jms_name
    return (column, jms_name) if jms_name else (column,)


def fields_of(names: Sequence[str], options: ReadOptions, source: str) -> dict[str, int]:
    """The index of each column among the `names`; `LogFormatError` if a column is missing or there twice.

    The error names `source`.
    """
    indices: dict[str, int] = {}
    for column in COLUMNS:
        known = spellings(column, options)
        matches = [index for index, name in enumerate(names) if name in known]
        if len(matches) > 1:
            raise column_twice(column, [names[index] for index in matches], source)
        if matches:
            indices[column] = matches[0]
        elif spaced := [name for name in names if name.strip() in known]:
            hint = "write the log without spaces around its fields"
            raise LogFormatError(source, f"there are spaces around the name {spaced[0]!r}", hint=hint)
    check_present(indices, names, options, source)
    return indices


def column_twice(column: str, names: Iterable[str], source: str) -> LogFormatError:
    """The error for a column that the fields of several names may hold."""
    fields = " and ".join(map(repr, names))
    return LogFormatError(source, f"the column {column} is there twice, as {fields}", hint="rename one of them")


def check_present(present: Collection[str], names: Sequence[str], options: ReadOptions, source: str) -> None:
    """Raise `LogFormatError` if required or mapped columns aren't `present`.

    The error names all of these, the names in the file, and the nearest name for each.
    """
    lacking = [
        column
        for column, declared in COLUMNS.items()
        if column not in present and (declared.is_required or column in options.column_map)
    ]
    if lacking:
        shown = first_few(list(map(repr, names)), _NAMES_SHOWN)
        wanted = " or ".join(
            f"{column} (field {options.column_map[column]!r})" if column in options.column_map else column
            for column in lacking
        )
        raise LogFormatError(
            source, f"no column {wanted}; there is: {shown}", hint=_hint(lacking, names, options, source)
        )


def map_options(fields_by_column: Mapping[str, str]) -> str:
    """The options of the command that read columns from these fields."""
    return " ".join(f"--map {column}={name}" for column, name in fields_by_column.items())


def _hint(lacking: Sequence[str], names: Sequence[str], options: ReadOptions, source: str) -> str:
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            return f"the header looks separated by {name}; separate by commas"
    near = {column: meant for column in lacking if (meant := _meant(column, names, options))}
    # A time or a number is no name. What else begins with a digit may be one. No query has a header.
    if "://" not in source and any(
        _TIME_OR_NUMBER.fullmatch(name) or (name[:1].isdigit() and not near) for name in names
    ):
        return f"the first row must name the columns, such as {','.join(lacking)}: is it missing?"
    unneeded = [column for column in near if column in options.column_map and near[column] in _own_names(column)]
    if unneeded:
        begin = f"leave out {map_options({column: options.column_map[column] for column in unneeded})} {MAP_IN_PYTHON}"
        return f"{begin}: there is {' and '.join(repr(near[column]) for column in unneeded)}"
    if near:
        begin = f"did you mean {' and '.join(map(repr, near.values()))}?"
    elif len(lacking) > 1:
        begin = "if it is no log of receipts, name those that are, such as 'logs/*.csv'; else say where they are:"
    else:
        begin = "say where it is:"
    return f"{begin} {map_options({column: near.get(column, 'FIELD') for column in lacking})} {MAP_IN_PYTHON}"


def _meant(column: str, names: Sequence[str], options: ReadOptions) -> str | None:
    """The field that probably holds a column: the nearest name, or else the only one with a typical ending."""
    free = {_folded(name): name for name in names if _may_hold(column, name, options)}
    for spelling in (*spellings(column, options), *_own_names(column)):
        near = difflib.get_close_matches(_folded(spelling), free, 1)
        if near:
            return free[near[0]]
    likely = [name for name in free.values() if _words(name)[-1:] in _LAST_WORDS.get(column, ())]
    return likely[0] if len(likely) == 1 else None


def _may_hold(column: str, name: str, options: ReadOptions) -> bool:
    """Whether a field may be meant for a column. Fields of other columns, of JMS, or with an id of the sender may not: they
    would only look right."""
    canonical = {_folded(spelling): holder for spelling, holder in _CANONICAL.items()}
    canonical |= {_folded(field): holder for holder, field in options.column_map.items()}
    holder = canonical.get(_folded(name))
    if holder is not None:
        return holder == column
    names_who = column == "unique_message_id" and not _NAMES_WHO.isdisjoint(_words(name))
    return not (names_who or _folded(name).startswith("jms"))


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(name)]


def _folded(name: str) -> str:
    return name.casefold().replace("_", "").strip()
