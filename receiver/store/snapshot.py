"""One state of a whole store, read as it is while receivers go on: nothing is made, locked or changed.

Values come as the driver gives them. What a receiver never writes can be read here too, so that it can be told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Inspector, inspect, text

from receiver.store.engine import is_sqlite
from receiver.store.failures import translated
from receiver.store.log import DomainState
from receiver.store.schema import examined
from receiver.store.sql_log import ROW_COLUMNS
from receiver.store.tables import METADATA, VERSION_TABLE, domains, joined, receipts

__all__ = ["Advance", "RawRow", "Snapshot", "snapshot"]

RawRow = Sequence[Any]
Advance = Callable[[int], None]
"""Is told how many rows have been read since it was last told, so that somebody can be shown how far it is."""

_ROWS_AT_ONCE = 10_000
_STEPS_AT_ONCE = 1_000_000


@contextmanager
def snapshot(url: URL) -> Iterator[Snapshot]:
    """The state of the store now; StoreError where there is none or it can't be read."""
    engine = examined(url)
    with translated(url), engine.connect() as connection:
        if is_sqlite(url):
            # Text that is no UTF-8 must not end the reading.
            driver: Any = connection.connection.dbapi_connection
            driver.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")
        yield Snapshot(url, connection)


class Snapshot:
    def __init__(self, url: URL, connection: Connection) -> None:
        self.url = url
        self._connection = connection

    def domains(self) -> list[RawRow]:
        """The domains' own rows, with the columns of `DomainState`."""
        return self._all(f"SELECT {', '.join(DomainState._fields)} FROM {domains.name} ORDER BY domain_id")

    def marks(self) -> list[RawRow]:
        """Domain, writer, batch and last number of each batch recorded in its caller's transaction."""
        return self._all(f"SELECT {', '.join(joined.c.keys())} FROM {joined.name} ORDER BY domain_id, writer")

    def rows(self, domain_id: int) -> Iterator[Sequence[RawRow]]:
        """The rows of a domain by number, some at a time, with the columns of the log."""
        columns = ", ".join(ROW_COLUMNS)
        found = self._connection.execute(
            text(f"SELECT {columns} FROM {receipts.name} WHERE domain_id = :domain_id ORDER BY seq"),
            {"domain_id": domain_id},
            execution_options={"stream_results": True, "max_row_buffer": _ROWS_AT_ONCE},
        )
        return found.partitions(_ROWS_AT_ONCE)

    def row_count(self, domain_id: int) -> int:
        counted = text(f"SELECT count(*) FROM {receipts.name} WHERE domain_id = :domain_id")
        return int(self._connection.execute(counted, {"domain_id": domain_id}).scalar_one())

    def strays(self) -> list[tuple[str, Any, int]]:
        """Table, domain and count of the rows whose domain isn't there."""
        of_a_domain = f"SELECT 1 FROM {domains.name} AS d WHERE d.domain_id = t.domain_id"
        return [
            (table, domain_id, count)
            for table in (receipts.name, joined.name)
            for domain_id, count in self._all(
                f"SELECT t.domain_id, count(*) FROM {table} AS t WHERE NOT EXISTS ({of_a_domain}) GROUP BY t.domain_id"
            )
        ]

    def damage(self, advance: Advance) -> Iterator[str]:
        """What an SQLite file finds wrong with its own pages. PostgreSQL finds out as it reads them."""
        if not is_sqlite(self.url):
            return
        driver: Any = self._connection.connection.dbapi_connection
        driver.set_progress_handler(lambda: advance(0), _STEPS_AT_ONCE)
        try:
            # One by one, for it fails where damage is too bad to go on.
            for (said,) in self._connection.execute(text("PRAGMA integrity_check")):
                if said != "ok":
                    yield said
        finally:
            driver.set_progress_handler(None, 0)

    def lacking_keys(self) -> list[str]:
        """The constraints of our tables that aren't there any more."""
        inspector = inspect(self._connection)
        return [said for table in METADATA.tables for said in _lacking(inspector, table)]

    @property
    def size_bytes(self) -> int:
        """What our tables take, in SQLite the whole file and its log."""
        if is_sqlite(self.url):
            files = (Path(f"{self.url.database}{ending}") for ending in ("", "-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in (*METADATA.tables, VERSION_TABLE))
        return int(self._connection.execute(text(f"SELECT {sizes}")).scalar_one())

    @contextmanager
    def part(self) -> Iterator[None]:
        """Within it, what can't be read is a StoreError, after which the rest can still be read."""
        with translated(self.url), self._connection.begin_nested():
            yield

    def _all(self, statement: str) -> list[RawRow]:
        return list(self._connection.execute(text(statement)).all())


def _lacking(inspector: Inspector, name: str) -> Iterator[str]:
    table = METADATA.tables[name]
    key = inspector.get_pk_constraint(name)["constrained_columns"]
    if key != table.primary_key.columns.keys():
        yield f"{name} has no primary key of {', '.join(table.primary_key.columns.keys())}"
    unique = [constraint["column_names"] for constraint in inspector.get_unique_constraints(name)]
    if name == domains.name and [domains.c.domain_key.name, domains.c.domain_name.name] not in unique:
        yield f"{name} may hold two domains of one key and name"
    for column in inspector.get_columns(name):
        if column["nullable"] and not table.c[column["name"]].nullable:
            yield f"{name}.{column['name']} may be null"
