"""A store's connection that is kept open, and used by one thread at a time; a row that is made if it is new."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, Executable, Select, Table
from sqlalchemy.exc import DBAPIError

from receiver.closing import acquire_noted, acquired_if_free
from receiver.errors import ClosedError, StoreBusyError, StoreError
from receiver.settings import StoreSettings, checked_settings
from receiver.store.databases import database_of, read_only, store_url, translated
from receiver.store.databases.database import not_kept_error
from receiver.store.schema import open_store_engine
from receiver.store.sql_rows import discard, driver_of

_LOGGER = logging.getLogger("receiver")
_T = TypeVar("_T")


def kept_busy_error(who_what: str, secs: float, *, short: str = "batches and transactions") -> StoreBusyError:
    """The error if others of this process kept something for too long, such as "other threads kept the receiver"."""
    return StoreBusyError(f"{who_what} busy for {secs:g} s", hint=f"keep {short} short, or raise lock_timeout_secs")


class Guarded:
    """Something that one thread uses at a time, until it is closed, and only in the process that opened it."""

    def __init__(self, name: str, uses: str, patience_secs: float, thread_lock: threading.Lock | None = None) -> None:
        """`name` and `uses` are for errors: what the object is, and what it is used for. None makes a lock of its own."""
        self.patience_secs = patience_secs
        self._name = name
        self._uses = uses
        self._thread_lock = thread_lock or threading.Lock()
        self.held_by: Hashable = None
        """The thread, or the event loop's task, that has acquired it."""
        self._pid = os.getpid()
        self.is_closed = False

    @property
    def is_forked_off(self) -> bool:
        """Whether this process was forked after the opening: then the connection is its parent's."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise `ClosedError` in a process that was forked off."""
        if self.is_forked_off:
            raise ClosedError(
                f"the {self._name} was opened in process {self._pid} and can't be used in one forked off",
                hint="open another in the new process",
            )

    def check_usable(self) -> None:
        self.check_process()
        if self.is_closed:
            raise ClosedError(f"the {self._name} is closed", hint="open another, or close this one after its last use")

    def acquire(self, owner: Hashable = None) -> None:
        """Acquire it for this thread or `owner`; `ClosedError` also if it was closed while we waited."""
        self.check_usable()  # before the lock, which a forked process may have inherited locked, for ever
        has_it: list[bool] = []
        try:
            acquire_noted(self._thread_lock, has_it, within_secs=self.patience_secs)
            if has_it[0]:
                self.check_usable()
        except BaseException:
            if any(has_it):
                self._thread_lock.release()
            raise
        if not has_it[0]:
            raise kept_busy_error(f"other threads kept the {self._name}", self.patience_secs, short=self._uses)
        self.held_by = owner

    def release(self, owner: Hashable = None) -> None:
        """Release it, unless its owner has done so before an interrupt."""
        if self.held_by == owner:
            self.held_by = None
            self._thread_lock.release()

    @contextmanager
    def _acquired_if_free(self) -> Iterator[bool]:
        """Within it, we have acquired the object if it was free and usable; yields whether we have."""
        with acquired_if_free(self._thread_lock) as is_ours:
            yield is_ours and not (self.is_closed or self.is_forked_off)

    def _acquire_to_close(self) -> bool:
        """Acquire it for the last time; False if it is closed already, or if only the parent process may close it."""
        try:
            self.acquire()
        except ClosedError:
            return False
        self.is_closed = True
        return True


class KeptConnection(Guarded):
    """A connection that is made when it is first needed, and kept open. A forked process can't use it.

    Its constructor raises `SettingsError` and `StoreError`. Later, a driver's errors become `StoreError`s. If it
    `only_reads`, it doesn't wait for writers.
    """

    def __init__(
        self, address: str | URL, settings: StoreSettings | None, name: str, *, only_reads: bool = False
    ) -> None:
        self.settings = settings = checked_settings("store_settings", settings, StoreSettings)
        super().__init__(name, "transactions", settings.lock_timeout_secs)
        self.url = store_url(address)
        self._database = database_of(self.url)
        self.engine = read_only(self.url, settings) if only_reads else open_store_engine(self.url, settings)
        self._kept: Connection | None = None

    @contextmanager
    def transaction(self, begin: Callable[[Connection], _T]) -> Iterator[tuple[Connection, _T]]:
        """A transaction, rolled back by an exception. `begin` does its first work; the result of that is yielded too.

        If the connection turns out to be lost, `begin` is tried again, on another connection.
        """
        with self._used() as connection:
            try:
                begun = begin(connection)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # The server went away while the connection was idle, so nothing is lost. SQLAlchemy now makes another.
                connection.rollback()
                begun = begin(connection)
            yield connection, begun
            with self._database.committing(connection):
                connection.commit()

    def read(self, query: Executable) -> Sequence[Any]:
        """The rows of a query, in a transaction of its own."""
        with self.transaction(lambda connection: connection.execute(query).all()) as (_, rows):
            return rows

    def give_back_space(self, by: Callable[[Any], bool]) -> bool:
        """Give space back by calling `by` between transactions; returns whether more is left to do, as `by` does.

        A failure is only a warning: the rows are deleted, and their space can be given back the next time.
        """
        try:
            with self._used() as connection:
                return by(driver_of(connection))
        except StoreError as error:
            _LOGGER.warning("can't give back the space of what was deleted: %s", error)
            return False

    def close(self) -> None:
        """End the connection. Closing again does nothing, nor does closing in a forked process."""
        if self._acquire_to_close():
            try:
                self._discard()
            finally:
                self.release()

    @contextmanager
    def _used(self) -> Iterator[Connection]:
        self.acquire()
        try:
            with translated(self.url):
                yield self._connected()
        except BaseException:
            self._discard()  # rolls back too, whatever the connection was in the middle of
            raise
        finally:
            self._thread_lock.release()  # at once: an interrupt where a function of ours begins would leave it locked

    def _connected(self) -> Connection:
        if self._kept is not None and self._database.is_replaced(driver_of(self._kept)):
            self._discard()
        if self._kept is None:
            self._kept = self.engine.connect()
            # A forked process may close a file only if its parent had no transaction under way there.
            self._database.watch_idle(
                driver_of(self._kept), lambda: not self._thread_lock.locked(), self._discard_if_free
            )
        return self._kept

    def _discard_if_free(self) -> None:
        with self._acquired_if_free() as is_ours:
            if is_ours:
                self._discard()

    def _discard(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            discard(connection)


def get_or_create(
    engine: Engine,
    wanted: Select[Any],
    table: Table,
    new: Callable[[Connection], Mapping[str, Any]],
    settings: StoreSettings,
) -> int:
    """The number that `wanted` selects, after a row of `new` was inserted if there was none. Processes may race for this."""
    # A read needn't wait for a batch under way, so a second process can stand by.
    with read_only(engine.url, settings).connect() as connection:
        number: int | None = connection.execute(wanted).scalar()
    if number is None:
        with engine.begin() as connection:  # another process may be faster: then we take its row
            database_of(connection).insert_unless_there(connection, table, new(connection))
            number = connection.execute(wanted).scalar()
            if number is None:
                raise not_kept_error(table)
    return number
