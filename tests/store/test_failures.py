"""Drivers' exceptions become errors of the package: the whole mapping, and real failures where possible."""

import sqlite3

import psycopg
import pytest
from psycopg import errors as pg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from receiver.errors import ClosedError, StoreBusyError, StoreCorruptError, StoreError
from receiver.store.databases import store_error, translated
from receiver.store.databases.database import FileBusyError

SQLITE = [
    # code, error, a word of the problem, a word of the hint
    (sqlite3.SQLITE_BUSY, FileBusyError, "others hold it", "try again"),
    (sqlite3.SQLITE_BUSY_RECOVERY, FileBusyError, "others hold it", "try again"),
    (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusyError, "others committed", "roll it back"),
    (sqlite3.SQLITE_LOCKED, StoreBusyError, "others hold it", "try again"),
    (sqlite3.SQLITE_LOCKED_SHAREDCACHE, StoreBusyError, "others hold it", "try again"),
    (sqlite3.SQLITE_CORRUPT, StoreCorruptError, "damaged", "restore"),
    (sqlite3.SQLITE_CORRUPT_INDEX, StoreCorruptError, "damaged", "restore"),
    (sqlite3.SQLITE_NOTADB, StoreCorruptError, "isn't a database", "another file"),
    (sqlite3.SQLITE_FULL, StoreError, "full", "make room"),
    (sqlite3.SQLITE_IOERR_SHMSIZE, StoreError, "full", "make room"),
    (sqlite3.SQLITE_READONLY, StoreError, "read-only", "writable"),
    (sqlite3.SQLITE_READONLY_DBMOVED, StoreError, "read-only", "writable"),
    (sqlite3.SQLITE_CANTOPEN, StoreError, "can't be opened", "folder"),
    (sqlite3.SQLITE_CANTOPEN_ISDIR, StoreError, "can't be opened", "folder"),
    (sqlite3.SQLITE_PERM, StoreError, "can't be opened", "folder"),
    (sqlite3.SQLITE_IOERR_FSYNC, StoreError, "can't be read or written", "log"),
    (sqlite3.SQLITE_NOMEM, StoreError, "memory", "memory"),
    (sqlite3.SQLITE_PROTOCOL, StoreBusyError, "others hold it", "try again"),
    (sqlite3.SQLITE_CONSTRAINT, StoreError, "the database failed", None),
    (None, StoreError, "the database failed", None),
]
POSTGRES = [
    ("55P03", StoreBusyError, "others hold it", "try again"),
    ("40001", StoreBusyError, "others committed", "roll it back"),
    ("40P01", StoreBusyError, "waited for each other", "roll it back"),
    ("XX001", StoreCorruptError, "damaged", "restore"),
    ("XX002", StoreCorruptError, "damaged", "restore"),
    ("53100", StoreError, "full", "make room"),
    ("53200", StoreError, "memory", "memory"),
    ("53300", StoreError, "no connection left", "max_connections"),
    ("25006", StoreError, "read-only", "writable"),
    ("28P01", StoreError, "refuses the user", "password"),
    ("28000", StoreError, "refuses the user", "password"),
    ("3D000", StoreError, "no such database", "CREATE DATABASE"),
    ("42501", StoreError, "may not", "grant"),
    ("08006", StoreError, "lost", "try again"),
    ("57P01", StoreError, "lost", "try again"),
    ("57P02", StoreError, "lost", "try again"),
    ("57P03", StoreError, "isn't ready", "try again"),
    ("57P05", StoreError, "lost", "try again"),
    ("25P03", StoreError, "took too long", "keep batches short"),
    ("25P04", StoreError, "took too long", "keep batches short"),
    ("57014", StoreError, "cancelled", "try again, or raise its statement_timeout"),
    ("58030", StoreError, "can't be read or written", "log"),
    ("23505", StoreError, "the database failed", None),
    ("42P01", StoreError, "isn't there", "search_path"),
    ("3F000", StoreError, "isn't there", "search_path"),
]
WITHOUT_STATE = [
    (
        'connection failed: connection to server at "h" failed: FATAL:  password authentication failed for user "u"',
        "refuses",
    ),
    ("connection failed: fe_sendauth: no password supplied", "refuses"),
    ('connection failed: FATAL:  no pg_hba.conf entry for host "h", user "u", database "d"', "refuses"),
    (
        'connection failed: FATAL:  pg_hba.conf rejects connection for host "h", user "u", database "d", SSL on',
        "refuses",
    ),
    ('connection failed: FATAL:  role "u" does not exist', "refuses"),
    ("connection failed: FATAL:  no such user: u", "refuses"),
    ('connection failed: FATAL:  database "d" does not exist', "no such database"),
    ('connection failed: FATAL:  database "d" is not currently accepting connections', "isn't ready"),
    ('connection failed: FATAL:  permission denied for database "d"', "may not"),
    ('connection failed: FATAL:  could not extend file "base/5/1249": No space left on device', "the disk is full"),
    ("connection failed: FATAL:  sorry, too many clients already", "no connection left"),
    ('connection failed: FATAL:  too many connections for role "u"', "no connection left"),
    ("connection failed: FATAL:  remaining connection slots are reserved", "no connection left"),
    ("connection failed: FATAL:  the database system is starting up", "isn't ready"),
    ('connection failed: connection to server at "h" failed: Connection refused', "can't be reached"),
    ('connection is bad: connection to server on socket "/s" failed: No such file or directory', "can't be reached"),
    ("failed to resolve host 'h': [Errno -2] Name or service not known", "can't be reached"),
    ("connection timeout expired", "can't be reached"),
    ('connection failed: connection to server at "h" failed: session is read-only', "it is read-only"),
    ('connection failed: connection to server at "h" failed: server is in hot standby mode', "it is read-only"),
    ("server closed the connection unexpectedly\n\tThis probably means", "lost"),
    ("consuming input failed: SSL SYSCALL error: EOF detected", "lost"),
    ("the connection is closed", "lost"),
    ("cannot exit pipeline mode while busy", "lost"),
    ('invalid connection option "sslmod"', "the address is wrong"),
    ("bad value for connect_timeout: 'x'", "the address is wrong"),
    ('connection is bad: invalid sslmode value: "x"', "the address is wrong"),
    ("connection failed: FATAL:  unsupported startup parameter: options", "the address is wrong"),
    ("connection failed: server does not support SSL, but SSL was required", "don't agree on TLS"),
    ("connection failed: FATAL:  SSL required", "don't agree on TLS"),
    ('connection failed: root certificate file "f" does not exist', "don't agree on TLS"),
    ("connection failed: SSL error: certificate verify failed", "don't agree on TLS"),
    ('connection failed: server certificate for "a" does not match host name "b"', "don't agree on TLS"),
]
ADDRESS = "postgresql://bridge:secret@db/orders"


