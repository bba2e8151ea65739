"""Arguments that several commands share."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.bridge.options import Tls
from receiver.cli.fields import Fields
from receiver.domains import DOMAIN_KEYS
from receiver.errors import SettingsError

if TYPE_CHECKING:
    from receiver.logs import ReadOptions


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
Domain = Annotated[str, typer.Option(metavar="KEY", help=f"{', '.join(DOMAIN_KEYS)}, or name:TEXT for one domain.")]
ColumnMap = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=FIELD", help="Read the column COLUMN from the field FIELD. May be repeated."),
]
TimeUnit = Annotated[
    _TimeUnit | None, typer.Option(help="Unit of times that are numbers. [default: by their magnitude]")
]
TimeZone = Annotated[str, typer.Option(help="Zone of times that name no zone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Report = Annotated[
    str | None, typer.Option(metavar="FILE.html", help="Write a report for the browser. Needs the extra 'report'.")
]
FromPasswordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password for FROM.")
]
TlsFiles = Annotated[Tls, Fields(ca_file="--tls-ca FILE", cert_file="--tls-cert FILE", key_file="--tls-key FILE")]
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


def password_of(side: str, file: Path | None) -> str | None:
    """The password for FROM, TO or another address: the environment's, or else the first line of the file; None without either."""
    password = os.environ.get(f"RECEIVER_{side}_PASSWORD")
    if password is not None or file is None:
        return password
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"the password can't be read from {file}: {why}", hint="one line of text, UTF-8") from error
