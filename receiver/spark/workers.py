"""The parent of Spark's Python workers on this machine: they are forked off it with all that steps need loaded."""

from __future__ import annotations

import gc

import pyarrow as pa
from pyspark.daemon import manager

import receiver.spark.sources
import receiver.steps.log  # noqa: F401
from receiver.steps.digests import digests_of

if __name__ == "__main__":
    digests_of(pa.array([""]), bytes(16))  # so Numba and pandas, which Arrow looks for, are loaded too
    gc.freeze()  # workers collect garbage after each task
    manager()
