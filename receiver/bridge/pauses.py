"""How long to wait before something is tried again: longer each time, and never as long as others wait."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["pauses_secs"]

_FIRST_SECS = 0.1
_LONGEST_SECS = 30.0


def pauses_secs() -> Iterator[float]:
    """Between half and all of a time that doubles up to 30 s, so that bridges cut off together don't return together.

    By Marc Brooker's measurements, "Exponential Backoff And Jitter"
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/): there it is equal jitter.
    """
    longest = _FIRST_SECS
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - nothing secret
        longest = min(2 * longest, _LONGEST_SECS)
