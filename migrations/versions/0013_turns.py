"""The note of the last turn sent to a target, such as a topic of Kafka."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

LOSES = {"the last turn of {topic}": "receiver_target WHERE last_turn IS NOT NULL"}


def upgrade() -> None:
    op.add_column("receiver_target", sa.Column("last_turn", sa.Text))


def downgrade() -> None:
    op.drop_column("receiver_target", "last_turn")
