"""One state of a whole store, read while receivers go on, and the damage that checks note in it. Changes nothing.

Values are as the driver gives them, so values that no receiver writes can be read too, and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from sqlalchemy import URL, Connection, Inspector, PrimaryKeyConstraint, Row, Table, UniqueConstraint, inspect, text

from receiver.errors import StoreCorruptError
from receiver.store import tables
from receiver.store.databases import database_of, translated
from receiver.store.schema import examined
from receiver.store.sql_rows import driver_of
from receiver.store.tables import METADATA, DomainState

PROBLEMS = {
    "damaged": "the database finds damage in itself",
    "unreadable": "what is stored can't be read",
    "keys": "a table has lost a constraint",
    "strays": "rows belong to no domain, or messages to no target",
    "same-domain": "two domains have the same key and name, or the same store id",
    "types": "a value is missing, or of another type than its column's",
    "name": "no receiver makes this key and name",
    "settings": "no receiver can have these settings",
    "negative": "what counts from 0 is negative",
    "counters": "counters contradict each other",
    "clocks": "clocks contradict each other",
    "needs": "the needs of duplicates make no sense",
    "marks": "a batch in its caller's transaction left numbers that it can't have had",
    "numbers": "receipts have numbers that were never given",
    "order": "time runs backwards from one receipt to the next",
    "ids": "ids or sources are empty, no text, or not what the policy goes by",
    "first-times": "ids first came after they came again, or before all time",
    "digests": "body digests are no list of different texts",
    "retired": "rows of a retired source have policy states that no receiver writes",
    "newest": "the newest receipt isn't there, or came at another time than the domain's latest",
    "targets": "a target has no name, or what is noted of its file contradicts itself",
    "positions": "a source's position, or its name, is empty or no text",
    "nodes": "a node of a cluster, or an address, is empty or no text",
    "messages": "waiting or parked messages make no sense, or one is both",
    "claims": "an id that is remembered or to be folded in isn't claimed, or a domain that isn't concurrent has claims",
    "recorded": "what waits for a recording makes no sense",
    "rebuilt": "the receipts that are left contradict the domain's own row",
}
"""What can be broken, by kind of damage."""

RawRow = Row[Any]
"""Values as the driver gives them, by the names of their columns in `receiver.store.tables`."""
OnRows = Callable[[int], None]
"""A callback for progress: takes the number of rows read since its last call."""


class DomainName(NamedTuple):
    """A domain's key and name, as text that can be shown even if they are broken."""

    key: str
    name: str

    @classmethod
    def of(cls, state: DomainState) -> Self:
        return cls(state.domain_key, state.domain_name)


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One kind of damage in one domain, or in the store as a whole."""

    kind: str
    """One of `PROBLEMS`."""
    domain: DomainName | None
    """None: the store as a whole."""
    count: int
    """How often it occurs."""
    example: str
    """The first occurrence."""

    @property
    def problem(self) -> str:
        return PROBLEMS[self.kind]


@contextmanager
def snapshot(url: URL, on_rows: OnRows) -> Iterator[Snapshot]:
    """The state of the store now; `StoreError` if there is none or it can't be read."""
    engine = examined(url)
    with translated(url), engine.connect() as connection:
        database_of(url).accept_broken_text(driver_of(connection))
        yield Snapshot(connection, on_rows)


class Snapshot:
    """Reads a store, and takes note of what is broken in it."""

    def __init__(self, connection: Connection, on_rows: OnRows) -> None:
        self.connection = connection
        self._database = database_of(connection)
        self._on_rows = on_rows
        self._counts: Counter[tuple[str, DomainName | None]] = Counter()
        self._examples: dict[tuple[str, DomainName | None], str] = {}

    def note(self, kind: str, domain: DomainName | None, example: str, count: int = 1) -> None:
        """Note damage. A domain of None is the store as a whole."""
        self._counts[kind, domain] += count
        self._examples.setdefault((kind, domain), example)

    def is_broken(self, domain: DomainName) -> bool:
        """Whether anything broken was noted in this domain."""
        return any(known == domain for _, known in self._counts)

    def findings(self) -> tuple[StoreFinding, ...]:
        """The damage that was noted, by kind and domain."""
        return tuple(StoreFinding(*key, count, self._examples[key]) for key, count in self._counts.items())

    @contextmanager
    def readable(self, domain: DomainName | None = None) -> Iterator[None]:
        """Within it, an unreadable value becomes a finding and ends the block. Reading can go on after the block."""
        try:
            with translated(self.connection.engine.url), self.connection.begin_nested():
                yield
        except StoreCorruptError as error:
            self.note("unreadable", domain, error.message)

    def rows(
        self,
        table: Table,
        names: Sequence[str],
        *,
        domain_id: int | None = None,
        instead: Mapping[str, str] = MappingProxyType({}),
        at_once: int = 10_000,
    ) -> Iterator[RawRow]:
        """These columns of a table's rows, or of a domain's, in the order of the primary key.

        `instead` has SQL expressions that replace columns.
        """
        columns = ", ".join(f"{instead.get(name, table.c[name].name)} AS {name}" for name in names)
        where = "" if domain_id is None else f" WHERE domain_id = {domain_id:d}"
        order = ", ".join(_names(table.primary_key))
        statement = text(f"SELECT {columns} FROM {table.name}{where} ORDER BY {order}")
        options = {"stream_results": True, "max_row_buffer": at_once}
        with self.connection.execute(statement, execution_options=options) as result:
            for part in result.partitions(at_once):
                yield from part
                self._on_rows(len(part))

    def strays(self) -> Iterator[tuple[str, str, Any, int]]:
        """Rows without an owner: their table, the column that names the owner, its value, and the number of rows."""
        for owners, owned in tables.OWNED.items():
            (key,) = _names(owners.primary_key)
            for table in owned:
                strays = text(
                    f"SELECT t.{key} AS owner, count(*) AS rows FROM {table.name} AS t"
                    f" WHERE NOT EXISTS (SELECT 1 FROM {owners.name} AS o WHERE o.{key} = t.{key}) GROUP BY t.{key}"
                )
                for owner, count in self.connection.execute(strays).all():
                    yield table.name, key, owner, count

    def damage(self) -> Iterator[str]:
        """The damage that the database's own check finds."""
        return self._database.damage(self.connection, self._on_rows)

    def lacking_keys(self) -> Iterator[str]:
        """The constraints of our tables that are missing."""
        inspector = inspect(self.connection)
        for table in METADATA.tables.values():
            yield from _lacking(inspector, table)

    @property
    def size_bytes(self) -> int:
        """The size of our tables; if the database is a file, the size of that."""
        return self._database.size_bytes(self.connection)


def _lacking(inspector: Inspector, table: Table) -> Iterator[str]:
    key = _names(table.primary_key)
    if inspector.get_pk_constraint(table.name)["constrained_columns"] != key:
        yield f"{table.name} has no primary key of {', '.join(key)}"
    unique = [constraint["column_names"] for constraint in inspector.get_unique_constraints(table.name)]
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint) and _names(constraint) not in unique:
            yield f"{table.name} may hold two rows of one {' and '.join(_names(constraint))}"
    never_null = {column.name for column in table.c if not column.nullable}
    for column in inspector.get_columns(table.name):
        if column["nullable"] and column["name"] in never_null:
            yield f"{table.name}.{column['name']} may be null"


def _names(constraint: PrimaryKeyConstraint | UniqueConstraint) -> list[str]:
    return [column.name for column in constraint.columns]
