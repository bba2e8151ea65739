"""The waiting messages that a batch put into the inbox together, in one row.

Bridges of the version before don't see these rows, and only deliver their own messages. The next bridge of this version
delivers these.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from receiver.store.schema import keep_all

revision = "0008"
down_revision = "0007"

KEPT_BY_NEWER_ONLY = {
    "{message} waiting in the inbox": "SELECT coalesce(sum(messages), 0) FROM receiver_bundle",
}


def upgrade() -> None:
    op.create_table(
        "receiver_bundle",
        sa.Column("first_sequence", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("body_bytes", sa.BigInteger, nullable=False),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("runs", sa.Text, nullable=False),
        sa.Column("packed", sa.LargeBinary, nullable=False),
        sa.Column("target_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("target_id", "first_sequence", name="receiver_bundle_pkey"),
    )
    if op.get_context().dialect.name == "postgresql":
        storage = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
        op.execute(f"ALTER TABLE receiver_bundle SET ({storage})")
        op.execute("ALTER TABLE receiver_bundle ALTER COLUMN packed SET STORAGE EXTERNAL")


def downgrade() -> None:
    keep_all(KEPT_BY_NEWER_ONLY, revision, down_revision)
    op.drop_table("receiver_bundle")
