"""Waiting messages are packed, each of them: the tries of one that was tried, and the sources of those in a row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from receiver.store.packed import pack_all, unpack_all

revision = "0009"
down_revision = "0008"

LOSES: dict[str, str] = {}
_TARGETS = sa.table("receiver_target", sa.column("target_id"))


def upgrade() -> None:
    _lock_targets()
    op.add_column("receiver_bundle", sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("'0'")))
    op.add_column("receiver_bundle", sa.Column("sources", sa.LargeBinary))
    if not context.is_offline_mode():  # else whoever next has the lease does it
        pack_all(op.get_bind())


def downgrade() -> None:
    _lock_targets()
    unpack_all(op.get_bind())
    op.drop_column("receiver_bundle", "sources")
    op.drop_column("receiver_bundle", "tries")


def _lock_targets() -> None:
    """No bridge is in the middle of handing on what is put elsewhere here."""
    op.execute(sa.select(_TARGETS).order_by(_TARGETS.c.target_id).with_for_update())
