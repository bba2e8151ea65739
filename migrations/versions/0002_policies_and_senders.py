"""The policy of a domain, its mark on each receipt, and the numbers and keys that senders store before they send."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from receiver.store.schema import keep_all

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE receiver_domain RENAME COLUMN time_queue_newest_us TO clock_us")
    op.add_column("receiver_domain", sa.Column("policy", sa.String(16), nullable=False, server_default="apama"))
    op.add_column("receiver_receipt", sa.Column("policy_mark", sa.BigInteger))
    op.create_table(
        "receiver_sequence",
        sa.Column("message_source_id", sa.LargeBinary, primary_key=True),
        sa.Column("last_seq_no", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "receiver_dedup_key",
        sa.Column("sender", sa.LargeBinary, primary_key=True),
        sa.Column("reference", sa.LargeBinary, primary_key=True),
        sa.Column("made_at_us", sa.BigInteger, nullable=False),
        sa.Column("dedup_key", sa.String(32), nullable=False),
    )


KEPT_BY_NEWER_ONLY = {
    "the policy of {domain}": "receiver_domain WHERE policy <> 'apama'",
    # Without them numbers would be given twice, and new messages taken for duplicates.
    "the last sequence number of {source}": "receiver_sequence",
    "the key of {message} whose send isn't confirmed": "receiver_dedup_key",
}


def downgrade() -> None:
    keep_all(KEPT_BY_NEWER_ONLY, revision, down_revision)
    op.drop_table("receiver_dedup_key")
    op.drop_table("receiver_sequence")
    op.drop_column("receiver_receipt", "policy_mark")
    op.drop_column("receiver_domain", "policy")
    op.execute("ALTER TABLE receiver_domain RENAME COLUMN clock_us TO time_queue_newest_us")
