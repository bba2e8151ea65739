"""`Database`, the interface of all kinds of databases; addresses; kinds of faults.

A `Database` object stands for a kind and has no state: connections and addresses come with each call.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, Table, make_url

from receiver.errors import SettingsError, StoreBusyError, StoreCorruptError, StoreError
from receiver.masking import masked
from receiver.settings import StoreSettings
from receiver.store.sql_rows import SqlRows, Vacuum
from receiver.store.tables import TABLE_NAMES

if TYPE_CHECKING:
    from receiver.store.databases.claims import Claims

ADDRESSES = (
    "sqlite:///FILE or postgresql://USER@HOST/DATABASE, for several servers postgresql://USER@/DATABASE?host=A:PORT&host=B:PORT; "
    "memory:// is for a receiver that keeps nothing"
)
"""The forms of a store's address, as a hint."""
OUR_NAMES = ", ".join(f"'{name}'" for name in TABLE_NAMES)
"""The names of a store's tables as a list in SQL."""
_SECRETS = ("password", "sslpassword")
_MEANT = (
    (re.compile(r"sqlite(?:\+\w+)?:(?:///?)?(?:file:)?(/?[^?/:][^?]*)(?:\?.*)?"), "sqlite:///{}"),
    (re.compile(r"([^:]+\.(?:db|sqlite3?))"), "sqlite:///{}"),
    (re.compile(r"(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?:(//.+)"), "postgresql:{}"),
)
"""Addresses in other notations, and their form here."""


def shown(address: str | URL) -> str:
    """An address as it may be shown: without its passwords."""
    return make_url(address).difference_update_query(_SECRETS).render_as_string(hide_password=True)


def not_concurrent_error() -> SettingsError:
    return SettingsError("concurrent receivers need PostgreSQL", hint="open the domain without concurrent=True")


def address_error(address: object, problem: str) -> SettingsError:
    """The error for an address that no store can have. The hint has the address that was probably meant."""
    given = masked(address)
    if isinstance(address, URL):  # a URL escapes what was written plainly, such as :memory:
        given = unquote(given)
    for form, written in _MEANT:
        meant = form.fullmatch(given)
        if meant and written.format(meant[1]) != given:
            return SettingsError(f"{given!r:.200} {problem}", hint=f"write {written.format(meant[1]):.200}")
    return SettingsError(f"{given!r:.200} {problem}", hint=ADDRESSES)


class Fault(NamedTuple):
    problem: str
    hint: str | None
    kind: type[StoreError] = StoreError


class FileBusyError(StoreBusyError):
    """Another transaction has the lock of the whole file."""


BUSY = Fault("others hold it", "try again, or raise lock_timeout_secs", StoreBusyError)
OUTRUN = Fault(
    "others committed since this transaction began", "roll it back, then try again in a new one", StoreBusyError
)
CORRUPT = Fault("it is damaged", "restore a copy", StoreCorruptError)
FULL = Fault("the disk is full", "make room: the store goes on by itself")
MEMORY = Fault("there is no memory left", "give the database more memory")
READ_ONLY = Fault("it is read-only", "make it writable, or name the server or the file that is")
INPUT_OUTPUT = Fault("the disk can't be read or written", "look for its fault in the log of the system")
NO_TABLE = Fault(
    "a table or its schema isn't there",
    "if this isn't the store's database, connect to that one, also in batch(connection=...); mind the search_path; restore a"
    " copy if the table was dropped",
)
UNKNOWN = Fault("the database failed", None)
SET_SEQUENCE = "set its sequence behind its last number, for logical replication copies no sequence"


LONGEST_NAME_BYTES = 2_000
"""The most bytes that the names in one key may have together. All databases must index them; PostgreSQL indexes up to 2,700."""
IDLE_AT_MOST = 32
"""How many idle connections a pool keeps. A restart of the server loses them all."""
OTHER_DATABASE = "use another database or, on PostgreSQL, another schema"
"""The hint if tables with our names are somebody else's."""


def not_kept_error(table: Table) -> StoreError:
    return StoreError(
        f"the database didn't keep a row of {table.name}",
        hint="drop the trigger or rule of that table that leaves rows out without an error; or " + SET_SEQUENCE,
    )


