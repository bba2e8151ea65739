"""Arguments that several commands share; and options made of the fields of a dataclass.

Such an option has its field's default, and as help the first paragraph of the field's docstring.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, getsource, signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand

from receiver.bridge.options import Tls
from receiver.errors import MissingExtraError, SettingsError
from receiver.masking import masked
from receiver.settings import default

if TYPE_CHECKING:
    from receiver.logs import ReadOptions

_PLACEHOLDER = re.compile(r"\{(\w+)\.(\w+)\}")
_documented: dict[str, type] = {}
"""The dataclasses that have become options, and the enumerations of their fields, by name."""

T = TypeVar("T")


class Fields(dict[str, str]):
    """The fields of a parameter's dataclass that become options, each as in the help: `max_tries="--max-tries N"`."""


def with_fields(command: Callable[..., T]) -> Callable[..., T]:
    """The command with an option for each of the `Fields` of its parameters. The command is called with the dataclasses.

    If an option isn't given, its field has the dataclass's default.
    """
    parameters: list[Parameter] = []
    grouped: dict[str, tuple[type, dict[str, str]]] = {}  # by parameter: its dataclass, and the option of each field
    for parameter in signature(command, eval_str=True).parameters.values():
        shown = getattr(parameter.annotation, "__metadata__", (None,))[0]
        if isinstance(shown, Fields):
            kind = parameter.annotation.__origin__
            by_name = {field.name: field for field in fields(kind)}
            options = {name: _option(kind, by_name[name], usage) for name, usage in shown.items()}
            grouped[parameter.name] = kind, {name: option.name for name, option in options.items()}
            parameters += options.values()
        else:
            parameters.append(parameter)
    ungrouped = Signature(parameters)

    @wraps(command)
    def with_dataclasses(*arguments: Any, **options: Any) -> T:
        bound = ungrouped.bind(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        for name, (kind, options_of) in grouped.items():
            values = {field: given.pop(option) for field, option in options_of.items()}
            given[name] = kind(**{field: value for field, value in values.items() if value is not None})
        return command(**given)

    with_dataclasses.__signature__ = ungrouped  # type: ignore[attr-defined]
    with_dataclasses.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_dataclasses


def _option(kind: type, field: Field[Any], usage: str) -> Parameter:
    _documented[kind.__name__] = kind
    flag, _, metavar = usage.partition(" ")
    # If a field has several types, as in `StrEnum | str | None`, the command line accepts only the first.
    first = field.type.partition(" | ")[0]
    type_ = getattr(sys.modules[kind.__module__], first, None) or getattr(builtins, first)
    texts = [f"{{{kind.__name__}.{field.name}}}"]
    if issubclass(type_, StrEnum):
        _documented[type_.__name__] = type_
        texts += [f"{each}: {{{type_.__name__}.{each.name}}}" for each in type_]
    option = typer.Option(flag, metavar=metavar or None, help="\n\n".join(texts))
    return Parameter(
        flag.removeprefix("--").replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        # A factory would read `settings.yaml`, which is too early here.
        default=None if field.default is MISSING else field.default,
        annotation=Annotated[type_ | None, option],
    )


def under_headings(headings: Mapping[str, str]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Group options under headings in a command's help. `headings`: heading -> flags. Other options come first."""

    def marked(command: Callable[..., T]) -> Callable[..., T]:
        command.headings = {flag: heading for heading, flags in headings.items() for flag in flags.split()}  # type: ignore[attr-defined]
        return command

    return marked


def examples(*commands: str, above: str = "", note: str = "") -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add examples to the end of a command's help, between the texts `above` and `note`."""

    def marked(command: Callable[..., T]) -> Callable[..., T]:
        whole = (f"\b\n{each}" for each in commands)  # never wrapped: a second line would look like another command
        command.epilog = "\n\n".join(text for text in (above, "Examples:", *whole, note) if text)  # type: ignore[attr-defined]
        return command

    return marked


class CommandWithSettings(TyperCommand):
    """A command with placeholders in its help, which are replaced when it is shown: `{section.name}` by the setting's value,
    `{Class.field}` by the field's docstring."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:  # an option lacks its value; the hint names the command by this
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        headings = getattr(self.callback, "headings", {})
        below: dict[str, list[tuple[str, str]]] = {
            heading: [] for heading in ("Arguments", "Options", *headings.values())
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:  # a hidden parameter
                continue
            shown, text = record
            if parameter.param_type_name == "argument":  # leave out the type, which doesn't help people
                below["Arguments"].append((shown.partition(" <")[0], text))
            else:
                below[headings.get(parameter.opts[0], "Options")].append((shown, text))
        for heading, rows in below.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.epilog = _filled(getattr(self.callback, "epilog", None))
        texts: list[Any] = [self, *self.params]
        for holder in texts:
            holder.help = _filled(holder.help)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str | None:
    return text and _PLACEHOLDER.sub(_value, text)


def _value(placeholder: re.Match[str]) -> str:
    holder, name = placeholder.groups()
    kind: Any = _documented.get(holder)
    if kind is None:
        return str(default(holder, name))
    said = _first_paragraph(kind, name)
    if issubclass(kind, StrEnum):
        return said
    factory = next(field.default_factory for field in fields(kind) if field.name == name)
    return said if factory is MISSING else f"{said} [default: {factory()}]"


def _first_paragraph(kind: type, name: str) -> str:
    """The first paragraph of the docstring of a field or an enumeration's member, read from the source, as Python doesn't keep it.
    The other paragraphs are for programmers."""
    (declared,) = ast.parse(getsource(kind)).body
    assert isinstance(declared, ast.ClassDef)  # noqa: S101
    for field, below in pairwise(declared.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=id_)) | ast.Assign(targets=[ast.Name(id=id_)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if id_ == name:
                return " ".join(text.partition("\n\n")[0].split())
    raise AssertionError(f"{kind.__name__}.{name} has no docstring")


def _in_utf8(key: str) -> str:
    """The KEY, or `SettingsError` if verdicts and logs, which are in UTF-8, can't have its name."""
    if any("\ud800" <= letter <= "\udfff" for letter in key):
        raise SettingsError(f"the domain key {key!r} isn't text in UTF-8", hint="name the domain in UTF-8")
    return key


Logs = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG",
        help="Files, folders, globs, URLs, or - for standard input: CSV, JSON Lines, Parquet or an Apama correlator log, "
        "each plain, .gz or .zst.",
    ),
]
Query = Annotated[
    str | None,
    typer.Option(metavar="SQL", help="Read the rows that this query gives. LOG is then a database: sqlite:///file."),
]
Domain = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        callback=_in_utf8,
        help="Which receipts are compared: those of a queue by one connection (default), of a queue by whichever connection "
        "(destination), of a connection, of a receiver, or all (name:TEXT). Take destination where several connections take "
        "from one queue: then a correlator's receivers need one dupDetectionDomainId.",
    ),
]
ColumnMap = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=FIELD", help="Read the column COLUMN from the field FIELD. May be repeated."),
]
_Unit = Literal["s", "ms", "us"]
_OnError = Literal["stop", "skip"]
TimeUnit = Annotated[_Unit | None, typer.Option(help="Unit of times that are numbers. [default: by their magnitude]")]
TimeZone = Annotated[str, typer.Option(metavar="ZONE", help="Zone of times that name no zone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Report = Annotated[
    str | None, typer.Option(metavar="FILE.html", help="Write a report for the browser. Needs the extra 'report'.")
]
FromPasswordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password for FROM.")
]
TlsFiles = Annotated[Tls, Fields(ca_file="--tls-ca FILE", cert_file="--tls-cert FILE", key_file="--tls-key FILE")]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://HOST:7077, yarn, k8s://HOST:PORT. [default: as Spark is configured, or "
        "else all cores of this machine]",
    ),
]
OrderBy = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column that orders a table's rows. Spark only.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Spark and Java print, and what each step cost.")]
WhenUnreadable = Annotated[_OnError, typer.Option(help="What to do with a row that can't be read.")]


