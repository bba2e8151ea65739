"""What both makers are: open on a store, with a connection that threads use in turn, or a guest in the caller's transaction.

Nothing is kept in memory: each call asks the store, so that any number of processes may make ids under one name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from receiver.closing import Closing
from receiver.errors import SettingsError
from receiver.settings import StoreSettings
from receiver.store.databases.database import LONGEST_NAME_BYTES
from receiver.store.engine import database_of
from receiver.store.failures import translated
from receiver.store.joined_log import joinable
from receiver.store.kept import KeptConnection
from receiver.store.tables import to_bytes

__all__ = ["Maker", "name_bytes"]

_T = TypeVar("_T")
_LONGEST_NAME_BYTES = LONGEST_NAME_BYTES // 2  # two make a key


def name_bytes(name: str, value: object) -> bytes:
    """A name as it is stored; SettingsError if it is empty, no text or too long."""
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{name} must be text, and not empty, not {value!r:.80}")
    stored = to_bytes(value)
    if len(stored) > _LONGEST_NAME_BYTES:
        raise SettingsError(f"{name} has more than {_LONGEST_NAME_BYTES:,} bytes: {value!r:.80}")
    return stored


class Maker(Closing):
    def __init__(self, url: str, settings: StoreSettings | None) -> None:
        self._kept = KeptConnection(url, settings, type(self).__name__)

    def close(self) -> None:
        """End the connection to the store. Closing again does nothing, and so does a process forked off."""
        self._kept.close()

    def _run(self, work: Callable[[Connection], _T], connection: Connection | None) -> _T:
        """Do the work in the caller's transaction, or else in one of our own that is committed before this returns."""
        kept = self._kept
        if connection is None:
            with kept.transaction(work) as (_, done):
                return done
        kept.check_usable()
        with translated(kept.url):
            joined = joinable(connection, kept.engine.dialect, type(self).__name__)
            _check_transaction(joined)
            return work(joined)


def _check_transaction(connection: Connection) -> None:
    """Raise SettingsError if what is done on the connection is committed at once."""
    if database_of(connection).autocommits(connection):
        raise SettingsError(
            "the connection is in AUTOCOMMIT, so there is no transaction to join",
            hint="give a connection with a transaction, or none at all",
        )
