"""What a driver's exception means and how to mend it: the one place where they become errors of this package."""

from __future__ import annotations

import sqlite3
import sys
from types import TracebackType
from typing import NamedTuple

from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError

from receiver.errors import StoreBusyError, StoreCorruptError, StoreError

__all__ = ["NONSENSE", "shown", "store_error", "translated"]

NONSENSE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What a database holds where it shouldn't be is of any type, and breaks whatever it comes to first, by one of these."""
_SECRETS = ("password", "sslpassword")
_PRIMARY = 0xFF
"""The part of an SQLite code that every refinement of it shares."""


class _Cause(NamedTuple):
    problem: str
    hint: str | None
    kind: type[StoreError] = StoreError


_BUSY = _Cause("others hold it", "try again, or raise lock_timeout_secs", StoreBusyError)
_OUTRUN = _Cause(
    "others committed since this transaction began", "roll it back, then try again in a new one", StoreBusyError
)
_CORRUPT = _Cause("it is damaged", "restore a copy", StoreCorruptError)
_NO_DATABASE = _Cause(
    "it is no database", "name another file, or restore a copy if this was a store", StoreCorruptError
)
_FULL = _Cause("the disk is full", "make room: the store goes on by itself")
_MEMORY = _Cause("there is no memory left", "give the database more memory")
_READ_ONLY = _Cause("it is read-only", "make it writable, or name the server or the file that is")
_INPUT_OUTPUT = _Cause("the disk can't be read or written", "look for its fault in the log of the system")
_CANNOT_OPEN = _Cause("it can't be opened", "its folder must exist and be writable, too, and it must be a file")
_FORBIDDEN = _Cause("the user may not do this", "grant the right that is named")
_REFUSED = _Cause("the server refuses the user", "check user and password, and pg_hba.conf on the server")
_NO_SUCH_DATABASE = _Cause("there is no such database", "create it first: CREATE DATABASE")
_FEW_CONNECTIONS = _Cause("the server has no connection left", "close others, or raise its max_connections")
_UNREACHABLE = _Cause("the server can't be reached", "check host and port, and that it runs")
_NOT_READY = _Cause("the server isn't ready", "try again when it is")
_LOST = _Cause("the connection is lost", "try again when the server is back")
_TOO_LONG = _Cause("the server ended it, which took too long", "keep batches short, or raise the time-out named")
_NO_TABLE = _Cause("a table or its schema isn't there", "mind the search_path; restore a copy if it was dropped")
_BAD_OPTION = _Cause("the address is wrong", "mend the option that is named")
_CANCELLED = _Cause("the server cancelled the statement", "raise its statement_timeout for this user")
_UNKNOWN = _Cause("the database failed", None)

_OF_SQLITE = {
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_BUSY_SNAPSHOT: _OUTRUN,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_NOMEM: _MEMORY,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: _INPUT_OUTPUT,
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_PROTOCOL: _BUSY,  # others kept opening the write-ahead log at the same time
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
}
"""By extended or primary result code: https://sqlite.org/rescode.html"""

_OF_POSTGRES = {
    "08": _LOST,
    "25006": _READ_ONLY,
    "25P03": _TOO_LONG,
    "25P04": _TOO_LONG,
    "28": _REFUSED,
    "3D000": _NO_SUCH_DATABASE,
    "3F000": _NO_TABLE,
    "40001": _OUTRUN,
    "40P01": _OUTRUN,
    "42501": _FORBIDDEN,
    "42P01": _NO_TABLE,
    "53100": _FULL,
    "53200": _MEMORY,
    "53300": _FEW_CONNECTIONS,
    "55P03": _BUSY,
    "57014": _CANCELLED,
    "57P": _LOST,
    "57P03": _NOT_READY,
    "58": _INPUT_OUTPUT,
    "XX001": _CORRUPT,
    "XX002": _CORRUPT,
}
"""By SQLSTATE or the beginning of one: https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_IN_WORDS = {
    "authentication failed": _REFUSED,
    "no password supplied": _REFUSED,
    "no pg_hba.conf entry": _REFUSED,
    "too many": _FEW_CONNECTIONS,
    "connection slots": _FEW_CONNECTIONS,
    "permission denied": _FORBIDDEN,
    "invalid connection option": _BAD_OPTION,
    "bad value for": _BAD_OPTION,
    'role "': _REFUSED,
    'database "': _NO_SUCH_DATABASE,
    "database system is": _NOT_READY,
    "connection failed": _UNREACHABLE,
    "connection is bad": _UNREACHABLE,
    "failed to resolve": _UNREACHABLE,
    "timeout": _UNREACHABLE,
    "consuming input failed": _LOST,
    "flushing failed": _LOST,
    "connection": _LOST,
}
"""What fails while connecting, or for want of a connection, has no SQLSTATE: the first of these in its text."""


class translated:  # noqa: N801 - it reads as a verb; and a generator would cost a batch of one more than its decision
    """Within it, what SQLAlchemy or a driver raises becomes a `StoreError` caused by it; the rest passes through."""

    __slots__ = ("_address",)

    def __init__(self, address: str | URL) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and _is_of_a_driver(error):
            raise store_error(error, self._address) from error


def _is_of_a_driver(error: BaseException) -> bool:
    # psycopg raises its own where it is used directly. Whoever never loaded it can't have met them.
    psycopg = sys.modules.get("psycopg")
    return isinstance(error, DBAPIError | sqlite3.Error) or (psycopg is not None and isinstance(error, psycopg.Error))


def store_error(error: BaseException, address: str | URL) -> StoreError:
    """The error of this package for one of SQLAlchemy, `sqlite3` or psycopg, with a hint on the remedy."""
    raw = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    cause = _cause(raw)
    words = " ".join(str(raw).split())
    return cause.kind(f"{shown(address)}: {cause.problem}: {words}", hint=cause.hint)


def shown(address: str | URL) -> str:
    """An address as it may be shown: without its passwords."""
    return make_url(address).difference_update_query(_SECRETS).render_as_string(hide_password=True)


def _cause(raw: BaseException) -> _Cause:
    if isinstance(raw, sqlite3.Error):
        code = getattr(raw, "sqlite_errorcode", None)  # what the driver itself finds wrong has none
        return _UNKNOWN if code is None else _OF_SQLITE.get(code) or _OF_SQLITE.get(code & _PRIMARY, _UNKNOWN)
    state = getattr(raw, "sqlstate", None)
    if state is None:
        text = str(raw)
        return next((cause for words, cause in _IN_WORDS.items() if words in text), _UNKNOWN)
    beginnings = (state[:length] for length in (5, 3, 2))
    return next((_OF_POSTGRES[beginning] for beginning in beginnings if beginning in _OF_POSTGRES), _UNKNOWN)
