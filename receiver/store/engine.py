"""Connections to a store: which addresses there are, and how a session is set up on either kind of database.

Engines keep no connections of their own: a receiver opens one and keeps it as long as it lives.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from receiver.errors import MissingExtraError, SettingsError
from receiver.settings import StoreSettings
from receiver.store import forks
from receiver.store.failures import shown

__all__ = ["discard", "driver_of", "is_sqlite", "lock_timeout_ms", "read_only", "store_url", "writable"]

_ADDRESSES = "sqlite:///FILE or postgresql://USER@HOST/DATABASE; memory:// is for a receiver that keeps nothing"
_SQLITE = ("sqlite", "sqlite+pysqlite")
_POSTGRES = ("postgresql", "postgresql+psycopg")
_PAUSE_SECS = 0.01
_LARGEST_IDLE_LOG_BYTES = 16 << 20
"""Of SQLite's write-ahead log once all of it is in the file: what a larger transaction needed is given back."""
_CREDENTIALS = re.compile(r"\A([\w+]+:/+)?.*@|(password=)[^&]*", re.DOTALL)


def store_url(address: str | URL) -> URL:
    """The address of a store, checked and normalised: an absolute path, or PostgreSQL through psycopg.

    Raises SettingsError for any other address, MissingExtraError if psycopg isn't installed.
    """
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise _no_address(address, "is no address of a store") from None
    if "\0" in str(address):
        raise _no_address(address, "holds a character that no address can")
    if url.drivername in _SQLITE:
        return _file_url(url)
    if url.drivername in _POSTGRES:
        return _server_url(url)
    raise _no_address(address, "is no address of a store")


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def writable(url: URL, settings: StoreSettings) -> Engine:
    """An engine to read and write. On SQLite its transactions take the lock as they begin, unless the driver's
    connection is in one already; the file is created if need be, and writes ahead from then on."""
    if is_sqlite(url):
        return _sqlite_engine(url, "BEGIN IMMEDIATE", partial(_open_to_write, url, settings))
    return _postgres_engine(url, "READ COMMITTED", {"lock_timeout": lock_timeout_ms(settings)})


def read_only(url: URL) -> Engine:
    """An engine that only reads, one state of the database per transaction; creates and changes nothing."""
    settings = StoreSettings()
    if is_sqlite(url):
        return _sqlite_engine(url, "BEGIN", partial(_open_to_read, url, settings))
    session = {"lock_timeout": lock_timeout_ms(settings), "default_transaction_read_only": "on"}
    return _postgres_engine(url, "REPEATABLE READ", session)


def driver_of(connection: Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.dbapi_connection


def discard(connection: Connection) -> None:
    """End a connection, whatever state it is in."""
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()


def _no_address(address: object, problem: str) -> SettingsError:
    return SettingsError(f"{_masked(address)!r:.200} {problem}", hint=_ADDRESSES)


def _masked(address: object) -> str:
    # Not `shown`: it may not even be an address, and still hold a password.
    return _CREDENTIALS.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1] or ''}***@", str(address))


def _file_url(url: URL) -> URL:
    if url.database in {None, "", ":memory:"} or url.host or url.username:
        raise _no_address(url, "names no file")
    if url.query:
        raise _no_address(url, "has options, which SQLite's addresses don't take here")
    # A later change of the working directory must not lead to another file.
    return url.set(drivername="sqlite", database=os.path.abspath(url.database))  # noqa: PTH100 - links stay as named


def _server_url(url: URL) -> URL:
    if url.host and "@" in url.host:
        raise SettingsError(f"{_masked(url)!r:.200} has more than one @", hint="write %40 for one in a password")
    try:
        import psycopg  # noqa: F401 - is it there, and its libpq?
    except ImportError as error:
        raise MissingExtraError("postgres", f"the store {shown(url)}") from error
    try:
        url.get_dialect()().create_connect_args(url)
    except ArgumentError as error:  # says what of several hosts and ports doesn't fit
        raise SettingsError(f"{_masked(url)!r:.200}: {error}", hint=_ADDRESSES) from None
    return url.set(drivername="postgresql+psycopg")


def lock_timeout_ms(settings: StoreSettings) -> str:
    """For PostgreSQL's `lock_timeout`, where 0 would mean no limit."""
    return str(max(1, round(settings.lock_timeout_secs * 1000)))


def _postgres_engine(url: URL, isolation_level: str, session: dict[str, str]) -> Engine:
    defaults = {
        "connect_timeout": 10,
        "application_name": "receiver",
        # A server that vanished without a word is noticed within half a minute, not after the system's two hours.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
    options = {name: value for name, value in defaults.items() if name not in url.query}
    engine = create_engine(
        url,
        poolclass=NullPool,
        # Whatever the defaults of server, database and user are.
        isolation_level=isolation_level,
        connect_args={**options, "client_encoding": "utf8"},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        for name, value in session.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()

    return engine


def _sqlite_engine(url: URL, begin: str, open_file: Callable[[], sqlite3.Connection]) -> Engine:
    engine = create_engine(url, poolclass=NullPool, creator=open_file)

    @event.listens_for(engine, "begin")
    def begin_unless_begun(connection: Connection) -> None:
        if not driver_of(connection).in_transaction:
            connection.exec_driver_sql(begin)

    return engine


def _open_to_write(url: URL, settings: StoreSettings) -> sqlite3.Connection:
    connection = _opened(url, settings, "mode=rwc")
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):
            # Only before the first page is written, so that forgotten rows' pages can be given back.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _write_ahead(connection, settings.lock_timeout_secs)
        connection.execute(f"PRAGMA synchronous = {settings.sqlite_synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_LOG_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection, patience_secs: float) -> None:
    """Switch the file to a write-ahead log, trying again: who meets another at it fails at once, whatever the timeout."""
    give_up_at = time.monotonic() + patience_secs
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                raise
            time.sleep(_PAUSE_SECS)
        else:
            return


def _open_to_read(url: URL, settings: StoreSettings) -> sqlite3.Connection:
    connection = _opened(url, settings, _way_to_read(Path(url.database or "").resolve()))
    connection.execute("PRAGMA query_only = ON")
    return connection


def _way_to_read(file: Path) -> str:
    with suppress(FileNotFoundError):
        if Path(f"{file}-wal").stat().st_size > 0:
            return "mode=ro"  # the last to close a writable file brings it up to date from its log
    if not os.access(file.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return "immutable=1"  # else SQLite needs files beside it
    return "mode=rw"  # which removes those files when it closes; with mode=ro they stay


def _opened(url: URL, settings: StoreSettings, options: str) -> forks.Connection:
    file = Path(url.database or "")
    forks.check_not_inherited(file)
    connection = sqlite3.connect(
        f"{file.as_uri()}?{options}",
        uri=True,
        factory=forks.Connection,
        timeout=settings.lock_timeout_secs,
        isolation_level=None,  # transactions begin and end where we say
        check_same_thread=False,  # threads take turns under a lock of the receiver's
    )
    connection.watch(file)
    return connection
