"""The meaning of PostgreSQL's errors, and a remedy for each."""

from __future__ import annotations

import re
import sys

from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from receiver.errors import StoreBusyError
from receiver.store.databases import database
from receiver.store.databases.database import Fault
from receiver.store.tables import VERSION_TABLE

READ_ONLY = "25006"
_ALL_IN_USE = Fault(
    "tasks have all connections of the receiver in use",
    "keep batches short, raise lock_timeout_secs, or give batch() a connection of yours",
    StoreBusyError,
)
_FORBIDDEN = Fault("the user may not do this", "grant the right that is named")
_DENIED = re.compile(r"(permission denied for|must be owner of) (\w+) (\S+)")
_RIGHTS = {
    "database": "CONNECT ON DATABASE",
    "schema": "USAGE, CREATE ON SCHEMA",
    "sequence": "USAGE ON SEQUENCE",
    "table": "SELECT, INSERT, UPDATE, DELETE ON",
}
"""The privileges to grant, by kind of object."""
_NUMBERED = re.compile(r'unique constraint "(receiver_(?:parked|recorded|arrival))_pkey"')
"""The tables whose rows are numbered by a sequence, where one that is behind isn't noticed earlier."""
_REFUSED = Fault("the server refuses the user", "check user and password, and pg_hba.conf on the server")
_NO_SUCH_DATABASE = Fault("there is no such database", "create it first: CREATE DATABASE")
_FEW_CONNECTIONS = Fault(
    "the server has no connection left",
    "close others, or raise its max_connections or the CONNECTION LIMIT of what is named",
)
_UNREACHABLE = Fault("the server can't be reached", "check host and port, and that it runs")
_NOT_READY = Fault("the server isn't ready", "try again when it is")
_LOST = Fault("the connection is lost", "try again when the server is back")
_TOO_LONG = Fault("the server ended it, which took too long", "keep batches short, or raise the time-out named")
_NO_TLS = Fault(
    "client and server don't agree on TLS", "mend sslmode or sslrootcert in the address, or the server's certificate"
)
_BAD_OPTION = Fault("the address is wrong", "mend the option that is named")
_DEADLOCK = database.OUTRUN._replace(problem="it and another transaction waited for each other")
_FAILED_BEFORE = Fault("an earlier statement of the transaction failed", "roll it back, then try again in a new one")
_CANCELLED = Fault("the server cancelled the statement", "try again, or raise its statement_timeout for this user")
_UNKNOWN_STATEMENT = Fault(
    "the server doesn't know a statement that was prepared, or knows another", "PgBouncer needs pool_mode=session"
)
_DISABLED = Fault("PgBouncer has the database disabled", "ENABLE it there")
_NO_TRANSACTIONS = _UNKNOWN_STATEMENT._replace(problem="PgBouncer allows no transaction")
_FEW_POOLED = Fault(
    "PgBouncer has no connection left",
    "close others, or raise its default_pool_size or max_client_conn; check that the server runs",
)
_FAULTS = {
    "08": _LOST,
    READ_ONLY: database.READ_ONLY,
    "25P02": _FAILED_BEFORE,
    "25P03": _TOO_LONG,
    "25P04": _TOO_LONG,
    "26": _UNKNOWN_STATEMENT,
    "28": _REFUSED,
    "3D000": _NO_SUCH_DATABASE,
    "3F000": database.NO_TABLE,
    "40001": database.OUTRUN,
    "40P01": _DEADLOCK,
    "42501": _FORBIDDEN,
    "42P01": database.NO_TABLE,
    "42P05": _UNKNOWN_STATEMENT,
    "53100": database.FULL,
    "53200": database.MEMORY,
    "53300": _FEW_CONNECTIONS,
    "55P03": database.BUSY,
    "57014": _CANCELLED,
    "57P": _LOST,
    "57P03": _NOT_READY,
    "58": database.INPUT_OUTPUT,
    "XX001": database.CORRUPT,
    "XX002": database.CORRUPT,
}
"""By SQLSTATE or the beginning of one: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
_OF_PGBOUNCER = {
    "query_wait_timeout": _FEW_POOLED,
    "max_client_conn": _FEW_POOLED,
    "statement pooling": _NO_TRANSACTIONS,
    "idle transaction timeout": _TOO_LONG,
    "query timeout": _TOO_LONG,
    '" is disabled': _DISABLED,
    "no such database": _NO_SUCH_DATABASE._replace(hint="name it among PgBouncer's [databases]"),
    "no such user": _REFUSED,
    "unsupported startup parameter": _BAD_OPTION,
}
"""By a part of the text: PgBouncer's errors all have the SQLSTATE 08P01, or none while connecting."""
_IN_WORDS = {
    "No space left": database.FULL,
    "authentication failed": _REFUSED,
    "no password supplied": _REFUSED,
    "pg_hba.conf": _REFUSED,
    "too many": _FEW_CONNECTIONS,
    "connection slots": _FEW_CONNECTIONS,
    "permission denied": _FORBIDDEN,
    "invalid connection option": _BAD_OPTION,
    "bad value for": _BAD_OPTION,
    ' value: "': _BAD_OPTION,
    "SSL required": _NO_TLS,
    "SSL was required": _NO_TLS,
    "certificate": _NO_TLS,
    'role "': _REFUSED,
    "not currently accepting": _NOT_READY,
    'database "': _NO_SUCH_DATABASE,
    "database system is": _NOT_READY,
    "session is read-only": database.READ_ONLY,
    "server is in hot standby": database.READ_ONLY,
    "connection failed": _UNREACHABLE,
    "connection is bad": _UNREACHABLE,
    "failed to resolve": _UNREACHABLE,
    "timeout": _UNREACHABLE,
    "consuming input failed": _LOST,
    "flushing failed": _LOST,
    "pipeline mode": _LOST,
    "results from command": _LOST,
    "connection": _LOST,
}
"""Errors without SQLSTATE, raised while connecting or when a connection is lost or lacking. Keyed by a part of their text: the
first part that matches decides."""


