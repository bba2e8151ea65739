"""The tables, as this version of the package declares them; `migrations/` makes them, and a test compares both.

Records with many users are declared once, field by field: `ReceiptRow`, `DomainState`, `FlatMessage`, `ArrivalRow`,
`PackedRow` and `RecordedRow`. `codec.py` derives columns, SQL, conversions and the types for the audit from them.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, NamedTuple

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
from sqlalchemy import Sequence as NumberSequence

from receiver.domains import LONGEST_KEY
from receiver.message import Ascii, ReceiptRow
from receiver.store.codec import Codec, record_columns
from receiver.store.messages import FlatMessage

_PACKAGE = Path(__file__).resolve().parent.parent
MIGRATIONS = next(
    (folder for folder in (_PACKAGE / "migrations", _PACKAGE.parent / "migrations") if folder.exists()),
    _PACKAGE / "migrations",
)
"""Inside the package in an installed wheel, and at the top of the repository in a checkout."""
REVISION = max((script.name.partition("_")[0] for script in MIGRATIONS.glob("versions/[0-9]*.py")), default="")
"""The newest migration: the version of the tables below."""
VERSION_TABLE = "receiver_alembic_version"


EXCLUSIVE_POLICY, CONCURRENT_POLICY = "apama", "apama-concurrent"
"""The names of Apama's rule in exclusive and in concurrent domains. Versions before claims don't know the second name. So they
refuse the domain, even if they have it open: they would record ids without claiming them."""


class DomainState(NamedTuple):
    """A domain's own row."""

    domain_id: int
    store_id: int
    """Distinguishes the domain from one of the same number in another database, or in this one before it was made anew."""
    domain_key: Ascii
    domain_name: str
    window_size: int
    expiry_us: int
    generation: int
    """Raised when one of the sizes changes, and when an id is forgotten by hand: then every process reads the rows anew."""
    last_seq: int
    """The number of the latest receipt."""
    last_writer: int
    """A `new_number`, drawn by each batch that writes this row."""
    latest_us: int
    """The latest receipt's time."""
    clock_us: int | None
    """The policy's own clock, by which it forgets; None if it has none, or hasn't moved yet."""
    # Counted since the domain was made, over all receivers.
    receipts: int
    unchecked: int
    duplicates: int
    reused_ids: int
    redelivered: int
    clock_clamped: int
    max_delivery_us: int
    policy: Ascii
    """The name of the policy that judges receipts; the two sizes above are the policy's. A domain of concurrent receivers has
    `CONCURRENT_POLICY`."""
    retired_sources: int
    """Counts retired sources: when it changes, other processes read the log anew."""
    needs_by_hour: Ascii | None
    """The needs of duplicates by hour, as `receiver.durable.duplicates` writes them; None before any."""

    @property
    def is_concurrent(self) -> bool:
        """Whether its receivers are concurrent: they claim ids (`receiver.store.databases.claims`)."""
        return self.policy == CONCURRENT_POLICY

    @property
    def rule(self) -> str:
        """The name of the policy's class."""
        return EXCLUSIVE_POLICY if self.is_concurrent else self.policy

    def converted(self) -> DomainState:
        """The state as a domain of the other kind. Every process then reads the rows anew, and with them the policy's name."""
        policy = EXCLUSIVE_POLICY if self.is_concurrent else CONCURRENT_POLICY
        return self._replace(policy=policy, generation=self.generation + 1)


def new_number() -> int:
    """A random number, unique among all processes and for all time."""
    return secrets.randbits(62)  # a database's integers have 63


class ArrivalRow(NamedTuple):
    """The receipts of one statement of a concurrent receiver, which aren't folded into the domain's log yet."""

    arrival: int
    """Drawn once the ids of all its receipts are claimed. Receipts are folded in by these numbers."""
    receipts: int
    received_at_us: int
    """The time of the first receipt, as it was received."""
    packed: bytes
    """The receipts, in the format of `receiver.store.databases.claims`."""


class PackedRow(NamedTuple):
    """Messages that wait for their target, in one row, in the format of `receiver.store.packed`."""

    first_sequence: int
    last_sequence: int
    received_at_us: int
    """When the oldest message was received."""
    body_bytes: int
    """The size of all bodies together."""
    messages: int
    """The number of messages."""
    runs: Ascii
    """The sequence numbers: the first and the last of each run of consecutive numbers, as JSON."""
    packed: bytes
    tries: int
    """How often the delivery of a single message has failed; 0 for several messages."""
    sources: bytes | None
    """The distinct sources of the messages; None if an earlier version packed them."""


