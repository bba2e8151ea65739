"""Receipts a second through the detector, against `cachetools.TTLCache` asked and updated by hand.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`receive_many` calls `receive`, so that the rules are written only once. We tried to write its loop out, with all state
in local variables, and gained nothing. Most of a receipt's cost is memory that has left the processor's cache: the id's
text and its slot in the table are read when the id comes, when it spills and when it expires. Keeping ids out of the
per-source queues gained 15 %. To gain more, the table could not be made of Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from benchmarks.ttl_cache import ttl_cache
from benchmarks.workload import SOURCES, receipts
from receiver import TwoTierDetector, Verdict

WINDOW = 2_000
EXPIRY_SECS = 120
_TURNS = 5

Rows = list[tuple[str, str, int]]


def _one_by_one(rows: Rows) -> int:
    receive = TwoTierDetector(window=WINDOW, expiry_secs=EXPIRY_SECS).receive
    caught = 0
    for unique_message_id, source, received_at_us in rows:
        if receive(unique_message_id, source, received_at_us=received_at_us).verdict is Verdict.DUPLICATE:
            caught += 1
    return caught


def _in_batches(batches: Iterable[Rows]) -> int:
    receive_many = TwoTierDetector(window=WINDOW, expiry_secs=EXPIRY_SECS).receive_many
    caught = 0
    for batch in batches:
        for decision in receive_many(batch):
            if decision.verdict is Verdict.DUPLICATE:
                caught += 1
    return caught


def _cache_by_hand(rows: Rows) -> int:
    cache, now_us = ttl_cache(len(rows), EXPIRY_SECS)
    caught = 0
    for unique_message_id, _, received_at_us in rows:
        now_us[0] = received_at_us
        if unique_message_id in cache:
            caught += 1
        cache[unique_message_id] = True
    return caught


def _against_the_cache(name: str, how: str, rows: Rows, ours: Callable[[], int], goal: Goal) -> list[Comparison]:
    compared = by_turns(
        lambda: len(rows) / seconds(ours),
        lambda: len(rows) / seconds(lambda: _cache_by_hand(rows)),
        turns=_TURNS,
        name=name,
        work=f"{how}: {len(rows):,} receipts, {SOURCES} sources, W={WINDOW}, E={EXPIRY_SECS} s",
        unit="receipts/s",
        anchor_name="cachetools.TTLCache, `in` and set",
        goal=goal,
    )
    return [compared]


def _rows(scale: float) -> Rows:
    return receipts(max(1_000, round(1_000_000 * scale)))


def receive(scale: float) -> list[Comparison]:
    rows = _rows(scale)
    return _against_the_cache("receive", "receive, one by one", rows, lambda: _one_by_one(rows), Goal(1.5, aim=2))


def receive_many(scale: float) -> list[Comparison]:
    rows = _rows(scale)
    batches = [rows[start : start + 1_000] for start in range(0, len(rows), 1_000)]
    goal = Goal(1.8, aim=2.5)
    return _against_the_cache("receive_many", "receive_many by 1,000", rows, lambda: _in_batches(batches), goal)
