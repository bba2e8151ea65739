"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out. The caller's session is left as it was.

The command writes the verdicts of a log by `verdict_rows` and `verdicts_file`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from html import escape
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import functions as sql

from receiver.domains import domain_key
from receiver.errors import MissingExtraError, OutputError, SettingsError
from receiver.logs import ReadOptions
from receiver.logs.options import fields_of
from receiver.logs.writer import UNFINISHED, appearing, naming, open_table, replacing
from receiver.message import Tier, Verdict
from receiver.report.json_object import analysis_object
from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.figures import Analysis
from receiver.simulate.question import Question, parse_expiries_us, parse_setting, parse_windows
from receiver.simulate.whole import VERDICT_SCHEMA
from receiver.spark.failures import CLASSIC, translated
from receiver.spark.flow import SparkFlow
from receiver.spark.session import tuned
from receiver.spark.sources import Read, file_and_row, named, read_frame, spark_url
from receiver.steps.log import chunked_log
from receiver.steps.plan import CutPlan, keys_us
from receiver.steps.read import Reading
from receiver.steps.replaying import ChunkedLog
from receiver.steps.schemas import channel_column, channels_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from receiver.steps.arrow_rows import Row

_ROWS_PER_PART = 1_000_000
_OF_RECEIPT = VERDICT_SCHEMA.names[1:-1]
"""The columns of a verdict's row that describe the receipt: all but the row's number and the verdict."""
_PARTITION_BITS = 33
"""A `monotonically_increasing_id` has the number of the partition above this many bits."""
_ROW_ID = "_receiver_row_id"
_ADDED = ("verdict", "tier")


class FrameAnalysis(Analysis):
    """The analysis of a frame's receipts."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `receiver simulate --json`."""
        return analysis_object(self)

    def report(self, path: str | PathLike[str]) -> None:
        """Write the page of `receiver simulate --report`, a file of its own.

        Raises:
            MissingExtraError: The extra `report` isn't installed.
            OutputError: The file can't be written.
        """
        page = self._page()
        with replacing(str(path)) as file:
            file.write(page.encode())

    def _repr_html_(self) -> str | None:
        """The page for the cell of a notebook, in an iframe, so that its style and charts don't affect the notebook. None without
        the extra `report`."""
        try:
            page = self._page()
        except MissingExtraError:
            return None
        return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 50em; border: 0"></iframe>'

    def _page(self) -> str:
        try:
            from receiver.report.html import page_text
        except ImportError as error:
            raise MissingExtraError("report", "a report") from error
        from receiver.report.sizing import analysis_document

        return page_text(analysis_document(self), "receiver.spark.size_windows")


def size_windows(
    frame: DataFrame,
    *,
    domain: str = "default",
    windows: Sequence[int] | None = None,
    expiries_secs: Sequence[float] | None = None,
    order_by: str | None = None,
    column_map: Mapping[str, str] | None = None,
    max_missed: int | None = None,
    margin: float | None = None,
    current: tuple[int, float] | None = None,
    budget_bytes: int | None = None,
) -> FrameAnalysis:
    """Size the windows from a frame, as `receiver simulate` does from the same receipts in the same order.

    Args:
        frame: The receipts. Its columns are those of a log, by our names or by those of JMS and Apama. `received_at` is a
            timestamp, a text or a number.
        domain: The KEY, as `--domain`.
        windows: The windows to try, in ids per source. None: chosen from the log.
        expiries_secs: The expiries to try, in seconds. None: chosen from the log.
        order_by: The column that orders the receipts. It must have no nulls. None: the order of files and rows if the frame
            knows it (read from Parquet, and neither joined nor grouped since), otherwise that of time. Ties go by content.
        column_map: The frame's column for each of our columns that has another name.
        max_missed: How many duplicates a setting may miss, as `--max-missed`.
        margin: The factor by which a setting exceeds the log's need, as `--margin`.
        current: The window in ids and the expiry in seconds that are set now, as `--current`.
        budget_bytes: The memory that a setting may take, as `--budget`.

    Returns:
        The analysis. `as_dict` gives the JSON object of `receiver simulate --json`.

    Raises:
        SettingsError: An argument is invalid.
        LogFormatError: The frame isn't a log, or one of its rows can't be read.
        SparkError: Spark failed.
    """
    given: dict[str, Any] = {"max_missed": max_missed, "margin": margin, "budget_bytes": budget_bytes}
    question = Question(
        domain,
        None if windows is None else parse_windows(_listed("windows", windows), "windows"),
        None if expiries_secs is None else parse_expiries_us(_listed("expiries_secs", expiries_secs), "expiries_secs"),
        SimulateSettings(**{name: value for name, value in given.items() if value is not None}),
        ReceiverSettings().sizes if current is None else _present(current),
    )
    session, options = _session_of(frame), _options(column_map)
    with translated(quiet=True), tuned(session), _log(frame, options, question, order_by) as log:
        analysis = analyse(log, question)
    return FrameAnalysis(**{field.name: getattr(analysis, field.name) for field in fields(analysis)})


