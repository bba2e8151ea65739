"""SQLite: a file that one transaction at a time may write, and a domain's log in it."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, false, text, update
from sqlalchemy.dialects import sqlite

from receiver.errors import SettingsError, StoreCorruptError
from receiver.message import ReceiptValues
from receiver.settings import StoreSettings
from receiver.store.codec import runs_of
from receiver.store.databases import database
from receiver.store.databases.database import OUR_NAMES, Database, Fault, address_error
from receiver.store.databases.sqlite_file import (
    check_its_log,
    identity_of,
    is_file,
    open_to_read,
    open_to_write,
    set_up,
    why_unsafe,
)
from receiver.store.sql_rows import SqlRows, Statements, autocommit_error, driver_of
from receiver.store.tables import DomainState, domains, receipt_codec, receipts, sequences

_ROWS_PER_STATEMENT = 50
"""So few that they fit a build of SQLite that takes only 999 values in a statement."""


def insert_rows(driver: Any, insert: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows in few statements. `insert` must end with its `VALUES (?, …)`.

    `executemany` releases the interpreter's lock at each row. If another thread is busy, such as a connector's, it then waits
    at each row to get the lock back.
    """
    left = iter(rows)
    while len(batch := list(islice(left, _ROWS_PER_STATEMENT))) == _ROWS_PER_STATEMENT:
        driver.execute(_of_many(insert), list(chain.from_iterable(batch)))
    driver.executemany(insert, batch)


@lru_cache
def _of_many(insert: str) -> str:
    one = insert[insert.rindex("(") :]
    return insert + f", {one}" * (_ROWS_PER_STATEMENT - 1)


_INCREMENTAL = (2,)
_FEW_PAGES = 16
_LONGEST_SECS = 0.03
"""How long pages are moved at a time. The commit takes about half as long again, and others wait for both."""


