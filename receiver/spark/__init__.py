"""Sizing on Spark: a DataFrame of receipts in, the analysis or the verdicts out (see `size_windows` and `judge`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receiver.spark.frames import judge, size_windows

__all__ = ["judge", "size_windows"]


def __getattr__(name: str) -> Any:
    # The frames need PySpark; `receiver.spark.session` is there to say so to whoever hasn't got it.
    if name in __all__:
        from receiver.spark import frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
