"""Receipts a second through the sizing kernel, against libCacheSim's LRU.

The kernel answers for a whole grid. libCacheSim answers for one cache size at a time, and knows no sources, expiry or
peaks.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`kernel` uses both cores, while libCacheSim replays a trace on one. libCacheSim's default hash table is also far from the
best for small caches.

    on the wall: 33.4 (29.5 to 41.8)
    by processor time, `kernel-cpu`: 19.5 (16.2 to 21.7)
    on the wall, each cache's table fitted by hand, `kernel-fitted`: 20.5 (15.2 to 24.3)

Logs whose sources have very different rates took twice the time. A quiet source's oldest entry lay far from all others.
Four columns show what becomes of an entry, and each cost a miss of the cache. Three changes mended that, and took up to
a third off a replay:

- The columns are sorted by source, so a queue reads on where it stopped.
- While queues fill, every receipt raises the peak under each expiry. Vector instructions alone do that.
- The kernel announces what it will read (`prefetch`). Each source's queue reads its own rows in sequence, and the
  processor foresees few such sequences by itself.

Since then, four changes took another third off each of the five logs:

- A bit for each row, not a byte, says whether its id has spilled. So the set fits the processor's cache, and the ids that
  an expiry forgets are counted 64 rows at a time. That count alone had taken up to half of the time.
- Whether a source still holds an id is read from a column that its queue reads anyway.
- The search for what an expiry forgets looks at each 32nd time first.
- One comparison, with the least value, checks the room of all expiries.

`kernel-zipf` still takes a third more processor time than `kernel`. While its quiet sources' queues fill, peaks rise for
most of the log. At each rise the kernel searches for ids that can be forgotten. These searches take about a sixth of its
time.

We tried three more ways:

- A table of the first row in each small span of time, instead of the search: gains no more, costs a pass over the log,
  and takes a tenth longer where a burst fills a span.
- Checking the room only once as many ids have spilled as there was room for: the processor can't predict that branch,
  which costs more than the check.
- `prefetch` for the bit of the next id to spill: a tenth less time with the largest windows and very different rates, up
  to a tenth more elsewhere.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.kernel_logs import KERNEL_LOGS
from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from benchmarks.workload import Trace, trace

_WINDOWS = np.geomspace(100, 20_000, 16).round().astype(np.int64)
_EXPIRIES_US = (np.geomspace(1, 600, 16) * 1_000_000).round().astype(np.int64)
_TURNS = 3
_ANCHOR = "16 runs of libCacheSim's LRU"

# libCacheSim's own binary format, which it maps into memory: it reads no other format as fast.
_ORACLE_GENERAL = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next_access", "<i8")])


def _sources(receipts: Trace) -> int:
    return int(receipts.source.max()) + 1


def _replay_grid(receipts: Trace) -> list[npt.NDArray[np.int64]]:
    """The time from numbered ids to the `caught` and `peak_ids` of every pair."""
    from receiver.simulate.domain_rows import link_rows
    from receiver.simulate.kernel import WindowAsked, replay_windows

    rows = link_rows(
        receipts.received_at_us,
        receipts.source,
        receipts.message,
        sources=_sources(receipts),
        distinct_ids=int(receipts.message.max()) + 1,
    )
    asked = [WindowAsked(window, _EXPIRIES_US.tolist(), with_needs=False) for window in _WINDOWS.tolist()]
    return [counts.peak_ids for counts in replay_windows(rows, asked)]


def _write_for_libcachesim(receipts: Trace, file: Path) -> None:
    rows = np.zeros(len(receipts.message), _ORACLE_GENERAL)
    rows["time"] = receipts.received_at_us // 1_000_000
    rows["id"] = receipts.message + 1
    rows["size"] = 1
    rows["next_access"] = -1
    rows.tofile(file)


def _sixteen_lrus(file: Path, sources: int, *, fit_table: bool) -> None:
    """The time of one LRU for each window. It holds as many ids as the queues of all sources together."""
    import libcachesim

    for window in _WINDOWS.tolist():
        ids = window * sources
        table = {"hashpower": math.ceil(math.log2(ids)) + 1} if fit_table else {}
        reader = libcachesim.TraceReader(str(file), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        libcachesim.LRU(ids, **table).process_trace(reader)


def _compare(
    name: str,
    receipts: Trace,
    anchor_name: str,
    *,
    goal: Goal | None = None,
    clock: Callable[[], float] = time.perf_counter,
    fit_table: bool = False,
) -> Comparison:
    count, sources = len(receipts.message), _sources(receipts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.oracleGeneral.bin"
        _write_for_libcachesim(receipts, file)
        return by_turns(
            lambda: count / seconds(lambda: _replay_grid(receipts), clock),
            lambda: count / seconds(lambda: _sixteen_lrus(file, sources, fit_table=fit_table), clock),
            turns=_TURNS,
            name=name,
            work=f"sizing kernel: {count:,} receipts, {sources} sources, 16 windows x 16 expiries, with peak_ids",
            unit="receipts/s",
            anchor_name=anchor_name,
            goal=goal,
        )


def kernel(scale: float) -> Iterator[Comparison]:
    count = max(1_000, round(5_000_000 * scale))
    receipts = trace(count)
    goal = Goal(15, aim=25)
    _replay_grid(trace(1_000))  # compiles
    yield _compare("kernel", receipts, _ANCHOR, goal=goal)
    yield _compare("kernel-cpu", receipts, "the same, by processor time", clock=time.process_time)
    yield _compare("kernel-fitted", receipts, "hash tables fitted to the caches", fit_table=True)
    for name, log in KERNEL_LOGS.items():
        yield _compare(f"kernel-{name}", log(count), _ANCHOR, goal=goal)
