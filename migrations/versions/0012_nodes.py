"""The nodes of clusters that bridges have connected to last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

LOSES: dict[str, str] = {}  # the next connection notes its node again


def upgrade() -> None:
    op.create_table(
        "receiver_node",
        sa.Column("domain_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("address", sa.LargeBinary, primary_key=True),
        sa.Column("node", sa.LargeBinary, nullable=False),
        sa.Column("connected_at_us", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("receiver_node")
