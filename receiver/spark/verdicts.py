"""The verdict on each receipt, in Spark's own columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql.functions import (
    array,
    arrays_zip,
    col,
    element_at,
    explode,
    lit,
    monotonically_increasing_id,
    shiftleft,
    spark_partition_id,
    when,
)

from receiver.domains import domain_key
from receiver.errors import OutputError
from receiver.logs.writer import UNFINISHED, appearing, naming, open_table
from receiver.message import Tier, Verdict
from receiver.simulate.whole import VERDICT_SCHEMA
from receiver.spark.flow import SparkFlow
from receiver.steps.plan import CutPlan, keys_us
from receiver.steps.schemas import channel_of, channels_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from receiver.spark.sources import Read
    from receiver.steps.arrow_rows import Row
    from receiver.steps.log import ChunkedLog

_ROWS_PER_PART = 1_000_000
_RECEIPT = "number bigint, key_us bigint, domain string, unique_message_id string, message_source_id string"
_PARTITION_BITS = 33
"""By which `monotonically_increasing_id` shifts the number of a partition."""


def tiers(log: ChunkedLog, window: int, expiry_us: int) -> DataFrame:
    """`number` and `tier` of each receipt that is a duplicate by verdict, worked out and kept. The log keeps rows."""
    caught, _ = log.caught(window, expiry_us).kept("Judging receipts")
    frame = cast("SparkFlow", caught).frame.where(col("Caught").isNotNull())
    each = frame.select(explode(arrays_zip("Caught.number", "Caught.by_time")).alias("each"))
    tier = when(col("each.by_time"), lit(Tier.TIME.value)).otherwise(lit(Tier.SOURCE.value))
    duplicates = each.select(col("each.number").alias("number"), tier.alias("tier"))
    duplicates = duplicates.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
    caught.forget()
    return duplicates


def verdict_of(unique_message_id: Column) -> Column:
    """The verdict on a receipt beside its `tier`."""
    unchecked = unique_message_id.isNull() | (unique_message_id.cast("string") == "")
    return (
        when(unchecked, lit(Verdict.UNCHECKED.value))
        .when(col("tier").isNotNull(), lit(Verdict.DUPLICATE.value))
        .otherwise(lit(Verdict.NEW.value))
    )


def verdict_rows(read: Read, log: ChunkedLog, window: int, expiry_us: int) -> DataFrame:
    """The rows of `simulate.whole.VERDICT_SCHEMA` in the order of the log, worked out and kept. It was read with ids."""
    work, pieces = _receipts(log.plan), read.pieces
    receipts = pieces.to_frame(work, _RECEIPT)
    judged = receipts.join(tiers(log, window, expiry_us), "number", "left")
    parts = -(-sum(report.receipts for report in read.reports) // _ROWS_PER_PART)
    # A receipt's number is its index in the order of reading.
    order = ["key_us", "number"]
    ordered = judged.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    ordered = ordered.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
    counts = ordered.groupBy(spark_partition_id().alias("part")).count().collect()
    sizes = {row["part"]: row["count"] for row in counts}
    begins = accumulate((sizes.get(part, 0) for part in range(parts)), initial=0)
    begin = element_at(array(*map(lit, begins)), spark_partition_id() + 1)
    row = begin + monotonically_increasing_id() - shiftleft(spark_partition_id().cast("bigint"), _PARTITION_BITS)
    verdict = verdict_of(col("unique_message_id"))
    return ordered.select(
        row.alias("row"), "domain", "unique_message_id", "message_source_id", verdict.alias("verdict")
    )


def _receipts(plan: CutPlan) -> Callable[[Iterator[Row]], Iterator[pa.RecordBatch]]:
    name = domain_key(plan.key).name

    def work(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        for row in rows:
            piece = row.value
            domains = [name(channel) for channel in channels_of(piece)]
            yield pa.record_batch(
                {
                    "number": plan.unit_number[piece.unit] + piece.first_row + np.arange(len(piece.source)),
                    "key_us": keys_us(plan, piece),
                    "domain": pa.array(domains, pa.string()).take(pa.array(channel_of(piece))),
                    "unique_message_id": piece.unique_message_id,
                    "message_source_id": pa.array(piece.sources, pa.string()).take(pa.array(piece.source)),
                }
            )

    return work


@contextmanager
def verdicts_file(path: str) -> Iterator[Callable[[DataFrame], None]]:
    """What writes rows to a path: Parquet into a new folder there, or at a URL, by the tasks; else one file.

    Parts are ordered by name as their rows are. `OutputError` and `SettingsError` as `logs.writer` does.
    """
    if "://" in path:
        yield lambda rows: rows.write.option("compression", "zstd").parquet(path)
    elif path.endswith("/") or Path(path).is_dir():
        with appearing(path) as folder:

            def write_parts(rows: DataFrame) -> None:
                _write_parts(rows, folder)

            yield write_parts
    else:
        with open_table(path, VERDICT_SCHEMA) as table, _parts_beside(Path(path)) as folder:

            def write(rows: DataFrame) -> None:
                for part in _write_parts(rows, folder):
                    for batch in pq.ParquetFile(part).iter_batches(use_threads=False):
                        table.write(batch.cast(VERDICT_SCHEMA))

            yield write


def _write_parts(rows: DataFrame, folder: Path) -> list[Path]:
    rows.write.mode("append").option("compression", "zstd").parquet(folder.absolute().as_uri())
    parts = sorted(folder.glob("part-*.parquet"))
    if sum(pq.read_metadata(part).num_rows for part in parts) != rows.count():
        raise OutputError(
            f"what tasks have written to {folder.parent} isn't there", hint="name a folder that all machines share"
        )
    return parts


@contextmanager
def _parts_beside(path: Path) -> Iterator[Path]:
    """A folder for a while, at a path that tasks see if they see the file's."""
    folder = path.absolute().parent / f"{UNFINISHED}{path.name}.parts"
    with naming(path):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
