"""Which sources are retired: marked in the rows of what they sent, and counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column(
        "receiver_domain", sa.Column("retired_sources", sa.BigInteger, nullable=False, server_default=sa.text("'0'"))
    )


def downgrade() -> None:
    # Version 0003 takes retired sources for active ones, so it remembers what is left of their ids for longer.
    op.execute(
        "UPDATE receiver_receipt SET policy_mark = NULL WHERE policy_mark IS NOT NULL"
        " AND domain_id IN (SELECT domain_id FROM receiver_domain WHERE policy = 'apama')"
    )
    op.drop_column("receiver_domain", "retired_sources")
