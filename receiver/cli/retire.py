"""`receiver retire`: sources that have ended give up their queues."""

from __future__ import annotations

from typing import Annotated

import typer

from receiver.cli.store_address import StoreAddress, tame_address
from receiver.errors import SettingsError
from receiver.report.words import count, tamed

__all__ = ["EPILOG", "retire"]

_LONGEST_NAME = 2000

EPILOG = """Examples:

receiver retire sqlite:///receiver.db --idle 30

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
    source sends again, it begins a new queue. Receivers retire by themselves what the settings max_sources and
    retire_sources_after_days say; they may go on while this command runs.
    """
    from receiver.durable.retiring import retire_sources

    if not sources and idle_days is None:
        raise SettingsError("say which sources: --source NAME or --idle DAYS", hint="receiver status counts them")
    if idle_days is not None and not 0 <= idle_days < float("inf"):
        raise SettingsError(f"--idle must be a number of days of at least 0, not {idle_days}")
    done = retire_sources(url, domain=domain, sources=sources or (), idle_days=idle_days)
    for name, retired, forgotten_ids, left in done:
        print(
            f"{tamed(name, _LONGEST_NAME) or '(no name)'}: {count(retired, 'source')} retired,"
            f" {count(forgotten_ids, 'id')} forgotten, {count(left, 'source')} left"
        )
    if not done:
        print(f"{tame_address(url)}: no domain keeps ids by source")
