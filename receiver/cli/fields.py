"""Options that are the fields of a dataclass: a field's default is the option's, and its docstring is the help."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature, getsource, signature
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from receiver.settings import default

_NAMED = re.compile(r"\{(\w+)\.(\w+)\}")
_documented: dict[str, type] = {}
"""The dataclasses that have become options, by name."""

T = TypeVar("T")


class Fields(dict[str, str]):
    """The fields of a parameter's dataclass that are options, each as help shows it: `max_tries="--max-tries N"`."""


def with_fields(command: Callable[..., T]) -> Callable[..., T]:
    """The command with an option for each of the `Fields` of its parameters. It is given the dataclasses made of them.

    An option that isn't given leaves the dataclass its default.
    """
    parameters: list[Parameter] = []
    made: dict[str, tuple[type, dict[str, str]]] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        shown = getattr(parameter.annotation, "__metadata__", (None,))[0]
        if isinstance(shown, Fields):
            kind = parameter.annotation.__origin__
            by_name = {field.name: field for field in fields(kind)}
            options = {name: _option(kind, by_name[name], usage) for name, usage in shown.items()}
            made[parameter.name] = kind, {name: option.name for name, option in options.items()}
            parameters += options.values()
        else:
            parameters.append(parameter)
    taken = Signature(parameters)

    @wraps(command)
    def with_dataclasses(*arguments: Any, **options: Any) -> T:
        bound = taken.bind(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        for name, (kind, options_of) in made.items():
            values = {field: given.pop(option) for field, option in options_of.items()}
            given[name] = kind(**{field: value for field, value in values.items() if value is not None})
        return command(**given)

    with_dataclasses.__signature__ = taken  # type: ignore[attr-defined]
    with_dataclasses.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_dataclasses


def _option(kind: type, field: Field[Any], usage: str) -> Parameter:
    _documented[kind.__name__] = kind
    flag, _, metavar = usage.partition(" ")
    # The first type of its annotation is the command's; the others are for programs.
    first = field.type.partition(" | ")[0]
    type_ = getattr(sys.modules[kind.__module__], first, None) or getattr(builtins, first)
    option = typer.Option(flag, metavar=metavar or None, help=f"{{{kind.__name__}.{field.name}}}")
    return Parameter(
        flag.removeprefix("--").replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        # A factory asks `settings.yaml`, which is too early here.
        default=None if field.default is MISSING else field.default,
        annotation=Annotated[type_ | None, option],
    )


class CommandWithSettings(TyperCommand):
    """A command whose help is filled in when it is shown: `{section.name}` with the setting's value, `{Class.field}` with
    the field's docstring."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.epilog = _filled(self.epilog)
        texts: list[Any] = [self, *self.params]
        for holder in texts:
            holder.help = _filled(holder.help)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str | None:
    return text and _NAMED.sub(_value, text)


def _value(named: re.Match[str]) -> str:
    holder, name = named.groups()
    kind = _documented.get(holder)
    if kind is None:
        return str(default(holder, name))
    factory = next(field.default_factory for field in fields(kind) if field.name == name)
    said = _first_paragraph(kind, name)
    return said if factory is MISSING else f"{said} [default: {factory()}]"


def _first_paragraph(kind: type, name: str) -> str:
    """The first paragraph of a field's docstring, which Python itself doesn't keep. What follows is for programmers."""
    (declared,) = ast.parse(getsource(kind)).body
    assert isinstance(declared, ast.ClassDef)  # noqa: S101
    for field, below in pairwise(declared.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=id_)), ast.Expr(value=ast.Constant(value=str(text))) if id_ == name:
                return " ".join(text.partition("\n\n")[0].split())
    raise AssertionError(f"{kind.__name__}.{name} has no docstring")
