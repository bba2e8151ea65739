"""What waits for the targets of a store, seen and looked after from outside: listed, moved to another target, dropped."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, update

from receiver.errors import SettingsError
from receiver.store.inbox import target_id_of
from receiver.store.kept import examined_rows, upkeep
from receiver.store.tables import domains, inbox, printable, targets

__all__ = ["TargetRow", "drop_waiting", "move_waiting", "target_rows"]


class TargetRow(NamedTuple):
    """A target of a domain, and what waits for it."""

    number: int
    domain_id: int
    domain_key: str | None
    """None, as the domain, where a damaged store no longer knows it."""
    domain: str | None
    name: str
    waiting: int
    oldest_us: int | None
    """When the oldest that waits was received; None where none waits."""
    newest_sequence: int
    """The sequence number of the newest that waits; -1 where none waits."""
    body_bytes: int


def target_rows(address: str) -> list[TargetRow]:
    """The targets of a store by their numbers; StoreError where there is no store."""
    of_target = (
        targets.c.target_id,
        targets.c.domain_id,
        domains.c.domain_key,
        domains.c.domain_name,
        targets.c.target,
    )
    query = (
        select(
            *of_target,
            func.count(inbox.c.sequence),
            func.min(inbox.c.received_at_us),
            func.coalesce(func.max(inbox.c.sequence), -1),
            # The length of a body is known without reading it.
            func.coalesce(func.sum(func.length(inbox.c.body)), 0),
        )
        .outerjoin_from(targets, domains, domains.c.domain_id == targets.c.domain_id)
        .outerjoin(inbox, inbox.c.target_id == targets.c.target_id)
        .group_by(*of_target)
        .order_by(targets.c.target_id)
    )
    return list(map(TargetRow._make, examined_rows(address, query)))


def move_waiting(address: str, from_: TargetRow, to: str) -> int:
    """Have what waits for a target wait for another of its domain, which is made if it is new; how many messages.

    They keep their sequence numbers, and count as never tried. No bridge has the lease of either target meanwhile:
    `StoreBusyError` if one doesn't end in time. What the old target has got already and not confirmed can't be known.
    """
    with upkeep(address) as kept:
        to_id = target_id_of(kept, from_.domain_id, to)
        if to_id == from_.number:
            raise SettingsError(f"they wait for {to!r:.200} already", hint="name another target")

        def lock_both(connection: Connection) -> None:
            _lock(connection, from_.domain_id, {from_.number: from_.name, to_id: to})

        moved = update(inbox).where(inbox.c.target_id == from_.number).values(target_id=to_id, tries=0)
        with kept.transaction(lock_both) as (connection, _):
            return connection.execute(moved).rowcount


def drop_waiting(address: str, of: TargetRow) -> int:
    """Delete what waited for a target when the row was read, but not what came later; how many messages."""

    def lock(connection: Connection) -> None:
        _lock(connection, of.domain_id, {of.number: of.name})

    known = (inbox.c.target_id == of.number) & (inbox.c.sequence <= of.newest_sequence)
    with upkeep(address) as kept, kept.transaction(lock) as (connection, _):
        return connection.execute(delete(inbox).where(known)).rowcount


def _lock(connection: Connection, domain_id: int, names: dict[int, str]) -> None:
    """Have the lease of these targets, always in one order, so that nobody waits for somebody who waits for them."""
    locked = select(targets.c.target_id, targets.c.domain_id, targets.c.target).order_by(targets.c.target_id)
    rows = connection.execute(locked.where(targets.c.target_id.in_(names)).with_for_update()).all()
    if {row.target_id: (row.domain_id, printable(row.target)) for row in rows} != {
        number: (domain_id, name) for number, name in names.items()
    }:
        raise SettingsError("the target was dropped meanwhile", hint="receiver inbox list shows those that are there")
