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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from receiver.spark.frame import FrameAnalysis

__all__ = ["judge", "size_windows"]


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
) -> FrameAnalysis:
    """What `receiver simulate` says of the same receipts in the same order; `as_dict` gives its JSON object.

    `domain` is a KEY of `--domain`; windows (ids per source) and expiries (seconds) that are left None are chosen from the
    log. `column_map` names the frame's column for one of ours. `max_missed` (0) and `margin` (2.0) are those of the
    command. Raises `SettingsError` for what can't be meant, `LogFormatError` for a frame that is no log, and `SparkError`
    for what Spark fails at.
    """
    from receiver.spark.frame import sized

    return sized(
        frame,
        domain=domain,
        windows=windows,
        expiries_secs=expiries_secs,
        order_by=order_by,
        column_map=column_map,
        max_missed=max_missed,
        margin=margin,
    )


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

    `tier` is `source` where some source's queue of `window` ids still held the id, `time` where only the time queue did,
    which keeps `expiry_secs` seconds. The rows are judged at once, and kept on the executors' disks for as long as the
    frame that is given back is in use. Raises as `size_windows` does.
    """
    from receiver.spark.frame import judged

    return judged(
        frame,
        window=window,
        expiry_secs=expiry_secs,
        domain=domain,
        order_by=order_by,
        column_map=column_map,
    )
