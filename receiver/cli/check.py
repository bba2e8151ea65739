"""`receiver check`: whether a store is sound."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.output import console, print_json, progress
from receiver.cli.stores import StoreAddress, shown_address

__all__ = ["EPILOG", "check"]

EPILOG = """Examples:

receiver check sqlite:///receiver.db

receiver check postgresql://bridge:secret@db.example.com/orders --json
"""

_BROKEN = 1


def check(
    url: StoreAddress,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a list.")] = False,  # noqa: FBT002
) -> int:
    """Check every invariant of a store.

    Exits with 1 and a list of what is broken, with 2 if the store can't be opened. Receivers may go on meanwhile: one
    state of the store is read, and nothing is changed.
    """
    from receiver.durable.audit import audit
    from receiver.report.json_object import dumped
    from receiver.report.store import check_object, print_check

    address = shown_address(url)
    with progress("Checking rows", None) as advance:
        figures = audit(url, advance=advance)
    if as_json:
        print_json(dumped(check_object(address, figures)))
    else:
        print_check(address, figures, console())
    return _BROKEN if figures.findings else 0
