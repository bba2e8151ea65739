"""What a command that destroys data does first: say what and how much, and go on only after a yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from receiver.errors import SettingsError

__all__ = ["Yes", "confirm"]

Yes = Annotated[bool, typer.Option("--yes", help="Destroy the data without asking.")]


def confirm(loss: str, *, yes: bool) -> None:
    """Return if `--yes` was given or a person at the terminal agrees; otherwise raise `SettingsError`.

    `loss` is a sentence without its end that says what is lost and how much: "this drops 1,000 remembered ids".
    """
    if yes:
        return
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(f"{loss}, so it needs a yes", hint="add --yes if that is meant")
    if not typer.confirm(f"{loss}. Go on?", err=True):
        raise SettingsError("nothing was changed")
