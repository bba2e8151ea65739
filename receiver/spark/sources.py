"""Reads receipts: from files, by this package's readers in tasks; from tables; from any DataFrame with a log's columns.

Logs at URLs are read through Spark's filesystems: Parquet by Spark's reader, which knows the rows of files; other formats as
bytes, so that our readers keep the text exact.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql.functions import col, element_at, split

from receiver.errors import LogFormatError, SettingsError
from receiver.logs import no_receipt
from receiver.logs.columns import COLUMNS
from receiver.logs.compacted import is_part_path
from receiver.logs.files import manifests_of
from receiver.logs.opening import read_content
from receiver.logs.options import fields_of, spellings
from receiver.logs.parquet import gathered
from receiver.logs.remote import TABLE
from receiver.logs.rows import BatchMaker, RawRows, as_text
from receiver.logs.times import read_times
from receiver.simulate.compiled import Int64s
from receiver.spark.flow import SparkFlow, ddl_of, start, task_output
from receiver.steps.arrow_rows import Row, changes, runs
from receiver.steps.read import Reading, pieces_of, reading, units_of
from receiver.steps.schemas import Piece, Unit, UnitReport

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import Column, DataFrame, SparkSession

    from receiver.logs import LogBatch, ReadOptions
    from receiver.logs.files import LogFile
    from receiver.spark.flow import OnProgress

_UNIT_ROWS = 1_000_000
_TASKS_PER_CORE = 16
"""Enough for all cores to end at about the same time, but not a task for each of thousands of small files."""
_FRAME = "the frame"
_FILE, _ROW, _ID = "_receiver_file", "_receiver_row", "_receiver_id"
_ORDER, _MISSING = "_receiver_order", "_receiver_order_missing"
_UNITS_PER_TASK = 1 << 12
_AN_ORDER = "give a column to order by"
_FEWER_FILES = "raise spark.sql.files.openCostInBytes, so that a task gets fewer files"
_STEP = "Reading receipts"
_PLAIN_FOLDERS = "CONFLICTING_DIRECTORY_STRUCTURES"
"""Spark's error for partitions in several folders."""


def spark_url(path: Path) -> str:
    """The URL of a path for Spark, which reads it literally: a blank isn't escaped as %20."""
    return f"file://{path.absolute()}"


class Read(NamedTuple):
    """A log that was read, with its receipts in pieces. The reports have its problems, in any order."""

    pieces: SparkFlow
    units: list[Unit]
    reports: list[UnitReport]


def read_files(
    spark: SparkSession,
    files: Sequence[LogFile],
    options: ReadOptions,
    *,
    with_ids: bool = False,
    on_progress: OnProgress | None = None,
) -> Read:
    """Read files that every task can open."""
    units = units_of(files, rows_per_unit=_UNIT_ROWS)
    tasks = min(len(units), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE)
    how = Reading(options, secrets.token_bytes(16), with_ids=with_ids)
    flow = start(spark, [Row(unit.number, unit) for unit in units], tasks, Unit, on_progress)
    pieces, (reports,) = flow.map(partial(reading, how), Piece, UnitReport).kept(_STEP, UnitReport)
    reports[0].skipped += sum(manifest.skipped for manifest in manifests_of(files))
    return Read(pieces.only(Piece), units, reports)


def read_table_or_urls(
    spark: SparkSession,
    logs: Sequence[str],
    options: ReadOptions,
    *,
    order_by: str | None = None,
    with_ids: bool = False,
    on_progress: OnProgress | None = None,
    note: Callable[[str], None] = lambda _text: None,
) -> Read:
    """Read a table, or the logs at URLs: files, globs, and folders, which may have folders of partitions."""
    how = Reading(options, secrets.token_bytes(16), with_ids=with_ids)
    if any(log.startswith(TABLE) for log in logs):
        if len(logs) > 1:
            raise SettingsError("a table is read alone", hint="make a view of the union, and name that")
        frame = _opened(logs[0], lambda: spark.table(logs[0].removeprefix(TABLE)))
        return read_frame(frame, how, order_by=order_by, note=note, on_progress=on_progress)
    if not all(":/" in log for log in logs):
        raise SettingsError("logs at paths and logs at URLs can't be read together", hint="write paths as file:///PATH")
    contents = [_contents(spark, log) for log in logs]
    log_of = _log_of(logs, contents)
    if any(map(is_part_path, log_of)):
        raise SettingsError(
            "a compacted log at a URL is read by fsspec, which can't read this one",
            hint="name the log's own folder, with the extra 'remote' and fsspec's package for such URLs",
        )
    if all(name.endswith(".parquet") for name in log_of):
        frame = _parquet(spark, logs, list(log_of), options)
        return read_frame(frame, how, order_by=order_by, log_of=log_of, note=note, on_progress=on_progress)
    if order_by is not None:
        raise SettingsError("--order-by is for tables and Parquet", hint="rows of text stand in their order")
    every_file = reduce(lambda one, other: one.union(other), contents)
    return _numbered(*_read(every_file, partial(_read_content, how), on_progress), log_of)


