"""Waiting messages are always packed. A row counts the tries of its message, and lists the sources of its messages."""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa
from alembic import context, op

from receiver.errors import StoreCorruptError
from receiver.store.databases import NONSENSE
from receiver.store.messages import FIELDS, flat
from receiver.store.packed import corrupt_error, pack_of_target, unpack
from receiver.store.tables import message_codec, unpacked, waiting

revision = "0009"
down_revision = "0008"

LOSES: dict[str, str] = {}
_TARGETS = sa.table("receiver_target", sa.column("target_id"))
_COLUMNS = [name for name in FIELDS if name in unpacked.c]


def upgrade() -> None:
    _lock_targets()
    op.add_column("receiver_bundle", sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("'0'")))
    op.add_column("receiver_bundle", sa.Column("sources", sa.LargeBinary))
    if not context.is_offline_mode():  # otherwise the next bridge with the lease packs them
        for target_id in op.get_bind().scalars(sa.select(_TARGETS.c.target_id)).all():
            with suppress(StoreCorruptError):  # raised again by the bridge that is to deliver the message
                pack_of_target(op.get_bind(), target_id)


def downgrade() -> None:
    _lock_targets()
    unpack_all(op.get_bind())
    op.drop_column("receiver_bundle", "sources")
    op.drop_column("receiver_bundle", "tries")


def _lock_targets() -> None:
    """Lock all targets, so that no bridge is handing on the messages that are moved here."""
    op.execute(sa.select(_TARGETS).order_by(_TARGETS.c.target_id).with_for_update())


def unpack_all(connection: sa.Connection) -> None:
    """Move each waiting message back into a row of its own. All targets must be locked."""
    for target_id, first in connection.execute(sa.select(waiting.c.target_id, waiting.c.first_sequence)).all():
        this = (waiting.c.target_id == target_id) & (waiting.c.first_sequence == first)
        row = connection.execute(sa.select(waiting.c.runs, waiting.c.packed, waiting.c.tries).where(this)).one()
        try:
            messages = unpack(*row)
        except NONSENSE as error:
            raise corrupt_error(connection, target_id, first, error) from error
        values = [dict(zip(FIELDS, message_codec.stored(flat(each)), strict=True)) for each in messages]
        of_rows = [{name: each[name] for name in _COLUMNS} | {"target_id": target_id} for each in values]
        connection.execute(sa.insert(unpacked), of_rows)
        connection.execute(sa.delete(waiting).where(this))
