"""Where receipts come from: files that tasks read by the log's own readers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from receiver.spark.frames import SparkFlow, start
from receiver.steps.read import Reading, reading, reports_of, units_of
from receiver.steps.rows import Row
from receiver.steps.schemas import Piece, Unit, UnitReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from receiver.domains import DomainKey
    from receiver.logs import ReadOptions
    from receiver.logs.files import LogFile
    from receiver.spark.progress import Told

__all__ = ["Read", "read_files"]

_UNIT_ROWS = 1_000_000
_TASKS_PER_CORE = 16
"""Enough that cores end at about the same time, and that thousands of small files aren't as many tasks."""


class Read(NamedTuple):
    """A log whose receipts are at hand, checked."""

    pieces: SparkFlow
    units: list[Unit]
    reports: list[UnitReport]


def read_files(
    spark: SparkSession,
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    *,
    with_ids: bool = False,
    told: Told | None = None,
) -> Read:
    """Read files that every task can open. `options` are checked ones."""
    units = units_of(files, rows_per_unit=_UNIT_ROWS)
    tasks = min(len(units), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE)
    how = Reading(options, secrets.token_bytes(16), with_ids=with_ids)
    flow = start(spark, [Row(unit.number, unit) for unit in units], tasks, Unit, told)
    pieces, reports = flow.map(reading(how), Piece, UnitReport).kept("Reading receipts", UnitReport)
    return Read(pieces.only(Piece), units, reports_of(reports, units, key))
