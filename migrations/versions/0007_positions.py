"""The positions of sources whose broker keeps its messages, such as a consumer group of Kafka."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

LOSES = {"{position} of bridges in partitions or streams": "receiver_position"}


def upgrade() -> None:
    op.create_table(
        "receiver_position",
        sa.Column("domain_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("source", sa.LargeBinary, primary_key=True),
        sa.Column("name", sa.LargeBinary, primary_key=True),
        sa.Column("position", sa.LargeBinary, nullable=False),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE receiver_position SET (fillfactor = 10)")


def downgrade() -> None:
    op.drop_table("receiver_position")