def _parquet(spark: SparkSession, logs: Sequence[str], names: Sequence[str], options: ReadOptions) -> DataFrame:
    """All of these files, with a column for each KEY of folders KEY=VALUE, which Spark takes for partitions.

    Folders give no columns, as on the local engine, in two cases. Files are in plain folders, or in folders of different keys:
    Spark would leave files out, or refuse them all. Or a KEY is a column of the log, and the files have it too: Spark would
    replace its values.
    """

    def read(**how: str) -> DataFrame:
        return spark.read.options(**how).parquet(*logs)

    without_keys = {"recursiveFileLookup": "true"}
    first, *others = {tuple(part.partition("=")[0] for part in name.split("/")[:-1] if "=" in part) for name in names}
    ours = set(first).intersection(name for column in COLUMNS for name in spellings(column, options))
    if others or (ours and not ours.isdisjoint(read(**without_keys).columns)):
        return read(mergeSchema="true", **without_keys)
    try:
        frame = read(mergeSchema="true")
        if len(set(frame.inputFiles())) >= len(set(names)):
            return frame
    except PySparkException as error:
        if _PLAIN_FOLDERS not in str(error):
            raise
    return read(mergeSchema="true", **without_keys)


def _opened(log: str, opening: Callable[[], DataFrame]) -> DataFrame:
    try:
        return opening()
    except AnalysisException as error:
        said = str(error).splitlines()[0]
        raise LogFormatError(log, f"can't be read: {said}", hint="is it spelled as Spark knows it?") from error


def _contents(spark: SparkSession, log: str) -> DataFrame:
    """`file_path`, escaped, and `content` of each file. Content is only read if it is selected."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    name = element_at(split("path", "/"), -1)
    files = _opened(log, lambda: reader.load(log)).where(~name.startswith("_") & ~name.startswith("."))
    return files.select("_metadata.file_path", "content")


def _log_of(logs: Sequence[str], contents: Sequence[DataFrame]) -> dict[str, int]:
    """The index of each file's log. `LogFormatError` for a log without files."""
    log_of: dict[str, int] = {}
    for index, (log, files) in enumerate(zip(logs, contents, strict=True)):
        names = [unquote(row.file_path) for row in files.select("file_path").collect()]
        if not names:
            raise LogFormatError(log, "no file matches", hint="name a log of receipts")
        # Spark can't read it as two logs, as the local engine does.
        if twice := log_of.keys() & names:
            raise SettingsError(f"{min(twice)} is in two of the logs", hint="name it once")
        log_of |= dict.fromkeys(names, index)
    return log_of


def _read(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterator[Row]], on_progress: OnProgress | None
) -> tuple[SparkFlow, list[UnitReport]]:
    """Run `work` on the frame's batches. Returns its pieces, kept, and the reports of their units."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task_output(work, batches, Piece, UnitReport)

    flow = SparkFlow(frame.mapInArrow(task, ddl_of(Piece, UnitReport)), (Piece, UnitReport), on_progress)
    pieces, (reports,) = flow.kept(_STEP, UnitReport)
    return pieces, reports


def _read_content(how: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    files = (file for batch in batches for file in zip(batch.column("file_path"), batch.column("content"), strict=True))
    for number, (path, content) in enumerate(files):
        unit, name = _unit_of_task(number, _FEWER_FILES), unquote(path.as_py())
        for value in pieces_of(unit, read_content(name, content.as_py(), how.options), how):
            if isinstance(value, UnitReport):
                value.file = name
            yield Row(0, value)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class _TooManyUnitsError(SettingsError):
    """A task has more files, or parts of files, than numbers for them."""


def _unit_of_task(number: int, way_on: str) -> int:
    """The number of a task's unit after `number` others. Each task has a limited range of numbers of its own."""
    if number >= _UNITS_PER_TASK:
        raise _TooManyUnitsError(
            f"more than {_UNITS_PER_TASK:,} files, or parts of files, come to one task", hint=way_on
        )
    return _partition() * _UNITS_PER_TASK + number


