"""`receiver migrate`: a store's tables, made or brought to another version."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.stores import StoreAddress, Yes, confirm, sanitised_address

__all__ = ["EPILOG", "migrate"]

EPILOG = """Examples:

receiver migrate sqlite:///receiver.db

receiver migrate postgresql://bridge:secret@db.example.com/orders
"""


def migrate(
    url: StoreAddress,
    revision: Annotated[
        str,
        typer.Option(
            help="The version to go to: head, the newest, or a number; base drops the tables with all they hold."
        ),
    ] = "head",
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Make a store's tables, or upgrade them.

    Every receiver does so when it opens; going back is done here alone. Receivers at work meanwhile wait, and all of it
    happens or nothing. Going back is refused while the older version would judge wrongly or
    lose messages. What else it can't hold is lost: the command shows what and how much, and asks unless there is --yes.
    """
    from receiver.store.engine import store_url
    from receiver.store.schema import losses
    from receiver.store.schema import migrate as migrate_store

    address = sanitised_address(url)
    lost = ", ".join(losses(store_url(url), revision))
    if lost:
        confirm(f"{address}: this drops {lost}", yes=yes)
    before, after = migrate_store(store_url(url), revision, may_lose=bool(lost) or yes)
    if before == after:
        print(f"{address}: {_named(before)} already")
    else:
        print(f"{address}: from {_named(before)} to {_named(after)}{f', without {lost}' if lost else ''}")


def _named(version: str | None) -> str:
    return "no tables" if version is None else f"version {version}"
