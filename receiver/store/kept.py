"""A connection to a store that is kept open: threads use it in turn, an error ends it, and who comes next makes another."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreError
from receiver.settings import StoreSettings
from receiver.store.engine import discard, driver_of, is_sqlite, store_url
from receiver.store.failures import translated
from receiver.store.schema import open_store_engine

__all__ = ["KeptConnection"]

_LOGGER = logging.getLogger("receiver")
_T = TypeVar("_T")


class KeptConnection:
    """Made when it is first needed. A process forked off can't use it.

    Raises SettingsError and StoreError when it is made, and what a driver raises becomes a `StoreError`.
    """

    def __init__(self, address: str, settings: StoreSettings | None, owner: str) -> None:
        if not isinstance(settings, StoreSettings | None):
            raise SettingsError(f"store_settings must be StoreSettings, not {settings!r:.80}")
        settings = settings or StoreSettings()
        self.url = store_url(address)
        self.engine = open_store_engine(self.url, settings)
        self._patience_secs = settings.lock_timeout_secs
        self._owner = owner
        self._kept: Connection | None = None
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False

    def check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"the {self._owner} was opened in process {self._pid} and can't be used in one forked off",
                hint="open another in the new process",
            )
        if self._is_closed:
            raise ClosedError(f"the {self._owner} is closed")

    @contextmanager
    def transaction(self, begin: Callable[[Connection], _T]) -> Iterator[tuple[Connection, _T]]:
        """A transaction that begins with this work, whose result is given too; an exception rolls it back."""
        with self._used() as connection:
            try:
                begun = begin(connection)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # The server was gone while the connection lay idle, and nothing was committed. SQLAlchemy makes another.
                connection.rollback()
                begun = begin(connection)
            yield connection, begun
            connection.commit()

    @contextmanager
    def between_transactions(self) -> Iterator[Any]:
        """The driver's own connection while no transaction is under way."""
        with self._used() as connection:
            yield driver_of(connection)

    def give_back_space(self, by: Callable[[Any], object]) -> None:
        """Do so between transactions. Where that fails there is a warning: what was to be done is done, and the next
        time is as good."""
        try:
            with self.between_transactions() as driver:
                by(driver)
        except StoreError as error:
            _LOGGER.warning("can't give back the space of messages that are gone: %s", error)

    def close(self) -> None:
        """End the connection. Closing again does nothing, and so does a process forked off."""
        if os.getpid() != self._pid:
            return
        with self._taking_turn():
            self._is_closed = True
            self._discard()

    @contextmanager
    def _used(self) -> Iterator[Connection]:
        self.check_usable()
        with translated(self.url), self._taking_turn():
            self.check_usable()  # it may have been closed meanwhile
            try:
                yield self._connected()
            except BaseException:
                self._discard()
                raise

    @contextmanager
    def _taking_turn(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=self._patience_secs):
            raise StoreBusyError(
                f"other threads kept the {self._owner} busy for {self._patience_secs:g} s",
                hint="keep transactions short, or raise lock_timeout_secs",
            )
        try:
            yield
        finally:
            self._turn.release()

    def _connected(self) -> Connection:
        if self._kept is not None and is_sqlite(self.url) and driver_of(self._kept).is_replaced():
            self._discard()
        if self._kept is None:
            self._kept = self.engine.connect()
            if is_sqlite(self.url):
                driver_of(self._kept).is_idle = lambda: not self._turn.locked()
        return self._kept

    def _discard(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            discard(connection)