def read_frame(
    frame: DataFrame,
    how: Reading,
    *,
    order_by: str | None = None,
    row_id: str | None = None,
    log_of: Mapping[str, int] | None = None,
    note: Callable[[str], None] = lambda _text: None,
    on_progress: OnProgress | None = None,
) -> Read:
    """Read a frame's receipts ordered by a column; without it by file and row if the frame knows them, otherwise by time.

    Ties are ordered by content. Files are ordered by the index of their log, as `log_of` has it, then by name. `row_id` names a
    column to keep. `LogFormatError` for columns that aren't a log's.
    """
    receipts, by_file = _ordered(frame, how.options, order_by, row_id, note)
    work = partial(_read_task, how, by_file=by_file)
    with suppress(_TooManyUnitsError):
        pieces, reports = _read(receipts, work, on_progress)
        if not by_file or _in_order(reports):
            return _numbered(pieces, reports, log_of or {})
        pieces.forget()
    # The rows of a file aren't in order, or lie among those of other files, as after a shuffle or a sort. Receipts of one row, as
    # after `explode`, have lost their order there.
    return _numbered(*_read(receipts.orderBy(_FILE, _ROW, *_content(receipts)), work, on_progress), log_of or {})


def _ordered(
    frame: DataFrame, options: ReadOptions, order_by: str | None, row_id: str | None, note: Callable[[str], None]
) -> tuple[DataFrame, bool]:
    """The receipts with a log's column names; whether each file of the frame is a log of its own.

    If so, `_FILE` and `_ROW` have each receipt's file and row. Otherwise the rows of all partitions are in order.
    """
    fields = fields_of(frame.columns, options, _FRAME)
    columns = [named(frame.columns[index]).alias(column) for column, index in fields.items()]
    kept = [] if row_id is None else [named(row_id).alias(_ID)]
    receipts = frame.select(*columns, *kept)
    _checked_types(receipts, options)
    content = _content(receipts)
    if order_by is not None:
        theirs = [name for name in frame.columns if name != row_id]
        if not isinstance(order_by, str) or order_by not in theirs:
            raise SettingsError(f"the frame has no column {order_by!r} to order by", hint=f"one of {', '.join(theirs)}")
        by = frame.select(*columns, *kept, named(order_by).alias(_ORDER), named(order_by).isNull().alias(_MISSING))
        try:
            return by.orderBy(_ORDER, *content).drop(_ORDER), False
        except AnalysisException as error:
            raise SettingsError(
                f"the column {order_by!r} has no order", hint="order by a number, a time or a text"
            ) from error
    if (file_row := file_and_row(frame)) is not None:
        return frame.select(*columns, *kept, *file_row), True
    note("the source has no order of rows: receipts go by their time, those of one time by their content")
    return _with_times(receipts, options).orderBy(_ORDER, *content).drop(_ORDER), False


def _content(receipts: DataFrame) -> list[str]:
    """The columns that order receipts whose order isn't known otherwise."""
    return [column for column in COLUMNS if column in receipts.columns]


def named(name: str) -> Column:
    """A column by its name, which may have any characters."""
    return col("`" + name.replace("`", "``") + "`")


def _checked_types(receipts: DataFrame, options: ReadOptions) -> None:
    empty = receipts.select(*(name for name in receipts.columns if name in COLUMNS)).limit(0).toArrow()
    columns = {name: pa.array([], empty.schema.field(name).type) for name in empty.schema.names}
    BatchMaker(_FRAME, options).batch(RawRows(columns, lambda row: row))


def file_and_row(frame: DataFrame) -> list[Column] | None:
    """The columns with the file and row of a frame's rows; None if the frame doesn't know them, or they may tell no order."""
    if _FILE in frame.columns and _ROW in frame.columns:
        return [col(_FILE), col(_ROW)]
    log = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    was, log.disabled = log.disabled, True  # a frame that doesn't know them is no error
    try:
        fields = frame.select("_metadata.file_path", "_metadata.row_index").columns
    except AnalysisException:
        return None
    finally:
        log.disabled = was
    if not _keeps_rows(frame):
        return None
    return [col(f"_metadata.{field}").alias(name) for field, name in zip(fields, (_FILE, _ROW), strict=True)]


def _keeps_rows(frame: DataFrame) -> bool:
    """Whether the files that a frame knows have its rows in order. After a join they may be those of the other frame. And tables
    may rewrite rows in other files, as Delta's `OPTIMIZE` does: they have formats of their own, which are kinds of Parquet.
    """
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - no public API has the format
    if leaves.size() > 1:
        return False
    leaf = leaves.apply(0)
    return _class(leaf) != "LogicalRelation" or _class(leaf.relation().fileFormat()) == "ParquetFileFormat"


def _class(java: JavaObject) -> str:
    return str(java.getClass().getSimpleName())


