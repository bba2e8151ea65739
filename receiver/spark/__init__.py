"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out (see `size_windows` and `judge`).

| file | what is in it |
|---|---|
| `frames.py` | `size_windows` and `judge`, for a DataFrame of the caller; the verdict on each receipt of a log, as rows and in files |
| `sources.py` | logs at paths and URLs, tables and frames, as pieces for the steps |
| `flow.py` | `SparkFlow`: the rows of steps in a DataFrame |
| `compacting.py` | sorts a log by domain and day |
| `session.py` | the session, its Python workers, and a fast start of Java |
| `failures.py` | the errors of Spark, and the problems of its Java, each with a remedy |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from receiver.errors import MissingExtraError

if TYPE_CHECKING:
    from receiver.spark.frames import judge, size_windows

__all__ = ["judge", "size_windows"]


def __getattr__(name: str) -> Any:
    # `frames` needs PySpark. `receiver.spark.session` doesn't, so that it can report a missing PySpark.
    if name in __all__:
        try:
            from receiver.spark import frames
        except ModuleNotFoundError as error:
            raise MissingExtraError("spark", f"receiver.spark.{name}") from error
        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
