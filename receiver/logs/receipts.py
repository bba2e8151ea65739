"""Receipts as rows of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from receiver.domains import Channel
from receiver.logs.batch import Batch
from receiver.logs.columns import SCHEMA, TEXT
from receiver.logs.times import MAX_US
from receiver.message import Receipt

__all__ = ["recordable", "rows_of_batch"]

_FIELDS = {
    "received_at": "received_at_us",
    "unique_message_id": "unique_message_id",
    "message_source_id": "message_source_id",
    "jms_redelivered": "redelivered",
    "jms_timestamp": "jms_timestamp_ms",
    "body_digest": "body_digest",
}
"""Column -> field of a `Receipt`."""
_LONGEST_TEXT_BYTES = 1 << 20
"""No broker carries a longer id, and no reader takes a line of some hundred MB."""
_LARGEST = {"received_at": MAX_US, "jms_timestamp": MAX_US // 1_000}


def recordable(receipts: Sequence[Receipt], channel: Channel) -> tuple[pa.RecordBatch, list[str]]:
    """The receipts that every reader takes, as rows of `SCHEMA`, and what is wrong with each of the others."""
    try:
        return _rows(receipts, channel), []
    except ValueError:
        refusals: list[str] = []
        return _rows(_good(receipts, channel, refusals), channel), refusals


def _good(receipts: Sequence[Receipt], channel: Channel, refusals: list[str]) -> list[Receipt]:
    """Found by halves: few among many are bad, as a rule."""
    try:
        _rows(receipts, channel)
    except ValueError as refusal:
        if len(receipts) == 1:
            refusals.append(str(refusal))
            return []
        half = len(receipts) // 2
        return _good(receipts[:half], channel, refusals) + _good(receipts[half:], channel, refusals)
    return list(receipts)


def _rows(receipts: Sequence[Receipt], channel: Channel) -> pa.RecordBatch:
    values = {column: [getattr(receipt, name) for receipt in receipts] for column, name in _FIELDS.items()}
    same = {column: pa.repeat(text, len(receipts)).dictionary_encode() for column, text in channel._asdict().items()}
    columns = [same[field.name] if field.name in same else _checked(field, values[field.name]) for field in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA)


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
        if (pc.max(pc.binary_length(words)).as_py() or 0) > _LONGEST_TEXT_BYTES:
            raise ValueError(f"{field.name} is longer than {_LONGEST_TEXT_BYTES >> 20} MiB")
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
