"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out.

    from receiver.spark import judge, size_windows

    analysis = size_windows(spark.read.parquet("s3a://bucket/receipts"), domain="destination")
    analysis.as_dict()["recommendation"]

Both work in the caller's own session and leave its settings as they were. A frame has a log's columns, by our names or by
those of JMS and Apama; `received_at` is a timestamp, a text or a number, as in logs. Receipts stand in the order of
`order_by`, a column without nulls; else in that of their files and rows, where the frame knows them (Parquet); else in
that of their time. Receipts that tie go by their content.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql.functions import monotonically_increasing_id

from receiver.domains import domain_key
from receiver.errors import SettingsError
from receiver.logs import ReadOptions, checked_options
from receiver.logs.columns import fields_of
from receiver.report.json_object import analysis_object
from receiver.settings import SimulateSettings
from receiver.simulate.analysis import Question, analyse
from receiver.simulate.figures import Analysis
from receiver.simulate.grid import check_grid, parse_expiries_us, parse_windows
from receiver.spark.failures import translated
from receiver.spark.session import tuned
from receiver.spark.sources import Ordered, file_and_row, named, ordered, read_frame
from receiver.spark.verdicts import tiers, verdict_of
from receiver.steps.log import ChunkedLog, chunked_log
from receiver.steps.read import Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


__all__ = ["FrameAnalysis", "judge", "size_windows"]

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
    """What `receiver simulate` says of the same receipts in the same order; `as_dict` gives its JSON object.

    `domain` is a KEY of `--domain`; windows (ids per source) and expiries (seconds) that are left None are chosen from the
    log. `column_map` names the frame's column for one of ours. `current` is the window and the expiry (seconds) that are set
    at present; it, `max_missed`, `margin` and `budget_bytes` are those of the command, and so are their defaults. Raises `SettingsError` for what can't be meant, `LogFormatError` for a frame that is no log, and `SparkError`
    for what Spark fails at.
    """
    given: dict[str, Any] = {"max_missed": max_missed, "margin": margin, "budget_bytes": budget_bytes}
    settings = replace(SimulateSettings(), **{name: value for name, value in given.items() if value is not None})
    question = Question(
        domain,
        None if windows is None else parse_windows(_list("windows", windows)),
        None if expiries_secs is None else parse_expiries_us(_list("expiries_secs", expiries_secs)),
        settings,
        None if current is None else _present(current),
    )
    if question.windows and question.expiries_us:
        check_grid(question.windows, question.expiries_us)
    domain_key(domain)
    with _at_work(frame):
        options = _options(column_map)
        log = _log(ordered(frame, options, order_by), options, question)
        analysis = analyse(log, question)
        log.forget()
    return FrameAnalysis(**{field.name: getattr(analysis, field.name) for field in fields(analysis)})


def _present(current: tuple[int, float]) -> tuple[int, int]:
    if isinstance(current, str) or len(current) != 2:  # noqa: PLR2004
        raise SettingsError("current must be a window and an expiry in seconds", hint="such as (2000, 120)")
    return _setting(*current)


def _setting(window: int, expiry_secs: float) -> tuple[int, int]:
    """A setting as the kernel takes it, the expiry in microseconds."""
    (windows, expiries_us) = parse_windows(str(window)), parse_expiries_us(str(expiry_secs))
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
    """The frame with two more columns: `verdict` (`new`, `duplicate`, `unchecked`), and for a duplicate its `tier`.

    `tier` is `source` where at least one source's queue of `window` ids still held the id, `time` where only the time queue did,
    which keeps `expiry_secs` seconds. The rows are judged at once, and kept on the executors' disks for as long as the
    frame that is given back is in use. Raises as `size_windows` does.
    """
    setting = _setting(window, expiry_secs)
    domain_key(domain)
    if taken := [name for name in _ADDED if name in frame.columns]:
        raise SettingsError(f"the frame has a column {taken[0]!r} already", hint="rename it")
    with _at_work(frame):
        options = _options(column_map)
        id_column = named(frame.columns[fields_of(frame.columns, options, "the frame")["unique_message_id"]])
        # Numbers that are given while a frame is worked out must not be given twice, so it is worked out once.
        file_row = [] if order_by is not None else file_and_row(frame) or []
        base = frame.select("*", *file_row, monotonically_increasing_id().alias(_ROW_ID))
        base = base.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        question = Question(domain, [setting[0]], [setting[1]])
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
