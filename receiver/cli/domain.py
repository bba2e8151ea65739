"""`receiver domain`: a store's domains: listed, or dropped with all that is kept of them."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.options import AsJson
from receiver.cli.output import console, print_json
from receiver.cli.stores import StoreAddress, Yes, confirm, number_of, print_if_broken, sanitised_address, shown_address
from receiver.quantities import count
from receiver.report.words import sanitised

_LIST = """Examples:

receiver domain list sqlite:///receiver.db

receiver domain list postgresql://bridge:secret@db.example.com/orders --json
"""
_DROP = """Examples:

receiver domain drop sqlite:///receiver.db --domain 3

receiver domain drop sqlite:///receiver.db --domain queue://orders --yes
"""
_LONGEST_NAME = 200

domain = typer.Typer(name="domain", help="List the domains of a store, or drop one that is no longer used.")


@domain.command("list", epilog=_LIST)
def list_(url: StoreAddress, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List the domains in a store, and how much each keeps. Nothing is changed."""
    from receiver.durable.audit import look
    from receiver.report.json_object import dumped
    from receiver.report.store import domains_object, print_domains

    address = shown_address(url)
    figures = look(url, with_ids=False)
    if as_json:
        print_json(dumped(domains_object(address, figures)))
    else:
        print_domains(address, figures, console())
    print_if_broken(figures)


@domain.command(epilog=_DROP)
def drop(
    url: StoreAddress,
    domain: Annotated[
        str,
        typer.Option(
            metavar="DOMAIN", help="Its number, or its exact name if no other domain has the same.", show_default=False
        ),
    ],
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Drop a domain with all that it keeps.

    Its remembered ids go, its targets, and the messages that wait for them or are parked: all of it or nothing. Close
    its receivers first. One that is open fails from then on. One that is opened later makes the domain anew, and every id
    is new to it.
    """
    from receiver.durable.audit import look
    from receiver.store.upkeep import drop_domain

    domains = {figures.state.domain_id: figures for figures in look(url, with_ids=False).domains}
    names = {number: figures.state.domain_name for number, figures in domains.items()}
    figures = domains[number_of(domain, names, "domain", "receiver domain list")]
    kept = (figures.rows, figures.inbox or 0, figures.parked or 0)
    confirm(f"this drops {sanitised(figures.state.domain_name, _LONGEST_NAME)} with {_amounts(*kept)}", yes=yes)
    dropped = drop_domain(url, figures.state)
    print(f"{sanitised_address(url)}: dropped {_amounts(dropped.receipts, dropped.waiting, dropped.parked)}")


def _amounts(rows: int, waiting: int, parked: int) -> str:
    return f"{count(rows, 'stored receipt')}, {count(waiting, 'message')} in the inbox and {parked:,} parked"
