"""The yardstick: every id for ever."""

from __future__ import annotations

from receiver.policies.firsts import KeptIds

__all__ = ["Perfect"]


class Perfect(KeptIds):
    """Never forgets, so it misses nothing and calls nothing wrongly a duplicate; its memory grows without bound."""

    name = kind = "perfect"
