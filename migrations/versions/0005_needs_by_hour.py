"""The needs of a domain's duplicates over the last day, by tier."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

LOSES = {"what the duplicates of {domain} needed": "receiver_domain WHERE needs_by_hour IS NOT NULL"}


def upgrade() -> None:
    op.add_column("receiver_domain", sa.Column("needs_by_hour", sa.Text))


def downgrade() -> None:
    op.drop_column("receiver_domain", "needs_by_hour")
