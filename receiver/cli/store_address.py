"""The address of a store, as the commands that look after one take and show it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["StoreAddress", "shown_address", "tame_address"]

_LONGEST = 2000

StoreAddress = Annotated[
    str, typer.Argument(metavar="URL", help="The store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.")
]


def shown_address(url: str) -> str:
    """The address as it may be shown, without its password; SettingsError if it is none."""
    from receiver.store.databases.database import shown
    from receiver.store.engine import store_url

    return shown(store_url(url))


def tame_address(url: str) -> str:
    """The same, harmless on a terminal."""
    from receiver.report.words import tamed

    return tamed(shown_address(url), _LONGEST)
