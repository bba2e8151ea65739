"""Receipts as rows of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from receiver.domains import Channel
from receiver.logs.batch import Batch
from receiver.logs.columns import SCHEMA, TEXT
from receiver.logs.times import MAX_US
from receiver.message import Receipt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LONGEST_TEXT_BYTES", "Columns", "columns_of", "recordable", "refused", "rows_of_batch", "rows_of_columns"]

RECEIPT_COLUMNS = (
    "unique_message_id",
    "message_source_id",
    "received_at",
    "jms_redelivered",
    "jms_timestamp",
    "body_digest",
)
"""The columns of the fields of a `Receipt`, in its order."""
LONGEST_TEXT_BYTES = 1 << 20
"""No broker carries a longer id, and no reader takes a line of some hundred MB."""
_LARGEST = {"received_at": MAX_US, "jms_timestamp": MAX_US // 1_000}


Columns = dict[str, list[Any]]
"""The fields of receipts, all of one length, by `RECEIPT_COLUMNS`."""


def columns_of(receipts: Sequence[Receipt]) -> Columns:
    fields = zip(*receipts, strict=True) if receipts else [()] * len(RECEIPT_COLUMNS)
    return {column: list(values) for column, values in zip(RECEIPT_COLUMNS, fields, strict=True)}


def recordable(columns: Columns, channel: Channel) -> pa.RecordBatch:
    """The receipts that every reader takes, as rows of `SCHEMA`."""
    try:
        return _rows(columns, channel)
    except ValueError:
        bad = refused(columns, channel)
        return _rows(_taken(columns, [index for index in range(_size(columns)) if index not in bad]), channel)


def refused(columns: Columns, channel: Channel) -> dict[int, str]:
    """What is wrong with each of the other receipts, by its index."""
    return dict(_refused(columns, range(_size(columns)), channel))


def _refused(columns: Columns, among: Sequence[int], channel: Channel) -> Iterator[tuple[int, str]]:
    """Found by halves: few among many are bad, as a rule."""
    try:
        _rows(_taken(columns, among), channel)
    except ValueError as refusal:
        if len(among) == 1:
            yield among[0], str(refusal)
            return
        half = len(among) // 2
        for part in (among[:half], among[half:]):
            yield from _refused(columns, part, channel)


def _taken(columns: Columns, among: Sequence[int]) -> Columns:
    return {column: [values[index] for index in among] for column, values in columns.items()}


def _size(columns: Columns) -> int:
    return len(columns["unique_message_id"])


def _rows(columns: Columns, channel: Channel) -> pa.RecordBatch:
    same = _same(_size(columns), channel)
    values = [same[field.name] if field.name in same else _checked(field, columns[field.name]) for field in SCHEMA]
    return pa.record_batch(values, schema=SCHEMA)


def rows_of_columns(
    ids: pa.Array, sources: pa.Array, received_at_us: npt.NDArray[np.int64], channel: Channel
) -> pa.RecordBatch:
    """Rows of receipts that tell no more, and that have been checked."""
    values = _same(len(ids), channel) | {
        "received_at": pa.array(received_at_us, pa.int64()).cast(SCHEMA.field("received_at").type),
        "unique_message_id": ids,
        "message_source_id": sources.dictionary_encode(),
        "jms_redelivered": pa.repeat(False, len(ids)),  # noqa: FBT003 - a value
    }
    return pa.record_batch([values.get(field.name, pa.nulls(len(ids), field.type)) for field in SCHEMA], schema=SCHEMA)


def _same(size: int, channel: Channel) -> dict[str, pa.Array]:
    return {column: pa.repeat(text, size).dictionary_encode() for column, text in channel._asdict().items()}


def _checked(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    kind = pa.int64() if pa.types.is_timestamp(field.type) else field.type
    try:
        column = pa.array(values, kind)
    except UnicodeEncodeError:
        raise ValueError(f"a lone surrogate in {field.name}, which UTF-8 can't hold") from None
    except (TypeError, ValueError, OverflowError):  # what Arrow raises is one of these too
        raise ValueError(f"{field.name} is of a wrong type, or too large") from None
    if field.name == "received_at" and column.null_count:
        raise ValueError("received_at is missing")
    if field.name in _LARGEST:
        found = pc.min_max(column).as_py()
        if (found["min"] or 0) < 0 or (found["max"] or 0) > _LARGEST[field.name]:
            raise ValueError(f"{field.name} lies before the epoch or beyond the year 9999")
    if field.name in TEXT:
        words = column.dictionary if pa.types.is_dictionary(kind) else column
        if (pc.max(pc.binary_length(words)).as_py() or 0) > LONGEST_TEXT_BYTES:
            raise ValueError(f"{field.name} is longer than {LONGEST_TEXT_BYTES >> 20} MiB")
    return column.cast(field.type)


def rows_of_batch(batch: Batch) -> pa.RecordBatch:
    """What was read, as rows to be written again."""
    values = {
        "received_at": batch.received_at_us,
        "jms_redelivered": batch.jms_redelivered,
        "jms_timestamp": batch.jms_timestamp_ms,
        **{column: getattr(batch, column) for column in TEXT},
    }
    return pa.record_batch([_as_written(values[field.name], field.type, len(batch)) for field in SCHEMA], schema=SCHEMA)


def _as_written(values: Any, kind: pa.DataType, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, kind)
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
