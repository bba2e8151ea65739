"""Retired sources, counted, and marked in the rows of their receipts; names of broker targets without users."""

from __future__ import annotations

import re
from collections import defaultdict

import sqlalchemy as sa
from alembic import context, op
from alembic.util import CommandError

revision = "0004"
down_revision = "0003"


_OF_RETIRED_SOURCES = (
    "receiver_receipt WHERE policy_mark IS NOT NULL"
    " AND domain_id IN (SELECT domain_id FROM receiver_domain WHERE policy = 'apama')"
)
# Version 0003 treats retired sources as active, so it remembers their remaining ids for longer.
LOSES = {"the mark of {receipt} of retired sources": _OF_RETIRED_SOURCES}


def upgrade() -> None:
    # Domains first, then targets: a batch takes its locks in this order.
    op.add_column(
        "receiver_domain", sa.Column("retired_sources", sa.BigInteger, nullable=False, server_default=sa.text("'0'"))
    )
    if not context.is_offline_mode():
        _name_targets_without_users()
    elif context.get_starting_revision_argument() == down_revision:  # otherwise the script makes the targets' table
        raise CommandError("a script can't rename targets: say receiver migrate URL")


def downgrade() -> None:
    """Names of targets stay as they are: no row has their users, and bridges of version 0003 without a user find them."""
    op.execute(_OF_RETIRED_SOURCES.replace("receiver_receipt", "UPDATE receiver_receipt SET policy_mark = NULL", 1))
    op.drop_column("receiver_domain", "retired_sources")


_WITH_USER = re.compile(rb"\A((?:stomp|amqp)s?://)[^/@]*@")
_SHARED_PLACES = sa.text(
    "SELECT place FROM (SELECT place FROM receiver_inbox WHERE target_id IN (:from_id, :to_id)"
    " UNION ALL SELECT place FROM receiver_parked WHERE target_id IN (:from_id, :to_id)) AS each_message"
    " GROUP BY place HAVING count(*) > 1 LIMIT 1"
)


def _name_targets_without_users() -> None:
    """Remove users from the names of targets. If targets of a domain only differ by user, one of them gets the name and all
    messages: the target without a user, otherwise the latest.

    The other targets stay, empty and under their names, because a running bridge of the version before may still add messages
    to them, which must not be lost. A target whose messages have the sequence numbers of another's, which no store should
    have, keeps its messages.
    """
    connection = op.get_bind()
    target = sa.table("receiver_target", sa.column("target_id"), sa.column("domain_id"), sa.column("target"))
    of_name: defaultdict[tuple[int, bytes], list[tuple[int, bytes]]] = defaultdict(list)
    # Locked, so that no bridge is handing on the messages that are moved here.
    for target_id, domain_id, name in connection.execute(
        sa.select(target).order_by(target.c.target_id).with_for_update()
    ).all():
        of_name[domain_id, _WITH_USER.sub(rb"\1", name)].append((target_id, name))
    for (_, name), same_name in of_name.items():
        with_user = [target_id for target_id, before in same_name if before != name]
        without_user = [target_id for target_id, before in same_name if before == name]
        if not with_user:
            continue
        kept = (without_user or with_user)[-1]
        for target_id in with_user:
            if target_id != kept:
                _move_messages(connection, target_id, kept)
        connection.execute(sa.update(target).where(target.c.target_id == kept).values(target=name))


def _move_messages(connection: sa.Connection, from_id: int, to_id: int) -> None:
    if connection.execute(_SHARED_PLACES, {"from_id": from_id, "to_id": to_id}).first() is not None:
        return
    for table in ("receiver_inbox", "receiver_parked"):
        moved = sa.text(f"UPDATE {table} SET target_id = :to_id WHERE target_id = :from_id")  # noqa: S608 - from above
        connection.execute(moved, {"from_id": from_id, "to_id": to_id})