def _session_of(frame: DataFrame) -> SparkSession:
    session: SparkSession | None = getattr(frame, "sparkSession", None)
    if session is None:
        raise SettingsError(
            f"the frame is a {type(frame).__name__}, not a DataFrame of Spark",
            hint="give spark.read.parquet(PATH), or spark.createDataFrame(FRAME) of a frame of pandas",
        )
    context = getattr(session, "sparkContext", None)
    if context is None:
        raise SettingsError("the frame is of Spark Connect, which has no SparkContext", hint=CLASSIC)
    if context._jsc is None:  # noqa: SLF001 - no public way tells
        raise SettingsError("the frame's Spark session was stopped", hint="make the frame anew, in a session that runs")
    if frame.isStreaming:
        raise SettingsError("the frame is a stream, which has no end", hint="read it by spark.read")
    return session


def _present(current: tuple[int, float]) -> tuple[int, int]:
    if isinstance(current, str) or not isinstance(current, Sequence) or len(current) != 2:  # noqa: PLR2004
        raise SettingsError("current must be a window and an expiry in seconds", hint="such as (2000, 120)")
    return parse_setting(*current, named=("current", "current"))


def _listed(name: str, values: Sequence[float]) -> Sequence[float]:
    listed = [] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    if not listed:
        raise SettingsError(f"{name} must be a list of numbers", hint="None chooses it from the log")
    return listed


def judge(
    frame: DataFrame,
    *,
    window: int,
    expiry_secs: float,
    domain: str = "default",
    order_by: str | None = None,
    column_map: Mapping[str, str] | None = None,
) -> DataFrame:
    """Judge each receipt of a frame by Apama's rule.

    The rows are judged at once, and kept on the executors' disks while the returned frame is in use.

    Args:
        frame: The receipts. Its columns are those of a log.
        window: W, in ids per source.
        expiry_secs: E, in seconds.
        domain: The KEY, as `--domain`.
        order_by: The column that orders the receipts, as in `size_windows`.
        column_map: The frame's column for each of our columns that has another name.

    Returns:
        The frame with two more columns. `verdict` is `new`, `duplicate` or `unchecked`. `tier` is the tier that caught a
            duplicate: `source` if some source's queue still held the id, `time` if only the time queue did.

    Raises:
        SettingsError: An argument is invalid, or the frame already has a column of these names.
        LogFormatError: The frame isn't a log, or one of its rows can't be read.
        SparkError: Spark failed.
    """
    session, setting = _session_of(frame), parse_setting(window, expiry_secs, named=("window", "expiry_secs"))
    question = Question(domain, [setting[0]], [setting[1]])
    if taken := [name for name in frame.columns if name.lower() in _ADDED]:  # as Spark compares names
        raise SettingsError(f"the frame has a column {taken[0]!r} already", hint="rename it")
    with translated(quiet=True), tuned(session):
        options = _options(column_map)
        id_column = named(frame.columns[fields_of(frame.columns, options, "the frame")["unique_message_id"]])
        # Computing the frame twice would number its rows differently, so it is computed once, by a checkpoint.
        file_row = [] if order_by is not None else file_and_row(frame) or []
        columns = [named(name) for name in frame.columns]
        base = frame.select(*columns, *file_row, sql.monotonically_increasing_id().alias(_ROW_ID))
        base = base.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        with _log(base, options, question, order_by, row_id=_ROW_ID) as log:
            duplicates = tiers(log, *setting).withColumnRenamed("number", _ROW_ID)
    together = base.join(duplicates, _ROW_ID, "left")
    return together.select(*columns, verdict_of(id_column).alias("verdict"), "tier")


def _options(column_map: Mapping[str, str] | None) -> ReadOptions:
    if not isinstance(column_map, Mapping | None):
        raise SettingsError("column_map must be a mapping", hint='such as {"unique_message_id": "OrderId"}')
    return ReadOptions(column_map=dict(column_map or {}))


def _log(
    frame: DataFrame, options: ReadOptions, question: Question, order_by: str | None, row_id: str | None = None
) -> ChunkedLog:
    """The receipts of a frame as a log. It keeps rows if there is a `row_id`, the column with the rows' ids."""
    read = read_frame(frame, Reading(options, secrets.token_bytes(16)), order_by=order_by, row_id=row_id)
    cores = frame.sparkSession.sparkContext.defaultParallelism
    return chunked_log(*read, question, cores=cores, keeps_rows=row_id is not None)