class RecordedRow(NamedTuple):
    """A batch that waits to be written to a file of a recording; or a *cut*: a file to make, and its batches."""

    recording: str
    """The absolute path of the recording."""
    host: str
    """The name of the machine that the path is on."""
    recorded_at_us: int
    """The time by the clock of that machine."""
    file: str | None
    """The name of a cut's file; None for a batch."""
    receipts: int
    size_bytes: int
    """The size of the receipts before they were packed."""
    packed: bytes
    """A batch's receipts; or the numbers of the rows of a cut's batches, as runs in JSON. The last column, because SQLite
    reads through all columns before the one that it needs."""


METADATA = MetaData()

domains = Table(
    "receiver_domain",
    METADATA,
    *record_columns(
        DomainState,
        # SQLite's own key, an alias of the rowid, needs the type INTEGER.
        domain_id={"type_": Integer, "primary_key": True, "server_default": Identity()},
        store_id={"name": "incarnation"},
        domain_key={"type_": String(LONGEST_KEY)},
        policy={"type_": String(16), "server_default": EXCLUSIVE_POLICY},
        retired_sources={"server_default": "0"},
    ),
    UniqueConstraint("domain_key", "domain_name", name="receiver_domain_name_key"),
)

_receipt_columns = record_columns(ReceiptRow, policy_state={"name": "policy_mark"})
# Wide columns first: PostgreSQL pads a narrow one before a wide one.
_receipt_columns.insert(3, Column("domain_id", Integer, nullable=False))
receipts = Table(
    "receiver_receipt",
    METADATA,
    *_receipt_columns,
    PrimaryKeyConstraint("domain_id", "seq", name="receiver_receipt_pkey"),
    sqlite_with_rowid=False,
)

