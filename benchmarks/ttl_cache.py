"""The anchor of the detector: cachetools' cache of ids that expire."""

from __future__ import annotations

from functools import partial

from cachetools import TTLCache


def ttl_cache(most_ids: int, expiry_secs: int) -> tuple[TTLCache[str, bool], list[int]]:
    """A cache, and a list with one number: the cache's clock in microseconds, which follows the receipts.

    It is a list, because its item is read without a Python frame. A slower clock would flatter us.
    """
    now_us = [0]
    timer: partial[int] = partial(now_us.__getitem__, 0)
    return TTLCache(most_ids, expiry_secs * 1_000_000, timer=timer), now_us
