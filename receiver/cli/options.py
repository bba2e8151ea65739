"""Arguments that several commands share, and help that states settings as they are."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from receiver.domains import DOMAIN_KEYS
from receiver.errors import SettingsError
from receiver.settings import default

if TYPE_CHECKING:
    from receiver.logs import ReadOptions

__all__ = [
    "AsJson",
    "ColumnMap",
    "CommandWithSettings",
    "Domain",
    "FromPasswordFile",
    "Logs",
    "OnError",
    "Report",
    "TimeUnit",
    "TimeZone",
    "TlsCa",
    "TlsCert",
    "TlsKey",
    "WhenUnreadable",
    "password_of",
    "read_options",
]

_SETTING = re.compile(r"\{(\w+)\.(\w+)\}")


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
    typer.Option(metavar="KEY", help=f"{', '.join(DOMAIN_KEYS)}, or name:TEXT for one domain."),
]
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
    str | None,
    typer.Option(metavar="FILE.html", help="Write a report for the browser. Needs the extra 'report'."),
]
FromPasswordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password for FROM.")
]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificates of the authorities to trust. [default: the system's]")
]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="The client's own certificate; needs --tls-key.")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the client's certificate.")]
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


class CommandWithSettings(TyperCommand):
    """A command in whose texts `{section.name}` stands for a setting's value, which is read when its help is shown."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.epilog = _filled(self.epilog)
        texts: list[Any] = [self, *self.params]
        for holder in texts:
            holder.help = _filled(holder.help)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str | None:
    return text and _SETTING.sub(lambda setting: str(default(*setting.groups())), text)


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
