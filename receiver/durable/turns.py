"""Whose turn it is where several processes are busy on one domain: whoever has just had it lets others have a few batches.

Before it decides, a process reads what the others have recorded since. If the domain went to another process after each
batch, all of them would read batch by batch, and each while the others wait. So who comes back at once, and finds the
domain taken, naps before it asks again. Meanwhile the one that has the domain goes on, batch after batch, and what it
records is read ahead, by several batches at a time, without the lock.

Only speed depends on this. The lock is the same as ever, and no process that hasn't just had the domain naps.
"""

from __future__ import annotations

__all__ = ["Turns"]

_BATCHES_LET_BY = 12
"""How many batches of others a nap is meant for: with four processes, four of each. The more there are, the fewer rows of
others a process reads while it has the lock (`durable-postgresql-sharing` in docs/performance.md)."""
_LONGEST_NAP_NS = 20_000_000
"""A batch may come later by all of this, so it is short for whoever waits for the batch."""


class Turns:
    """When a receiver last had its domain, and for how long."""

    def __init__(self) -> None:
        self._ended_ns = self._took_ns = 0

    def note(self, began_ns: int, ended_ns: int) -> None:
        """Note from when to when a batch had the domain."""
        self._took_ns, self._ended_ns = ended_ns - began_ns, ended_ns

    def nap_secs(self, now_ns: int) -> float:
        """How long to nap if the domain turns out to be taken now; 0 for whoever hasn't just had it.

        Just: less than a batch ago. Who pauses between batches for longer leaves room for others anyway.
        """
        if now_ns - self._ended_ns > self._took_ns:
            return 0
        return min(_BATCHES_LET_BY * self._took_ns, _LONGEST_NAP_NS) / 1e9
