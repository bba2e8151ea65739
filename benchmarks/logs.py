"""The workload as a log in Parquet, and a check that a command has read what was written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.workload import SOURCES, Trace, source_text

_ROWS_PER_GROUP = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _table(rows: Trace) -> pa.Table:
    """Some of the receipts, all off one queue, two connections competing for it."""
    sources = pa.array([source_text(source) for source in range(SOURCES)])
    source = pa.DictionaryArray.from_arrays(rows.source, sources)
    message_source_id = pc.cast(source, pa.string())
    count = len(rows.source)
    connection = pa.DictionaryArray.from_arrays((np.arange(count) % 2).astype(np.int32), ["bridge-1", "bridge-2"])
    return pa.table(
        {
            "received_at": rows.received_at_us,
            "unique_message_id": pc.binary_join_element_wise(
                pc.cast(pa.array(rows.message), pa.string()), message_source_id, ":"
            ),
            "message_source_id": message_source_id,
            "connection_id": connection,
            "destination": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["queue://orders"]),
        }
    )


def write_log(receipts: Trace, file: Path) -> None:
    writer = None
    for start in range(0, len(receipts.source), _ROWS_PER_GROUP):
        rows = slice(start, start + _ROWS_PER_GROUP)
        table = _table(Trace(receipts.received_at_us[rows], receipts.source[rows], receipts.message[rows]))
        writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)
    if writer:
        writer.close()


def check_read(log: Mapping[str, Any], receipts: Trace) -> None:
    """Raise `AssertionError` unless the command's `--json` shows that it has read these receipts."""
    count, distinct_ids = len(receipts.message), int(receipts.message.max()) + 1
    written = {
        "receipts": count,
        "duplicates": count - distinct_ids,
        "sources": len(np.unique(receipts.source)),
        "first_received_at": int(receipts.received_at_us[0]),
        "last_received_at": int(receipts.received_at_us[-1]),
    }
    read = {name: _microseconds(log[name]) if name.endswith("_at") else log[name] for name in written}
    if read != written:
        raise AssertionError(f"a log of {written} is read as {read}")


def _microseconds(moment: str) -> int:
    return (datetime.fromisoformat(moment) - _EPOCH) // timedelta(microseconds=1)
