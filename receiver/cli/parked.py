"""`receiver parked`: messages refused too often, or without a proper id: listed, sent back to wait, or dropped."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.options import AsJson
from receiver.cli.output import console, print_json
from receiver.cli.stores import StoreAddress, Yes, confirm, sanitised_address, shown_address
from receiver.errors import SettingsError
from receiver.report.words import count

__all__ = ["parked"]

_LIST = """Examples:

receiver parked list sqlite:///receiver.db

receiver parked list postgresql://bridge:secret@db.example.com/orders --json
"""
_RETRY = """Examples:

receiver parked retry sqlite:///receiver.db 17 18

receiver parked retry sqlite:///receiver.db --all
"""
_DROP = """Examples:

receiver parked drop sqlite:///receiver.db 17

receiver parked drop sqlite:///receiver.db --all --yes
"""

Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="NUMBER", help="As receiver parked list shows them.", show_default=False),
]
AllOfThem = Annotated[bool, typer.Option("--all", help="All that are parked, instead of those with the numbers.")]

parked = typer.Typer(
    name="parked",
    help="List, retry or drop the messages that a bridge has set aside: their target kept refusing them, their id was "
    "missing or malformed, or they came back in a ring of bridges.",
)


@parked.command("list", epilog=_LIST)
def list_(url: StoreAddress, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List the messages that are parked in a store: what, for which target, when, and why."""
    from receiver.report.json_object import dumped
    from receiver.report.store import parked_object, print_parked
    from receiver.store.upkeep import parked_rows

    address = shown_address(url)
    rows = parked_rows(url)
    if as_json:
        print_json(dumped(parked_object(address, rows)))
    else:
        print_parked(address, rows, console())


@parked.command(epilog=_RETRY)
def retry(url: StoreAddress, numbers: Numbers = None, all_of_them: AllOfThem = False) -> None:  # noqa: FBT002
    """Have messages delivered after all.

    Each goes back into the inbox in its old order, as if it had never been tried, and the next bridge of its domain and target
    delivers it, before what came later. All of them go back or, where a number isn't there, none.
    """
    from receiver.store.upkeep import retry_parked

    _print_done(url, retry_parked(url, _chosen(numbers, all_of_them)), "sent back to the inbox")


@parked.command(epilog=_DROP)
def drop(url: StoreAddress, numbers: Numbers = None, all_of_them: AllOfThem = False, yes: Yes = False) -> None:  # noqa: FBT002
    """Delete messages for good.

    As long as their ids are remembered they are duplicates if they come again. All of them go or, where a number isn't
    there, none. --all shows how many and asks first, unless there is --yes.
    """
    from receiver.store.upkeep import drop_parked, parked_rows

    chosen = _chosen(numbers, all_of_them)
    if chosen is None and not yes:
        # By their numbers, so that none goes which is parked after the question.
        chosen = [row.parked_id for row in parked_rows(url)]
        if chosen:
            confirm(f"{sanitised_address(url)}: this deletes {count(len(chosen), 'parked message')} for good", yes=yes)
    _print_done(url, drop_parked(url, chosen), "dropped")


def _chosen(numbers: list[int] | None, all_of_them: bool) -> list[int] | None:  # noqa: FBT001
    """The numbers, or None for all."""
    if bool(numbers) == all_of_them:
        raise SettingsError("say which: either their numbers or --all", hint="receiver parked list shows the numbers")
    return numbers or None


def _print_done(url: str, messages: int, done: str) -> None:
    print(f"{sanitised_address(url)}: {count(messages, 'message')} {done}")
