"""Messages set aside, as their target refused them, or they had no proper id or came back in a ring: listed, sent back, dropped."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Insert, bindparam, delete, func, insert, literal, select

from receiver.errors import SettingsError
from receiver.store.kept import examined_rows, upkeep
from receiver.store.tables import domains, inbox, parked, targets

__all__ = ["ParkedRow", "drop_parked", "parked_rows", "retry_parked"]


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
    of_message = parked.c
    query = (
        select(
            of_message.parked_id,
            domains.c.domain_key,
            domains.c.domain_name,
            targets.c.target,
            of_message.unique_message_id,
            of_message.message_source_id,
            of_message.destination,
            of_message.message_id,
            of_message.received_at_us,
            of_message.parked_at_us,
            of_message.tries,
            func.length(of_message.body),
            of_message.error,
        )
        .outerjoin_from(parked, targets, targets.c.target_id == of_message.target_id)
        .outerjoin(domains, domains.c.domain_id == targets.c.domain_id)
        .order_by(of_message.parked_id)
    )
    return list(map(ParkedRow._make, examined_rows(address, query)))


def retry_parked(address: str, ids: Collection[int] | None) -> int:
    """Send parked messages back to the inbox under their sequence numbers, as if never tried; how many.

    By their numbers, None for all. All of them or, where one isn't there, none and a SettingsError.
    """
    columns = inbox.c.keys()
    tried_never = [literal(0) if name == "tries" else parked.c[name] for name in columns]
    back = insert(inbox).from_select(columns, select(*tried_never).where(parked.c.parked_id == bindparam("number")))
    return _taken_out(address, ids, back)


def drop_parked(address: str, ids: Collection[int] | None) -> int:
    """Delete parked messages for good; how many. Numbers as for `retry_parked`."""
    return _taken_out(address, ids)


def _taken_out(address: str, ids: Collection[int] | None, *first: Insert) -> int:
    out = delete(parked).where(parked.c.parked_id == bindparam("number"))
    with upkeep(address) as kept, kept.transaction(_locked) as (connection, there):
        chosen = sorted(there if ids is None else _checked(ids, there))
        for statement in (*first, out):
            if chosen:
                connection.execute(statement, [{"number": number} for number in chosen])
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
