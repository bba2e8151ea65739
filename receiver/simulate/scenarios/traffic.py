"""The stream that every scenario works on: first receipts in blocks, the scenario's resends merged in by time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from receiver.simulate.scenarios import Plan

__all__ = ["BLOCK_ROWS", "QUIET_SHARE", "Block", "Receipts", "Story", "Told", "queue_of", "traffic"]

BLOCK_ROWS = 1 << 20
"""Rows made at a time, about: all the memory that a log of any length takes."""
QUIET_SHARE = 0.001
"""The share of the messages that the last source sends, the quiet one."""
_LEAST_BLOCKS = 8
"""So that even a short log has room for every part of `mixed`."""


@dataclass(frozen=True, slots=True)
class Receipts:
    """Rows in columns, still as numbers. All columns have the same length."""

    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    seq_no: npt.NDArray[np.int64]
    """Contiguous per source, from 1; with the source it makes the id."""
    connection: npt.NDArray[np.int8]
    redelivered: npt.NDArray[np.bool_]
    sent_at_us: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.received_at_us)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> Receipts:
        return Receipts(*(getattr(self, column.name)[rows] for column in fields(self)))

    @staticmethod
    def joined(parts: Sequence[Receipts]) -> Receipts:
        columns = (column.name for column in fields(Receipts))
        return Receipts(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    def in_order(self) -> Receipts:
        return self.take(np.argsort(self.received_at_us, kind="stable"))


def queue_of(source: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Where sources send to: 0 is the queue of orders, 1 that of payments, which every fifth source uses."""
    return source.astype(np.int64) % 5 // 4


@dataclass(frozen=True, slots=True)
class Block:
    """The first receipts of a stretch of the log, in order of time, for a scenario to work on."""

    number: int
    plan: Plan
    rng: np.random.Generator
    firsts: Receipts

    @property
    def resends(self) -> float:
        """How many resends to make in all, about."""
        return len(self.firsts) * self.plan.duplicates / (1 - self.plan.duplicates)

    def delay_us(self, secs: float) -> float:
        """A delay, cut where it is long against the block: resends that wait for later blocks take memory."""
        times = self.firsts.received_at_us
        return min(secs * 1e6, float(times[-1] - times[0]) / 4)


@dataclass(frozen=True, slots=True)
class Told:
    """A block after its scenario."""

    firsts: Receipts
    """The same rows, some of them later or over another connection."""
    resends: Receipts
    """In any order; those received after the block are kept until their time has come."""
    silence_us: tuple[int, int] | None = None
    """From when on everything comes later, and by how much."""


Story = Callable[[Block], Told]


def traffic(plan: Plan, story: Story, block_rows: int = BLOCK_ROWS) -> Iterator[Receipts]:
    """The plan's receipts in order of time, a block at a time; `plan.receipts` of them in all."""
    rows = min(block_rows, max(1, plan.receipts // _LEAST_BLOCKS))
    senders = _Senders(plan)
    clock_us = round(plan.start.timestamp() * 1_000_000)
    waiting: list[Receipts] = []
    left = plan.receipts
    for number in itertools.count():
        # A stream of random numbers for each block, whatever the blocks before have drawn.
        rng = np.random.Generator(np.random.PCG64([plan.seed, number]))
        firsts = senders.firsts(rng, max(1, round(rows * (1 - plan.duplicates))), clock_us)
        told = story(Block(number, plan, rng, firsts))
        if told.silence_us:
            waiting = [_later(part, *told.silence_us) for part in waiting]
        merged = Receipts.joined([*waiting, told.firsts, told.resends]).in_order()
        clock_us = int(told.firsts.received_at_us.max())
        due = int(np.searchsorted(merged.received_at_us, clock_us, side="right"))
        yield merged.take(slice(0, min(due, left)))
        left -= due
        if left <= 0:
            return
        waiting = [merged.take(slice(due, None))]


def _later(receipts: Receipts, start_us: int, by_us: int) -> Receipts:
    received = receipts.received_at_us
    return replace(receipts, received_at_us=np.where(received >= start_us, received + by_us, received))


class _Senders:
    """The upstream sources: who sends next, and which sequence number."""

    def __init__(self, plan: Plan) -> None:
        self._mean_gap_us = 1e6 / plan.rate
        # A few sources send most, as in real logs; one hardly sends at all.
        shares = 1 / np.arange(1.0, plan.sources + 1)
        shares[-1] = QUIET_SHARE * shares.sum()
        self._ends = np.cumsum(shares) / shares.sum()
        self._sent = np.zeros(plan.sources, np.int64)

    def firsts(self, rng: np.random.Generator, count: int, clock_us: int) -> Receipts:
        """The next `count` messages after `clock_us`, each at its first receipt."""
        received = clock_us + np.cumsum(rng.exponential(self._mean_gap_us, count)).astype(np.int64)
        picked = np.searchsorted(self._ends, rng.random(count), side="right")
        source = np.minimum(picked, len(self._sent) - 1).astype(np.int32)
        # One latency per source keeps its messages in the order of their sending.
        latency_us = 1_000 + source.astype(np.int64) * 7_919 % 8_000
        return Receipts(
            received_at_us=received,
            source=source,
            seq_no=self._next_numbers(source),
            connection=np.zeros(count, np.int8),
            redelivered=np.zeros(count, np.bool_),
            sent_at_us=received - latency_us,
        )

    def _next_numbers(self, source: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        by_source = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=len(self._sent))
        before = np.cumsum(counts) - counts
        numbers = np.empty(len(source), np.int64)
        numbers[by_source] = np.arange(1, len(source) + 1) + np.repeat(self._sent - before, counts)
        self._sent += counts
        return numbers
