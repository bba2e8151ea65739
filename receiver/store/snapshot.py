"""One state of a whole store, read as it is while receivers go on: nothing is made, locked or changed.

Values come as the driver gives them. What a receiver never writes can be read here too, so that it can be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Inspector, PrimaryKeyConstraint, Row, Table, UniqueConstraint, inspect, text

from receiver.store.codec import selected
from receiver.store.databases import database_of, translated
from receiver.store.schema import examined
from receiver.store.sql_rows import driver_of
from receiver.store.tables import (
    METADATA,
    PackedRow,
    arrivals,
    claims,
    domain_rows,
    domains,
    joined,
    parked,
    positions,
    receipt_rows,
    receipts,
    recorded,
    targets,
    unpacked,
    waiting,
)

RawRow = Row[Any]
"""Values as the driver gives them, by the names of their columns in `receiver.store.tables`."""
OnRows = Callable[[int], None]
"""Is called with how many rows have been read since the last call, so that somebody can be shown how far it is."""

TARGET_COLUMNS = tuple(targets.columns.keys())
MESSAGE_COLUMNS = tuple(name for name in unpacked.columns.keys() if name != "body")  # noqa: SIM118 - these are no dict's
PACKED_COLUMNS = ("target_id", *PackedRow._fields)
RECORDED_COLUMNS = tuple(recorded.columns.keys())
_OWNERS = (
    (receipts, "domain_id", domains),
    (joined, "domain_id", domains),
    (targets, "domain_id", domains),
    (positions, "domain_id", domains),
    (claims, "domain_id", domains),
    (arrivals, "domain_id", domains),
    (waiting, "target_id", targets),
    (unpacked, "target_id", targets),
    (parked, "target_id", targets),
)
_SEQUENCE = parked.c.sequence.name
_ROWS_AT_ONCE = 10_000
_PACKED_AT_ONCE = 16
_RECORDED_AT_ONCE = 100


@contextmanager
def snapshot(url: URL) -> Iterator[Snapshot]:
    """The state of the store now; StoreError where there is none or it can't be read."""
    engine = examined(url)
    with translated(url), engine.connect() as connection:
        database_of(url).accept_broken_text(driver_of(connection))
        yield Snapshot(url, connection)


