"""Whether there is a Java that Spark can run in. Spark itself answers with a page of Java's own words, or hangs."""

from __future__ import annotations

from receiver.errors import SparkError
from receiver.java import require_java

__all__ = ["check_java"]


def check_java() -> None:
    """Raise `SparkError` unless the Java that Spark's scripts would start is new enough and complete."""
    require_java("Spark", SparkError, module="jdk.incubator.vector")
