"""`receiver parked`: messages refused too often, or without a proper id: listed, sent back to wait, or dropped."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.options import AsJson
from receiver.cli.output import console, print_json
from receiver.cli.stores import StoreAddress, Yes, confirm, sanitised_address, shown_address
from receiver.errors import SettingsError
from receiver.quantities import count

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
    typer.Argument(metavar="NUMBER", help="Numbers that receiver parked list shows.", show_default=False),
]
AllOfThem = Annotated[bool, typer.Option("--all", help="All parked messages, instead of NUMBERs.")]

parked = typer.Typer(
    name="parked",
    help="List, retry or drop the messages that a bridge parked.\n\nA bridge parks a message if its target kept refusing it, "
    "if its id was missing or malformed, or if it came back in a ring of bridges.",
)


@parked.command("list", epilog=_LIST)
def list_(url: StoreAddress, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List the parked messages in a store: for which target, when, and why."""
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
    """Put parked messages back into the inbox.

    They return to their old order, as if they had never been tried. The next bridge of their domain and target delivers
    them before what came later. If a number isn't there, none goes back.
    """
    from receiver.store.upkeep import retry_parked

    _print_done(url, retry_parked(url, _chosen(numbers, all_of_them)), "sent back to the inbox")


@parked.command(epilog=_DROP)
def drop(url: StoreAddress, numbers: Numbers = None, all_of_them: AllOfThem = False, yes: Yes = False) -> None:  # noqa: FBT002
    """Delete parked messages for good.

    If they come again while their ids are remembered, they are duplicates. If a number isn't there, none is deleted. --all
    shows how many there are and asks first, unless you give --yes.
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