def _with_times(receipts: DataFrame, options: ReadOptions) -> DataFrame:
    """The receipts with a column `_ORDER`, their times in microseconds."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            arrived = batch.column("received_at")
            text = as_text(arrived)
            read = read_times(arrived if text is None else text, options.time_unit, ZoneInfo(options.time_zone))
            assert read is not None  # noqa: S101 - the type was checked before
            yield batch.append_column(_ORDER, pa.array(read.us))

    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in receipts.schema)
    return receipts.mapInArrow(work, f"{columns}, `{_ORDER}` bigint")


def _numbered(pieces: SparkFlow, reports: list[UnitReport], log_of: Mapping[str, int]) -> Read:
    """The log that was read. Its units are numbered here, because they are known only after reading."""
    if not reports:
        raise no_receipt([_FRAME])
    reports.sort(key=lambda report: (log_of.get(report.file, 0), report.file, report.first_row, report.unit))
    files = {name: index for index, name in enumerate(dict.fromkeys(report.file for report in reports))}
    units = [
        Unit(number, files[report.file], b"", report.file or _FRAME, 0, 0, 0) for number, report in enumerate(reports)
    ]
    numbers = {report.unit: number for number, report in enumerate(reports)}
    for report in reports:
        report.unit = numbers[report.unit]
    renumbered = replace(
        pieces.only(Piece), arriving=lambda row: Row(row.key, replace(row.value, unit=numbers[row.value.unit]))
    )
    return Read(renumbered, units, reports)


def _in_order(reports: Sequence[UnitReport]) -> bool:
    """Whether no two units of a file overlap."""
    runs_ = sorted((report.file, report.first_row, report.last_row) for report in reports)
    return all(one[0] != other[0] or one[2] < other[1] for one, other in pairwise(runs_))


def _read_task(how: Reading, batches: Iterator[pa.RecordBatch], *, by_file: bool) -> Iterator[Row]:
    """The pieces and reports of a partition. Each run of rows of one file, or the whole partition, is a unit."""
    batches = gathered(batches)
    for number, (file, rows) in enumerate(_runs_of_files(batches) if by_file else _one_run(batches)):
        unit, so_far = _unit_of_task(number, _AN_ORDER), _RowsRead()
        checked = _checked(rows, how, file or f"{_FRAME}, partition {_partition()}", so_far)
        for value in pieces_of(unit, checked, how, so_far.with_row_ids):
            if isinstance(value, UnitReport):
                value.file, value.first_row, value.last_row = file, so_far.first_row, so_far.last_row
            yield Row(0, value)


@dataclass(slots=True)
class _RowsRead:
    """The rows of the file that were read so far, and the row ids of the current batch."""

    first_row: int = -1
    last_row: int = -1
    row_id: Int64s | None = None

    def with_row_ids(self, piece: Piece, _batch: LogBatch) -> Piece:
        return piece if self.row_id is None else replace(piece, row_id=self.row_id)


def _one_run(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    first = next(batches, None)
    if first is not None:
        yield "", chain([first], batches)


def _runs_of_files(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """For each run of rows of one file that never go back: the file, and the batches.

    A row may come again, as after `explode`.
    """
    run, before = 0, ("", -1)

    def run_of(batch: pa.RecordBatch) -> tuple[int, str]:
        nonlocal run, before
        file = batch.column(_FILE)[0].as_py()
        run += file != before[0] or batch.column(_ROW)[0].as_py() < before[1]
        before = file, batch.column(_ROW)[len(batch) - 1].as_py()
        return run, unquote(file)

    for (_, file), rows in groupby((part for batch in batches for part in _cut_by_file(batch)), run_of):
        yield file, rows


def _cut_by_file(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The parts of a batch that each have rows of one file that never go back."""
    words = batch.column(_FILE).dictionary_encode().indices.to_numpy()
    row = batch.column(_ROW).to_numpy()
    begins = changes(words)
    begins[1:] |= row[1:] < row[:-1]
    return (batch.slice(first, last - first) for first, last in runs(begins))


def _checked(batches: Iterator[pa.RecordBatch], how: Reading, name: str, so_far: _RowsRead) -> Iterator[LogBatch]:
    """The rows as checked batches. The line of a row is its number in the file, from 1."""
    maker, before = BatchMaker(name, how.options), 0
    for batch in batches:
        if _MISSING in batch.schema.names and batch.column(_MISSING).true_count:
            raise SettingsError("the column to order by has nulls", hint="fill them, or order by another column")
        row = np.arange(before, before + len(batch))
        if _ROW in batch.schema.names:
            row = batch.column(_ROW).to_numpy()
        before += len(batch)
        so_far.first_row, so_far.last_row = so_far.first_row if so_far.first_row >= 0 else int(row[0]), int(row[-1])
        so_far.row_id = batch.column(_ID).to_numpy() if _ID in batch.schema.names else None
        columns = {column: batch.column(column) for column in COLUMNS if column in batch.schema.names}
        yield maker.batch(RawRows(columns, partial(_line, row)))


def _line(rows: Int64s, index: int) -> int:
    return int(rows[index]) + 1
