"""The arguments of every command that reads a log."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.errors import SettingsError

if TYPE_CHECKING:
    from receiver.logs import ReadOptions

__all__ = ["ColumnMap", "Domain", "Logs", "OnError", "TimeUnit", "TimeZone", "WhenUnreadable", "read_options"]


class _TimeUnit(StrEnum):
    S = "s"
    MS = "ms"
    US = "us"


class OnError(StrEnum):
    STOP = "stop"
    SKIP = "skip"


Logs = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG...",
        help="Files, folders, globs, URLs, or - for standard input: CSV, JSON Lines, Parquet or an Apama correlator log, "
        "each plain, .gz or .zst.",
    ),
]
Domain = Annotated[
    str,
    typer.Option(metavar="KEY", help="default, destination, connection, receiver, or name:TEXT for one domain."),
]
ColumnMap = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=FIELD", help="Read a column from another field; may be repeated."),
]
TimeUnit = Annotated[
    _TimeUnit | None, typer.Option(help="Unit of times that are numbers; told by magnitude if left out.")
]
TimeZone = Annotated[str, typer.Option(help="Zone of times that name none.")]
WhenUnreadable = Annotated[OnError, typer.Option(help="What to do with a row that can't be read.")]


def read_options(
    column_map: list[str] | None, time_unit: _TimeUnit | None, time_zone: str, on_error: OnError
) -> ReadOptions:
    """How to read, as these arguments say; `SettingsError` for a `--map` that isn't of its form."""
    from receiver.logs import ReadOptions

    fields: dict[str, str] = {}
    for item in column_map or ():
        column, equals, field = item.partition("=")
        if not (column and equals and field):
            raise SettingsError(f"--map {item!r} is not of the form COLUMN=FIELD")
        if column in fields:
            raise SettingsError(f"--map gives {column} twice")
        fields[column] = field
    return ReadOptions(
        time_unit=None if time_unit is None else time_unit.value,
        time_zone=time_zone,
        on_error=on_error.value,
        column_map=fields,
    )
