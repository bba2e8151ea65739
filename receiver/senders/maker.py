"""What both makers are: open on a store, with a connection that threads use in turn, or a guest in the caller's transaction.

Nothing is kept in memory: each call asks the store, so that any number of processes may make ids under one name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, false, update
from sqlalchemy.exc import DBAPIError

from receiver.errors import ClosedError, SettingsError
from receiver.settings import StoreSettings
from receiver.store.engine import is_sqlite, store_url
from receiver.store.failures import translated
from receiver.store.joined_log import joinable
from receiver.store.schema import open_store_engine
from receiver.store.tables import sequences, to_bytes

__all__ = ["Maker", "name_bytes"]

_T = TypeVar("_T")
_LONGEST_NAME_BYTES = 1_000  # two make a key, and PostgreSQL can index 2,700 bytes of one


def name_bytes(name: str, value: object) -> bytes:
    """A name as it is stored; SettingsError if it is empty, no text or too long."""
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{name} must be text, and not empty, not {value!r:.80}")
    stored = to_bytes(value)
    if len(stored) > _LONGEST_NAME_BYTES:
        raise SettingsError(f"{name} has more than {_LONGEST_NAME_BYTES:,} bytes: {value!r:.80}")
    return stored


class Maker:
    def __init__(self, url: str, settings: StoreSettings | None) -> None:
        if not isinstance(settings, StoreSettings | None):
            raise SettingsError(f"store_settings must be StoreSettings, not {settings!r:.80}")
        self._url = store_url(url)
        self._engine = open_store_engine(self._url, settings or StoreSettings())
        self._kept: Connection | None = None
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the store. Closing again does nothing, and so does a process forked off."""
        if os.getpid() != self._pid:
            return
        with self._turn:
            self._is_closed = True
            self._discard()

    def _run(self, work: Callable[[Connection], _T], connection: Connection | None) -> _T:
        """Do the work in the caller's transaction, or else in one of our own that is committed before this returns."""
        self._check_usable()
        with translated(self._url):
            if connection is not None:
                joined = joinable(connection, self._engine.dialect, type(self).__name__)
                _check_transaction(joined)
                return work(joined)
            with self._turn:
                self._check_usable()  # it may have been closed meanwhile
                return self._committed(work)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"the {type(self).__name__} was opened in process {self._pid} and can't be used in one forked off",
                hint="open another in the new process",
            )
        if self._is_closed:
            raise ClosedError(f"the {type(self).__name__} is closed")

    def _committed(self, work: Callable[[Connection], _T]) -> _T:
        connection = self._connected()
        try:
            try:
                done = work(connection)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # The server was gone while the connection lay idle, and nothing was committed. SQLAlchemy makes another.
                connection.rollback()
                done = work(connection)
            connection.commit()
        except BaseException:
            self._discard()
            raise
        return done

    def _connected(self) -> Connection:
        if self._kept is not None and is_sqlite(self._url) and _driver(self._kept).is_replaced():
            self._discard()
        if self._kept is None:
            self._kept = self._engine.connect()
            if is_sqlite(self._url):
                _driver(self._kept).is_idle = lambda: not self._turn.locked()
        return self._kept

    def _discard(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            with suppress(Exception):
                connection.invalidate()
            with suppress(Exception):
                connection.close()


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def _check_transaction(connection: Connection) -> None:
    """Raise SettingsError if what is done on the connection is committed at once."""
    if connection.dialect.name == "sqlite":
        # A write, though of nothing, for that is what begins a transaction of the driver's.
        connection.execute(update(sequences).where(false()).values(last_seq_no=0))
        autocommits = not _driver(connection).in_transaction
    else:
        autocommits = _driver(connection).autocommit
    if autocommits:
        raise SettingsError(
            "the connection is in AUTOCOMMIT, so there is no transaction to join",
            hint="give a connection with a transaction, or none at all",
        )