class Snapshot:
    def __init__(self, url: URL, connection: Connection) -> None:
        self.url = url
        self._connection = connection

    def domains(self) -> list[RawRow]:
        """The domains' own rows, with the columns of `DomainState`."""
        return self._all(f"SELECT {domain_rows.selected} FROM {domains.name} ORDER BY domain_id")

    def joined_batches(self) -> list[RawRow]:
        """Domain, writer, batch and last number of each batch recorded in its caller's transaction."""
        return self._all(f"SELECT {selected(joined, joined.c.keys())} FROM {joined.name} ORDER BY domain_id, writer")

    def positions(self) -> list[RawRow]:
        """Domain, source, name and position of each source's positions."""
        return self._all(
            f"SELECT {selected(positions, positions.c.keys())} FROM {positions.name} ORDER BY domain_id, source, name"
        )

    def rows(self, domain_id: int) -> Iterator[Sequence[RawRow]]:
        """The rows of a domain by number, by the thousand, with the columns of the log."""
        return self._in_parts(
            f"SELECT {receipt_rows.selected} FROM {receipts.name} WHERE domain_id = :domain_id ORDER BY seq",
            domain_id=domain_id,
        )

    def claimed_ids(self, domain_id: int) -> set[bytes]:
        """The ids that are claimed in a domain."""
        of_domain = text(f"SELECT coalesce(long_id, unique_message_id) FROM {claims.name} WHERE domain_id = :domain_id")
        return set(map(bytes, self._connection.scalars(of_domain, {"domain_id": domain_id})))

    def unfolded(self, domain_id: int) -> tuple[int, int | None]:
        """How many receipts of a domain wait to be folded in, and when the oldest was received."""
        counted = text(f"SELECT count(*), min(received_at_us) FROM {arrivals.name} WHERE domain_id = :domain_id")
        receipts, oldest_us = self._connection.execute(counted, {"domain_id": domain_id}).one()
        return int(receipts), oldest_us

    def targets(self) -> list[RawRow]:
        """The targets' own rows, with the columns of `TARGET_COLUMNS`."""
        return self._all(f"SELECT {selected(targets, TARGET_COLUMNS)} FROM {targets.name} ORDER BY target_id")

    def messages(self, table: str) -> Iterator[Sequence[RawRow]]:
        """The messages of a table that has one in a row, by the thousand, with the columns of `MESSAGE_COLUMNS`; of each
        body only its beginning."""
        # A database may give NULL for the beginning of an empty body.
        columns = f"{selected(parked, MESSAGE_COLUMNS)}, coalesce(substr(body, 1, 1), body) AS body"
        return self._in_parts(f"SELECT {columns} FROM {table} ORDER BY target_id, {_SEQUENCE}")

    def packed_messages(self) -> Iterator[Sequence[RawRow]]:
        """The rows of messages that wait, with the columns of `PACKED_COLUMNS`."""
        columns = selected(waiting, PACKED_COLUMNS)
        return self._in_parts(
            f"SELECT {columns} FROM {waiting.name} ORDER BY target_id, first_sequence", at_once=_PACKED_AT_ONCE
        )

    def recorded(self) -> Iterator[Sequence[RawRow]]:
        """What waits for recordings, with the columns of `RECORDED_COLUMNS`."""
        columns = selected(recorded, RECORDED_COLUMNS)
        return self._in_parts(f"SELECT {columns} FROM {recorded.name} ORDER BY number", at_once=_RECORDED_AT_ONCE)

    def waiting_count(self, domain_id: int) -> int:
        """How many messages of a domain wait."""
        return self._count(unpacked, domain_id) + self._count(waiting, domain_id, "coalesce(sum(messages), 0)")

    def parked_count(self, domain_id: int) -> int:
        """How many messages of a domain are parked."""
        return self._count(parked, domain_id)

    def _count(self, table: Table, domain_id: int, what: str = "count(*)") -> int:
        of_domain = f"SELECT target_id FROM {targets.name} WHERE domain_id = :domain_id"
        counted = text(f"SELECT {what} FROM {table.name} WHERE target_id IN ({of_domain})")
        return int(self._connection.execute(counted, {"domain_id": domain_id}).scalar_one())

    def numbers_between(self, table: str, target_id: int, first: int, last: int) -> list[int]:
        """The sequence numbers of the messages of a target in a table that are from one to another."""
        query = text(
            f"SELECT {_SEQUENCE} FROM {table} WHERE target_id = :target_id AND {_SEQUENCE} BETWEEN :first AND :last"
        )
        values = {"target_id": target_id, "first": first, "last": last}
        return list(self._connection.scalars(query, values))

    def row_count(self, domain_id: int) -> int:
        counted = text(f"SELECT count(*) FROM {receipts.name} WHERE domain_id = :domain_id")
        return int(self._connection.execute(counted, {"domain_id": domain_id}).scalar_one())

    def strays(self) -> list[tuple[str, str, Any, int]]:
        """Rows whose owner isn't there: their table, the column that names the owner, its value there, and their count."""
        return [
            (table.name, key, stray.owner, stray.rows)
            for table, key, owners in _OWNERS
            for stray in self._all(
                f"SELECT t.{key} AS owner, count(*) AS rows FROM {table.name} AS t"
                f" WHERE NOT EXISTS (SELECT 1 FROM {owners.name} AS o WHERE o.{key} = t.{key}) GROUP BY t.{key}"
            )
        ]

    def damage(self, on_rows: OnRows) -> Iterator[str]:
        """The damage that the database finds in itself when it is asked."""
        return database_of(self.url).damage(self._connection, on_rows)

    def lacking_keys(self) -> list[str]:
        """The constraints of our tables that aren't there any more."""
        inspector = inspect(self._connection)
        return [said for table in METADATA.tables for said in _lacking(inspector, table)]

    @property
    def size_bytes(self) -> int:
        """The size of our tables; if the database is a file, the size of that."""
        return database_of(self.url).size_bytes(self._connection, self.url)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Within it, what can't be read is a StoreError, after which the rest can still be read."""
        with translated(self.url), self._connection.begin_nested():
            yield

    def _in_parts(
        self, statement: str, *, at_once: int = _ROWS_AT_ONCE, **values: object
    ) -> Iterator[Sequence[RawRow]]:
        options = {"stream_results": True, "max_row_buffer": at_once}
        return self._connection.execute(text(statement), values, execution_options=options).partitions(at_once)

    def _all(self, statement: str) -> list[RawRow]:
        return list(self._connection.execute(text(statement)).all())


def _lacking(inspector: Inspector, name: str) -> Iterator[str]:
    table = METADATA.tables[name]
    key = _names(table.primary_key)
    if inspector.get_pk_constraint(name)["constrained_columns"] != key:
        yield f"{name} has no primary key of {', '.join(key)}"
    unique = [constraint["column_names"] for constraint in inspector.get_unique_constraints(name)]
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint) and _names(constraint) not in unique:
            yield f"{name} may hold two rows of one {' and '.join(_names(constraint))}"
    never_null = {column.name for column in table.c if not column.nullable}
    for column in inspector.get_columns(name):
        if column["nullable"] and column["name"] in never_null:
            yield f"{name}.{column['name']} may be null"


def _names(constraint: PrimaryKeyConstraint | UniqueConstraint) -> list[str]:
    return [column.name for column in constraint.columns]
