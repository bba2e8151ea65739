"""What the commands that look after a store share: its address, choosing a row, the question before data are destroyed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.errors import SettingsError
from receiver.report.words import sanitised

if TYPE_CHECKING:
    from receiver.durable.audit import StoreFigures

__all__ = ["StoreAddress", "Yes", "confirm", "number_of", "print_if_broken", "sanitised_address", "shown_address"]

_LONGEST_ADDRESS = 2000

StoreAddress = Annotated[
    str, typer.Argument(metavar="URL", help="The store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Destroy the data without asking.")]


def shown_address(url: str) -> str:
    """The address as it may be shown, without its password; SettingsError if it is none."""
    from receiver.store.databases.database import shown
    from receiver.store.engine import store_url

    return shown(store_url(url))


def sanitised_address(url: str) -> str:
    """The address as `shown_address` has it, harmless on a terminal."""
    return sanitised(shown_address(url), _LONGEST_ADDRESS)


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


def number_of(given: str, names: Mapping[int, str], kind: str, listed_by: str) -> int:
    """The number of the one row, such as a domain, that has the given number or exact name, by the names of all rows.

    `SettingsError` if no row has it or several have; its hint names the command that lists them, `listed_by`.
    """
    meant = [number for number, name in names.items() if given in {str(number), name}]
    if not meant:
        raise SettingsError(f"there is no {kind} {given!r:.200}", hint=f"{listed_by} shows those that there are")
    if len(meant) > 1:
        numbers = ", ".join(map(str, meant))
        raise SettingsError(
            f"several are called {given!r:.200}: {numbers}",
            hint=f"{listed_by} shows numbers and names: choose one that is its own",
        )
    return meant[0]


def print_if_broken(figures: StoreFigures) -> None:
    """Say on standard error that a store is broken, if it is."""
    if figures.findings:
        print("note: the store is broken: receiver check says where", file=sys.stderr)
