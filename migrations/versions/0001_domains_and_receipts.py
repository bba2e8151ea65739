"""The domains, their receipts, and the batches recorded in a caller's transaction."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

LOSES = {
    "{receipt} by which ids are remembered": "receiver_receipt",
    "{domain} with settings and counts": "receiver_domain",
}


def upgrade() -> None:
    op.create_table(
        "receiver_domain",
        sa.Column("domain_id", sa.Integer, sa.Identity(), primary_key=True),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("domain_key", sa.String(16), nullable=False),
        sa.Column("domain_name", sa.LargeBinary, nullable=False),
        sa.Column("window_size", sa.BigInteger, nullable=False),
        sa.Column("expiry_us", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("last_writer", sa.BigInteger, nullable=False),
        sa.Column("latest_us", sa.BigInteger, nullable=False),
        sa.Column("time_queue_newest_us", sa.BigInteger),
        sa.Column("receipts", sa.BigInteger, nullable=False),
        sa.Column("unchecked", sa.BigInteger, nullable=False),
        sa.Column("duplicates", sa.BigInteger, nullable=False),
        sa.Column("reused_ids", sa.BigInteger, nullable=False),
        sa.Column("redelivered", sa.BigInteger, nullable=False),
        sa.Column("clock_clamped", sa.BigInteger, nullable=False),
        sa.Column("max_delivery_us", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("domain_key", "domain_name", name="receiver_domain_name_key"),
    )
    op.create_table(
        "receiver_receipt",
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("first_received_at_us", sa.BigInteger),
        sa.Column("domain_id", sa.Integer, nullable=False),
        sa.Column("message_source_id", sa.LargeBinary),
        sa.Column("unique_message_id", sa.LargeBinary, nullable=False),
        sa.Column("body_digests", sa.Text),
        sa.PrimaryKeyConstraint("domain_id", "seq", name="receiver_receipt_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "receiver_joined",
        sa.Column("domain_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("writer", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE receiver_domain SET (fillfactor = 10)")
        op.execute(
            "ALTER TABLE receiver_receipt SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"
        )


def downgrade() -> None:
    op.drop_table("receiver_joined")
    op.drop_table("receiver_receipt")
    op.drop_table("receiver_domain")
