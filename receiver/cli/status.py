"""`receiver status`: the figures of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.options import AsJson
from receiver.cli.output import console, print_json, progress
from receiver.cli.stores import StoreAddress, print_if_broken, shown_address

__all__ = ["EPILOG", "status"]

EPILOG = """Examples:

receiver status sqlite:///receiver.db

receiver status postgresql://bridge:secret@db.example.com/orders --json

receiver status sqlite:///receiver.db --quick
"""


def status(
    url: StoreAddress,
    as_json: AsJson = False,  # noqa: FBT002
    quick: Annotated[  # noqa: FBT002
        bool, typer.Option("--quick", help="Leave out the ids remembered, for which all rows are read.")
    ] = False,
) -> None:
    """Show the figures of each domain in a store.

    What came, what of it was caught, and what is kept: counted since the domain was made, over all its receivers, which
    may go on meanwhile. Nothing is changed.
    """
    from receiver.durable.audit import look
    from receiver.report.json_object import dumped
    from receiver.report.store import print_status, status_object

    address = shown_address(url)
    with progress("Reading rows", None) as advance:
        figures = look(url, with_ids=not quick, advance=advance)
    if as_json:
        print_json(dumped(status_object(address, figures)))
    else:
        print_status(address, figures, console())
    print_if_broken(figures)
