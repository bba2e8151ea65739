"""Figures as histograms, and how near the windows came to missing a duplicate: what an alert needs *before* the first miss.

Each duplicate that is caught tells how much was left of the window and of the expiry. The share of the tier that would
have kept its id longer is its headroom: 1 means that nearly nothing was used, 0 that the next id could have pushed it
out. A duplicate that is missed tells nothing, for nobody knows that it is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from receiver.message import Decision

__all__ = ["BOUNDS", "SECS_BOUNDS", "Buckets", "Headroom", "HeadroomCounter", "Histogram", "headroom_of"]

BOUNDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""The upper ends of the histogram's buckets, near together where it matters."""
SECS_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Of the histograms of times: from a disk that syncs at once to a domain that is waited for."""
_RECENT = 1_000


class Buckets(NamedTuple):
    """A histogram as it is at one time."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """How many values were at most `bounds[i]` and more than the bound before; the last: more than all bounds."""
    total: float
    """The sum of the values."""


class Histogram:
    """Counts values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def value(self) -> Buckets:
        return Buckets(self._bounds, tuple(self._counts), self._total)


def headroom_of(decision: Decision, window: int, expiry_us: int) -> float | None:
    """The share, from 0 to 1, of its window or its expiry, whichever is more, that a duplicate had left.

    None for any other verdict.
    """
    if decision.window_left is None or decision.expiry_left_us is None:
        return None
    by_window = decision.window_left / window if window else 0.0
    by_expiry = decision.expiry_left_us / expiry_us if expiry_us else 0.0
    return max(by_window, by_expiry)


class Headroom(NamedTuple):
    """Of all duplicates that a receiver has caught since it was opened."""

    least: float | None
    """None before there was a duplicate, here and in the next."""
    recent_least: float | None
    """Of the last 1,000 duplicates."""
    shares: Buckets
    """All of them, by bucket."""


class HeadroomCounter:
    def __init__(self) -> None:
        self._least = 1.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._shares = Histogram(BOUNDS)

    def add(self, headrooms: Iterable[float | None]) -> None:
        for headroom in headrooms:
            if headroom is not None:
                self._least = min(self._least, headroom)
                self._recent.append(headroom)
                self._shares.add(headroom)

    def value(self) -> Headroom:
        recent = self._recent.copy()
        return Headroom(self._least if recent else None, min(recent, default=None), self._shares.value())
