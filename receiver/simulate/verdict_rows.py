"""The verdict on every receipt of a log, as rows for a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver.message import Verdict
from receiver.simulate.kernel import WindowAsked, is_caught, replay_windows
from receiver.simulate.whole import split_domains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

_FEW = pa.dictionary(pa.int32(), pa.string())


def verdict_schema(columns: Sequence[str] = ("verdict",)) -> pa.Schema:
    """The schema of rows with verdicts in these columns."""
    receipt = {"row": pa.int64(), "domain": _FEW, "unique_message_id": pa.string(), "message_source_id": _FEW}
    return pa.schema(receipt | dict.fromkeys(columns, _FEW))


VERDICT_SCHEMA = verdict_schema()
VERDICTS = (Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED)
"""Columns of verdicts hold indexes of this."""
_NAMES = pa.array([str(verdict) for verdict in VERDICTS], pa.string())
_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 1 << 25


def verdicts_of(receipts: Receipts, window: int, expiry_us: int) -> npt.NDArray[np.int32]:
    """Per receipt, the index of its verdict in `VERDICTS`."""
    verdicts = np.full(len(receipts.received_at_us), VERDICTS.index(Verdict.NEW), np.int32)
    verdicts[receipts.id_number == 0] = VERDICTS.index(Verdict.UNCHECKED)
    for domain in split_domains(receipts):
        (counts,) = replay_windows(domain.rows, [WindowAsked(window, [], with_needs=True)])
        duplicates = domain.log_rows[domain.rows.earlier >= 0]
        verdicts[duplicates[is_caught(counts.needs_us, expiry_us)]] = VERDICTS.index(Verdict.DUPLICATE)
    return verdicts


def stretches(rows: int, sizes_bytes: Callable[[slice], npt.NDArray[np.int64]]) -> Iterator[slice]:
    """All of so many rows in turn, each time bounded in number and, but for a single row, in the bytes of their ids.

    `sizes_bytes` gives the lengths of a slice's ids.
    """
    for start in range(0, rows, _BATCH_ROWS):
        ends = np.cumsum(sizes_bytes(slice(start, min(rows, start + _BATCH_ROWS))))
        at = 0
        while at < len(ends):
            room = _BATCH_BYTES + (ends[at - 1] if at else 0)
            following = max(at + 1, int(np.searchsorted(ends, room, side="right")))
            yield slice(start + at, start + following)
            at = following


def verdict_batch(
    first_row: int,
    ids: pa.Array,
    *,
    domain: pa.DictionaryArray,
    source: pa.DictionaryArray,
    verdicts: Sequence[npt.NDArray[np.int32]],
    schema: pa.Schema = VERDICT_SCHEMA,
) -> pa.RecordBatch:
    """Rows of `schema` that follow each other from `first_row` on, with the verdicts of each of its columns for them."""
    row = pa.array(np.arange(first_row, first_row + len(ids)))
    columns = [pa.DictionaryArray.from_arrays(pa.array(column), _NAMES) for column in verdicts]
    return pa.record_batch([row, domain, ids, source, *columns], schema=schema)


def receipt_batches(
    receipts: Receipts, verdicts: Callable[[slice], Sequence[npt.NDArray[np.int32]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows of `schema`, one per receipt, in the order of the log; ids as their exact text.

    `verdicts` gives those of a slice of the rows, as `verdict_batch` takes them.
    """
    domains, sources = pa.array(receipts.domains, pa.string()), pa.array(receipts.sources, pa.string())
    numbers, channels = receipts.id_number, receipts.channel_number
    for rows in stretches(len(numbers), lambda rows: receipts.ids.sizes_bytes(numbers[rows])):
        yield verdict_batch(
            rows.start,
            receipts.ids.texts(numbers[rows]),
            domain=pa.DictionaryArray.from_arrays(pa.array(receipts.domain_of_channel[channels[rows]]), domains),
            source=pa.DictionaryArray.from_arrays(pa.array(receipts.source_number[rows]), sources),
            verdicts=verdicts(rows),
            schema=schema,
        )


def verdict_batches(receipts: Receipts, window: int, expiry_us: int) -> Iterator[pa.RecordBatch]:
    """Rows of `VERDICT_SCHEMA` under one setting (see `receipt_batches`)."""
    verdicts = verdicts_of(receipts, window, expiry_us)
    return receipt_batches(receipts, lambda rows: [verdicts[rows]], VERDICT_SCHEMA)
