"""The columns of a log of receipts, each declared once: as a field of `LogBatch`, which is what every reader hands on.

Readers, writers, the recorder, generators, `--map`, Spark's tables and the table in `docs/simulate.md` go by `COLUMNS`. So another
optional column is another field of `LogBatch`, and the code that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.message import LATEST_US

BATCH_ROWS = 1 << 16
"""Rows per batch, about: enough to make the cost per batch vanish, few enough to stay in the processor's cache."""


class ValueKind(Enum):
    """What the values of a column are."""

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
        """How errors describe them."""
        self.arrow = arrow
        """Their type in logs that we write."""
        self.json_types = frozenset(json_types)
        """What a log of JSON Lines may have for them."""
        self.unit = unit
        """What the name of their field in a `LogBatch` ends with."""
        self.largest = largest
        """The largest number, where they are numbers; the least is 0."""

    @property
    def outside(self) -> str:
        """How errors say where a number lies that is less or more; one with a unit is a time."""
        return "before the epoch or beyond the year 9999" if self.unit else f"below 0 or above {self.largest:,}"


@dataclass(frozen=True, slots=True)
class Column:
    """The facts about one column."""

    kind: ValueKind
    meaning: str
    """For readers of the documents: what it holds, and which options need it."""
    jms_name: str | None = None
    """The name that JMS or Apama has for it."""
    is_required: bool = False
    """Whether a log without it is refused."""
    has_few_values: bool = False
    """Whether values repeat so often that they are cheaper as a dictionary."""
    attribute: str = ""
    """Its field in a `LogBatch`."""

    @property
    def name(self) -> str:
        return self.attribute.removesuffix(self.kind.unit)

    @property
    def arrow(self) -> pa.DataType:
        """Its type in logs that we write."""
        is_dictionary = self.has_few_values and self.kind is ValueKind.TEXT
        return pa.dictionary(pa.int32(), self.kind.arrow) if is_dictionary else self.kind.arrow


def _declared(*facts: Any, **named_facts: Any) -> dict[str, Column]:
    """The metadata of a column's field in a `LogBatch`."""
    return {"column": Column(*facts, **named_facts)}


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One `JMS Status:` line of a correlator log."""

    logged_at_us: int
    values: dict[str, float]
    """By Apama's names: rRedel, rMaxDeliverySecs, rDupsDet, rDupIds, ..."""


class TimeUnit(NamedTuple):
    """The unit that a file's numeric times are in, by their magnitude."""

    unit: str
    line: int
    """The line of the first such time."""


@dataclass(slots=True)
class LogBatch:
    """Rows of one file, in their order: tens of thousands, so that a log of any length costs memory for one batch.

    All columns have the same length; a column that the file lacks is None. Text columns are Arrow `string` or
    `dictionary<int32, string>` arrays without nulls: missing is empty text, which means the same in every column. Bytes
    were checked to be UTF-8.
    """

    received_at_us: npt.NDArray[np.int64] = field(
        metadata=_declared(
            ValueKind.TIME, "required: ISO 8601, or seconds, milliseconds or microseconds", is_required=True
        )
    )
    """As read, neither clamped nor sorted; never negative."""
    unique_message_id: pa.Array = field(
        metadata=_declared(ValueKind.TEXT, "required, may be empty; exact text", "uniqueMessageId", is_required=True)
    )
    message_source_id: pa.Array | None = field(
        default=None,
        metadata=_declared(ValueKind.TEXT, "the upstream sender", "messageSourceId", has_few_values=True),
    )
    connection_id: pa.Array | None = field(
        default=None,
        metadata=_declared(
            ValueKind.TEXT,
            "needed by `--domain default`, `connection`, `receiver`",
            "connectionId",
            has_few_values=True,
        ),
    )
    destination: pa.Array | None = field(
        default=None,
        metadata=_declared(
            ValueKind.TEXT,
            "`queue://orders`, `topic://prices`; a bare name is a queue; needed by `--domain default`, `destination`",
            "JMSDestination",
            has_few_values=True,
        ),
    )
    receiver_id: pa.Array | None = field(
        default=None,
        metadata=_declared(ValueKind.TEXT, "needed by `--domain receiver`", "receiverId", has_few_values=True),
    )
    jms_redelivered: npt.NDArray[np.bool_] | None = field(
        default=None,
        metadata=_declared(
            ValueKind.FLAG, "whether the broker says that it has sent it before", "JMSRedelivered", has_few_values=True
        ),
    )
    jms_timestamp_ms: npt.NDArray[np.int64] | None = field(
        default=None,
        metadata=_declared(ValueKind.MILLISECONDS, "when it was sent, epoch milliseconds", "JMSTimestamp"),
    )
    """0 where missing."""
    body_digest: pa.Array | None = field(
        default=None,
        metadata=_declared(ValueKind.TEXT, "shows whether a repeated id came with the same body"),
    )
    skipped: int = 0
    """Unreadable rows left out since the batch before (`--on-error skip`)."""
    status_lines: list[StatusLine] = field(default_factory=list)
    time_unit: TimeUnit | None = None
    """By the rows read so far; None where none of their times was a number."""

    def __len__(self) -> int:
        return len(self.received_at_us)


_DECLARED = [
    replace(each.metadata["column"], attribute=each.name) for each in fields(LogBatch) if "column" in each.metadata
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
    missing_columns = {field.name: pa.nulls(rows, field.type) for field in SCHEMA if field.name not in columns}
    arrays = {**columns, **missing_columns}
    return pa.record_batch([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def optional_columns(batch: LogBatch) -> set[str]:
    """The optional columns that the file of a batch has."""
    return {
        name
        for name, column in COLUMNS.items()
        if not column.is_required and getattr(batch, column.attribute) is not None
    }
