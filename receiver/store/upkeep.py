"""Commands for a person who looks after a store: list targets and parked messages; move, send back and drop messages; drop a
domain with all that the store keeps of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import URL, BigInteger, ColumnElement, Connection, Executable, cast, delete, func, select, update

from receiver.errors import SettingsError
from receiver.store.codec import printable
from receiver.store.connections import KeptConnection
from receiver.store.databases import NONSENSE, database_of, nonsense_error, store_url, translated
from receiver.store.inbox import target_id_of, waiting_by_row
from receiver.store.packed import add_waiting, from_rows, pack_of_target
from receiver.store.schema import examined
from receiver.store.sql_rows import driver_of
from receiver.store.tables import (
    OWNED,
    DomainState,
    domains,
    message_codec,
    parked,
    receipts,
    targets,
    unpacked,
    waiting,
)

_PAUSE_SECS = 0.1
"""The pause between two parts of giving space back, so that others who wait for the file get their turn."""


def examined_rows(address: str | URL, query: Executable) -> list[list[Any]]:
    """The rows of a query on an existing store, with bytes decoded to text; `StoreError` if there is no store."""
    url = store_url(address)
    with translated(url), examined(url).connect() as connection:
        rows = connection.execute(query).all()
        return [[printable(value) if isinstance(value, bytes) else value for value in row] for row in rows]


@contextmanager
def upkeep(address: str) -> Iterator[KeptConnection]:
    """A connection for a command that looks after an existing store. At the end, the space of deleted rows is given back.

    `StoreError` if there is no store: a mistaken address doesn't make one.
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
    """A target of a domain, with figures of the messages that wait for it."""

    number: int
    domain_id: int
    domain_key: str | None
    """None, like the domain's name, if a damaged store has lost the domain's row."""
    domain: str | None
    name: str
    waiting: int
    oldest_us: int | None
    """When the oldest waiting message was received; None if none waits."""
    newest_sequence: int
    """The sequence number of the newest waiting message; -1 if none waits."""
    body_bytes: int


def target_rows(address: str) -> list[TargetRow]:
    """The targets of a store, in the order of their numbers; `StoreError` if there is no store."""
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
            cast(func.coalesce(func.sum(rows.c.body_bytes), 0), BigInteger),  # PostgreSQL's sum is a decimal number
        )
        .outerjoin_from(targets, domains, domains.c.domain_id == targets.c.domain_id)
        .outerjoin(rows, rows.c.target_id == targets.c.target_id)
        .group_by(*of_target)
        .order_by(targets.c.target_id)
    )
    return list(map(TargetRow._make, examined_rows(address, query)))


def move_waiting(address: str, from_: TargetRow, to: str) -> int:
    """Move the messages that wait for a target to another target of its domain, made if it is new. Returns their number.

    They keep their sequence numbers, and count as never tried. Both targets are locked meanwhile: `StoreBusyError` if a
    bridge's lease doesn't end in time. Messages that the old target has got, but not confirmed, are moved too.
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
    """Delete the messages that waited for a target when `of` was read, but no later ones. Returns their number."""
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
    """Lock these targets, always in the same order, so that no two processes deadlock."""
    locked = select(targets.c.target_id, targets.c.domain_id, targets.c.target).order_by(targets.c.target_id)
    rows = connection.execute(locked.where(targets.c.target_id.in_(names)).with_for_update()).all()
    if {row.target_id: (row.domain_id, printable(row.target)) for row in rows} != {
        number: (domain_id, name) for number, name in names.items()
    }:
        raise SettingsError("the target was dropped meanwhile", hint="receiver inbox list shows those that are there")


class ParkedRow(NamedTuple):
    """A parked message, without its body. A value that a damaged store has lost is None."""

    parked_id: int
    """Its number, unique in the store for ever."""
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
    """The parked messages of a store, in the order of parking; `StoreError` if there is no store."""
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
    """Send parked messages back to the inbox under their sequence numbers, as if never tried. Returns how many.

    `ids` are values of `parked_id`; None for all. If one isn't there, nothing is done: `SettingsError`.
    """
    return _taken_out(address, ids, _wait_again)


def drop_parked(address: str, ids: Collection[int] | None) -> int:
    """Delete parked messages for good, by `ids` as in `retry_parked`. Returns their number."""
    return _taken_out(address, ids)


def _wait_again(connection: Connection, number: int) -> None:
    """Add the message that is parked under a number to the inbox, as if never tried."""
    statement = f"SELECT target_id, {message_codec.selected} FROM {parked.name} WHERE parked_id = {number:d}"  # noqa: S608
    target_id, *values = driver_of(connection).execute(statement).fetchone()
    try:
        (message,) = from_rows([message_codec.read(values)])
    except NONSENSE as error:
        raise nonsense_error(f"the message that is parked under {number} makes no sense", error) from error
    # With another time the message has another `_AMQ_DUPL_ID`. Artemis may have kept that of a message that it refused, and would
    # confirm the message and drop it.
    again = message._replace(tries=0, received_at_us=message.received_at_us + 1)
    add_waiting(connection, target_id, [again])


def _taken_out(
    address: str, ids: Collection[int] | None, first: Callable[[Connection, int], object] | None = None
) -> int:
    """Delete parked messages, after calling `first` for each. Returns their number."""
    with upkeep(address) as kept, kept.transaction(_locked) as (connection, there):
        chosen = sorted(there if ids is None else _checked(ids, there))
        for number in chosen:
            if first is not None:
                first(connection, number)
            connection.execute(delete(parked).where(parked.c.parked_id == number))
    return len(chosen)


def _locked(connection: Connection) -> set[int]:
    """The numbers of all parked messages, locked so that nobody else takes them out, or drops their domains."""
    # The domains first, as when one is dropped. Others may use them meanwhile.
    all_domains = select(domains.c.domain_id).order_by(domains.c.domain_id)
    connection.execute(all_domains.with_for_update(read=True, key_share=True))
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
    """How many rows of each kind were deleted."""

    receipts: int
    waiting: int
    parked: int
    targets: int


def drop_domain(address: str, domain: DomainState) -> Dropped:
    """Forget all ids of a domain, and delete its messages, targets and positions, in one transaction that locks the domain.

    Its receivers that are still open raise `StoreError` from then on. The numbers that its bridges have given to messages
    without an id are kept, because none of them may be given again.
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
