"""A domain dropped with all that the store keeps of it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from receiver.errors import SettingsError
from receiver.store.kept import upkeep
from receiver.store.tables import DomainState, domains, inbox, joined, parked, receipts, targets

__all__ = ["Dropped", "drop_domain"]


class Dropped(NamedTuple):
    """How many of each were deleted."""

    receipts: int
    waiting: int
    parked: int
    targets: int


def drop_domain(address: str, domain: DomainState) -> Dropped:
    """Forget all ids of a domain, and delete its messages and targets, in one transaction that has the domain to itself.

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
        waiting, set_aside = (
            connection.execute(delete(table).where(table.c.target_id.in_(of_its_targets))).rowcount
            for table in (inbox, parked)
        )
        receipts_gone, targets_gone, _, _ = (
            connection.execute(delete(table).where(table.c.domain_id == domain.domain_id)).rowcount
            for table in (receipts, targets, joined, domains)
        )
        return Dropped(receipts_gone, waiting, set_aside, targets_gone)
