"""Help that states settings as they are: `{section.name}` in a command's texts stands for the setting's value."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from receiver.settings import default

__all__ = ["CommandWithSettings"]

_SETTING = re.compile(r"\{(\w+)\.(\w+)\}")


class CommandWithSettings(TyperCommand):
    """A command whose texts may name settings, which are read when its help is shown and not before."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.epilog = _filled(self.epilog)
        described: list[Any] = [self, *self.params]
        for each in described:
            each.help = _filled(each.help)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str | None:
    return text and _SETTING.sub(lambda setting: str(default(*setting.groups())), text)
