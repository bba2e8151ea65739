"""How far a domain's bridges have read from brokers that keep every message: Kafka's topics, streams.

The transaction that records the ids also moves the position, so neither is stored without the other. A position is moved
only if it is still as the bridge last read it. If a bridge was frozen while another took over its share, the position has
moved, and its whole batch is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, update

from receiver.errors import PositionMovedError, SettingsError, StoreError
from receiver.store.codec import text_of, to_bytes
from receiver.store.connections import KeptConnection
from receiver.store.databases import database_of, translated
from receiver.store.databases.database import LONGEST_NAME_BYTES
from receiver.store.tables import domains, positions


class Advance(NamedTuple):
    """A position to move."""

    name: str
    """The name of the position, such as a partition's number."""
    expected: str | None
    """The position before; None if there is none yet."""
    next: str
    """The position of the next message to take, in the source's own format."""


class PositionRow(NamedTuple):
    """A position as it stands in a store."""

    source: str
    name: str
    position: str


class Positions:
    """The positions of one source of a domain, by name. A bridge gives them to its `PositionedSource`."""

    def __init__(self, kept: KeptConnection, reader: KeptConnection, domain_id: int, source: str) -> None:
        self.source = source
        self._kept = kept
        self._reader = reader
        self._domain_id = domain_id
        self._key = {"domain_id": domain_id, "source": _stored(source)}

    def read(self) -> dict[str, str]:
        """The committed positions, by name.

        Raises:
            StoreError: The store can't be reached.
        """
        of_source = select(positions.c.name, positions.c.position).where(*self._itself())
        return {text_of(name): text_of(position) for name, position in self._reader.read(of_source)}

    def others(self) -> set[str]:
        """The other sources of the domain that have positions.

        Raises:
            StoreError: The store can't be reached.
        """
        of_domain = select(positions.c.source).where(positions.c.domain_id == self._domain_id)
        return {text_of(source) for (source,) in self._reader.read(of_domain.distinct())} - {self.source}

    def begin(self, at: Mapping[str, str]) -> None:
        """Store these positions at once, except for names that have one already.

        Raises:
            StoreError: The store can't be reached, or the domain was dropped.
        """
        with self._kept.transaction(partial(lock_undropped, domain_id=self._domain_id)) as (connection, _):
            for name, position in at.items():
                self._insert(connection, name, position)

    def advance(self, connection: Connection, advances: Iterable[Advance]) -> None:
        """Move positions in the transaction on the connection; `PositionMovedError` if one isn't as expected."""
        with translated(self._kept.url):
            for advance in advances:
                if not self._move(connection, advance):
                    raise PositionMovedError(
                        f"another has gone on from {advance.expected or 'the beginning'} in {advance.name} of {self.source}",
                        hint="this batch is rolled back, and the source goes on from the store's position",
                    )

    def _move(self, connection: Connection, advance: Advance) -> bool:
        """Move a position if it is as expected; whether it was."""
        if advance.expected is None:
            return self._insert(connection, advance.name, advance.next)
        expected = positions.c.position == _stored(advance.expected)
        there = update(positions).where(*self._itself(), positions.c.name == _stored(advance.name), expected)
        return connection.execute(there.values(position=_stored(advance.next))).rowcount == 1

    def _insert(self, connection: Connection, name: str, position: str) -> bool:
        values: dict[str, Any] = {**self._key, "name": _stored(name), "position": _stored(position)}
        return database_of(connection).insert_unless_there(connection, positions, values)

    def _itself(self) -> list[Any]:
        return [positions.c[name] == value for name, value in self._key.items()]


def lock_undropped(connection: Connection, domain_id: int) -> None:
    """Keep the domain from being dropped until the transaction ends, so that its rows have a domain. Others may use it."""
    domain = select(domains.c.domain_id).where(domains.c.domain_id == domain_id)
    if connection.execute(domain.with_for_update(read=True, key_share=True)).first() is None:
        raise StoreError("the domain is gone from the database", hint="was it dropped? Open it again")


def _stored(text: str) -> bytes:
    stored = to_bytes(text)
    if not 0 < len(stored) <= LONGEST_NAME_BYTES:
        raise SettingsError(
            f"a position and its name have 1 to {LONGEST_NAME_BYTES:,} bytes, not {len(stored):,}: {text!r:.80}"
        )
    return stored
