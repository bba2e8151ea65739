"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out (see `size_windows` and `judge`).

| file | what is in it |
|---|---|
| `frames.py` | `size_windows` and `judge`, from a DataFrame of the caller's; the verdict on each receipt of a log, as rows and in files |
| `sources.py` | logs at paths and URLs, tables and frames, as pieces for the steps |
| `flow.py` | `SparkFlow`: the rows of steps as those of a DataFrame |
| `compacting.py` | a log sorted by domain and day |
| `session.py` | the session, its Python workers, and how Java starts fast |
| `failures.py` | what Spark raises, and what its Java lacks, in words that name the remedy |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from receiver.errors import MissingExtraError

if TYPE_CHECKING:
    from receiver.spark.frames import judge, size_windows

__all__ = ["judge", "size_windows"]


def __getattr__(name: str) -> Any:
    # The frames need PySpark; `receiver.spark.session` is there to say so to whoever hasn't got it.
    if name in __all__:
        try:
            from receiver.spark import frames
        except ModuleNotFoundError as error:
            raise MissingExtraError("spark", f"receiver.spark.{name}") from error
        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
