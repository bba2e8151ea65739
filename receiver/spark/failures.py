"""What Spark raises, in words that name the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from receiver.errors import SparkError

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    """Raise `SparkError` for what Spark raises in the block, which is the cause."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise _meaning(error) from error


def _meaning(error: Exception) -> SparkError:
    return SparkError(f"Spark failed: {str(error).splitlines()[0]}")
