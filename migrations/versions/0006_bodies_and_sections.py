"""Kinds of bodies that are neither text nor bytes, and AMQP sections of messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_TABLES = ("receiver_inbox", "receiver_parked")
LOSES = {
    f"the body kind and AMQP types of {{message}} of {table}": (
        f"{table} WHERE body_kind IS NOT NULL OR amqp IS NOT NULL"
    )
    for table in _TABLES
}


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("body_kind", sa.Text))
        op.add_column(table, sa.Column("amqp", sa.LargeBinary))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "amqp")
        op.drop_column(table, "body_kind")
