"""What a person does to a store from outside: targets and parked messages listed, messages moved, sent back and dropped,
and a domain dropped with all that the store keeps of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import URL, BigInteger, ColumnElement, Connection, Executable, cast, delete, func, select, update

from receiver.errors import SettingsError, StoreCorruptError
from receiver.store.codec import printable
from receiver.store.connections import KeptConnection
from receiver.store.databases import NONSENSE, database_of, store_url, translated
from receiver.store.inbox import target_id_of, waiting_by_row
from receiver.store.packed import add_waiting, from_rows, pack_of_target
from receiver.store.schema import examined
from receiver.store.sql_rows import driver_of
from receiver.store.tables import (
    OWNED,
    DomainState,
    domains,
    message_rows,
    parked,
    receipts,
    targets,
    unpacked,
    waiting,
)

_PAUSE_SECS = 0.1
"""Between two parts of giving space back, so that those who wait for the file get their turn."""


def examined_rows(address: str | URL, query: Executable) -> list[list[Any]]:
    """The rows of a query on a store that is there, where all that is stored as bytes is text; StoreError if there is none."""
    url = store_url(address)
    with translated(url), examined(url).connect() as connection:
        rows = connection.execute(query).all()
        return [[printable(value) if isinstance(value, bytes) else value for value in row] for row in rows]


@contextmanager
def upkeep(address: str) -> Iterator[KeptConnection]:
    """For a command that looks after a store, which must be there; the space of what it deletes is given back in the end.

    StoreError where there is no store: a wrong address by mistake doesn't make one.
    """
    examined(store_url(address))
    kept = KeptConnection(address, None, "store")
    try:
        yield kept
        vacuum = database_of(kept.url).vacuum_of_all()
        if vacuum is not None:
            vacuum.note(1)
            while kept.give_back_space(vacuum.run_if_due):
                time.sleep(_PAUSE_SECS)
    finally:
        kept.close()


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
    rows = waiting_by_row()
    query = (
        select(
            *of_target,
            cast(func.coalesce(func.sum(rows.c.messages), 0), BigInteger),
            func.min(rows.c.received_at_us),
            func.coalesce(func.max(rows.c.last_sequence), -1),
            cast(func.coalesce(func.sum(rows.c.body_bytes), 0), BigInteger),  # else PostgreSQL's sum has a fraction
        )
        .outerjoin_from(targets, domains, domains.c.domain_id == targets.c.domain_id)
        .outerjoin(rows, rows.c.target_id == targets.c.target_id)
        .group_by(*of_target)
        .order_by(targets.c.target_id)
    )
    return list(map(TargetRow._make, examined_rows(address, query)))


def move_waiting(address: str, from_: TargetRow, to: str) -> int:
    """Move what waits for a target to another target of its domain, which is made if it is new; how many messages.

    They keep their sequence numbers, and count as never tried. No bridge has the lease of either target meanwhile:
    `StoreBusyError` if one doesn't end in time. Messages that the old target has got, but not confirmed, are moved too.
    """
    with upkeep(address) as kept:
        to_id = target_id_of(kept, from_.domain_id, to)
        if to_id == from_.number:
            raise SettingsError(f"they wait for {to!r:.200} already", hint="name another target")
        lock_both = partial(_lock, domain_id=from_.domain_id, names={from_.number: from_.name, to_id: to})
        from_it = waiting.c.target_id == from_.number
        with kept.transaction(lock_both) as (connection, _):
            pack_of_target(connection, from_.number)
            count = _messages_in(connection, from_it)
            connection.execute(update(waiting).where(from_it).values(target_id=to_id, tries=0))
            return count


def drop_waiting(address: str, of: TargetRow) -> int:
    """Delete what waited for a target when the row was read, but not what came later; how many messages."""
    lock = partial(_lock, domain_id=of.domain_id, names={of.number: of.name})
    known = (waiting.c.target_id == of.number) & (waiting.c.last_sequence <= of.newest_sequence)
    known_rows = (unpacked.c.target_id == of.number) & (unpacked.c.sequence <= of.newest_sequence)
    with upkeep(address) as kept, kept.transaction(lock) as (connection, _):
        packed = _messages_in(connection, known)
        connection.execute(delete(waiting).where(known))
        return packed + connection.execute(delete(unpacked).where(known_rows)).rowcount


def _messages_in(connection: Connection, rows: ColumnElement[bool]) -> int:
    return int(connection.scalar(select(func.sum(waiting.c.messages)).where(rows)) or 0)


def _lock(connection: Connection, domain_id: int, names: dict[int, str]) -> None:
    """Have the lease of these targets, always in one order, so that nobody waits for somebody who waits for them."""
    locked = select(targets.c.target_id, targets.c.domain_id, targets.c.target).order_by(targets.c.target_id)
    rows = connection.execute(locked.where(targets.c.target_id.in_(names)).with_for_update()).all()
    if {row.target_id: (row.domain_id, printable(row.target)) for row in rows} != {
        number: (domain_id, name) for number, name in names.items()
    }:
        raise SettingsError("the target was dropped meanwhile", hint="receiver inbox list shows those that are there")


class ParkedRow(NamedTuple):
    """A message that is parked, without its body. What a damaged store no longer knows is None."""

    parked_id: int
    """Given to no other message of the store, ever."""
    domain_key: str | None
    domain: str | None
    target: str | None
    unique_message_id: str | None
    message_source_id: str | None
    destination: str
    message_id: str | None
    received_at_us: int
    parked_at_us: int
    tries: int
    body_bytes: int
    error: str
    """Why it was parked."""


def parked_rows(address: str) -> list[ParkedRow]:
    """The messages that are parked in a store, in the order in which they were; StoreError where there is no store."""
    of_message = parked.c["unique_message_id", "message_source_id", "destination", "message_id", "received_at_us"]
    of_parking = parked.c["parked_at_us", "tries"]
    query = (
        select(
            parked.c.parked_id,
            domains.c.domain_key,
            domains.c.domain_name,
            targets.c.target,
            *of_message,
            *of_parking,
            func.length(parked.c.body),
            parked.c.error,
        )
        .outerjoin_from(parked, targets, targets.c.target_id == parked.c.target_id)
        .outerjoin(domains, domains.c.domain_id == targets.c.domain_id)
        .order_by(parked.c.parked_id)
    )
    return list(map(ParkedRow._make, examined_rows(address, query)))


def retry_parked(address: str, ids: Collection[int] | None) -> int:
    """Send parked messages back to the inbox under their sequence numbers, as if never tried; how many.

    By their numbers, None for all. All of them or, where one isn't there, none and a SettingsError.
    """
    return _taken_out(address, ids, _wait_again)


def drop_parked(address: str, ids: Collection[int] | None) -> int:
    """Delete parked messages for good; how many. Numbers as for `retry_parked`."""
    return _taken_out(address, ids)


def _wait_again(connection: Connection, number: int) -> None:
    """Have the message that is parked under a number wait, as if never tried."""
    statement = f"SELECT target_id, {message_rows.selected} FROM {parked.name} WHERE parked_id = {number:d}"  # noqa: S608
    target_id, *values = driver_of(connection).execute(statement).fetchone()
    try:
        (message,) = from_rows([message_rows.read(values)])
    except NONSENSE as error:
        raise StoreCorruptError(
            f"the message that is parked under {number} makes no sense: {error}",
            hint="`receiver check` says what is wrong; restore a copy",
        ) from error
    add_waiting(connection, target_id, [message._replace(tries=0)])


def _taken_out(
    address: str, ids: Collection[int] | None, first: Callable[[Connection, int], object] | None = None
) -> int:
    """Delete parked messages; each is given to `first` before that."""
    with upkeep(address) as kept, kept.transaction(_locked) as (connection, there):
        chosen = sorted(there if ids is None else _checked(ids, there))
        for number in chosen:
            if first is not None:
                first(connection, number)
            connection.execute(delete(parked).where(parked.c.parked_id == number))
    return len(chosen)


def _locked(connection: Connection) -> set[int]:
    """The numbers of all that is parked, which nobody else takes out meanwhile."""
    return set(connection.scalars(select(parked.c.parked_id).with_for_update()))


def _checked(ids: Collection[int], there: set[int]) -> set[int]:
    chosen = set(ids)
    missing = sorted(chosen - there)
    if missing:
        raise SettingsError(
            f"no message is parked under {', '.join(map(str, missing[:10]))}",
            hint="receiver parked list shows those that are there; nothing was changed",
        )
    return chosen


class Dropped(NamedTuple):
    """How many of each were deleted."""

    receipts: int
    waiting: int
    parked: int
    targets: int


def drop_domain(address: str, domain: DomainState) -> Dropped:
    """Forget all ids of a domain, and delete its messages, targets and positions.

    It is one transaction, which has the domain to itself.

    Its receivers that are still open raise `StoreError` from then on. The numbers that its bridges have given to messages
    without an id are kept, for none of them may come again.
    """
    itself = domains.c.domain_id == domain.domain_id
    its_targets = targets.c.domain_id == domain.domain_id
    of_its_targets = select(targets.c.target_id).where(its_targets)

    def lock(connection: Connection) -> None:
        the_same = select(domains.c.domain_id).where(itself, domains.c.store_id == domain.store_id)
        if connection.execute(the_same.with_for_update()).first() is None:
            raise SettingsError(
                "the domain was dropped meanwhile", hint="receiver domain list shows those that are there"
            )
        connection.execute(of_its_targets.order_by(targets.c.target_id).with_for_update())

    with upkeep(address) as kept, kept.transaction(lock) as (connection, _):
        packed = _messages_in(connection, waiting.c.target_id.in_(of_its_targets))
        gone = {
            table: connection.execute(delete(table).where(table.c.target_id.in_(of_its_targets))).rowcount
            for table in OWNED[targets]
        }
        gone |= {
            table: connection.execute(delete(table).where(table.c.domain_id == domain.domain_id)).rowcount
            for table in (*OWNED[domains], domains)
        }
        return Dropped(gone[receipts], packed + gone[unpacked], gone[parked], gone[targets])
