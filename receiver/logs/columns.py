"""The columns of a log of receipts, each declared once: as a field of `LogBatch`, the type that all readers return.

Readers, writers, the recorder, generators, `--map`, Spark's tables and the table in `docs/simulate.md` are driven by `COLUMNS`.
To add an optional column, add a field to `LogBatch`, and the code that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, NamedTuple, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.message import LATEST_US

BATCH_ROWS = 1 << 16
"""Rows per batch, about: enough to make the cost per batch negligible, few enough to stay in the processor's cache."""


class ValueKind(Enum):
    """The kind of a column's values."""

    TEXT = ("text or a whole number", pa.string(), (str, int))
    TIME = ("a time", pa.timestamp("us", "UTC"), (str, int, float), "_us", LATEST_US)
    MILLISECONDS = ("whole milliseconds", pa.int64(), (str, int, float), "_ms", LATEST_US // 1_000)
    FLAG = ("true or false", pa.bool_(), (str, int, bool))

    def __init__(
        self,
        expected: str,
        arrow: pa.DataType,
        json_types: tuple[type, ...],
        unit: str = "",
        largest: int = 0,
    ) -> None:
        self.expected = expected
        """The description of such values in errors."""
        self.arrow = arrow
        """Their Arrow type in logs that we write."""
        self.json_types = frozenset(json_types)
        """The types that they may have in JSON Lines."""
        self.unit = unit
        """The suffix of their field's name in a `LogBatch`."""
        self.largest = largest
        """The largest number, if they are times; the least is 0."""


@dataclass(frozen=True, slots=True)
class Column:
    """The facts about one column."""

    kind: ValueKind
    meaning: str
    """The column's content, and the options that need it, as in the documentation."""
    jms_name: str | None = None
    """The column's name in JMS or Apama."""
    is_required: bool = False
    """Whether a log without this column is refused."""
    has_few_values: bool = False
    """Whether values repeat so often that a dictionary is cheaper."""
    attribute: str = ""
    """The column's field in a `LogBatch`."""

    @property
    def name(self) -> str:
        return self.attribute.removesuffix(self.kind.unit)

    @property
    def arrow(self) -> pa.DataType:
        """The column's Arrow type in logs that we write."""
        is_dictionary = self.has_few_values and self.kind is ValueKind.TEXT
        return pa.dictionary(pa.int32(), self.kind.arrow) if is_dictionary else self.kind.arrow


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One `JMS Status:` line of a correlator log."""

    logged_at_us: int
    values: dict[str, float]
    """By Apama's names: rRedel, rMaxDeliverySecs, rDupsDet, rDupIds, ..."""


class TimeUnit(NamedTuple):
    """The unit of a file's numeric times, by their magnitude."""

    unit: str
    line: int
    """The line of the first such time."""


@dataclass(slots=True)
class LogBatch:
    """Rows of one file, in their order: tens of thousands, so that a log of any length takes the memory of one batch.

    All columns have the same length; a column that the file lacks is None. Text columns are Arrow `string` or
    `dictionary<int32, string>` arrays without nulls: a missing text is empty, which means the same in every column. Text is
    valid UTF-8.
    """

    received_at_us: Annotated[
        npt.NDArray[np.int64],
        Column(ValueKind.TIME, "required: ISO 8601, or seconds, milliseconds or microseconds", is_required=True),
    ]
    """As read, neither clamped nor sorted; never negative."""
    unique_message_id: Annotated[
        pa.Array, Column(ValueKind.TEXT, "required, may be empty; exact text", "uniqueMessageId", is_required=True)
    ]
    message_source_id: Annotated[
        pa.Array | None, Column(ValueKind.TEXT, "the upstream sender", "messageSourceId", has_few_values=True)
    ] = None
    connection_id: Annotated[
        pa.Array | None,
        Column(
            ValueKind.TEXT,
            "needed by `--domain default`, `connection`, `receiver`",
            "connectionId",
            has_few_values=True,
        ),
    ] = None
    destination: Annotated[
        pa.Array | None,
        Column(
            ValueKind.TEXT,
            "`queue://orders`, `topic://prices`; a bare name is a queue; needed by `--domain default`, `destination`",
            "JMSDestination",
            has_few_values=True,
        ),
    ] = None
    receiver_id: Annotated[
        pa.Array | None, Column(ValueKind.TEXT, "needed by `--domain receiver`", "receiverId", has_few_values=True)
    ] = None
    jms_redelivered: Annotated[
        npt.NDArray[np.bool_] | None,
        Column(
            ValueKind.FLAG, "whether the broker says it sent the message before", "JMSRedelivered", has_few_values=True
        ),
    ] = None
    jms_timestamp_ms: Annotated[
        npt.NDArray[np.int64] | None,
        Column(ValueKind.MILLISECONDS, "when the message was sent, epoch milliseconds", "JMSTimestamp"),
    ] = None
    """0 where missing."""
    body_digest: Annotated[
        pa.Array | None, Column(ValueKind.TEXT, "shows whether a repeated id came with the same body")
    ] = None
    skipped: int = 0
    """Unreadable rows that were left out since the batch before (`--on-error skip`)."""
    status_lines: list[StatusLine] = field(default_factory=list)
    time_unit: TimeUnit | None = None
    """The unit of the rows read so far; None if none of their times was a number."""

    def __len__(self) -> int:
        return len(self.received_at_us)


_DECLARED = [
    replace(hint.__metadata__[0], attribute=name)
    for name, hint in get_type_hints(LogBatch, include_extras=True).items()
    if get_origin(hint) is Annotated
]
COLUMNS: Mapping[str, Column] = {column.name: column for column in _DECLARED}
"""All columns by name, in their usual order."""
SCHEMA = pa.schema({name: column.arrow for name, column in COLUMNS.items()})
"""The columns of a log that we write, in their usual order."""


def bytes_of(text: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes of a `string` or `binary` column, one value after the other, without a copy."""
    _validity, offsets, data = text.buffers()
    if data is None or len(text) == 0:
        return np.empty(0, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=np.int32)
    return np.frombuffer(data, dtype=np.uint8)[ends[text.offset] : ends[text.offset + len(text)]]


def log_rows(columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
    """This many `rows` of `SCHEMA`, made of these columns; the other columns are null."""
    arrays = [columns[each.name] if each.name in columns else pa.nulls(rows, each.type) for each in SCHEMA]
    return pa.record_batch(arrays, schema=SCHEMA)


def optional_columns(batch: LogBatch) -> set[str]:
    """The optional columns that the file of a batch has."""
    return {
        name
        for name, column in COLUMNS.items()
        if not column.is_required and getattr(batch, column.attribute) is not None
    }
