"""What a bridge counts beside what its receiver does, and the status line of both."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from receiver.durable.status import Status

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Written by the bridge's thread alone, and read by any."""

    delivered: int = 0
    """Messages handed on, since the bridge was started."""
    failed: int = 0
    """Tries of single messages that failed."""
    parked: int = 0
    """Messages that it gave up, and put in the parking table or, in BEST_EFFORT, dropped."""
    waiting: int = 0
    """Messages in the inbox, when it was last looked at."""
    connection_errors: int = 0
    """How often a connection broke, or could not be made, to a broker or the store."""
    has_ended: bool = False
    """Whether the bridge is closed."""
    _asked: tuple[float, int] = field(default_factory=lambda: (time.monotonic(), 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def line(self, status: Status) -> str:
        """Apama's status line, sender and receiver in one: `s=1` is the target."""
        with self._lock:
            now_secs, delivered = time.monotonic(), self.delivered
            then_secs, before = self._asked
            self._asked = now_secs, delivered
        rate = (delivered - before) / (now_secs - then_secs) if now_secs > then_secs else 0.0
        head, _, rest = status.line().partition(": ")
        return (
            f"{head}: s=1 tx={delivered:,} sRate={rate:,.0f} sOutst={self.waiting:,} {rest}"
            f" connErr={self.connection_errors:,} parked={self.parked:,}"
        )
