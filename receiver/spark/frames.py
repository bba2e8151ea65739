"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out.

    from receiver.spark import judge, size_windows

    analysis = size_windows(spark.read.parquet("s3a://bucket/receipts"), domain="destination")
    analysis.as_dict()["recommendation"]

Both work in the caller's own session and leave its settings as they were. A frame has a log's columns, by our names or by
those of JMS and Apama; `received_at` is a timestamp, a text or a number, as in logs. Receipts stand in the order of
`order_by`, a column without nulls; else in that of their files and rows, where the frame knows them (read from Parquet, and
neither joined nor grouped since); else in that of their time. Receipts that tie go by their content.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql.functions import monotonically_increasing_id

from receiver.domains import domain_key
from receiver.errors import SettingsError
from receiver.logs import ReadOptions, checked_options
from receiver.logs.options import fields_of
from receiver.report.json_object import analysis_object
from receiver.settings import ReceiverSettings, SimulateSettings
from receiver.simulate.analysis import Question, analyse, check_grid, parse_expiries_us, parse_windows
from receiver.simulate.figures import Analysis
from receiver.spark.failures import translated
from receiver.spark.session import tuned
from receiver.spark.sources import Ordered, file_and_row, named, ordered, read_frame
from receiver.spark.verdicts import tiers, verdict_of
from receiver.steps.log import ChunkedLog, chunked_log
from receiver.steps.read import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ROW_ID = "_receiver_row_id"
_ADDED = ("verdict", "tier")


class FrameAnalysis(Analysis):
    """The analysis of a frame's receipts."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `receiver simulate --json`."""
        return analysis_object(self)


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
        frame: The receipts. Its columns are those of a log.
        domain: The KEY, as `--domain`.
        windows: The windows to try, in ids per source. None: chosen from the log.
        expiries_secs: The expiries to try, in seconds. None: chosen from the log.
        order_by: The column that orders the receipts. It may have no nulls. None: the order of files and rows if the frame
            knows it (Parquet), else that of time.
        column_map: The frame's column for each of our columns that has another name.
        max_missed: How many duplicates a setting may miss, as `--max-missed`.
        margin: By how much a setting exceeds what the log needs, as `--margin`.
        current: The window in ids and the expiry in seconds that are set now, as `--current`.
        budget_bytes: The memory that a setting may take, as `--budget`.

    Returns:
        The analysis. `as_dict` gives the JSON object of `receiver simulate --json`.

    Raises:
        SettingsError: An argument is invalid.
        LogFormatError: The frame is no log, or one of its rows can't be read.
        SparkError: Spark failed.
    """
    given: dict[str, Any] = {"max_missed": max_missed, "margin": margin, "budget_bytes": budget_bytes}
    question = Question(
        domain,
        None if windows is None else parse_windows(_list("windows", windows), "windows"),
        None if expiries_secs is None else parse_expiries_us(_list("expiries_secs", expiries_secs), "expiries_secs"),
        SimulateSettings(**{name: value for name, value in given.items() if value is not None}),
        ReceiverSettings().sizes if current is None else _present(current),
    )
    with _at_work(frame):
        options = _options(column_map)
        log = _log(ordered(frame, options, order_by), options, question)
        analysis = analyse(log, question)
        log.forget()
    return FrameAnalysis(**{field.name: getattr(analysis, field.name) for field in fields(analysis)})


def _present(current: tuple[int, float]) -> tuple[int, int]:
    if isinstance(current, str) or len(current) != 2:  # noqa: PLR2004
        raise SettingsError("current must be a window and an expiry in seconds", hint="such as (2000, 120)")
    return _setting(*current, named=("current", "current"))


def _setting(window: int, expiry_secs: float, named: tuple[str, str] = ("window", "expiry_secs")) -> tuple[int, int]:
    """A setting as the kernel takes it, the expiry in microseconds."""
    (windows, expiries_us) = parse_windows(str(window), named[0]), parse_expiries_us(str(expiry_secs), named[1])
    check_grid(windows, expiries_us)
    return windows[0], expiries_us[0]


def _list(name: str, values: Sequence[float]) -> str:
    if isinstance(values, str) or not values:
        raise SettingsError(f"{name} must be a list of numbers", hint="None chooses it from the log")
    return ",".join(map(str, values))


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

    The rows are judged at once. They are kept on the executors' disks while the frame that is returned is in use.

    Args:
        frame: The receipts. Its columns are those of a log.
        window: W, in ids per source.
        expiry_secs: E, in seconds.
        domain: The KEY, as `--domain`.
        order_by: The column that orders the receipts, as in `size_windows`.
        column_map: The frame's column for each of our columns that has another name.

    Returns:
        The frame with two more columns. `verdict` is `new`, `duplicate` or `unchecked`. `tier` says what caught a
            duplicate: `source` if some source's queue still held the id, `time` if only the time queue did.

    Raises:
        SettingsError: An argument is invalid, or the frame already has a column of these names.
        LogFormatError: The frame is no log, or one of its rows can't be read.
        SparkError: Spark failed.
    """
    setting = _setting(window, expiry_secs)
    question = Question(domain, [setting[0]], [setting[1]])
    if taken := [name for name in _ADDED if name in frame.columns]:
        raise SettingsError(f"the frame has a column {taken[0]!r} already", hint="rename it")
    with _at_work(frame):
        options = _options(column_map)
        id_column = named(frame.columns[fields_of(frame.columns, options, "the frame")["unique_message_id"]])
        # Numbers that are given while a frame is worked out must not be given twice, so it is worked out once.
        file_row = [] if order_by is not None else file_and_row(frame) or []
        base = frame.select("*", *file_row, monotonically_increasing_id().alias(_ROW_ID))
        base = base.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        log = _log(ordered(base, options, order_by, row_id=_ROW_ID), options, question, keeps_rows=True)
        duplicates = tiers(log, *setting).withColumnRenamed("number", _ROW_ID)
        log.forget()
    together = base.join(duplicates, _ROW_ID, "left")
    return together.select(*(named(name) for name in frame.columns), verdict_of(id_column).alias("verdict"), "tier")


def _options(column_map: Mapping[str, str] | None) -> ReadOptions:
    return checked_options(ReadOptions(column_map=dict(column_map or {})))


@contextmanager
def _at_work(frame: DataFrame) -> Iterator[None]:
    with translated(quiet=True), tuned(frame.sparkSession):
        yield


def _log(receipts: Ordered, options: ReadOptions, question: Question, *, keeps_rows: bool = False) -> ChunkedLog:
    key, context = domain_key(question.key), receipts.frame.sparkSession.sparkContext
    read = read_frame(receipts, Reading(options, secrets.token_bytes(16)), key)
    return chunked_log(*read, key, cores=context.defaultParallelism, keeps_rows=keeps_rows, question=question)
