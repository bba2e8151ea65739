"""`receiver inbox` and `receiver parked`: messages in a store that wait for targets, and parked messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.options import AsJson, CommandWithSettings, examples
from receiver.cli.output import note
from receiver.cli.stores import StoreAddress, Yes, check_not_swapped, confirm, number_of, sanitised_address, show
from receiver.errors import SettingsError
from receiver.quantities import count

if TYPE_CHECKING:
    from receiver.store.upkeep import TargetRow

_LISTED_BY = "receiver inbox list"
_TARGET_HELP = "The target, by its number or its exact name."

_Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="NUMBER", help="Numbers that receiver parked list shows.", show_default=False),
]
_AllOfThem = Annotated[bool, typer.Option("--all", help="All parked messages, instead of NUMBERs.")]

inbox = typer.Typer(
    name="inbox",
    help="List, move or drop the messages that wait for targets.\n\nUse it when no bridge serves a target any more.",
)
parked = typer.Typer(
    name="parked",
    help="List, retry or drop the messages that a bridge parked.\n\nA bridge parks a message if its target kept refusing it, "
    "if its id was missing or malformed, or if it came back in a ring of bridges.",
)


@inbox.command("list", cls=CommandWithSettings)
@examples(
    "receiver inbox list sqlite:///receiver.db",
    "receiver inbox list postgresql://bridge:secret@db.example.com/orders --json",
)
def list_inbox(url: StoreAddress, *, as_json: AsJson = False) -> None:
    """List the targets in a store, and how many messages wait for each.

    It also shows since when the oldest waits. Nothing is changed.
    """
    from receiver.report.store import inbox_object, print_inbox
    from receiver.store.upkeep import target_rows

    show(url, target_rows(url), inbox_object, print_inbox, as_json=as_json)


@inbox.command(cls=CommandWithSettings)
@examples(
    "receiver inbox move sqlite:///receiver.db 3 4",
    "receiver inbox move sqlite:///receiver.db 3 amqp://broker.example.com:5673/queue/orders",
)
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

    check_not_swapped(url, to)
    rows = target_rows(url)
    old = _chosen(rows, from_)
    new_name = _target_name(rows, old, to)
    moved = move_waiting(url, old, new_name)
    print(f"{sanitised_address(url)}: {count(moved, 'message')} moved to {shown_target(new_name)}")
    if moved:
        note(
            "if a bridge died, the last messages that it handed on may have arrived at the old target too: EXACTLY_ONCE can't"
            " hold across two targets"
        )


@inbox.command("drop", cls=CommandWithSettings)
@examples("receiver inbox drop sqlite:///receiver.db 3", "receiver inbox drop sqlite:///receiver.db 3 --yes")
def drop_inbox(
    url: StoreAddress,
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET_HELP, show_default=False)],
    *,
    yes: Yes = False,
) -> None:
    """Delete the messages that wait for a target, for good.

    If they come again while their ids are remembered, they are duplicates. The target stays, and so do messages that
    arrive after the question.
    """
    from receiver.report.store import shown_target, shown_waiting
    from receiver.store.upkeep import drop_waiting, target_rows

    check_not_swapped(url, target)
    row = _chosen(target_rows(url), target)
    if row.waiting:
        confirm(f"this deletes what waits for {shown_target(row.name)}: {shown_waiting(row)}", yes=yes)
    print(f"{sanitised_address(url)}: {count(drop_waiting(url, row), 'message')} dropped")


def _chosen(rows: Sequence[TargetRow], given: str) -> TargetRow:
    by_number = {row.number: row for row in rows}
    return by_number[number_of(given, {number: row.name for number, row in by_number.items()}, "target", _LISTED_BY)]


def _target_name(rows: Sequence[TargetRow], old: TargetRow, to: str) -> str:
    """The name of the target that `to` means: an existing target of the same domain, otherwise a new one."""
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


@parked.command("list", cls=CommandWithSettings)
@examples(
    "receiver parked list sqlite:///receiver.db",
    "receiver parked list postgresql://bridge:secret@db.example.com/orders --json",
)
def list_parked(url: StoreAddress, *, as_json: AsJson = False) -> None:
    """List a store's parked messages: for which target, when, and why."""
    from receiver.report.store import parked_object, print_parked
    from receiver.store.upkeep import parked_rows

    show(url, parked_rows(url), parked_object, print_parked, as_json=as_json)


@parked.command(cls=CommandWithSettings)
@examples("receiver parked retry sqlite:///receiver.db 17 18", "receiver parked retry sqlite:///receiver.db --all")
def retry(url: StoreAddress, numbers: _Numbers = None, *, all_of_them: _AllOfThem = False) -> None:
    """Put parked messages back into the inbox.

    They return to their old order, as if they had never been tried. The next bridge of their domain and target delivers
    them before what came later. If a number isn't there, none goes back.
    """
    from receiver.store.upkeep import retry_parked

    _print_done(url, retry_parked(url, _numbers(numbers, all_of_them=all_of_them)), "sent back to the inbox")


@parked.command("drop", cls=CommandWithSettings)
@examples("receiver parked drop sqlite:///receiver.db 17", "receiver parked drop sqlite:///receiver.db --all --yes")
def drop_parked(
    url: StoreAddress, numbers: _Numbers = None, *, all_of_them: _AllOfThem = False, yes: Yes = False
) -> None:
    """Delete parked messages for good.

    If they come again while their ids are remembered, they are duplicates. If a number isn't there, none is deleted. The
    command asks first, unless you give --yes.
    """
    from receiver.store import upkeep

    chosen = _numbers(numbers, all_of_them=all_of_them)
    if not yes:
        there = {row.parked_id for row in upkeep.parked_rows(url)}
        # By number, so that messages that are parked after the question stay.
        chosen = sorted(there) if chosen is None else chosen
        dropped = there.intersection(chosen)
        if dropped and dropped.issuperset(chosen):
            confirm(f"{sanitised_address(url)}: this deletes {count(len(dropped), 'parked message')} for good", yes=yes)
    _print_done(url, upkeep.drop_parked(url, chosen), "dropped")


def _numbers(numbers: list[int] | None, *, all_of_them: bool) -> list[int] | None:
    """The numbers, or None for all."""
    if bool(numbers) == all_of_them:
        raise SettingsError("say which: either their numbers or --all", hint="receiver parked list shows the numbers")
    return numbers or None


def _print_done(url: str, messages: int, done: str) -> None:
    print(f"{sanitised_address(url)}: {count(messages, 'message')} {done}")
