"""Retries of actions that may succeed later: which errors are temporary, how long to pause, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import ldexp
from typing import TypeVar

from receiver import errors

_T = TypeVar("_T")
_PASSING = (errors.BrokerError, errors.StoreError, errors.OutputError)
_LASTING = (
    errors.MessageRefusedError,
    errors.MessagesLostError,
    errors.PositionMovedError,
    errors.StoreCorruptError,
    errors.StoreVersionError,
)
_REFUSED_SECS = 60.0
"""A broker that is starting may refuse requests that it will allow later. Refusals count once they have lasted so long."""
_MOST_DOUBLINGS = 60
"""Enough for any longest pause. A source may fail for weeks, and more doublings would overflow a float one day."""


def may_pass(error: Exception) -> bool:
    """Whether an error is temporary: of a broker, a database or an output that may be back later."""
    return isinstance(error, _PASSING) and not isinstance(error, _LASTING)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from the first to the longest. If both are equal, all pauses are."""

    first_secs: float
    longest_secs: float

    def pause_secs(self, failures: int) -> float:
        """The pause after so many failures; there is at least one."""
        return min(ldexp(self.first_secs, min(failures - 1, _MOST_DOUBLINGS)), self.longest_secs)

    def pauses_secs(self) -> Iterator[float]:
        """The pauses, each cut at random to half its length or more, so that clients that were cut off together don't return
        together.

        Source: "equal jitter" in Marc Brooker's measurements, "Exponential Backoff And Jitter"
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
        """
        for failures in count(1):
            longest_secs = self.pause_secs(failures)
            yield random.uniform(longest_secs / 2, longest_secs)  # noqa: S311 - nothing secret


class Patience:
    """How long a wait may still take. Its pauses count even if the clock stands still, as it does in an application's tests that
    freeze it."""

    def __init__(self, secs: float) -> None:
        self._ends_at = time.monotonic() + secs
        self._pauses_secs = secs

    @property
    def left_secs(self) -> float:
        return min(self._ends_at - time.monotonic(), self._pauses_secs)

    def spend(self, pause_secs: float) -> float:
        """Count a pause, and return it."""
        self._pauses_secs -= pause_secs
        return pause_secs


class Retries:
    """Counts successive failures of one action: how long to pause, and whether a broker's refusal is final."""

    def __init__(self, backoff: Backoff) -> None:
        self._pauses_secs = backoff.pauses_secs()
        self._refused_at: float | None = None
        """Since when the broker has done nothing but refuse."""

    def is_final(self, error: Exception) -> bool:
        """Note the error. Returns whether it is a refusal, and refusals have lasted so long that waiting won't help."""
        now = time.monotonic()
        if not isinstance(error, errors.BrokerRefusedError):
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = now
        return self._refused_at is not None and now - self._refused_at >= _REFUSED_SECS

    def pause_secs(self) -> float:
        """How long to pause before the next try."""
        return next(self._pauses_secs)


def until_done(
    action: Callable[[], _T], *, is_passing: Callable[[Exception], bool], backoff: Backoff, patience_secs: float
) -> _T:
    """Repeat the action until it succeeds, and return its result.

    Raises an error at once unless `is_passing` says that it may pass, and a passing error once patience is over. The last try is
    made just then, however long the pause would have been.
    """
    patience, pauses_secs = Patience(patience_secs), backoff.pauses_secs()
    while True:
        try:
            return action()
        except Exception as error:
            left_secs = patience.left_secs
            if left_secs <= 0 or not is_passing(error):
                raise
        time.sleep(patience.spend(min(next(pauses_secs), left_secs)))
