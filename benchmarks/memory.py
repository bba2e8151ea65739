"""Bytes per remembered id: the detector and other systems' rules, against `cachetools.TTLCache` with as many ids.

The ids and times that the workload makes are counted on both sides, if they are kept.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`memory` counts the id's own text on both sides: 94 bytes for 45 characters. Without the text, ours has 111 bytes, the
anchor 204. Of our bytes, 44 are the stamp, 10 to 14 the queues, the rest the dictionary: where ids come and go, Python
lets it grow to 3 to 6 slots an id. Stamps of 60 bits would save 12 bytes, but then the times would be kept elsewhere,
at 8 bytes each.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

from cachetools import TTLCache

from benchmarks.detector import EXPIRY_SECS, WINDOW
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.ttl_cache import ttl_cache
from benchmarks.workload import BEGIN_US, SOURCES, id_text, source_text
from receiver import TwoTierDetector
from receiver.policies import Policy, policy

# At the lowest rate the time queue holds fewer ids than the per-source queues, at the highest more. There are several
# rates, because a dict that has just grown costs twice as much as one that is about to grow.
_RATES_PER_SEC = (500, 800, 1_300, 2_100, 3_400)
_IDS = (25_000, 32_500, 40_000, 50_000, 62_500)
_POLICIES = {
    "artemis": "artemis:id_cache_size=1000000000",
    "ttl and cmq": "ttl:expiry=1000000000",
    "perfect and solace-lookup": "perfect",
    "sequence": "sequence",
    "solace-last": "solace-last",
}


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
    """A detector in its steady state: the queues of all sources are full, and so is the time queue."""
    detector = TwoTierDetector(window=window, expiry_secs=EXPIRY_SECS)
    sources = [source_text(source) for source in range(SOURCES)]
    spilled = rate_per_sec * EXPIRY_SECS * window // WINDOW
    for row in range(2 * (window * SOURCES + spilled)):
        source = row % SOURCES
        received_at_us = BEGIN_US + row * 1_000_000 * WINDOW // (rate_per_sec * window)
        detector.receive(id_text(row, source), sources[source], received_at_us=received_at_us)
    return detector


def _full_cache(ids: int) -> TTLCache[str, bool]:
    cache, now_us = ttl_cache(ids, EXPIRY_SECS)
    for row in range(ids):
        now_us[0] = BEGIN_US + row * EXPIRY_SECS * 1_000_000 // ids
        cache[id_text(row, row % SOURCES)] = True
    if len(cache) != ids:
        raise AssertionError(f"the cache holds {len(cache)} ids, not {ids}")
    return cache


def _policies(text: str, ids: int) -> list[Policy]:
    """One that remembers so many ids of 45 characters, or of `solace-last`, which keeps a single id, so many of them."""
    if text == "solace-last":
        policies = [policy(text) for _ in range(ids)]
        for row, each in enumerate(policies):
            each.receive(f"rmid1:0d77c-b0b2e66aece-00000000-{row:08x}", received_at_us=BEGIN_US + row)
        return policies
    one = policy(text)
    for row in range(ids):
        source = source_text(row % SOURCES)
        # `sequence` remembers each producer
        id_ = f"1:{row:06}{source}" if text == "sequence" else id_text(row, row % SOURCES)
        one.receive(id_, received_at_us=BEGIN_US + row)
    if one.remembered_ids != ids:
        raise AssertionError(f"{text} remembers {one.remembered_ids} ids, not {ids}")
    return [one]


def _bytes_per_id(
    builds: Sequence[Callable[[], object]], counts: Sequence[int], *, name: str, work: str, goal: Goal | None
) -> Comparison:
    """Bytes per id. What the n-th of `builds` makes remembers as many ids as the n-th of `counts` says."""
    our_turns, anchor_turns = iter(zip(builds, counts, strict=True)), iter(counts)

    def ours() -> float:
        build, ids = next(our_turns)
        return _traced_bytes(build) / ids

    def anchor() -> float:
        ids = next(anchor_turns)
        return _traced_bytes(lambda: _full_cache(ids)) / ids

    return by_turns(
        ours,
        anchor,
        turns=len(counts),
        name=name,
        work=f"memory per remembered id{work}: {min(counts):,} to {max(counts):,} ids",
        unit="bytes",
        anchor_name="cachetools.TTLCache",
        goal=goal,
    )


def memory(scale: float) -> list[Comparison]:
    window = max(20, round(WINDOW * scale))
    detectors = [partial(_detector, rate, window) for rate in _RATES_PER_SEC]
    detector = _bytes_per_id(
        detectors,
        [build().remembered_ids for build in detectors],
        name="memory",
        work=f", W={window}, E={EXPIRY_SECS} s",
        goal=Goal(0.55, aim=0.5, at_most=True),
    )
    counts = [max(20, round(ids * scale)) for ids in _IDS]
    return [
        detector,
        *(
            _bytes_per_id(
                [partial(_policies, text, ids) for ids in counts],
                counts,
                name=f"memory-{text.partition(':')[0]}",
                work=f" of {names}",
                goal=None,
            )
            for names, text in _POLICIES.items()
        ),
    ]
