"""Receipts that wait to be written to recordings.

Receivers of the version before record to journals in the same folder. This version reads and finishes these.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

LOSES = {
    "{receipt} waiting to be written to recordings": (
        "SELECT coalesce(sum(receipts), 0) FROM receiver_recorded WHERE file IS NULL"
    )
}


def upgrade() -> None:
    op.create_table(
        "receiver_recorded",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("recording", sa.LargeBinary, nullable=False),
        sa.Column("host", sa.LargeBinary, nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.Column("file", sa.LargeBinary),
        sa.Column("receipts", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("packed", sa.LargeBinary, nullable=False),
    )
    if op.get_context().dialect.name == "postgresql":
        storage = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
        op.execute(f"ALTER TABLE receiver_recorded SET ({storage})")
        op.execute("ALTER TABLE receiver_recorded ALTER COLUMN packed SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("receiver_recorded")
