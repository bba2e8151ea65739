"""What every reader of logs hands on: receipts in columns, some tens of thousands at a time.

A batch holds Arrow and NumPy arrays rather than objects, so that a log of any length costs memory for one batch only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["BATCH_ROWS", "Batch", "LogReader", "LogSource", "OnError", "ReadOptions", "StatusLine", "TimeUnit"]

BATCH_ROWS = 1 << 16
"""Rows per batch, about: enough to make the cost per batch vanish, few enough to stay in the processor's cache."""

OnError = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read, whatever the format."""

    time_unit: Literal["s", "ms", "us"] | None = None
    """The unit of times that are numbers; None tells it by magnitude, value by value."""
    time_zone: str = "UTC"
    """The zone of times that have none, by its IANA name."""
    on_error: OnError = "stop"
    column_map: dict[str, str] = field(default_factory=dict)
    """Canonical column name -> the field to read it from (`--map`)."""
    on_skipped: Callable[[str, int, str], None] | None = None
    """Told of each unreadable row that is left out: the file, the line, and what is wrong with the row."""


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
    """Of the first such time."""


@dataclass(slots=True)
class Batch:
    """Rows of one file, in their order. All columns have the same length; a column that the file lacks is None.

    Text columns are Arrow `string` or `dictionary<int32, string>` arrays without nulls: missing is empty text, which
    means the same in every column. Bytes were checked to be UTF-8.
    """

    received_at_us: npt.NDArray[np.int64]
    """As read, neither clamped nor sorted; never negative."""
    unique_message_id: pa.Array
    message_source_id: pa.Array | None = None
    connection_id: pa.Array | None = None
    destination: pa.Array | None = None
    receiver_id: pa.Array | None = None
    jms_redelivered: npt.NDArray[np.bool_] | None = None
    jms_timestamp_ms: npt.NDArray[np.int64] | None = None
    """0 where missing."""
    body_digest: pa.Array | None = None
    skipped: int = 0
    """Unreadable rows left out since the batch before (`--on-error skip`)."""
    status_lines: list[StatusLine] = field(default_factory=list)
    time_unit: TimeUnit | None = None
    """As far as the file was read; None where no time was a number."""

    def __len__(self) -> int:
        return len(self.received_at_us)


@dataclass(frozen=True, slots=True)
class LogSource:
    """One opened log."""

    name: str
    """As errors name it: the path, or `-` for standard input."""
    pieces: Iterator[bytes]
    """The decompressed bytes, in pieces of any size."""
    path: Path | None = None
    """Where the same bytes stand as a plain file that can be sought in, if anywhere."""
    advanced: Callable[[float], None] = lambda _share: None
    """For a reader that takes `path` instead of `pieces`: called with the share of the file read since the last call."""


class LogReader(Protocol):
    """One format. Reads a log as a stream and yields its rows in order, or raises `LogFormatError`."""

    def __call__(self, source: LogSource, options: ReadOptions) -> Iterator[Batch]: ...
