"""The tables, as this version of the package declares them; `migrations/` makes them, and a test holds both equal.

Records with many users are declared once, field by field: `ReceiptRow`, `DomainState` and `InboxRow`. Columns, SQL, the
values that a driver takes and gives, and the types that the audit expects are made of them.

Ids and names are bytes: UTF-8 in which a lone surrogate stands as it is. Two ids must never become one, but PostgreSQL's
text can't hold U+0000, nor can either database's hold lone surrogates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

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
from sqlalchemy.types import TypeEngine

from receiver.domains import LONGEST_KEY
from receiver.message import ASCII, Ascii, ReceiptRow

__all__ = [
    "METADATA",
    "MIGRATIONS",
    "REVISION",
    "VERSION_TABLE",
    "BundleRow",
    "Codec",
    "DomainState",
    "InboxColumns",
    "InboxRow",
    "base64_of",
    "bundles",
    "dedup_keys",
    "domain_rows",
    "domains",
    "dumped",
    "encoded",
    "fields_of_kind",
    "inbox",
    "inbox_rows",
    "joined",
    "loaded",
    "parked",
    "positions",
    "printable",
    "receipt_rows",
    "receipts",
    "revived",
    "selected",
    "sequences",
    "targets",
    "text_of",
    "to_bytes",
    "value_types",
]

_R = TypeVar("_R", bound=tuple[Any, ...])
_PACKAGE = Path(__file__).resolve().parent.parent
MIGRATIONS = next(
    (folder for folder in (_PACKAGE / "migrations", _PACKAGE.parent / "migrations") if folder.exists()),
    _PACKAGE / "migrations",
)
"""Inside the package in an installed wheel, and at the top of the repository in a checkout."""
REVISION = max((script.name.partition("_")[0] for script in MIGRATIONS.glob("versions/[0-9]*.py")), default="")
"""The newest migration: the version of the tables below."""
VERSION_TABLE = "receiver_alembic_version"


class DomainState(NamedTuple):
    """A domain's own row."""

    domain_id: int
    store_id: int
    """Distinguishes it from a domain of the same number in another database, or in this one before it was made anew."""
    domain_key: Ascii
    domain_name: str
    window_size: int
    expiry_us: int
    generation: int
    """Raised by each change of the two sizes."""
    last_seq: int
    """The number of the latest receipt."""
    last_writer: int
    """A random number, drawn anew by each batch that writes this row."""
    latest_us: int
    """The latest receipt's time."""
    clock_us: int | None
    """The policy's own clock, by which it forgets; None where it has none, or before it ever moved."""
    # Counted since the domain was made, over all receivers.
    receipts: int
    unchecked: int
    duplicates: int
    reused_ids: int
    redelivered: int
    clock_clamped: int
    max_delivery_us: int
    policy: Ascii
    """The name of the policy that judges receipts; the two sizes above are the policy's."""
    retired_sources: int
    """Raised for each source that is retired: a process that has recorded rows of it reads the log anew."""
    needs_by_hour: Ascii | None
    """What duplicates needed of each tier, as `receiver.durable.needs` has it; None before any."""


class InboxRow(NamedTuple):
    """A message that waits for its target, or is parked."""

    sequence: int
    """The number of its receipt in the domain, counted from 0; given to no other message, ever."""
    received_at_us: int
    jms_timestamp_ms: int | None
    tries: int
    """How often its delivery has failed."""
    redelivered: bool
    is_text: bool
    """Whether the body was text, which is UTF-8 here."""
    unique_message_id: str | None
    message_source_id: str | None
    destination: str
    message_id: str | None
    headers: Mapping[str, str]
    properties: Mapping[str, Any]
    """Values that JSON has, and bytes."""
    body: bytes
    """The last of the columns that are always there, for SQLite reads what stands before a column to get at it."""
    body_kind: Ascii | None = None
    """What the body is that is neither text nor bytes."""
    amqp: bytes | None = None
    """Sections of AMQP that hold what nothing else here does."""


InboxColumns = Mapping[str, Sequence[Any]]
"""The same fields of several messages, at least one: for each name the values of all."""


