"""Ids that concurrent receivers claim, and their receipts that aren't folded into the domain's log yet.

Receivers of the version before don't support such domains. So a store with claimed ids or unfolded receipts can't be
downgraded.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from receiver.store.schema import keep_all

revision = "0011"
down_revision = "0010"

KEPT_BY_NEWER_ONLY = {"{claimed id}": "receiver_claim", "{receipt} to be folded in": "receiver_arrival"}


def upgrade() -> None:
    op.create_table(
        "receiver_claim",
        sa.Column("domain_id", sa.Integer, nullable=False),
        sa.Column("unique_message_id", sa.LargeBinary, nullable=False),
        sa.Column("long_id", sa.LargeBinary),
        sa.Column("is_repeated", sa.Boolean, nullable=False),
        sa.Column("is_single", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "unique_message_id", name="receiver_claim_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "receiver_arrival",
        sa.Column("arrival", sa.BigInteger, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("jms_timestamp_ms", sa.BigInteger),
        sa.Column("unique_message_id", sa.LargeBinary),
        sa.Column("message_source_id", sa.LargeBinary),
        sa.Column("body_digest", sa.LargeBinary),
        sa.Column("redelivered", sa.Boolean, nullable=False),
        sa.Column("is_repeated", sa.Boolean, nullable=False),
        sa.Column("domain_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "arrival", name="receiver_arrival_pkey"),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.schema.CreateSequence(sa.Sequence("receiver_arrival_number", data_type=sa.BigInteger)))
        storage = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
        for table in ("receiver_claim", "receiver_arrival"):
            op.execute(f"ALTER TABLE {table} SET ({storage})")


def downgrade() -> None:
    keep_all(KEPT_BY_NEWER_ONLY, revision, down_revision)
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.schema.DropSequence(sa.Sequence("receiver_arrival_number")))
    op.drop_table("receiver_arrival")
    op.drop_table("receiver_claim")
    op.execute(
        "UPDATE receiver_domain SET policy = 'apama' WHERE policy = 'apama-concurrent'"
    )  # nothing is claimed in it
