"""Bytes per remembered id, against `cachetools.TTLCache` holding as many ids.

The ids and times that the workload makes are counted on both sides: whoever keeps them pays for them.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from cachetools import TTLCache

from benchmarks.detector import EXPIRY_SECS, WINDOW
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.ttl_cache import ttl_cache
from benchmarks.workload import SOURCES, id_text, source_text
from receiver import TwoTierDetector

__all__ = ["memory"]

# At these rates the time queue holds from less to more than the per-source queues do. Several, because a dict that has
# just grown costs twice as much as one about to.
_RATES_PER_SEC = (500, 800, 1_300, 2_100, 3_400)


def _traced_bytes(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    kept = build()
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return allocated


def _detector(rate_per_sec: int, window: int) -> TwoTierDetector:
    """A detector in its steady state: each source's queue full, the time queue too."""
    detector = TwoTierDetector(window=window, expiry_secs=EXPIRY_SECS)
    sources = [source_text(source) for source in range(SOURCES)]
    spilled = rate_per_sec * EXPIRY_SECS * window // WINDOW
    for row in range(2 * (window * SOURCES + spilled)):
        source = row % SOURCES
        received_at_us = row * 1_000_000 * WINDOW // (rate_per_sec * window)
        detector.receive(id_text(row, source), sources[source], received_at_us=received_at_us)
    return detector


def _full_cache(ids: int) -> TTLCache[str, bool]:
    cache, now_us = ttl_cache(ids, EXPIRY_SECS)
    for row in range(ids):
        now_us[0] = row * EXPIRY_SECS * 1_000_000 // ids
        cache[id_text(row, row % SOURCES)] = True
    if len(cache) != ids:
        raise AssertionError(f"the cache holds {len(cache)} ids, not {ids}")
    return cache


def memory(scale: float) -> list[Comparison]:
    window = max(20, round(WINDOW * scale))
    counts = [_detector(rate, window).remembered_ids for rate in _RATES_PER_SEC]
    our_turns = iter(zip(_RATES_PER_SEC, counts, strict=True))
    anchor_turns = iter(counts)

    def ours() -> float:
        rate, ids = next(our_turns)
        return _traced_bytes(lambda: _detector(rate, window)) / ids

    def anchor() -> float:
        ids = next(anchor_turns)
        return _traced_bytes(lambda: _full_cache(ids)) / ids

    return [
        by_turns(
            ours,
            anchor,
            turns=len(counts),
            name="memory",
            work=f"memory per remembered id: {min(counts):,} to {max(counts):,} ids, W={window}, E={EXPIRY_SECS} s",
            unit="bytes",
            anchor_name="cachetools.TTLCache",
            goal=Goal(0.7, aim=0.5, at_most=True),
        )
    ]
