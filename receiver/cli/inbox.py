"""`receiver inbox`: what waits for a store's targets: listed, moved to another target, or dropped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.options import AsJson
from receiver.cli.output import console, print_json
from receiver.cli.stores import StoreAddress, Yes, confirm, number_of, sanitised_address, shown_address
from receiver.errors import SettingsError
from receiver.quantities import count

if TYPE_CHECKING:
    from receiver.store.upkeep import TargetRow

_LIST = """Examples:

receiver inbox list sqlite:///receiver.db

receiver inbox list postgresql://bridge:secret@db.example.com/orders --json
"""
_MOVE = """Examples:

receiver inbox move sqlite:///receiver.db 3 4

receiver inbox move sqlite:///receiver.db 3 amqp://broker.example.com:5673/queue/orders
"""
_DROP = """Examples:

receiver inbox drop sqlite:///receiver.db 3

receiver inbox drop sqlite:///receiver.db 3 --yes
"""
_LISTED_BY = "receiver inbox list"
_TARGET_HELP = "The target, by its number or its exact name."

inbox = typer.Typer(
    name="inbox",
    help="List, move or drop the messages that wait for targets.\n\nUse it when no bridge serves a target any more.",
)


@inbox.command("list", epilog=_LIST)
def list_(url: StoreAddress, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List the targets in a store, and how many messages wait for each.

    It also shows since when the oldest waits. Nothing is changed.
    """
    from receiver.report.json_object import dumped
    from receiver.report.store import inbox_object, print_inbox
    from receiver.store.upkeep import target_rows

    address = shown_address(url)
    rows = target_rows(url)
    if as_json:
        print_json(dumped(inbox_object(address, rows)))
    else:
        print_inbox(address, rows, console())


@inbox.command(epilog=_MOVE)
def move(
    url: StoreAddress,
    from_: Annotated[str, typer.Argument(metavar="FROM", help=_TARGET_HELP, show_default=False)],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="Another target of the same domain, by its number or its exact name, or a new one, written as for receiver "
            "bridge.",
            show_default=False,
        ),
    ],
) -> None:
    """Move the messages that wait for one target to another of its domain.

    They keep their order. The next bridge of the domain to the new target delivers them first.

    EXACTLY_ONCE can't hold across two targets. If a bridge died after it handed messages on to the old target and before
    it confirmed them, they come to the new target once more.
    """
    from receiver.report.store import shown_target
    from receiver.store.upkeep import move_waiting, target_rows

    rows = target_rows(url)
    old = _chosen(rows, from_)
    new_name = _target_name(rows, old, to)
    moved = move_waiting(url, old, new_name)
    print(f"{sanitised_address(url)}: {count(moved, 'message')} moved to {shown_target(new_name)}")
    if moved:
        print(
            "note: if a bridge died, the last messages that it handed on may have arrived at the old target too:"
            " EXACTLY_ONCE can't hold across two targets",
            file=sys.stderr,
        )


@inbox.command(epilog=_DROP)
def drop(
    url: StoreAddress,
    target: Annotated[str, typer.Argument(help=_TARGET_HELP, show_default=False)],
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Delete the messages that wait for a target, for good.

    If they come again while their ids are remembered, they are duplicates. The target stays, and so do messages that
    arrive after the question.
    """
    from receiver.report.store import shown_target, shown_waiting
    from receiver.store.upkeep import drop_waiting, target_rows

    row = _chosen(target_rows(url), target)
    if row.waiting:
        confirm(f"this deletes what waits for {shown_target(row.name)}: {shown_waiting(row)}", yes=yes)
    print(f"{sanitised_address(url)}: {count(drop_waiting(url, row), 'message')} dropped")


def _chosen(rows: Sequence[TargetRow], given: str) -> TargetRow:
    by_number = {row.number: row for row in rows}
    return by_number[number_of(given, {number: row.name for number, row in by_number.items()}, "target", _LISTED_BY)]


def _target_name(rows: Sequence[TargetRow], old: TargetRow, to: str) -> str:
    """The name of the target that `to` means: one of the same domain, or else a new one."""
    from receiver.bridge.opening import target_name

    if to.isascii() and to.isdecimal():
        row = _chosen(rows, to)
        if row.domain_id != old.domain_id:
            raise SettingsError(
                f"target {to} is of another domain", hint=f"{_LISTED_BY} shows the domains; or write it as for a bridge"
            )
        return row.name
    its_own = {row.name for row in rows if row.domain_id == old.domain_id}
    return to if to in its_own else target_name(to)
