"""SQLite: a file, which one transaction at a time may write."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, false, text, update
from sqlalchemy.dialects import sqlite

from receiver.errors import StoreCorruptError
from receiver.settings import StoreSettings
from receiver.store.connections import driver_of
from receiver.store.databases import causes
from receiver.store.databases.addresses import refused
from receiver.store.databases.bulk import insert_rows
from receiver.store.databases.causes import Cause
from receiver.store.databases.database import Database
from receiver.store.databases.space import FileVacuum
from receiver.store.databases.sqlite_file import is_file, open_to_read, open_to_write
from receiver.store.databases.sqlite_log import SqliteLog
from receiver.store.sql_log import runs_of
from receiver.store.tables import inbox, sequences

__all__ = ["Sqlite"]

_STEPS_AT_ONCE = 1_000_000
_SEQUENCE = inbox.c.sequence.name
_RUN = f"target_id = ? AND {_SEQUENCE} BETWEEN ? AND ?"
_PRIMARY = 0xFF
"""The part of a code that every refinement of it shares."""
_CANNOT_OPEN = Cause("it can't be opened", "its folder must exist and be writable, too, and it must be a file")
_NO_DATABASE = Cause("it is no database", "name another file, or restore a copy if this was a store", StoreCorruptError)
_CAUSES = {
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_BUSY: causes.BUSY,
    sqlite3.SQLITE_BUSY_SNAPSHOT: causes.OUTRUN,
    sqlite3.SQLITE_LOCKED: causes.BUSY,
    sqlite3.SQLITE_NOMEM: causes.MEMORY,
    sqlite3.SQLITE_READONLY: causes.READ_ONLY,
    sqlite3.SQLITE_IOERR: causes.INPUT_OUTPUT,
    sqlite3.SQLITE_CORRUPT: causes.CORRUPT,
    sqlite3.SQLITE_FULL: causes.FULL,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_PROTOCOL: causes.BUSY,  # others kept opening the write-ahead log at the same time
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
}
"""By extended or primary result code: https://sqlite.org/rescode.html"""


class Sqlite(Database):
    name = "sqlite"
    drivers = ("sqlite", "sqlite+pysqlite")
    log = SqliteLog
    insert = staticmethod(sqlite.insert)

    def checked(self, url: URL) -> URL:
        if url.database in {None, "", ":memory:"} or url.host or url.username:
            raise refused(url, "names no file")
        if url.query:
            raise refused(url, "has options, which SQLite's addresses don't take here")
        # A later change of the working directory must not lead to another file.
        return url.set(drivername="sqlite", database=os.path.abspath(url.database))  # noqa: PTH100 - links stay as named

    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        """Its transactions take the lock as they begin, unless the driver's connection is in one already."""
        return _engine(url, "BEGIN IMMEDIATE", partial(open_to_write, url, settings))

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        return _engine(url, "BEGIN", partial(open_to_read, url, settings))

    def cause_of(self, raw: BaseException) -> Cause | None:
        if not isinstance(raw, sqlite3.Error):
            return None
        code = getattr(raw, "sqlite_errorcode", None)  # what the driver itself finds wrong has none
        return causes.UNKNOWN if code is None else _CAUSES.get(code) or _CAUSES.get(code & _PRIMARY, causes.UNKNOWN)

    def locked_file(self, url: URL) -> Path | None:
        return Path(url.database or "").resolve()

    def is_there(self, url: URL) -> bool:
        return is_file(url)

    def keep_migrators_out(self, connection: Connection) -> None:
        """A transaction that writes has all of the file."""

    def wait_briefly_for_tables(self, connection: Connection) -> None:
        """Nobody else uses a table meanwhile."""

    def is_replaced(self, driver: Any) -> bool:
        return bool(driver.is_replaced())

    def tell_idle(self, driver: Any, is_idle: Callable[[], bool]) -> None:
        driver.is_idle = is_idle

    def autocommits(self, connection: Connection) -> bool:
        # A write, though of nothing, for that is what begins a transaction of the driver's.
        connection.execute(update(sequences).where(false()).values(last_seq_no=0))
        return not driver_of(connection).in_transaction

    def vacuum_of(self, table: str, *, truncates: bool) -> FileVacuum:
        del table, truncates  # the file is one for all
        return FileVacuum()

    def vacuum_of_all(self) -> FileVacuum:
        return FileVacuum()

    def add_waiting(self, driver: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        insert_rows(driver, _insert(tuple(columns)), rows)

    def waiting(
        self, driver: Any, columns: Sequence[str], target_id: int, numbers: Sequence[int]
    ) -> Iterator[Sequence[Any]]:
        select = f"SELECT {', '.join(columns)} FROM {inbox.name} WHERE {_RUN} ORDER BY {_SEQUENCE}"
        for run in runs_of(numbers) if numbers else []:
            yield from driver.execute(select, (target_id, *run))

    def delete_waiting(self, driver: Any, target_id: int, numbers: Sequence[int]) -> int:
        runs = runs_of(numbers) if numbers else []
        driver.executemany(f"DELETE FROM {inbox.name} WHERE {_RUN}", [(target_id, *run) for run in runs])
        return len(numbers)

    def accept_broken_text(self, driver: Any) -> None:
        driver.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")

    def damage(self, connection: Connection, advance: Callable[[int], None]) -> Iterator[str]:
        """In its own pages."""
        driver = driver_of(connection)
        driver.set_progress_handler(lambda: advance(0), _STEPS_AT_ONCE)
        try:
            # One by one, for it fails where damage is too bad to go on.
            for (said,) in connection.execute(text("PRAGMA integrity_check")):
                if said != "ok":
                    yield said
        finally:
            driver.set_progress_handler(None, 0)

    def size_bytes(self, connection: Connection, url: URL) -> int:
        """The whole file and its log."""
        del connection
        files = (Path(f"{url.database}{ending}") for ending in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _engine(url: URL, begin: str, open_file: Callable[[], sqlite3.Connection]) -> Engine:
    engine = create_engine(url, poolclass=NullPool, creator=open_file)

    @event.listens_for(engine, "begin")
    def begin_unless_begun(connection: Connection) -> None:
        if not driver_of(connection).in_transaction:
            connection.exec_driver_sql(begin)

    return engine


@lru_cache
def _insert(columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {inbox.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
