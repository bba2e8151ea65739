"""What a script needs that spark-submit runs."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["GIVEN_BY_SPARK_SUBMIT", "keep_errors_apart"]

GIVEN_BY_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"


def keep_errors_apart() -> None:
    """Let standard error be that of spark-submit, which would put it into its standard output, among the results."""
    if GIVEN_BY_SPARK_SUBMIT in os.environ:
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        sys.stderr = _JavaStream(getattr(SparkContext._jvm, "java.lang.System").err)


class _JavaStream(io.TextIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.print(text)
        return len(text)
