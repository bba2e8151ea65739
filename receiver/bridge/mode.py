"""The four reliability modes of Apama's receivers: what is kept before a message is acknowledged."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Mode"]


class Mode(StrEnum):
    """What a bridge promises; `docs/bridge.md` has the table of it, target by target."""

    BEST_EFFORT = "BEST_EFFORT"
    """Acknowledged on receipt, nothing kept: what is under way is lost with the bridge."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """Kept in the inbox before it is acknowledged, and handed on whatever came before: duplicates are only counted."""
    EXACTLY_ONCE = "EXACTLY_ONCE"
    """Kept in the inbox together with its id before it is acknowledged, and not handed on if that id came before."""
    APP_CONTROLLED = "APP_CONTROLLED"
    """Handed on first; what the application writes and the id are committed together, then it is acknowledged."""

    @property
    def detects(self) -> bool:
        """Whether a duplicate isn't handed on."""
        return self in {Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED}
