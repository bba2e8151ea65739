"""`receiver retire`: sources that have ended give up their queues."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.stores import StoreAddress, sanitised_address
from receiver.errors import SettingsError
from receiver.report.words import count, named_domain

__all__ = ["EPILOG", "retire"]

_LONGEST_NAME = 2000

EPILOG = """Examples:

receiver retire sqlite:///receiver.db --idle {receiver.retire_sources_after_days}

receiver retire sqlite:///receiver.db --source gateway-1:4711 --source gateway-1:4712 --domain queue://orders
"""


def retire(
    url: StoreAddress,
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="NAME", help="A messageSourceId; may be given several times."),
    ] = None,
    idle_days: Annotated[
        float | None,
        typer.Option("--idle", metavar="DAYS", help="All that haven't sent for longer, by the times of the receipts."),
    ] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only in domains of this name. [default: in all]")
    ] = None,
) -> None:
    """Retire sources that have ended.

    A source keeps its newest W ids until it is retired. Then they expire by E as if newer ids had pushed them out. If the
    source sends again, it begins a new queue. Receivers, which may go on meanwhile, retire by themselves
    those silent for {receiver.retire_sources_after_days} days, and beyond {receiver.max_sources} sources those silent
    longest: the settings retire_sources_after_days and max_sources (0: never).
    """
    from receiver.durable.retiring import retire_sources

    if not sources and idle_days is None:
        raise SettingsError("say which sources: --source NAME or --idle DAYS", hint="receiver status counts them")
    if idle_days is not None and not 0 <= idle_days < float("inf"):
        raise SettingsError(f"--idle must be a number of days of at least 0, not {idle_days}")
    done = retire_sources(url, domain=domain, sources=sources or (), idle_days=idle_days)
    for name, retired, forgotten_ids, left in done:
        print(
            f"{named_domain(name, _LONGEST_NAME)}: {count(retired, 'source')} retired,"
            f" {count(forgotten_ids, 'id')} forgotten, {count(left, 'source')} left"
        )
    if not done:
        print(f"{sanitised_address(url)}: no domain keeps ids by source")
