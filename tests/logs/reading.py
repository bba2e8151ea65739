"""Logs for the tests. Rows are plain tuples. They are written in every format, and read back by the public function."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from receiver.errors import LogFormatError
from receiver.logs import LogBatch, LogBatches, ReadOptions, read_logs
from receiver.logs.compacted import DomainFiles, Manifest, PartFile, adding

DAY = np.datetime64("2026-11-21")


class Row(NamedTuple):
    received_at: int
    unique_message_id: str = ""
    message_source_id: str = ""
    connection_id: str = ""
    destination: str = ""
    receiver_id: str = ""
    jms_redelivered: bool = False
    jms_timestamp: int = 0
    body_digest: str = ""


def rows_of(batches: Iterable[LogBatch]) -> Iterator[Row]:
    for batch in batches:
        size = len(batch)
        columns = [batch.received_at_us.tolist()]
        for column in Row._fields[1:]:
            values = getattr(batch, "jms_timestamp_ms" if column == "jms_timestamp" else column)
            blank = Row._field_defaults[column]
            columns.append([blank] * size if values is None else values.tolist())
            assert len(columns[-1]) == size
        yield from map(Row._make, zip(*columns, strict=True))


def opened(*paths, **options) -> LogBatches:
    return read_logs([str(path) for path in paths], ReadOptions(**options))


def read(*paths, **options) -> list[Row]:
    return list(rows_of(opened(*paths, **options)))


def read_skipping(*paths, **options) -> tuple[list[Row], int]:
    batches = list(opened(*paths, on_error="skip", **options))
    return list(rows_of(batches)), sum(batch.skipped for batch in batches)


def refusal(*paths, **options) -> LogFormatError:
    with pytest.raises(LogFormatError) as caught:
        read(*paths, **options)
    return caught.value


def csv_bytes(rows: Iterable[Row]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(Row._fields)
    writer.writerows([str(value).lower() if isinstance(value, bool) else value for value in row] for row in rows)
    return out.getvalue().encode()


def jsonl_bytes(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row._asdict()).encode() + b"\n" for row in rows)


def parquet_bytes(rows: Iterable[Row]) -> bytes:
    out = io.BytesIO()
    schema = pa.schema(
        {name: {int: pa.int64(), bool: pa.bool_()}.get(kind, pa.string()) for name, kind in Row.__annotations__.items()}
    )
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=schema), out)
    return out.getvalue()


FORMATS = {"csv": csv_bytes, "jsonl": jsonl_bytes, "parquet": parquet_bytes}
COMPRESSIONS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
}


def compacted_log(
    folder: Path,
    *domains: list[list[Row]],
    status_lines: int = 0,
    before: Manifest | None = None,
    bad_rows: Iterable[bytes] | None = None,
) -> Path:
    """Make a compacted log with one part for each list of rows."""
    folder.mkdir(exist_ok=True)
    with adding(folder, before) as new:
        files_by_domain = []
        for index, parts in enumerate(domains):
            files = []
            for number, rows in enumerate(parts):
                path = Path(f"domain={index}", f"day={DAY}", f"{number}.parquet")
                (new.written / path).parent.mkdir(parents=True, exist_ok=True)
                (new.written / path).write_bytes(parquet_bytes(rows))
                files.append(PartFile(str(path), len(rows), max(row.received_at for row in rows)))
            files_by_domain.append(DomainFiles(f"domain {index}", files))
        columns = ["received_at", "unique_message_id"]
        new.commit(Manifest("default", files_by_domain, columns, 5, 0, status_lines), b"", bad_rows)
    return folder
