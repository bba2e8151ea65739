"""Connections to a store: which addresses there are, whose kind of database each means, and engines on it.

Engines keep no connections of their own: a receiver opens one and keeps it as long as it lives.
"""

from __future__ import annotations

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError

from receiver.settings import StoreSettings
from receiver.store.databases.addresses import refused
from receiver.store.databases.database import Database
from receiver.store.databases.postgres import Postgres
from receiver.store.databases.sqlite import Sqlite

__all__ = ["DATABASES", "database_of", "read_only", "store_url", "writable"]

DATABASES: tuple[Database, ...] = (Sqlite(), Postgres())
_BY_NAME = {database.name: database for database in DATABASES}
_BY_DRIVER = {driver: database for database in DATABASES for driver in database.drivers}


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
        raise refused(address, "is no address of a store") from None
    if "\0" in str(address):
        raise refused(address, "holds a character that no address can")
    if url.drivername not in _BY_DRIVER:
        raise refused(address, "is no address of a store")
    return _BY_DRIVER[url.drivername].checked(url)


def writable(url: URL, settings: StoreSettings) -> Engine:
    """An engine to read and write; where there is nothing yet, what holds a store is made."""
    return database_of(url).writable(url, settings)


def read_only(url: URL) -> Engine:
    """An engine that only reads, one state of the database per transaction; creates and changes nothing."""
    return database_of(url).read_only(url, StoreSettings())
