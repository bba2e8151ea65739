"""The tables, as this version of the package declares them; `migrations/` makes them, and a test holds both equal.

Ids and names are bytes: UTF-8 in which a lone surrogate stands as it is. For PostgreSQL's text has no U+0000 and
neither's has lone surrogates, yet two ids must never become one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
)

__all__ = [
    "METADATA",
    "REVISION",
    "VERSION_TABLE",
    "dedup_keys",
    "domains",
    "inbox",
    "joined",
    "parked",
    "receipts",
    "sequences",
    "targets",
    "text_of",
    "to_bytes",
]

REVISION = "0004"
"""The newest migration: the version of the tables below."""
VERSION_TABLE = "receiver_alembic_version"

METADATA = MetaData()

domains = Table(
    "receiver_domain",
    METADATA,
    # SQLite's own key, an alias of the rowid, needs the type INTEGER.
    Column("domain_id", Integer, Identity(), primary_key=True),
    # Told apart from a domain of the same number in another database, or in this one before it was made anew.
    Column("incarnation", BigInteger, nullable=False),
    Column("domain_key", String(16), nullable=False),
    Column("domain_name", LargeBinary, nullable=False),
    Column("window_size", BigInteger, nullable=False),
    Column("expiry_us", BigInteger, nullable=False),
    # Raised by each change of the two above.
    Column("generation", BigInteger, nullable=False),
    # The last serial number of a receipt, and a number drawn for the batch that wrote this row last.
    Column("last_seq", BigInteger, nullable=False),
    Column("last_writer", BigInteger, nullable=False),
    # Two clocks that the surviving receipts don't tell: the latest receipt's time, and the policy's own, by which it
    # forgets; null where there is none, or before it ever moved.
    Column("latest_us", BigInteger, nullable=False),
    Column("clock_us", BigInteger),
    # Counted since the domain was made, over all receivers.
    Column("receipts", BigInteger, nullable=False),
    Column("unchecked", BigInteger, nullable=False),
    Column("duplicates", BigInteger, nullable=False),
    Column("reused_ids", BigInteger, nullable=False),
    Column("redelivered", BigInteger, nullable=False),
    Column("clock_clamped", BigInteger, nullable=False),
    Column("max_delivery_us", BigInteger, nullable=False),
    # Whose rule judges receipts; the two sizes above are its own.
    Column("policy", String(16), nullable=False, server_default="apama"),
    # Raised for each source that is retired: who has recorded rows of one reads the log anew.
    Column("retired_sources", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("domain_key", "domain_name", name="receiver_domain_name_key"),
)

receipts = Table(
    "receiver_receipt",
    METADATA,
    # Wide columns first: PostgreSQL pads a narrow one before a wide one.
    Column("seq", BigInteger, nullable=False),
    Column("received_at_us", BigInteger, nullable=False),
    # When the id first came, null if with this receipt.
    Column("first_received_at_us", BigInteger),
    Column("domain_id", Integer, nullable=False),
    Column("message_source_id", LargeBinary),
    Column("unique_message_id", LargeBinary, nullable=False),
    # The different digests that came with the id, as a JSON list; null if none did.
    Column("body_digests", Text),
    # What else the policy keeps of the receipt: when it was sent, its place in a ring, or that its source was retired
    # later; null for most.
    Column("policy_mark", BigInteger),
    PrimaryKeyConstraint("domain_id", "seq", name="receiver_receipt_pkey"),
    sqlite_with_rowid=False,
)

joined = Table(
    "receiver_joined",
    METADATA,
    # The last batch of a receiver of those that are in its caller's transaction, or in a recording, left in the batch's
    # own transaction: so whether it was committed can be read rather than guessed.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    # Numbered by the receiver itself. The domain's last number then tells how long ago it was.
    Column("batch", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

sequences = Table(
    "receiver_sequence",
    METADATA,
    # The last number that a sender has given to a message.
    Column("message_source_id", LargeBinary, primary_key=True),
    Column("last_seq_no", BigInteger, nullable=False),
)

dedup_keys = Table(
    "receiver_dedup_key",
    METADATA,
    # The keys of messages whose sends aren't confirmed yet, by what the sender calls each message.
    Column("sender", LargeBinary, primary_key=True),
    Column("reference", LargeBinary, primary_key=True),
    Column("made_at_us", BigInteger, nullable=False),
    Column("dedup_key", String(32), nullable=False),
)

targets = Table(
    "receiver_target",
    METADATA,
    # Where a domain's messages go, one row for all the bridges that take them there: who locks it has the turn.
    Column("target_id", Integer, Identity(), primary_key=True),
    Column("domain_id", Integer, nullable=False),
    Column("target", LargeBinary, nullable=False),
    # Of a file: how much of it is ours for certain, and a digest of the end of that; null before the first message.
    Column("confirmed_bytes", BigInteger),
    Column("tail_digest", LargeBinary),
    UniqueConstraint("domain_id", "target", name="receiver_target_name_key"),
)


def _of_a_message() -> list[Column[Any]]:
    return [
        # The number of its receipt in the domain, counted from 0: its place in the order of all, never given twice.
        Column("place", BigInteger, nullable=False),
        Column("received_at_us", BigInteger, nullable=False),
        Column("jms_timestamp_ms", BigInteger),
        Column("target_id", Integer, nullable=False),
        # How often its delivery has failed.
        Column("tries", Integer, nullable=False),
        Column("redelivered", Boolean, nullable=False),
        Column("is_text", Boolean, nullable=False),
        Column("unique_message_id", LargeBinary),
        Column("message_source_id", LargeBinary),
        Column("destination", LargeBinary, nullable=False),
        Column("message_id", LargeBinary),
        # JSON, ASCII: of these two.
        Column("headers", Text, nullable=False),
        Column("properties", Text, nullable=False),
        # Last, for SQLite reads what stands before a column in order to find it.
        Column("body", LargeBinary, nullable=False),
    ]


inbox = Table(
    "receiver_inbox",
    METADATA,
    # The messages that wait for their target.
    *_of_a_message(),
    PrimaryKeyConstraint("target_id", "place", name="receiver_inbox_pkey"),
)

parked = Table(
    "receiver_parked",
    METADATA,
    # Messages that their target refused too often, that had no id that could be judged, or that came back in a ring.
    Column("parked_id", Integer, Identity(), primary_key=True),
    Column("parked_at_us", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    *_of_a_message(),
    UniqueConstraint("target_id", "place", name="receiver_parked_place_key"),
    # No number comes again: who drops one must not drop another that was parked since.
    sqlite_autoincrement=True,
)

_BUSY_ROW = "fillfactor = 10"
"""Every batch or turn updates a row here: with room on its page, PostgreSQL keeps that update out of the index."""
_COMING_AND_GOING = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
"""Rows come and go all the time: the sooner those gone are vacuumed, the less the table grows."""
_STORAGE = {domains: _BUSY_ROW, targets: _BUSY_ROW, receipts: _COMING_AND_GOING, inbox: _COMING_AND_GOING}
for _table, _parameters in _STORAGE.items():
    _alter = DDL(f"ALTER TABLE {_table.name} SET ({_parameters})")  # type: ignore[no-untyped-call]
    event.listen(_table, "after_create", _alter.execute_if(dialect="postgresql"))


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def told(stored: bytes) -> str:
    """For people, also where a damaged store holds what is no text."""
    try:
        return text_of(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace")