def tiers(log: ChunkedLog, window: int, expiry_us: int) -> DataFrame:
    """`number` and `tier` of each receipt with the verdict duplicate, computed and kept. The log must keep rows."""
    caught, _ = log.caught(window, expiry_us).kept("Judging receipts")
    duplicates = cast("SparkFlow", caught).to_frame(_tiers, "number bigint, tier string")
    duplicates = duplicates.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
    caught.forget()
    return duplicates


def _tiers(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        tier = np.where(row.value.by_time, Tier.TIME.value, Tier.SOURCE.value)
        yield pa.record_batch({"number": row.value.number, "tier": tier})


def verdict_of(unique_message_id: Column) -> Column:
    """The verdict on a receipt in a row with its `tier`."""
    unchecked = unique_message_id.isNull() | (unique_message_id.cast("string") == "")
    return (
        sql.when(unchecked, sql.lit(Verdict.UNCHECKED.value))
        .when(sql.col("tier").isNotNull(), sql.lit(Verdict.DUPLICATE.value))
        .otherwise(sql.lit(Verdict.NEW.value))
    )


def verdict_rows(read: Read, log: ChunkedLog, window: int, expiry_us: int) -> DataFrame:
    """The rows of `simulate.whole.VERDICT_SCHEMA` in the order of the log, computed and kept. The log must be read with ids."""
    columns = ["number bigint", "key_us bigint", *(f"{name} string" for name in _OF_RECEIPT)]
    receipts = read.pieces.to_frame(partial(_receipts, log.plan), ", ".join(columns))
    judged = receipts.join(tiers(log, window, expiry_us), "number", "left")
    parts = -(-log.facts.log.receipts // _ROWS_PER_PART)
    # A receipt's number is its index in the order of reading.
    order = ["key_us", "number"]
    rows = judged.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    rows = rows.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
    sizes: dict[int, int] = dict(rows.groupBy(sql.spark_partition_id()).count().collect())
    begins = accumulate((sizes.get(part, 0) for part in range(parts)), initial=0)
    begin = sql.element_at(sql.array(*map(sql.lit, begins)), sql.spark_partition_id() + 1)
    in_part = sql.monotonically_increasing_id().bitwiseAND((1 << _PARTITION_BITS) - 1)
    verdict = verdict_of(sql.col("unique_message_id")).alias("verdict")
    return rows.select((begin + in_part).alias("row"), *_OF_RECEIPT, verdict)


def _receipts(plan: CutPlan, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    name = domain_key(plan.key).name
    for row in rows:
        piece = row.value
        domains = [name(channel) for channel in channels_of(piece)]
        yield pa.record_batch(
            {
                "number": plan.unit_number[piece.unit] + piece.first_row + np.arange(len(piece.source)),
                "key_us": keys_us(plan, piece),
                "domain": pa.array(domains, pa.string()).take(pa.array(channel_column(piece))),
                "unique_message_id": piece.unique_message_id,
                "message_source_id": pa.array(piece.sources, pa.string()).take(pa.array(piece.source)),
            }
        )


@contextmanager
def verdicts_file(path: str) -> Iterator[Callable[[DataFrame], object]]:
    """Yields a function that writes rows to a path. For a folder or a URL, the tasks write Parquet; otherwise it is one file.

    The names of parts are in the order of their rows. Raises `OutputError` and `SettingsError` as `logs.writer`.
    """
    if "://" in path:
        yield lambda rows: rows.write.option("compression", "zstd").parquet(path)
    elif path.endswith("/") or Path(path).is_dir():
        with appearing(path) as folder:
            yield lambda rows: _write_parts(rows, folder)
    else:
        with open_table(path, VERDICT_SCHEMA) as write_batch, _parts_beside(Path(path)) as folder:

            def write(rows: DataFrame) -> None:
                for part in _write_parts(rows, folder):
                    for batch in pq.ParquetFile(part).iter_batches(use_threads=False):
                        write_batch(batch.cast(VERDICT_SCHEMA))

            yield write


def _write_parts(rows: DataFrame, folder: Path) -> list[Path]:
    rows.write.mode("append").option("compression", "zstd").parquet(spark_url(folder))
    parts = sorted(folder.glob("part-*.parquet"))
    if sum(pq.read_metadata(part).num_rows for part in parts) != rows.count():
        raise OutputError(
            f"what tasks have written to {folder.parent} isn't there", hint="name a folder that all machines share"
        )
    return parts


@contextmanager
def _parts_beside(path: Path) -> Iterator[Path]:
    """A temporary folder beside the file, which tasks can reach if they can reach the file's folder."""
    folder = path.absolute().with_name(f"{UNFINISHED}{secrets.token_hex(8)}.parts")
    with naming(path):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
