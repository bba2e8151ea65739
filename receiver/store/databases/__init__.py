"""The kinds of databases: an object for each, which does what others do differently. No other room knows which there are.

| file | what is in it |
|---|---|
| `database.py` | `Database`: what each kind says of itself and does in its own way; addresses, and what can be wrong |
| `sqlite.py` | SQLite: the object, and a domain's rows |
| `sqlite_file.py` | its file: how it is opened, also after a fork, and when it is refused |
| `postgres.py` | PostgreSQL: the object, and a domain's rows |
| `postgres_faults.py` | what its errors say, and what to do about each |
| `claims.py` | the claims of concurrent receivers, which PostgreSQL alone has |

Here an address leads to its kind and to an engine. And drivers' exceptions become errors of this package, here and nowhere
else. The tables' options of one kind stand with the tables, in SQLAlchemy's own words.
"""

from __future__ import annotations

import re
from types import TracebackType

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from receiver.errors import SettingsError, StoreError
from receiver.settings import StoreSettings
from receiver.store.databases.database import UNKNOWN, Database, Fault, masked, refused, shown
from receiver.store.databases.postgres import Postgres
from receiver.store.databases.sqlite import Sqlite

_DATABASES: tuple[Database, ...] = (Sqlite(), Postgres())
_BY_NAME = {database.name: database for database in _DATABASES}
_BY_DRIVER = {driver: database for database in _DATABASES for driver in database.drivers}


def database_of(where: URL | Connection) -> Database:
    """The kind of database that a checked address, or a connection, leads to."""
    return _BY_NAME[where.get_backend_name() if isinstance(where, URL) else where.dialect.name]


def store_url(address: str | URL) -> URL:
    """The address of a store, checked and normalised: an absolute path, or a server through the driver we use.

    Raises SettingsError for any other address, MissingExtraError if that driver isn't installed.
    """
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise refused(address, "isn't a store's address") from None
    if re.search("[\0\ud800-\udfff]", str(address)):
        raise refused(address, "holds a character that no address can")
    if url.drivername not in _BY_DRIVER:
        raise refused(address, "isn't a store's address")
    return _BY_DRIVER[url.drivername].checked(url)


def read_only(url: URL) -> Engine:
    """An engine that only reads, one state of the database per transaction; creates and changes nothing."""
    return database_of(url).read_only(url, StoreSettings())


def engine_to_read(address: str) -> Engine:
    """An engine for a query of any database that SQLAlchemy knows. Of the kinds that stores have, it only reads.

    Raises SettingsError for what is no address, or one whose driver isn't installed.
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
"""The errors that reading a value may raise if no receiver has written it: it may be of any type."""


class translated:  # noqa: N801 - it reads as a verb; and a generator would cost a batch of one more than its decision
    """Within it, what SQLAlchemy or a driver raises becomes a `StoreError` caused by it; the rest passes through."""

    __slots__ = ("_address",)

    def __init__(self, address: str | URL) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # A driver raises its own where it is used directly.
        if error is not None and (isinstance(error, DBAPIError) or _fault(error) is not None):
            raise store_error(error, self._address) from error


def store_error(error: BaseException, address: str | URL) -> StoreError:
    """The error of this package for one of SQLAlchemy or of a driver, with a hint on the remedy."""
    raw = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    fault = _fault(raw) or UNKNOWN
    words = " ".join(str(raw).split())
    return fault.kind(f"{shown(address)}: {fault.problem}: {words}", hint=fault.hint)


def _fault(raw: BaseException) -> Fault | None:
    """The meaning of a driver's error; None for any other error."""
    faults = (database.fault_of(raw) for database in _DATABASES)
    return next((fault for fault in faults if fault is not None), None)