def fault_of(raw: BaseException) -> Fault | None:
    """The meaning of an exception of psycopg, asyncpg or the connection pool; None for others."""
    if isinstance(raw, PoolTimeoutError):
        return _ALL_IN_USE
    # A driver that isn't loaded can't have raised an error.
    psycopg = sys.modules.get("psycopg")
    asyncpg = sys.modules.get("sqlalchemy.dialects.postgresql.asyncpg")  # used in callers' transactions
    if not (psycopg is not None and isinstance(raw, psycopg.Error)) and not (
        asyncpg is not None and isinstance(raw, asyncpg.AsyncAdapt_asyncpg_dbapi.Error)
    ):
        return None
    said, state = str(raw), raw.sqlstate or ""
    by_words = {"": _OF_PGBOUNCER | _IN_WORDS, "08P01": _OF_PGBOUNCER}.get(state, {})
    faults = [fault for words, fault in by_words.items() if words in said]
    faults += [_FAULTS[state[:length]] for length in (5, 3, 2) if state[:length] in _FAULTS]
    fault = next(iter(faults), database.UNKNOWN)
    if taken := _NUMBERED.search(said):
        return Fault(f"a row of {taken[1]} has the next number already", database.SET_SEQUENCE)
    return fault if fault is not _FORBIDDEN else _forbidden(said)


def _forbidden(said: str) -> Fault:
    """The fault of a missing privilege, with the statement that grants it if the server names the object."""
    if "row-level security" in said:
        return _FORBIDDEN._replace(hint="switch row-level security off for our tables, or give the user BYPASSRLS")
    denied = _DENIED.search(said)
    if denied is None:
        return _FORBIDDEN
    problem, kind, name = denied.groups()
    if problem == "must be owner of":
        return _FORBIDDEN._replace(hint="run receiver migrate as the user who owns the tables")
    if kind not in _RIGHTS:
        return _FORBIDDEN
    if name == VERSION_TABLE:  # only a migration writes there, and the tables that it makes should be the owner's too
        hint = f"as the owner of the table: GRANT SELECT ON {name} TO the user; to upgrade, run receiver migrate as the owner"
        return _FORBIDDEN._replace(hint=hint)
    return _FORBIDDEN._replace(hint=f"as the owner of the {kind}: GRANT {_RIGHTS[kind]} {name} TO the user")
