"""The receipts of all benchmarks: 50 busy sources, 1,000 receipts a second, one receipt in 50 a redelivery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SOURCES = 50
RECEIPTS_PER_SEC = 1_000
BEGIN_US = 1_709_164_800_000_000
"""2024-02-29 UTC. Times must be as large as real ones: a log's reader takes small numbers for seconds, and small
numbers need less room in memory and in a database."""
_SHARE_REDELIVERED = 0.02
_MEAN_DISTANCE = 2_000  # the receipts between a message and its redelivery
_SEED = 20_240_229
_ROWS_AT_ONCE = 10_000


class Trace(NamedTuple):
    received_at_us: npt.NDArray[np.int64]
    """Microseconds since 1970."""
    source: npt.NDArray[np.int32]
    """The sources, numbered from 0."""
    message: npt.NDArray[np.int32]
    """The messages, numbered from 0 in order of first receipt."""


def trace(count: int) -> Trace:
    """Receipts in order of time. Equal counts give equal receipts."""
    random = np.random.default_rng(_SEED)
    rows = np.arange(count)
    redelivered = (random.random(count) < _SHARE_REDELIVERED) & (rows > 0)
    distance = np.minimum(random.geometric(1 / _MEAN_DISTANCE, count), rows)
    first = np.where(redelivered, rows - distance, rows)
    while np.any(first[first] != first):  # a redelivery may itself be delivered again
        first = first[first]
    source = random.integers(SOURCES, size=count, dtype=np.int32)[first]
    message = (np.cumsum(~redelivered) - 1)[first].astype(np.int32)
    gaps_us = random.exponential(1_000_000 / RECEIPTS_PER_SEC, count)
    return Trace(BEGIN_US + np.cumsum(gaps_us).astype(np.int64), source, message)


def source_text(source: int) -> str:
    return f"gateway-{source:02}.example:4711:170920000:S01"


def id_text(message: int, source: int) -> str:
    """An id of the default form, `seqNo:messageSourceId`, of about 45 characters."""
    return f"{message}:{source_text(source)}"


def receipts(count: int) -> list[tuple[str, str, int]]:
    """The trace as `receive_many` takes it. Each id is a text of its own. Its hash is computed already, since no
    anchor could avoid that either."""
    return list(stream(count))


def stream(count: int) -> Iterator[tuple[str, str, int]]:
    """The same receipts as `receipts` gives, made as they are taken."""
    arrays = trace(count)
    sources = [source_text(source) for source in range(SOURCES)]
    for start in range(0, count, _ROWS_AT_ONCE):
        columns = (column[start : start + _ROWS_AT_ONCE].tolist() for column in arrays)
        for received_at_us, source, message in zip(*columns, strict=True):
            id_ = id_text(message, source)
            hash(id_)
            yield id_, sources[source], received_at_us