@pytest.mark.parametrize(("code", "kind", "problem", "hint"), SQLITE)
def test_sqlite(code, kind, problem, hint):
    error = sqlite3.OperationalError("what SQLite says")
    if code is not None:
        error.sqlite_errorcode = code
    assert_says(store_error(error, "sqlite:///f"), kind, problem, hint)


@pytest.mark.parametrize(("state", "kind", "problem", "hint"), POSTGRES)
def test_postgresql(state, kind, problem, hint):
    assert_says(store_error(pg.lookup(state)("what the server says"), ADDRESS), kind, problem, hint)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("permission denied for table receiver_domain", "GRANT SELECT, INSERT, UPDATE, DELETE ON receiver_domain TO"),
        ("permission denied for table receiver_alembic_version", "GRANT SELECT ON receiver_alembic_version TO"),
        ("permission denied for table receiver_alembic_version", "run receiver migrate as the owner"),
        ("permission denied for schema public\nLINE 2", "GRANT USAGE, CREATE ON SCHEMA public TO"),
        (
            "permission denied for sequence receiver_arrival_number",
            "GRANT USAGE ON SEQUENCE receiver_arrival_number TO",
        ),
        ("must be owner of table receiver_domain", "run receiver migrate as the user who owns"),
        ("permission denied to set parameter", "grant the right"),
        ('new row violates row-level security policy for table "receiver_domain"', "give the user BYPASSRLS"),
    ],
)
def test_a_right_that_is_missing(words, remedy):
    error = store_error(pg.InsufficientPrivilege(words), ADDRESS)
    assert remedy in error.hint


