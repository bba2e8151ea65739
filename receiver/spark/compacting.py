"""Compacts a log: tasks read it by our readers; Spark sorts its rows, and writes them as Parquet by domain and day."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as sql

from receiver.errors import OutputError, SettingsError
from receiver.logs.columns import COLUMNS, ValueKind
from receiver.logs.compacted import DomainFiles, Manifest, PartFile, adding, status_lines_text
from receiver.logs.writer import in_pieces
from receiver.quantities import DAY_US
from receiver.simulate.compiled import Int64s
from receiver.simulate.numbering import plain_text
from receiver.spark.flow import start, watched
from receiver.spark.sources import spark_url
from receiver.steps.arrow_rows import Row
from receiver.steps.log import reports_of
from receiver.steps.plan import carry_us_of, names_of
from receiver.steps.read import Reading, pieces_of, read_unit, status_lines_of, units_of
from receiver.steps.schemas import Piece, Unit, UnitReport, channel_column, channels_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from receiver.domains import Channel, DomainKey
    from receiver.logs import LogBatch, ReadOptions
    from receiver.logs.compacted import Folder
    from receiver.logs.files import LogFile
    from receiver.spark.flow import OnProgress

ROWS_PER_FILE = 1_000_000
_GROUP_ROWS = 1 << 17
"""The rows of a row group: enough to compress well, few enough for tasks to share a file."""
_NO_DIGEST = bytes(16)
_TEXT_BYTES = 1 << 20
_FOOTERS_AT_ONCE = 16
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_NAME = re.compile(r"domain=(\d+)/day=([^/]+)/part-(\d+)-[^/]*\.c(\d+)\.[^/]*$")
"""Spark's name of a file: domain, day, task, and the file's number among those that the task wrote for them."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """Receipts of a unit, and the keys of their order."""

    unit: int
    row: Int64s
    key_us: Int64s
    """The largest time of the unit up to the receipt."""
    domain: pa.Array


_CELLS: dict[ValueKind, tuple[str, Callable[[], Any]]] = {
    **dict.fromkeys(ValueKind, ("Int64s", lambda: np.zeros(0, np.int64))),
    ValueKind.TEXT: ("pa.Array", lambda: pa.array([], pa.string())),
    ValueKind.FLAG: ("Flags", lambda: np.zeros(0, np.bool_)),
}
"""For each kind of column, the type of its cells for `steps.arrow_rows`, and a function that makes an empty column."""

UnitReceipts: type[_Placed] = make_dataclass(
    "UnitReceipts",
    [(name, _CELLS[column.kind][0], field(default_factory=_CELLS[column.kind][1])) for name, column in COLUMNS.items()],
    bases=(_Placed,),
    namespace={"__module__": __name__},
    frozen=True,
    slots=True,
)
"""A unit's receipts with the columns of a log, times in microseconds. A column that the unit lacks is empty."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """The problems of a unit's rows: JSON Lines, cut anywhere. Key: the index of the part among those of the unit."""

    unit: int
    lines: str


def compact(
    spark: SparkSession,
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    folder: Folder,
    *,
    before: Manifest | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Write the receipts of a log, in order, to a folder that every task sees. No file has more than `rows_per_file` rows.

    The folder is empty, or it is the compacted log with the manifest `before`, to which receipts are added: these must come after
    all that it has of their domain. Raises `LogFormatError`, `OutputError`, and `SettingsError` for invalid arguments, such as
    standard input.
    """
    _check(files, key, before, rows_per_file)
    units = units_of(files, rows_per_unit=rows_per_file)
    flow = start(spark, [Row(unit.number, unit) for unit in units], len(units), Unit, on_progress)
    flow = flow.map(partial(_read, Reading(options, _NO_DIGEST), key), UnitReceipts, UnitReport, BadRows)
    with adding(folder, before) as new:
        read, (counts,) = flow.kept("Reading receipts", UnitReport)
        reports = reports_of(counts, units, key)
        name_of, carry_us = names_of(reports, key), carry_us_of(reports, units)
        _check_order(reports, name_of, carry_us, before)
        lines, domains, columns = list(status_lines_of(reports)), sorted(set(name_of.values())), _columns(reports)
        receipts = sum(report.receipts for report in reports)
        # Ranges have about equal sizes: with a tenth more of them, few are cut into two files.
        rows = _in_order(read.only(UnitReceipts).frame, domains, carry_us, -(-receipts * 11 // (10 * rows_per_file)))
        with watched(spark.sparkContext, "Writing files", on_progress):
            _write(rows.select(*columns, "domain", "day"), new.written, rows_per_file)
        manifest = Manifest(
            domain_key=key.text,
            domains=_files(new.written, domains, receipts),
            columns=columns,
            receipts=receipts,
            skipped=sum(report.skipped for report in reports),
            status_lines=len(lines),
        )
        bad = _bad_rows(read.only(BadRows).frame) if options.on_error == "skip" else None
        grown = new.commit(manifest, status_lines_text(lines), bad)
    read.forget()
    return grown


def _check(files: Sequence[LogFile], key: DomainKey, before: Manifest | None, rows_per_file: int) -> None:
    if rows_per_file < 1:
        raise SettingsError(f"no file can hold {rows_per_file} rows", hint="1 or more")
    if any(file.path is None and file.url is None for file in files):
        raise SettingsError("standard input can't be shared by many tasks", hint="write it to a file first")
    if before is not None and before.domain_key != key.text:
        raise SettingsError(
            f"the compacted log was made by the domain key {before.domain_key!r}, not {key.text!r}",
            hint=f"--domain {before.domain_key}",
        )


def _read(how: Reading, key: DomainKey, rows: Iterator[Row]) -> Iterator[Row]:
    """Turn each `Unit` into `UnitReceipts`, a report, and its `BadRows`."""
    for row in rows:
        unit = row.value
        with SpooledTemporaryFile(_TEXT_BYTES, "w+") as bad:
            options = replace(how.options, on_skipped=partial(_write_problem, bad))
            for value in pieces_of(unit.number, read_unit(unit, options), how, partial(_receipts, key)):
                yield from (Row(0, each) for each in ([value] if isinstance(value, UnitReport) else value))
            bad.seek(0)
            for index, lines in enumerate(iter(partial(bad.read, _TEXT_BYTES), "")):
                yield Row(index, BadRows(unit.number, lines))


def _write_problem(file: IO[str], name: str, line: int, problem: str) -> None:
    file.write(json.dumps({"file": name, "line": line, "problem": problem}) + "\n")


def _receipts(key: DomainKey, piece: Piece, batch: LogBatch) -> Iterator[_Placed]:
    names = pa.array([key.name(channel) for channel in channels_of(piece)], pa.string())
    columns = {
        "row": piece.first_row + np.arange(len(batch)),
        "key_us": np.maximum.accumulate(np.maximum(batch.received_at_us, piece.latest_us)),
        "domain": pa.DictionaryArray.from_arrays(pa.array(channel_column(piece)), names),
        **{name: getattr(batch, column.attribute) for name, column in COLUMNS.items()},
    }
    there = {name: pa.array(column) for name, column in columns.items() if column is not None}
    for part in in_pieces(pa.record_batch(there)):
        yield UnitReceipts(piece.unit, **{name: _cells(part.column(name)) for name in there})


def _cells(column: pa.Array) -> Any:
    is_number = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    return column.to_numpy(zero_copy_only=False) if is_number else plain_text(column)


def _columns(reports: Sequence[UnitReport]) -> list[str]:
    present = {column for report in reports for column in report.columns_present}
    return [name for name, column in COLUMNS.items() if column.is_required or name in present]


def _check_order(
    reports: Sequence[UnitReport], name_of: Mapping[Channel, str], carry_us: Int64s, before: Manifest | None
) -> None:
    """Raise `SettingsError` unless new receipts come after the old ones. A unit's samples have each channel's first receipt."""
    domains_before = before.domains if before else []
    latest_us = {each.domain: max(part.latest_us for part in each.files) for each in domains_before}
    for report in reports:
        domains = [name_of[channel] for channel in channels_of(report)]
        keys_us = np.maximum(report.samples_latest_us, carry_us[report.unit])
        for channel, key_us in zip(report.samples_channel.tolist(), keys_us.tolist(), strict=True):
            if key_us < latest_us.get(domains[channel], 0):
                raise SettingsError(
                    f"new receipts of {domains[channel]!r} come before receipts that the compacted log has already",
                    hint="compact all logs again, into another folder",
                )


def _in_order(receipts: DataFrame, domains: list[str], carry_us: Int64s, parts: int) -> DataFrame:
    """A row for each receipt, in the order of domain, key, unit and row; partitions have about as many rows each.

    `domain` is a number. The key of a receipt is the largest time of its file up to it; its `day` is that of the key.
    """
    spark = receipts.sparkSession
    numbers = spark.createDataFrame(pa.table({"domain": domains, "number": np.arange(len(domains))}))
    carries = spark.createDataFrame(pa.table({"unit": np.arange(len(carry_us)), "carry_us": carry_us}))
    zipped = sql.arrays_zip(*(f"UnitReceipts.{each.name}" for each in fields(UnitReceipts) if each.name != "unit"))
    # In two steps: otherwise each row would carry the columns of all rows.
    rows = receipts.select("UnitReceipts.unit", zipped.alias("zipped")).select("unit", sql.inline("zipped"))
    rows = rows.join(sql.broadcast(numbers), "domain").join(sql.broadcast(carries), "unit")
    rows = rows.withColumns({"domain": sql.col("number"), "key_us": sql.greatest("key_us", "carry_us")})
    day = sql.date_from_unix_date(sql.expr(f"int(key_us div {DAY_US})"))
    rows = rows.withColumns({"day": day, "received_at": sql.timestamp_micros("received_at")})
    ranges = rows.repartitionByRange(parts, "domain", "key_us", "unit", "row")
    # Spark starts a new file for each day, which ascends with the key: without the day here, it would sort again.
    return ranges.sortWithinPartitions("domain", "day", "key_us", "unit", "row")


def _write(rows: DataFrame, folder: Folder, rows_per_file: int) -> None:
    """Write files, each of one domain and day."""
    writer = rows.write.partitionBy("domain", "day").mode("append").option("compression", "zstd")
    writer = writer.option("maxRecordsPerFile", rows_per_file).option("parquet.block.row.count.limit", _GROUP_ROWS)
    settings = rows.sparkSession.conf
    before = settings.get(_TIMESTAMPS)
    # Spark's default, 96 bits, has no statistics. The session may be the caller's, so its own setting is restored.
    settings.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        writer.parquet(spark_url(folder) if isinstance(folder, Path) else folder.url)
    finally:
        settings.set(_TIMESTAMPS, before or "")


def _files(written: Folder, domains: list[str], receipts: int) -> list[DomainFiles]:
    """The files that Spark has written, in order; `OutputError` if some are missing."""
    paths = list(written.rglob("*.parquet"))
    names = ((match, path) for path in paths if (match := _NAME.search(str(path))))
    written_files = sorted(
        (int(name[1]), np.datetime64(name[2]), int(name[3]), int(name[4]), name[0], path) for name, path in names
    )
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        footers = list(pool.map(_footer, (path for *_, path in written_files)))
    if sum(footer.num_rows for footer in footers) != receipts:
        raise OutputError(
            f"what tasks have written to {written} isn't there", hint="name a folder at a path that every task sees"
        )
    files: list[list[PartFile]] = [[] for _ in domains]
    for (domain, *_, name, _), footer in zip(written_files, footers, strict=True):
        groups = (footer.row_group(group).column(0) for group in range(footer.num_row_groups))
        latest_us = max(group.statistics.max_raw for group in groups)
        files[domain].append(PartFile(name, footer.num_rows, latest_us))
    return [DomainFiles(*each) for each in zip(domains, files, strict=True)]


def _footer(file: Folder) -> pq.FileMetaData:
    with file.open("rb") as opened:
        return pq.read_metadata(opened)


def _bad_rows(kept: DataFrame) -> Iterator[bytes]:
    lines = kept.select("key", "BadRows.*").orderBy("unit", "key")
    return (row.lines.encode() for row in lines.toLocalIterator())
