"""The receipts that a concurrent receiver adds by one statement are packed into one row."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from receiver.store.codec import json_bytes, text_of
from receiver.store.schema import keep_all

revision = "0014"
down_revision = "0013"

KEPT_BY_NEWER_ONLY = {"{receipt} to be folded in": "SELECT coalesce(sum(receipts), 0) FROM receiver_arrival"}
_REFUSED_WHERE_RECEIPTS_WAIT = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM receiver_arrival) THEN
        RAISE EXCEPTION 'receipts wait to be folded in: receiver migrate packs them, a script can''t';
    END IF;
END $$
"""


def upgrade() -> None:
    packed = []
    if op.get_context().dialect.name == "postgresql":
        op.execute("LOCK TABLE receiver_arrival IN ACCESS EXCLUSIVE MODE")  # open transactions end first
        if context.is_offline_mode():
            op.execute(_REFUSED_WHERE_RECEIPTS_WAIT)
        else:
            waiting = op.get_bind().execute(sa.text("SELECT * FROM receiver_arrival ORDER BY arrival"))
            packed = [_packed(row) for row in waiting]
    columns = _of_statements()
    _replace(_of_receipts(), columns)
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE receiver_arrival ALTER COLUMN packed SET STORAGE EXTERNAL")
    op.bulk_insert(sa.table("receiver_arrival", *(sa.column(each.name, each.type) for each in columns)), packed)


def downgrade() -> None:
    keep_all(KEPT_BY_NEWER_ONLY, revision, down_revision)
    _replace(_of_statements(), _of_receipts())


def _of_receipts() -> list[sa.Column[Any]]:
    return [
        sa.Column("arrival", sa.BigInteger, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("jms_timestamp_ms", sa.BigInteger),
        sa.Column("unique_message_id", sa.LargeBinary),
        sa.Column("message_source_id", sa.LargeBinary),
        sa.Column("body_digest", sa.LargeBinary),
        sa.Column("redelivered", sa.Boolean, nullable=False),
        sa.Column("is_repeated", sa.Boolean, nullable=False),
        sa.Column("domain_id", sa.Integer, nullable=False),
    ]


def _of_statements() -> list[sa.Column[Any]]:
    return [
        sa.Column("arrival", sa.BigInteger, nullable=False),
        sa.Column("receipts", sa.Integer, nullable=False),
        sa.Column("received_at_us", sa.BigInteger, nullable=False),
        sa.Column("packed", sa.LargeBinary, nullable=False),
        sa.Column("domain_id", sa.Integer, nullable=False),
    ]


def _replace(before: list[sa.Column[Any]], after: list[sa.Column[Any]]) -> None:
    """Replace the columns, and delete all rows. On PostgreSQL it stays the same table, so users keep their rights to it."""
    key = ["domain_id", "arrival"]
    if op.get_context().dialect.name != "postgresql":
        op.drop_table("receiver_arrival")
        op.create_table("receiver_arrival", *after, sa.PrimaryKeyConstraint(*key, name="receiver_arrival_pkey"))
        return
    for column in before[1:]:
        op.drop_column("receiver_arrival", column.name)  # with domain_id goes the key
    op.execute("TRUNCATE receiver_arrival")
    for column in after[1:]:
        op.add_column("receiver_arrival", column)
    op.create_primary_key("receiver_arrival_pkey", "receiver_arrival", key)


def _packed(row: sa.Row) -> dict[str, object]:
    """The packed row of one receipt, as `receiver.store.databases.claims` packs a single receipt."""
    id_, source, digest = (
        None if value is None else text_of(bytes(value))
        for value in (row.unique_message_id, row.message_source_id, row.body_digest)
    )
    receipt = (id_, source, row.received_at_us, row.redelivered, row.jms_timestamp_ms, digest)
    return {
        "arrival": row.arrival,
        "receipts": 1,
        "received_at_us": row.received_at_us,
        "packed": json_bytes([receipt]),
        "domain_id": row.domain_id,
    }
