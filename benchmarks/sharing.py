"""Several processes on one domain, against one process alone."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing.synchronize import Barrier

from benchmarks.orders import Rows, in_batches, open_receiver, receive, scaled, steady_orders
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.stores import Database

__all__ = ["sharing"]

_PROCESSES = 4
_BATCH = 100
_TURNS = 5

_all_ready: Barrier


def _prepare(all_ready: Barrier) -> None:
    global _all_ready  # noqa: PLW0603 - a process of the pool has nowhere else to keep it
    _all_ready = all_ready


def _work(url: str, window: int, rows: Rows) -> tuple[float, float]:
    """When the work began and when it ended, on the clock that all processes share."""
    with open_receiver(url, window) as receiver:
        _all_ready.wait()
        start = time.perf_counter()
        receive(receiver, rows, _BATCH)
        return start, time.perf_counter()


def _receipts_per_sec(url: str, window: int, shares: Sequence[Rows]) -> float:
    """Each share is the work of a process of its own."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(shares))
    with ProcessPoolExecutor(len(shares), context, _prepare, (barrier,)) as pool:
        spans = list(pool.map(_work, *zip(*((url, window, share) for share in shares), strict=True)))
    return sum(map(len, shares)) / (max(end for _, end in spans) - min(start for start, _ in spans))


def _shares(rows: Rows) -> list[Rows]:
    """Batches dealt out in turn, so that all processes are about as far in time."""
    batches = list(in_batches(rows, _BATCH))
    return [list(chain.from_iterable(batches[process::_PROCESSES])) for process in range(_PROCESSES)]


def sharing(database: Database, window: int, scale: float) -> Comparison:
    count = scaled(40_000, scale, least=_PROCESSES * _BATCH)
    turns = scaled(_TURNS, scale, least=1)
    with database.new_url() as url:
        with steady_orders(url, window, more=2 * turns * count) as orders:
            rest = [orders.take(count) for _ in range(2 * turns)]
            state = str(orders)
        turn = iter(rest)
        return by_turns(
            lambda: _receipts_per_sec(url, window, _shares(next(turn))),
            lambda: _receipts_per_sec(url, window, [next(turn)]),
            turns=turns,
            name=f"durable-{database.key}-sharing",
            work=f"{database.name}, batches of {_BATCH}: {count:,} receipts by {_PROCESSES} processes, {state}",
            unit="receipts/s",
            anchor_name="one process",
            goal=Goal(0.7, aim=0.87),
        )