def read_options(
    column_map: list[str] | None, time_unit: _Unit | None, time_zone: str, on_error: _OnError
) -> ReadOptions:
    """The `ReadOptions` of these arguments; `SettingsError` for a malformed `--map`."""
    from receiver.logs import ReadOptions

    field_of: dict[str, str] = {}
    for item in column_map or ():
        column, equals, field = item.partition("=")
        if not (column and equals and field):
            raise SettingsError(
                f"--map {item!r} is not of the form COLUMN=FIELD", hint="such as --map unique_message_id=OrderId"
            )
        if column in field_of:
            raise SettingsError(f"--map gives {column} twice", hint="leave one out: a column is read from one field")
        field_of[column] = field
    return ReadOptions(time_unit=time_unit, time_zone=time_zone, on_error=on_error, column_map=field_of)


def refuse_tables(logs: Sequence[str], table_remedy: str) -> None:
    """`SettingsError` if a log is a table of Spark or a database, for a command that only reads files."""
    from receiver.logs.remote import TABLE, is_url

    for log in logs:
        if log.startswith(TABLE) and not Path(log).exists():
            raise SettingsError(f"{log} is a table of Spark", hint=table_remedy)
        if not is_url(log):
            continue
        from receiver.store.databases import store_url  # with SQLAlchemy, which few logs need

        try:
            store_url(log)
        except MissingExtraError:
            pass  # a database whose driver isn't installed
        except SettingsError:
            continue
        raise SettingsError(f"{masked(log)} is a database", hint='add --query "SELECT ..."')


def password_of(side: str, file: Path | None) -> str | None:
    """The password for FROM, TO or another address: from the environment, otherwise the first line of the file; None without
    both."""
    password = os.environ.get(f"RECEIVER_{side}_PASSWORD")
    if password is not None or file is None:
        return password
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"the password can't be read from {file}: {why}", hint="one line of text, UTF-8") from error