class FileVacuum:
    """Gives back an SQLite file's empty pages once they exceed a quarter of it: a part at a time, until few are left.

    In a file that an application made before us, they can't be given back. SQLite then fills them with later rows.
    """

    def __init__(self, now_secs: Callable[[], float] = time.monotonic) -> None:
        self._now_secs = now_secs
        self._is_due = False
        self._has_begun = False

    def note(self, deleted: int) -> None:
        self._is_due = self._is_due or deleted > 0

    def run_if_due(self, driver: Any) -> bool:
        if not self._is_due:
            return False
        if driver.execute("PRAGMA auto_vacuum").fetchone() != _INCREMENTAL:
            self._is_due = False
            return False
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        if self._has_begun or _free_pages(driver) > max(_FEW_PAGES, pages // 4):
            self._give_back(driver)
            self._has_begun = _free_pages(driver) > _FEW_PAGES
        self._is_due = self._has_begun
        return self._is_due

    def _give_back(self, driver: Any) -> None:
        driver.execute("BEGIN IMMEDIATE")
        until_secs = self._now_secs() + _LONGEST_SECS
        # A few empty pages stay for the next batch.
        for _ in range(_free_pages(driver) - _FEW_PAGES // 2):
            driver.execute("PRAGMA incremental_vacuum")  # gives back one page; as a script it would give back all
            if self._now_secs() >= until_secs:
                break
        driver.execute("COMMIT")


def _free_pages(driver: Any) -> int:
    (free,) = driver.execute("PRAGMA freelist_count").fetchone()
    return int(free)


class SqliteRows(SqlRows):
    sql = Statements("?", for_update="")  # a transaction that writes locks the whole file

    @property
    def in_transaction(self) -> bool:
        return bool(self.driver.in_transaction)

    def begin(self) -> DomainState:
        self.cursor.execute("BEGIN IMMEDIATE")
        return self.read(self.sql.lock)

    def begin_at_once(self) -> DomainState:
        with self._without_waiting():
            # By a cursor of its own: ours would keep the statement if it fails, and so the file open.
            self.driver.execute("BEGIN IMMEDIATE")
        return self.read(self.sql.lock)

    def begin_if_free(self) -> DomainState | None:
        return self.read(self.sql.lock) if self._locks_at_once() else None

    def _locks_at_once(self) -> bool:
        try:
            with self._without_waiting():
                self.driver.execute("BEGIN IMMEDIATE")  # as in `begin_at_once`
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def is_kept_out(self) -> bool:
        if not self._locks_at_once():
            return True
        self.driver.rollback()
        return False

    def begin_reading(self) -> DomainState:
        self.cursor.execute("BEGIN")
        return self.read(self.sql.read)

    @contextmanager
    def _without_waiting(self) -> Iterator[None]:
        waits_again = self._waits_again
        self.driver.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self.driver.execute(waits_again)

    @cached_property
    def _waits_again(self) -> str:
        """The statement for the connection's own patience, which is read once: each batch of ours begins without waiting."""
        (patience_ms,) = self.driver.execute("PRAGMA busy_timeout").fetchone()
        return f"PRAGMA busy_timeout = {patience_ms}"

    def join(self, patience_secs: float) -> DomainState:
        del patience_secs  # the caller of a batch waits, without the locks of this process
        _refuse_attached(self.driver)
        with self._without_waiting():
            # A write, because that begins the driver's transaction and takes the lock.
            self.driver.execute(_TOUCH, (self.domain_id,))
        if not self.driver.in_transaction:
            raise autocommit_error()
        self.driver.execute(f"SAVEPOINT {_JOINED}")
        return self.read(self.sql.lock)

    def is_joined(self) -> bool:
        _refuse_attached(self.driver)  # a file may have been attached since
        # If a disk is full or a statement interrupted, SQLite itself rolls all back, and the driver begins another transaction.
        try:
            self.driver.execute(f"RELEASE {_JOINED}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            return False
        return True

    def append(self, rows: Sequence[ReceiptValues]) -> None:
        if len(rows) == 1:  # converting a single row by columns takes a tenth longer
            self.cursor.execute(self.sql.append, *self.stored(rows))
            return
        # Empty columns cost as much as others, and half of them are usually empty in all rows. So those are left out.
        columns = zip(receipt_codec.columns, receipt_codec.stored_columns(rows), strict=True)
        used = {name: values for name, values in columns if values.count(None) < len(rows)}
        values = f"{self.domain_id:d}{', ?' * len(used)}"
        insert = f"INSERT INTO {receipts.name} (domain_id, {', '.join(used)}) VALUES ({values})"
        insert_rows(self.driver, insert, zip(*used.values(), strict=True))

    def delete(self, seqs: Sequence[int]) -> None:
        self.driver.executemany(_DELETE, [(self.domain_id, *run) for run in runs_of(seqs)])


def _refuse_attached(driver: Any) -> None:
    """Raise `SettingsError` if other files are attached: with write-ahead logs SQLite commits one file after the other."""
    if any(file for _, name, file in driver.execute("PRAGMA database_list").fetchall() if name != "main"):
        raise SettingsError(
            "the connection has another file attached, and SQLite doesn't commit two files as a whole",
            hint="give a connection that has the store's file alone, with your tables in it",
        )


_JOINED = "receiver_batch"
"""A savepoint that shows whether a caller's transaction goes on."""
_DELETE = f"DELETE FROM {receipts.name} WHERE domain_id = ? AND seq BETWEEN ? AND ?"
_TOUCH = f"UPDATE {domains.name} SET last_seq = last_seq WHERE domain_id = ?"
_BEGINS = re.compile(r"\s*begin(\s+(deferred|immediate|exclusive))?(\s+transaction)?\s*;?\s*", re.IGNORECASE)
_STEPS_AT_ONCE = 1_000_000
_PRIMARY = 0xFF
"""Masks the primary result code, which all its extended codes share."""
_FILE = "receiver_file"
"""Key in a connection's `info`: its file."""
_CANNOT_OPEN = Fault("it can't be opened", "its folder must exist and be writable, too, and it must be a file")
_NO_DATABASE = Fault(
    "it isn't a database", "name another file, or restore a copy if this was a store", StoreCorruptError
)
_FAULTS = {
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_BUSY: database.BUSY._replace(kind=database.FileBusyError),
    sqlite3.SQLITE_BUSY_SNAPSHOT: database.OUTRUN,
    sqlite3.SQLITE_LOCKED: database.BUSY,
    sqlite3.SQLITE_NOMEM: database.MEMORY,
    sqlite3.SQLITE_READONLY: database.READ_ONLY,
    sqlite3.SQLITE_IOERR: database.INPUT_OUTPUT,
    sqlite3.SQLITE_CORRUPT: database.CORRUPT,
    sqlite3.SQLITE_FULL: database.FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: database.FULL,  # no room for the index of the write-ahead log
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_PROTOCOL: database.BUSY,  # others kept opening the write-ahead log at the same time
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
}
"""By extended or primary result code: https://sqlite.org/rescode.html"""


class Sqlite(Database):
    name = "sqlite"
    drivers = ("sqlite", "sqlite+pysqlite")
    rows = SqliteRows
    insert = staticmethod(sqlite.insert)
    sql_columns = (
        "SELECT m.name, c.name, upper(c.type), 1 FROM sqlite_master m, pragma_table_xinfo(m.name) c"
        f" WHERE m.type IN ('table', 'view') AND m.name IN ({OUR_NAMES})"
    )

    def checked(self, url: URL) -> URL:
        if url.database in {None, "", ":memory:"} or url.host or url.username:
            raise address_error(url, "names no file")
        if url.query:
            raise address_error(url, "has options, which SQLite's addresses don't take here")
        # A later change of the working directory must not lead to another file.
        path = os.path.abspath(url.database)  # noqa: PTH100 - links stay as named
        try:
            path.encode()
        except UnicodeEncodeError:
            raise address_error(url, "lies in a folder whose name isn't UTF-8") from None
        return url.set(drivername="sqlite", database=path)

    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        """An engine to read and write. Transactions take the lock when they begin, unless the driver's connection is in one."""
        check_its_log(url)
        engine = _engine(url, "BEGIN IMMEDIATE", partial(open_to_write, url, settings))
        # Once more, after an application's listeners for all engines: many set synchronous to NORMAL, which syncs no commit.
        event.listen(engine, "connect", lambda driver, _: set_up(driver, settings))
        return engine

    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        return _engine(url, "BEGIN", partial(open_to_read, url, settings))

    def fault_of(self, raw: BaseException) -> Fault | None:
        if not isinstance(raw, sqlite3.Error):
            return None
        code = getattr(raw, "sqlite_errorcode", None)  # None for errors of the driver itself
        if code == sqlite3.SQLITE_ERROR and "no such table" in str(raw):
            return database.NO_TABLE
        return database.UNKNOWN if code is None else _FAULTS.get(code) or _FAULTS.get(code & _PRIMARY, database.UNKNOWN)

    def why_unsafe(self, connection: Connection) -> str | None:
        return why_unsafe(connection.engine.url)

    def locked_file(self, url: URL) -> Path | None:
        return Path(url.database or "").resolve()

    def is_there(self, url: URL) -> bool:
        return is_file(url)

    def is_replaced(self, driver: Any) -> bool:
        return bool(driver.is_replaced())

    def watch_idle(
        self, driver: Any, is_idle: Callable[[], bool], end_if_idle: Callable[[], None] | None = None
    ) -> None:
        driver.is_idle = is_idle
        driver.end_if_idle = end_if_idle or driver.end_if_idle

    def server_run(self, connection: Connection) -> Hashable:
        """Identifies the file: another that replaces it, such as an older copy, may lack its commits."""
        if _FILE not in connection.info:
            files = driver_of(connection).execute("PRAGMA database_list").fetchall()
            with suppress(OSError):  # it is gone, which the next transaction says
                connection.info[_FILE] = next(identity_of(file) for _, name, file in files if name == "main")
        return cast("Hashable", connection.info.get(_FILE))

    def refuse_autocommit(self, connection: Connection) -> None:
        _refuse_attached(driver_of(connection))
        # A write, though of no row, because that begins the driver's transaction.
        connection.execute(update(sequences).where(false()).values(last_seq_no=0))
        if not driver_of(connection).in_transaction:
            raise autocommit_error()

    def vacuum_of(self, table: str, *, truncates: bool) -> FileVacuum:
        del table, truncates  # all tables share the file
        return FileVacuum()

    def vacuum_of_all(self) -> FileVacuum:
        return FileVacuum()

    def accept_broken_text(self, driver: Any) -> None:
        driver.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")

    def damage(self, connection: Connection, on_rows: Callable[[int], None]) -> Iterator[str]:
        """The damage that SQLite's integrity check finds."""
        driver = driver_of(connection)
        driver.set_progress_handler(lambda: on_rows(0), _STEPS_AT_ONCE)
        try:
            # One by one, because it fails if damage is too bad to go on.
            for (said,) in connection.execute(text("PRAGMA integrity_check")):
                if said != "ok":
                    yield said
        finally:
            driver.set_progress_handler(None, 0)

    def size_bytes(self, connection: Connection) -> int:
        """The size of the whole file and its log."""
        files = (Path(f"{connection.engine.url.database}{ending}") for ending in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _engine(url: URL, begin: str, open_file: Callable[[], sqlite3.Connection]) -> Engine:
    engine = create_engine(url, poolclass=NullPool, creator=open_file)

    @event.listens_for(engine, "begin")
    def begin_unless_begun(connection: Connection) -> None:
        driver = driver_of(connection)
        if not driver.in_transaction:
            driver.execute(begin)

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def begin_as_we_do(
        connection: Connection, _: object, statement: str, values: Any, *_more: object
    ) -> tuple[str, Any]:
        """Let an application's listener for all engines begin no other transaction than ours, and none inside a batch's."""
        if _BEGINS.fullmatch(statement):
            statement = "" if driver_of(connection).in_transaction else begin
        return statement, values

    return engine
