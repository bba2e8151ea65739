"""The kinds of databases, each an object with its own ways of doing things. No other room knows which kinds there are.

| file | what is in it |
|---|---|
| `database.py` | `Database`: the interface of all kinds; addresses; kinds of faults |
| `sqlite.py` | SQLite: the object, and a domain's rows |
| `sqlite_file.py` | SQLite's file: how it is opened, also after a fork, and when it is refused |
| `postgres.py` | PostgreSQL: the object, and a domain's rows |
| `postgres_faults.py` | the meaning of PostgreSQL's errors, and a remedy for each |
| `claims.py` | the claims of concurrent receivers, on PostgreSQL alone |

This module finds the kind of an address, and makes engines. It alone turns drivers' exceptions into errors of this package.
Options of tables that only one kind knows are with the tables, as SQLAlchemy's arguments.
"""

from __future__ import annotations

import re
from types import TracebackType

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from receiver.errors import SettingsError, StoreBusyError, StoreCorruptError, StoreError
from receiver.masking import masked
from receiver.settings import StoreSettings
from receiver.store.databases.database import FULL, UNKNOWN, Database, Fault, address_error, shown
from receiver.store.databases.postgres import Postgres
from receiver.store.databases.sqlite import Sqlite

_DATABASES: tuple[Database, ...] = (Sqlite(), Postgres())
_BY_NAME = {database.name: database for database in _DATABASES}
_BY_DRIVER = {driver: database for database in _DATABASES for driver in database.drivers}


def database_of(where: URL | Connection) -> Database:
    """The kind of database that a checked address, or a connection, leads to."""
    return _BY_NAME[where.get_backend_name() if isinstance(where, URL) else where.dialect.name]


def store_url(address: str | URL) -> URL:
    """The address of a store, checked and normalised: an absolute path, or a server with the driver that we use.

    Raises `SettingsError` for any other address, `MissingExtraError` if that driver isn't installed.
    """
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise address_error(address, "isn't a store's address") from None
    if re.search("[\0\ud800-\udfff]", str(address)):
        raise address_error(address, "holds a character that no address can")
    if url.drivername not in _BY_DRIVER:
        raise address_error(address, "isn't a store's address")
    return _BY_DRIVER[url.drivername].checked(url)


def read_only(url: URL, settings: StoreSettings | None = None) -> Engine:
    """An engine that only reads: each transaction sees one state of the database. Creates and changes nothing."""
    return database_of(url).read_only(url, settings or StoreSettings())


def engine_to_read(address: str) -> Engine:
    """An engine for a query of any database that SQLAlchemy knows. For the kinds that stores use, it is read-only.

    Raises `SettingsError` for an invalid address, or if its driver isn't installed.
    """
    try:
        if make_url(address).drivername in _BY_DRIVER:
            return read_only(store_url(address))
        return create_engine(address)
    except (SQLAlchemyError, ValueError) as error:
        raise SettingsError(
            f"{masked(address)!r:.200} isn't the address of a database: {error}",
            hint="such as sqlite:///file or postgresql://host/database",
        ) from error
    except ImportError as error:
        raise SettingsError(f"{masked(address)} can't be opened: {error}", hint="install its driver") from error


NONSENSE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""The errors that may be raised by reading a value that no receiver has written: it may have any type."""


def nonsense_error(problem: str, error: Exception) -> StoreCorruptError:
    """The error for such a value; `problem` says where it is."""
    return StoreCorruptError(f"{problem}: {error}", hint="`receiver check` says what is wrong; restore a copy")


class translated:  # noqa: N801 - it reads as a verb; and a generator would cost a batch of one more than its decision
    """Within it, an error of SQLAlchemy or a driver becomes a `StoreError` with that cause. Other errors pass through."""

    __slots__ = ("_address",)

    def __init__(self, address: str | URL) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # A driver that is used directly raises its own errors.
        if error is not None and (isinstance(error, DBAPIError) or _fault(error) is not None):
            raise store_error(error, self._address) from error


def store_error(error: BaseException, address: str | URL) -> StoreError:
    """The error of this package for an error of SQLAlchemy or a driver, with a hint on the remedy."""
    raw = _raw(error)
    fault = _fault(raw) or UNKNOWN
    words = " ".join(str(raw).split())
    return fault.kind(f"{shown(address)}: {fault.problem}: {words}", hint=fault.hint)


def no_fault_of_its_statement(error: BaseException, connection: Connection) -> StoreError | None:
    """The `StoreError` for an error that says that others hold what a statement needs, that the disk is full, or why the connection
    is lost; else None.

    A busy file doesn't count: the connection's transaction has it, so a second connection of the same thread waits there.
    """
    database, url = database_of(connection), connection.engine.url
    fault = database.fault_of(_raw(error)) or UNKNOWN
    is_held = issubclass(fault.kind, StoreBusyError) and database.locked_file(url) is None
    is_lost = connection.invalidated and fault is not UNKNOWN
    return store_error(error, url) if is_held or is_lost or fault is FULL else None


def _raw(error: BaseException) -> BaseException:
    """The driver's own error."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _fault(raw: BaseException) -> Fault | None:
    """The meaning of a driver's error; None for any other error."""
    faults = (database.fault_of(raw) for database in _DATABASES)
    return next((fault for fault in faults if fault is not None), None)