def test_a_sequence_that_is_behind():
    """As after logical replication."""
    said = 'duplicate key value violates unique constraint "receiver_parked_pkey"\nDETAIL:  Key (parked_id)=(1) already exists.'
    assert_says(
        store_error(pg.UniqueViolation(said), ADDRESS), StoreError, "a row of receiver_parked has", "set its sequence"
    )
    assert_says(
        store_error(pg.UniqueViolation(said.replace("parked", "domain")), ADDRESS),
        StoreError,
        "the database failed",
        None,
    )


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ('too many connections for database "d"', "CONNECTION LIMIT"),
        ('database "d" is disabled', "ENABLE"),
        ("no such database: d", "PgBouncer's [databases]"),
        ('database "d" does not exist', "CREATE DATABASE"),
    ],
)
def test_what_keeps_others_from_connecting(words, remedy):
    error = store_error(psycopg.OperationalError(f"connection failed: FATAL:  {words}"), ADDRESS)
    assert remedy in error.hint


@pytest.mark.parametrize(("words", "problem"), WITHOUT_STATE)
def test_postgresql_without_a_state(words, problem):
    """Failures to connect have no SQLSTATE."""
    error = store_error(psycopg.OperationalError(words), ADDRESS)
    assert_says(error, StoreError, problem, "")
    assert "\n" not in error.message


def assert_says(error, kind, problem, hint):
    assert type(error) is kind
    assert problem in error.message
    assert error.hint is None if hint is None else hint in error.hint
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    "raw", [sqlite3.OperationalError("why"), pg.DiskFull("why"), OperationalError("SQL", {}, pg.DiskFull("why"))]
)
def test_the_cause_stays_chained(raw):
    with pytest.raises(StoreError, match="why") as caught, translated(ADDRESS):
        raise raw
    assert caught.value.__cause__ is raw
    assert "SQL" not in caught.value.message


@pytest.mark.parametrize(
    "error", [ClosedError("closed"), StoreBusyError("busy"), ZeroDivisionError(), KeyboardInterrupt()]
)
def test_the_rest_passes_through(error):
    with pytest.raises(type(error)) as caught, translated(ADDRESS):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_a_real_lock(tmp_path):
    """SQLAlchemy's exception has the code too."""
    address = f"sqlite:///{tmp_path}/f"
    engine = create_engine(address, connect_args={"timeout": 0})
    with sqlite3.connect(tmp_path / "f", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusyError), translated(address), engine.connect() as connection:
            connection.execute(text("SELECT * FROM sqlite_master"))
    holder.close()
    engine.dispose()


def test_real_states_of_a_server(fresh_postgres_url):
    engine = create_engine(fresh_postgres_url)
    with engine.connect() as connection:
        for statement, problem in {
            "SELECT 1 / 0": "the database failed",
            "SET LOCAL statement_timeout = 1; SELECT pg_sleep(1)": "cancelled",
            "SET TRANSACTION READ ONLY; CREATE TABLE t (c int)": "read-only",
            "SET LOCAL ROLE pg_monitor; CREATE SCHEMA s": "may not",
        }.items():
            with pytest.raises(StoreError, match=problem) as caught, translated(fresh_postgres_url):
                connection.exec_driver_sql(statement)
            assert isinstance(caught.value.__cause__, DBAPIError)
            connection.rollback()
    engine.dispose()