class BundleRow(NamedTuple):
    """Messages that wait and were put into the inbox together, in one row: `receiver.store.bundles` has its form."""

    first_sequence: int
    last_sequence: int
    received_at_us: int
    """When the oldest was received."""
    body_bytes: int
    """Of all of them together."""
    messages: int
    """How many there are."""
    runs: Ascii
    """Their sequence numbers: the first and the last of each run of consecutive ones, as JSON."""
    packed: bytes


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


encoded = json.JSONEncoder(separators=(",", ":"), default=lambda value: {"base64": base64_of(value)}).encode
"""As JSON, all of it ASCII; bytes are in base64."""


def dumped(values: Mapping[str, Any]) -> str:
    """As JSON, all of it ASCII, so that any text is stored as it was."""
    if not values:
        return "{}"
    if {str}.issuperset(map(type, values.values())):  # as most have it, in half the time
        return "{" + ",".join([f"{encoded(name)}:{encoded(value)}" for name, value in values.items()]) + "}"
    return encoded(dict(values))


def loaded(text: str) -> dict[str, Any]:
    """The values that were dumped."""
    return revived(json.loads(text)) if text != "{}" else {}


def revived(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that JSON was made of, bytes among them."""
    return {name: _read(value) for name, value in values.items()}


def _read(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def printable(stored: bytes) -> str:
    """For people, also where a damaged store holds what is no text."""
    try:
        return text_of(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace")


class _Kind(NamedTuple):
    """How values of one Python type are stored."""

    column: type[TypeEngine[Any]]
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


_KINDS: dict[object, _Kind] = {
    int: _Kind(BigInteger),
    bool: _Kind(Boolean, decode=bool),  # a database may have numbers
    bytes: _Kind(LargeBinary),
    str: _Kind(LargeBinary, to_bytes, text_of),
    ASCII: _Kind(Text),
    Mapping: _Kind(Text, dumped, loaded),
}


class _Field(NamedTuple):
    name: str
    kind: _Kind
    is_nullable: bool


def _fields(record: type[tuple[Any, ...]]) -> list[_Field]:
    return [_field(name, hint) for name, hint in get_type_hints(record, include_extras=True).items()]


def _field(name: str, hint: Any) -> _Field:
    options = get_args(hint)
    is_nullable = NoneType in options
    (kind,) = [option for option in options if option is not NoneType] if is_nullable else [hint]
    if get_origin(kind) is Annotated:
        kind = kind.__metadata__[0]
    return _Field(name, _KINDS[get_origin(kind) or kind], is_nullable)


def _columns(record: type[tuple[Any, ...]], **options: Mapping[str, Any]) -> list[Column[Any]]:
    """The columns of a record's fields, in their order; `options` change how a field's is made."""
    columns = []
    for name, kind, is_nullable in _fields(record):
        made = {"name": name, "type_": kind.column, "nullable": is_nullable, **options.get(name, {})}
        columns.append(Column(**made, key=name))
    return columns


METADATA = MetaData()

domains = Table(
    "receiver_domain",
    METADATA,
    *_columns(
        DomainState,
        # SQLite's own key, an alias of the rowid, needs the type INTEGER.
        domain_id={"type_": Integer, "primary_key": True, "server_default": Identity()},
        store_id={"name": "incarnation"},
        domain_key={"type_": String(LONGEST_KEY)},
        policy={"type_": String(16), "server_default": "apama"},
        retired_sources={"server_default": "0"},
    ),
    UniqueConstraint("domain_key", "domain_name", name="receiver_domain_name_key"),
)

_receipt_columns = _columns(ReceiptRow, policy_state={"name": "policy_mark"})
# Wide columns first: PostgreSQL pads a narrow one before a wide one.
_receipt_columns.insert(3, Column("domain_id", Integer, nullable=False))
receipts = Table(
    "receiver_receipt",
    METADATA,
    *_receipt_columns,
    PrimaryKeyConstraint("domain_id", "seq", name="receiver_receipt_pkey"),
    sqlite_with_rowid=False,
)

joined = Table(
    "receiver_joined",
    METADATA,
    # The number of each receiver's last batch that was in a caller's transaction, or in a recording. It is written in the
    # batch's own transaction: so whether that was committed can be read rather than guessed.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("writer", BigInteger, primary_key=True, autoincrement=False),
    # Batches are numbered by the receiver itself. The domain's last number then shows how long ago the batch was.
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
    # Where a domain's messages go, one row for all the bridges that take them there: who locks it has the lease.
    Column("target_id", Integer, Identity(), primary_key=True),
    Column("domain_id", Integer, nullable=False),
    Column("target", LargeBinary, nullable=False),
    # Of a file: how much of it is ours for certain, and a digest of the end of that; null before the first message.
    Column("confirmed_bytes", BigInteger),
    Column("tail_digest", LargeBinary),
    UniqueConstraint("domain_id", "target", name="receiver_target_name_key"),
)


def _message_columns() -> list[Column[Any]]:
    columns = _columns(InboxRow, sequence={"name": "place"}, tries={"type_": Integer})
    columns.insert(3, Column("target_id", Integer, nullable=False))
    return columns


inbox = Table(
    "receiver_inbox",
    METADATA,
    # The messages that wait for their target.
    *_message_columns(),
    PrimaryKeyConstraint("target_id", "sequence", name="receiver_inbox_pkey"),
)

bundles = Table(
    "receiver_bundle",
    METADATA,
    # Messages that wait as those of the inbox do, all that a batch put there in one row. Whatever happens to one of them
    # alone, all become rows of the inbox first.
    *_columns(BundleRow, messages={"type_": Integer}),
    Column("target_id", Integer, nullable=False),
    PrimaryKeyConstraint("target_id", "first_sequence", name="receiver_bundle_pkey"),
)
parked = Table(
    "receiver_parked",
    METADATA,
    # Messages that their target refused too often, that had no id that could be judged, or that came back in a ring.
    Column("parked_id", Integer, Identity(), primary_key=True),
    Column("parked_at_us", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    *_message_columns(),
    UniqueConstraint("target_id", "sequence", name="receiver_parked_place_key"),
    # No number comes again: who drops one must not drop another that was parked since.
    sqlite_autoincrement=True,
)

positions = Table(
    "receiver_position",
    METADATA,
    # How far a source has come whose broker keeps what was taken: of a consumer group of Kafka, each partition. All three
    # are the source's own words.
    Column("domain_id", Integer, primary_key=True, autoincrement=False),
    Column("source", LargeBinary, primary_key=True),
    Column("name", LargeBinary, primary_key=True),
    Column("position", LargeBinary, nullable=False),
)

_BUSY_ROW = "fillfactor = 10"
"""Every batch or lease updates a row here: with room on its page, PostgreSQL keeps that update out of the index."""
_COMING_AND_GOING = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
"""Rows come and go all the time: the sooner those gone are vacuumed, the less the table grows."""
_STORAGE = {
    **dict.fromkeys([domains, targets, positions], _BUSY_ROW),
    **dict.fromkeys([receipts, inbox, bundles], _COMING_AND_GOING),
}
_ALTERED = [(table, f"SET ({parameters})") for table, parameters in _STORAGE.items()]
# To compress what is deleted in a moment would cost more than to write it.
_ALTERED.append((bundles, "ALTER COLUMN packed SET STORAGE EXTERNAL"))
for _table, _change in _ALTERED:
    _alter = DDL(f"ALTER TABLE {_table.name} {_change}")  # type: ignore[no-untyped-call]
    event.listen(_table, "after_create", _alter.execute_if(dialect="postgresql"))


def selected(table: Table, names: Iterable[str]) -> str:
    """Columns of a table for a SELECT, each under the name that it has here."""
    columns = [table.c[name] for name in names]
    return ", ".join(c.name if c.name == c.key else f"{c.name} AS {c.key}" for c in columns)


def fields_of_kind(record: type[tuple[Any, ...]], kind: type, *, is_nullable: bool | None = None) -> tuple[str, ...]:
    """The names of a record's fields of one type, in their order: all, or those that may be None, or those that may not."""
    of_kind = [field for field in _fields(record) if field.kind is _KINDS[kind]]
    return tuple(field.name for field in of_kind if is_nullable is None or field.is_nullable is is_nullable)


def value_types(table: Table, names: Iterable[str]) -> tuple[tuple[type, ...], ...]:
    """The types that a driver's values of these columns have in a sound store; a truth value may be a number."""
    return tuple(
        (int if column.type.python_type is bool else column.type.python_type,) + (NoneType,) * bool(column.nullable)
        for column in (table.c[name] for name in names)
    )


class Codec(Generic[_R]):
    """Rows of a record as a driver takes and gives their values, which stand in the order of the fields."""

    def __init__(self, record: type[_R], table: Table, *, few: Iterable[str] = ()) -> None:
        """`few`: fields that have few different values in many rows, each of which is converted once."""
        fields = _fields(record)
        names = [field.name for field in fields]
        self.columns: tuple[str, ...] = tuple(table.c[name].name for name in names)
        self.selected = selected(table, names)
        self._new: Callable[[Iterable[Any]], _R] = partial(tuple.__new__, record)
        self._encoders = _converters([field.kind.encode for field in fields], fields, few)
        self._decoders = _converters([field.kind.decode for field in fields], fields, few)

    def stored(self, row: Sequence[Any]) -> list[Any]:
        """The values of a row."""
        return _converted(row, self._encoders)

    def stored_many(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        return _all_converted(rows, self._encoders)

    def stored_columns(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """The values of the rows' columns, in their order."""
        return _columns_converted(rows, self._encoders)

    def read(self, values: Sequence[Any]) -> _R:
        """A row of its values; where they make no sense, one of `receiver.store.engine.NONSENSE` is raised."""
        return self._new(_converted(values, self._decoders))

    def read_columns(self, rows: Sequence[Sequence[Any]]) -> Any:
        """The values of rows, at least one, each field for itself: a tuple of as many sequences as the record has fields."""
        return tuple(_columns_converted(rows, self._decoders))

    def read_many(self, rows: Sequence[Sequence[Any]]) -> Iterator[_R]:
        return map(self._new, _all_converted(rows, self._decoders))


_Converter = tuple[int, Callable[[Any], Any], Callable[[Sequence[Any]], list[Any]]]
"""The index of a field, and what converts a value of it, or many."""


def _converters(
    converts: Iterable[Callable[[Any], Any] | None], fields: Sequence[_Field], few: Iterable[str]
) -> list[_Converter]:
    return [
        (index, *_converter(convert, is_nullable=field.is_nullable, is_few=field.name in few))
        for index, (convert, field) in enumerate(zip(converts, fields, strict=True))
        if convert is not None
    ]


def _converter(
    convert: Callable[[Any], Any], *, is_nullable: bool, is_few: bool
) -> tuple[Callable[[Any], Any], Callable[[Sequence[Any]], list[Any]]]:
    def one_or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    one = one_or_none if is_nullable else convert
    if is_few:
        return one, lambda values: list(map({value: one(value) for value in set(values)}.__getitem__, values))
    # Ids, of which there are most: written out, which costs half.
    if convert is text_of and not is_nullable:
        return one, lambda values: [value.decode("utf-8", "surrogatepass") for value in values]
    if convert is to_bytes:
        return one, lambda values: [
            None if value is None else value.encode("utf-8", "surrogatepass") for value in values
        ]
    return one, lambda values: list(map(one, values))


def _converted(values: Iterable[Any], converters: Sequence[_Converter]) -> list[Any]:
    converted = list(values)
    for index, one, _ in converters:
        converted[index] = one(converted[index])
    return converted


def _all_converted(rows: Sequence[Sequence[Any]], converters: Sequence[_Converter]) -> Iterator[tuple[Any, ...]]:
    return zip(*_columns_converted(rows, converters), strict=True)


def _columns_converted(rows: Sequence[Sequence[Any]], converters: Sequence[_Converter]) -> list[Sequence[Any]]:
    """Column by column, which is faster than row by row."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for index, _, many in converters if columns else ():
        columns[index] = many(columns[index])
    return columns


receipt_rows = Codec(ReceiptRow, receipts, few=["message_source_id"])
domain_rows = Codec(DomainState, domains)
inbox_rows = Codec(InboxRow, inbox, few=["message_source_id", "destination"])