batch_numbers = Table(
    "receiver_joined",
    METADATA,
    # The number of each receiver's last batch in a caller's transaction. It is written in that transaction, so it shows
    # whether the transaction was committed. Versions before 0010 numbered recorded batches too.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    # The receiver itself numbers its batches. `last_seq` is the domain's last number then: it shows how old the batch is.
    Column("batch", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

claims = Table(
    "receiver_claim",
    METADATA,
    # The ids that concurrent receivers have claimed. Their transactions lock the rows; `receiver.store.databases.claims` has the rule.
    Column("domain_id", Integer, nullable=False),
    # The id or, if it is long, its beginning and its digest; then `long_id` has the id.
    Column("unique_message_id", LargeBinary, nullable=False),
    Column("long_id", LargeBinary),
    # Set by each statement but the first: it tells a claiming statement whether the id had been claimed before.
    Column("is_repeated", Boolean, nullable=False),
    # Whether all receipts with the id came by one statement, and so are folded in together.
    Column("is_single", Boolean, nullable=False),
    PrimaryKeyConstraint("domain_id", "unique_message_id", name="receiver_claim_pkey"),
    sqlite_with_rowid=False,
)

arrival_numbers = NumberSequence("receiver_arrival_number", metadata=METADATA, data_type=BigInteger)
"""On PostgreSQL alone, as are concurrent receivers."""
ARRIVAL_SEQUENCES = range(-(1 << 62), -(1 << 61))
"""The sequence numbers of messages that concurrent receivers have parked, in the order of their arrivals: far below
all other sequence numbers."""
arrivals = Table(
    "receiver_arrival",
    METADATA,
    *record_columns(ArrivalRow, receipts={"type_": Integer}),
    Column("domain_id", Integer, nullable=False),
    PrimaryKeyConstraint("domain_id", "arrival", name="receiver_arrival_pkey"),
)

sequences = Table(
    "receiver_sequence",
    METADATA,
    # The last sequence number that a sender has given to a message.
    Column("message_source_id", LargeBinary, primary_key=True),
    Column("last_seq_no", BigInteger, nullable=False),
)

dedup_keys = Table(
    "receiver_dedup_key",
    METADATA,
    # The keys of messages whose sends aren't confirmed yet, by the sender's own name for each message.
    Column("sender", LargeBinary, primary_key=True),
    Column("reference", LargeBinary, primary_key=True),
    Column("made_at_us", BigInteger, nullable=False),
    Column("dedup_key", String(32), nullable=False),
)

targets = Table(
    "receiver_target",
    METADATA,
    # The targets of a domain's messages, a row for each, however many bridges serve it. Whoever locks the row has the lease.
    Column("target_id", Integer, Identity(), primary_key=True),
    Column("domain_id", Integer, nullable=False),
    Column("target", LargeBinary, nullable=False),
    # For a target file: how many of its bytes are ours for certain, and a digest of their end; null before the first message.
    Column("confirmed_bytes", BigInteger),
    Column("tail_digest", LargeBinary),
    # The target's own note; null before the first: see `receiver.store.inbox.TargetState`.
    Column("last_turn", Text),
    UniqueConstraint("domain_id", "target", name="receiver_target_name_key"),
)


def _message_columns() -> list[Column[Any]]:
    columns = record_columns(FlatMessage, sequence={"name": "place"}, tries={"type_": Integer})
    columns.insert(3, Column("target_id", Integer, nullable=False))
    return columns


_packed_columns = record_columns(
    PackedRow, messages={"type_": Integer}, tries={"type_": Integer, "server_default": "0"}
)
# `target_id` stands before the columns that later versions added.
_packed_columns.insert(7, Column("target_id", Integer, nullable=False))
waiting = Table(
    # An older version gave the name. Processes of older versions may still be using it.
    "receiver_bundle",
    METADATA,
    # The messages that wait for their target.
    *_packed_columns,
    PrimaryKeyConstraint("target_id", "first_sequence", name="receiver_bundle_pkey"),
)

_COLUMNS_OF_ROWS = 16
"""The columns of a message in version 0008 of the tables, and its target. Later columns are only added to parked messages."""
unpacked = Table(
    "receiver_inbox",
    METADATA,
    # Waiting messages of processes of older versions, one in a row, until a lease packs them.
    *_message_columns()[:_COLUMNS_OF_ROWS],
    PrimaryKeyConstraint("target_id", "sequence", name="receiver_inbox_pkey"),
)

parked = Table(
    "receiver_parked",
    METADATA,
    # Messages that their target refused too often, whose id couldn't be judged, or that came back in a ring.
    Column("parked_id", Integer, Identity(), primary_key=True),
    Column("parked_at_us", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    *_message_columns(),
    UniqueConstraint("target_id", "sequence", name="receiver_parked_place_key"),
    # No number is used twice: whoever drops a parked message must not drop another that was parked since.
    sqlite_autoincrement=True,
)

positions = Table(
    "receiver_position",
    METADATA,
    # How far a bridge has read from a broker that keeps every message: for a Kafka consumer group, each partition. The source
    # itself chooses the texts in the three columns.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("source", LargeBinary, primary_key=True),
    Column("name", LargeBinary, primary_key=True),
    Column("position", LargeBinary, nullable=False),
)

nodes = Table(
    "receiver_node",
    METADATA,
    # For each address that names several hosts: the host to which a bridge of the domain connected last.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("address", LargeBinary, primary_key=True),
    Column("node", LargeBinary, nullable=False),
    Column("connected_at_us", BigInteger, nullable=False),
)

recorded = Table(
    "receiver_recorded",
    METADATA,
    # The batches that wait to be written to recordings. The number is drawn while the domain is locked, so the rows of a
    # domain are numbered in the order of their commits.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    *record_columns(RecordedRow, receipts={"type_": Integer}, size_bytes={"type_": Integer}),
)

_BUSY_ROW = "fillfactor = 10"
"""Every batch or lease updates a row here. If the row's page has room, PostgreSQL needn't update the index (HOT)."""
_COMING_AND_GOING = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
"""Rows come and go all the time: the sooner deleted rows are vacuumed, the less the table grows."""
_STORAGE = {
    **dict.fromkeys([domains, targets, positions], _BUSY_ROW),
    **dict.fromkeys([receipts, waiting, unpacked, recorded, claims, arrivals], _COMING_AND_GOING),
}
_ALTERED = [(table, f"SET ({parameters})") for table, parameters in _STORAGE.items()]
# Compressing values that are deleted soon, or compressed already, would cost more than writing them.
_ALTERED += [(table, "ALTER COLUMN packed SET STORAGE EXTERNAL") for table in (waiting, recorded, arrivals)]
for _table, _change in _ALTERED:
    _alter = DDL(f"ALTER TABLE {_table.name} {_change}")  # type: ignore[no-untyped-call]
    event.listen(_table, "after_create", _alter.execute_if(dialect="postgresql"))

receipt_codec = Codec(ReceiptRow, receipts, few=["message_source_id"])
domain_codec = Codec(DomainState, domains)
message_codec: Codec[Any] = Codec(FlatMessage, parked)
recorded_codec = Codec(RecordedRow, recorded)

OWNED = {
    owners: [table for table in METADATA.tables.values() if key in table.c and table is not owners]
    for key, owners in {"domain_id": domains, "target_id": targets}.items()
}
"""The tables whose rows belong to a domain, and those whose rows belong to a target."""
TABLE_NAMES = (*METADATA.tables, VERSION_TABLE)
"""All tables of a store."""
