"""Messages that wait for their target, parked messages, and the confirmed lengths of files."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from receiver.store.schema import keep_all

revision = "0003"
down_revision = "0002"


def _of_a_message() -> list[sa.Column[Any]]:
    return [
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("jms_timestamp_ms", sa.BigInteger),
        sa.Column("target_id", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("redelivered", sa.Boolean, nullable=False),
        sa.Column("is_text", sa.Boolean, nullable=False),
        sa.Column("unique_message_id", sa.LargeBinary),
        sa.Column("message_source_id", sa.LargeBinary),
        sa.Column("destination", sa.LargeBinary, nullable=False),
        sa.Column("message_id", sa.LargeBinary),
        sa.Column("headers", sa.Text, nullable=False),
        sa.Column("properties", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "receiver_target",
        sa.Column("target_id", sa.Integer, sa.Identity(), primary_key=True),
        sa.Column("domain_id", sa.Integer, nullable=False),
        sa.Column("target", sa.LargeBinary, nullable=False),
        sa.Column("confirmed_bytes", sa.BigInteger),
        sa.Column("tail_digest", sa.LargeBinary),
        sa.UniqueConstraint("domain_id", "target", name="receiver_target_name_key"),
    )
    op.create_table(
        "receiver_inbox",
        *_of_a_message(),
        sa.PrimaryKeyConstraint("target_id", "place", name="receiver_inbox_pkey"),
    )
    op.create_table(
        "receiver_parked",
        sa.Column("parked_id", sa.Integer, sa.Identity(), primary_key=True),
        sa.Column("parked_at_us", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        *_of_a_message(),
        sa.UniqueConstraint("target_id", "place", name="receiver_parked_place_key"),
        sqlite_autoincrement=True,
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE receiver_target SET (fillfactor = 10)")
        op.execute(
            "ALTER TABLE receiver_inbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"
        )


KEPT_BY_NEWER_ONLY = {
    "{message} waiting in the inbox": "receiver_inbox",
    "{parked message}": "receiver_parked",
    # Without them, lines that a crash left at the end of a file would stay there, and be written again.
    "the confirmed length of {file}": "receiver_target WHERE confirmed_bytes IS NOT NULL",
}


def downgrade() -> None:
    keep_all(KEPT_BY_NEWER_ONLY, revision, down_revision)
    for table in ("receiver_parked", "receiver_inbox", "receiver_target"):
        op.drop_table(table)
