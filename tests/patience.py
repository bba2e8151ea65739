"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
PATIENCE_SECS = 120
TICK_SECS = 0.01


def until(condition: Callable[[], _T], otherwise: Callable[[], str] = lambda: "in vain") -> _T:
    """Wait for a result that counts as true, and return it. If it takes too long, `otherwise` says why."""
    give_up = time.monotonic() + PATIENCE_SECS
    while not (result := condition()):
        assert time.monotonic() < give_up, otherwise()
        time.sleep(TICK_SECS)
    return result
