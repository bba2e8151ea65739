"""New databases for the benchmarks, and the raw driver at its best on the same table."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import create_engine, make_url

from receiver.message import ReceiptRow
from receiver.store.tables import METADATA, receipt_codec, receipts
from tests.postgres import GIVEN_SERVER, fresh_database, running_server

RawRow = tuple[object, ...]

_NAMES = ("domain_id", *receipt_codec.columns)
_COLUMNS = ", ".join(_NAMES)
_SELECT = f"SELECT {', '.join(receipt_codec.columns)} FROM {receipts.name} WHERE domain_id = 1 ORDER BY seq"  # noqa: S608 - the table's own names
_INSERT = f"INSERT INTO {receipts.name} ({_COLUMNS}) VALUES "  # noqa: S608
# As text: the server reads text a third faster than binary, although bytes take twice as much room in it.
_COPY = f"COPY {receipts.name} ({_COLUMNS}) FROM STDIN"
_VACUUM_IS_DUE = "SELECT n_dead_tup > 50 + 0.05 * n_live_tup FROM pg_stat_user_tables WHERE relname = %s"
_NAP_SECS = 1
_MOST_NAPS = 15


def _marks(placeholder: str) -> str:
    return ", ".join([placeholder] * len(_NAMES))


def raw_rows(rows: Iterable[tuple[str, str, int]]) -> list[RawRow]:
    """Receipts as rows of the table, ready for the driver."""
    receipts = [
        ReceiptRow(seq, received_at_us, None, source, id_)
        for seq, (id_, source, received_at_us) in enumerate(rows, start=1)
    ]
    return [(1, *values) for values in zip(*receipt_codec.stored_columns(receipts), strict=True)]


class Raw(ABC):
    """A store that is used through its driver alone. Appending commits."""

    connection: Any

    @abstractmethod
    def append(self, rows: Sequence[RawRow]) -> None: ...

    @abstractmethod
    def append_one(self, row: RawRow) -> None: ...

    @abstractmethod
    def fetch(self) -> list[RawRow]:
        """All receipts, in order, in the columns that a receiver reads."""

    @abstractmethod
    def size_bytes(self) -> int: ...

    @abstractmethod
    def settle(self) -> None:
        """Wait until the database has tidied up by itself."""

    def close(self) -> None:
        self.connection.close()


class _RawSqlite(Raw):
    def __init__(self, url: str) -> None:
        self._file = Path(make_url(url).database or "")
        self.connection = sqlite3.connect(self._file)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")

    def append(self, rows: Sequence[RawRow]) -> None:
        self.connection.executemany(f"{_INSERT} ({_marks('?')})", rows)
        self.connection.commit()

    def append_one(self, row: RawRow) -> None:
        self.connection.execute(f"{_INSERT} ({_marks('?')})", row)
        self.connection.commit()

    def fetch(self) -> list[RawRow]:
        rows: list[RawRow] = self.connection.execute(_SELECT).fetchall()
        return rows

    def size_bytes(self) -> int:
        """The size of the file and, while somebody has it open, of its write-ahead log."""
        return sum(file.stat().st_size for file in (self._file, Path(f"{self._file}-wal")) if file.exists())

    def settle(self) -> None:
        """Return at once: SQLite leaves no work for later."""


class _RawPostgres(Raw):
    def __init__(self, url: str) -> None:
        address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.connection = psycopg.connect(address)

    def append(self, rows: Sequence[RawRow]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            for row in rows:
                copy.write_row(row)
        self.connection.commit()

    def append_one(self, row: RawRow) -> None:
        self.connection.execute(f"{_INSERT} ({_marks('%s')})", row)
        self.connection.commit()

    def fetch(self) -> list[RawRow]:
        rows: list[RawRow] = self.connection.execute(_SELECT, binary=True).fetchall()
        return rows

    def size_bytes(self) -> int:
        """The size of the table and its index."""
        (size,) = self.connection.execute("SELECT pg_total_relation_size(%s::regclass)", (receipts.name,)).fetchone()
        return int(size)

    def settle(self) -> None:
        is_due, naps = True, 0
        while is_due and naps < _MOST_NAPS:
            time.sleep(_NAP_SECS)
            naps += 1
            (is_due,) = self.connection.execute(_VACUUM_IS_DUE, (receipts.name,)).fetchone()
            self.connection.rollback()


class Database(NamedTuple):
    """A kind of database."""

    key: str
    name: str
    bulk: str
    """The fastest way to append many rows."""
    new_url: Callable[[], AbstractContextManager[str]]
    """Gives the address of a new, empty database, which is removed afterwards."""
    raw: Callable[[str], Raw]

    @contextmanager
    def new_table(self) -> Iterator[Raw]:
        """A new database with our tables."""
        with self.new_url() as url:
            engine = create_engine(url)
            METADATA.create_all(engine)
            engine.dispose()
            with closing(self.raw(url)) as raw:
                yield raw


@contextmanager
def _new_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="receiver-benchmark-") as folder:
        yield f"sqlite:///{folder}/store.db"


SQLITE = Database("sqlite", "SQLite, FULL", "sqlite3.executemany", _new_file, _RawSqlite)


@contextmanager
def postgres() -> Iterator[Database]:
    """The server of the tests, or one of our own, whose autovacuum looks for work each second."""
    with running_server() as server_url:
        if GIVEN_SERVER not in os.environ:
            with closing(_RawPostgres(server_url).connection) as connection:
                connection.autocommit = True
                connection.execute(f"ALTER SYSTEM SET autovacuum_naptime = {_NAP_SECS}")
                connection.execute("SELECT pg_reload_conf()")
        yield Database("postgresql", "PostgreSQL", "COPY", partial(fresh_database, server_url), _RawPostgres)


_DISK_US = 2_000
"""How long a usual disk takes to sync. Disks of test machines are often faster."""


def on_a_disk(server: Database) -> Database:
    """The same server, with commits that take as long as on a usual disk."""

    @contextmanager
    def new_url() -> Iterator[str]:
        with server.new_url() as url, closing(_RawPostgres(url).connection) as connection:
            connection.autocommit = True
            for name, value in {"commit_delay": _DISK_US, "commit_siblings": 0}.items():
                connection.execute(f'ALTER DATABASE "{make_url(url).database}" SET {name} = {value}')
            yield url

    return server._replace(
        key=f"{server.key}-disk", name=f"{server.name} whose commits take {_DISK_US / 1_000:g} ms", new_url=new_url
    )