class Database(ABC):
    name: str
    """SQLAlchemy's name of the dialect."""
    drivers: tuple[str, ...]
    """How an address of this kind may begin."""
    rows: type[SqlRows]
    """The class for a domain's rows in a database of this kind."""
    insert: Callable[[Table], Any]
    """SQLAlchemy's INSERT of the dialect; only for the two methods that follow."""
    sql_columns: str
    """Selects table, name and type of each column of the tables and views with `OUR_NAMES`, and whether the table survives a
    crash of the server."""

    def insert_unless_there(self, connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row unless there is one with its key. Whether it was inserted."""
        row = self.insert(table).values(values).on_conflict_do_nothing()
        return bool(connection.execute(row, execution_options={"preserve_rowcount": True}).rowcount == 1)

    def insert_or_update(
        self, connection: Connection, table: Table, values: Mapping[str, Any], changes: Mapping[str, Any]
    ) -> None:
        """Insert a row, or make these changes to the row with its primary key. Either way the row is locked afterwards."""
        row = self.insert(table).values(values)
        row = row.on_conflict_do_update(index_elements=table.primary_key.columns, set_=changes)
        if connection.execute(row, execution_options={"preserve_rowcount": True}).rowcount == 0:
            raise not_kept_error(table)

    @abstractmethod
    def checked(self, url: URL) -> URL:
        """The address, normalised; `SettingsError` if it is wrong, `MissingExtraError` if a library isn't installed."""

    @abstractmethod
    def writable(self, url: URL, settings: StoreSettings) -> Engine:
        """An engine to read and write. Makes the file if there is none."""

    def pooled(self, url: URL, settings: StoreSettings, *, is_awaited: bool = False) -> Engine:
        """An engine to read and write that keeps connections for many transactions at once.

        `is_awaited`: it has an asynchronous driver, for use where SQLAlchemy awaits that.
        """
        del is_awaited
        return self.writable(url, settings)

    @abstractmethod
    def read_only(self, url: URL, settings: StoreSettings) -> Engine:
        """An engine that only reads: each transaction sees one state of the database. Creates and changes nothing."""

    @abstractmethod
    def fault_of(self, raw: BaseException) -> Fault | None:
        """The meaning of an error of this kind's driver; None for other errors."""

    @abstractmethod
    def size_bytes(self, connection: Connection) -> int:
        """The size of our tables."""

    @abstractmethod
    def why_unsafe(self, connection: Connection) -> str | None:
        """Why commits here may be lost, and what to do about it; None if nothing suggests that."""

    @abstractmethod
    def refuse_autocommit(self, connection: Connection) -> None:
        """Raise `SettingsError` for a caller's connection without a transaction to join."""

    @abstractmethod
    def vacuum_of(self, table: str, *, truncates: bool) -> Vacuum:
        """The vacuum for rows deleted from a table. `truncates`: it may shorten the table, which locks others out meanwhile."""

    # Each of these methods matters either to files or to servers. Its default is right for the others.

    def locked_file(self, _url: URL) -> Path | None:
        """The file, with links resolved, that a transaction locks as a whole; None if it only locks a domain."""
        return None

    def is_there(self, _url: URL) -> bool:
        """Whether there is a database; `StoreError` if there can't be a store."""
        return True

    def is_replaced(self, _driver: Any) -> bool:
        """Whether the address leads to another database by now than the connection."""
        return False

    def watch_idle(
        self, driver: Any, is_idle: Callable[[], bool], end_if_idle: Callable[[], None] | None = None
    ) -> None:
        """Make a forked process call `is_idle`, to learn whether the connection was between transactions.

        `end_if_idle` is called if the connection keeps a file's removed log open, which others of the process must not use.
        """

    def hidden_stores(self, _connection: Connection) -> str:
        """A few of the schemas with stores that the names of tables don't lead to, as `a or b`; empty without any."""
        return ""

    def may_hide_rows(self, _connection: Connection) -> bool:
        """Whether the transaction may not see, nor change, rows that were committed before its last statement."""
        return False

    def codec_of_text(self, _connection: Connection) -> str:
        """Python's name of an encoding all of whose text the database can hold, but for U+0000."""
        return "utf-8"

    def accept_broken_text(self, driver: Any) -> None:
        """Let invalid text be read instead of failing."""

    def damage(self, _connection: Connection, _on_rows: Callable[[int], None]) -> Iterator[str]:
        """The damage that the database's own check finds; calls `on_rows(0)` now and then."""
        return iter(())

    def vacuum_of_all(self) -> Vacuum | None:
        """The vacuum for rows deleted from any table; None if the database does this by itself."""
        return None

    def keep_migrators_out(self, connection: Connection) -> None:
        """Make other migrations wait until the transaction ends."""

    def wait_briefly_for_tables(self, connection: Connection) -> None:
        """Make a migration give up soon if others use a table, because they queue behind it while it waits."""

    def lock_tables(self, connection: Connection, names: Iterable[str]) -> None:
        """Wait for all transactions that use these tables, and make later ones wait until this one ends."""

    checks_of_constraints: tuple[str, ...] = ()
    """Statements that fail if the commit would fail by a deferred constraint. They change nothing."""

    @contextmanager
    def committing(self, _connection: Connection) -> Iterator[None]:
        """Commit a transaction within it. Raises if the database commits with a warning."""
        yield

    def server_run(self, _connection: Connection) -> Hashable:
        """Identifies the server's run, as `receiver.store.sql_rows.SqlRows.server_run`, or the file."""
        return None

    def check_concurrent(self) -> None:
        """Raise `SettingsError` if this kind can't have concurrent receivers."""
        raise not_concurrent_error()

    def check_sessions(self, url: URL, settings: StoreSettings) -> None:
        """Raise `SettingsError` if a session's lock doesn't last from one transaction of a connection to the next."""

    def claims(self, connection: Connection, domain_id: int) -> Claims:
        """The claims of a domain, by a connection of ours or of a caller's; `SettingsError` if this kind has none."""
        from receiver.store.databases.claims import Claims  # most receivers never need it

        self.check_concurrent()
        return Claims(connection, domain_id)
