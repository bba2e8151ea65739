"""Where the time of a receiver's threads goes, by the stages that Apama's receivers tell of.

Each moment of a thread belongs to one stage, from the time it first uses the receiver: what the bridge's own code
measures inside another stage is taken off that one. So the stages add up to the total.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter_ns

from receiver.errors import SettingsError

__all__ = ["Lap", "Stage", "StageTimes", "Stages", "stage_table"]

_MOST_LAPS = 256


class Stage(StrEnum):
    """Measured by the receiver, but for those that only the bridge's code can tell of (`Receiver.stage`)."""

    RECEIVING = "RECEIVING"
    """Between batches: waiting for messages."""
    MAPPING = "MAPPING"
    """The bridge's: making the application's objects of messages."""
    DB_WAIT = "DB_WAIT"
    """Waiting for the domain, and catching up with what others recorded there."""
    DB_COMMIT = "DB_COMMIT"
    """Recording the batch and committing it, or rolling it back."""
    APP_CONTROLLED_BLOCKING = "APP_CONTROLLED_BLOCKING"
    """Inside the `with` block, and in the callback for duplicates."""
    ENQUEUING = "ENQUEUING"
    """The bridge's: handing messages on to the application."""
    JMS_ACK = "JMS_ACK"
    """The bridge's: acknowledging to the broker."""
    R_TIMEOUTS = "R_TIMEOUTS"
    """The bridge's: waiting for messages that didn't come."""
    TOTAL = "TOTAL"
    """From the end of a thread's batch to the end of its next."""


_Spans = tuple[int, int, int, int, int]
_OF_A_LAP = (Stage.RECEIVING, Stage.DB_WAIT, Stage.APP_CONTROLLED_BLOCKING, Stage.DB_COMMIT, Stage.TOTAL)
_TELLABLE = tuple(stage for stage in Stage if stage is not Stage.TOTAL)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How often a stage was measured, as a rule once per batch, and how long it took."""

    count: int
    total_secs: float
    min_secs: float
    mean_secs: float
    max_secs: float
    share: float
    """Of the time of all stages; TOTAL lacks what was told of since the last batch."""


class _Sum:
    __slots__ = ("count", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.max_ns = 0
        self.min_ns = 1 << 63

    def add(self, spans_ns: Sequence[int]) -> None:
        self.count += len(spans_ns)
        self.total_ns += sum(spans_ns)
        self.min_ns = min(self.min_ns, *spans_ns)
        self.max_ns = max(self.max_ns, *spans_ns)

    def times(self, all_ns: int) -> StageTimes:
        if not self.count:
            return StageTimes(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        total_secs = self.total_ns / 1e9
        share = self.total_ns / all_ns if all_ns else 0.0
        return StageTimes(self.count, total_secs, self.min_ns / 1e9, total_secs / self.count, self.max_ns / 1e9, share)


class _Clock:
    """A thread's clock, which stands still over what was told of as a stage: it shows perf_counter_ns() - told_ns."""

    __slots__ = ("ended_ns", "told_before_ns", "told_ns")

    def __init__(self) -> None:
        self.told_ns = self.told_before_ns = 0
        """What it stood still for, now and when the thread's last batch ended."""
        self.ended_ns = perf_counter_ns()
        """When that was, by this clock."""


class _ThreadClock(threading.local):
    def __init__(self) -> None:
        self.clock = _Clock()


class Lap:
    """One batch's way through the stages."""

    __slots__ = ("_began_ns", "_clock", "_left_ns", "_locked_ns", "_stages")

    def __init__(self, stages: Stages, clock: _Clock) -> None:
        self._stages = stages
        self._clock = clock
        self._began_ns = perf_counter_ns() - clock.told_ns

    def locked(self) -> None:
        """The domain is ours."""
        self._locked_ns = perf_counter_ns() - self._clock.told_ns

    def gave_up(self) -> None:
        """The domain couldn't be had, and there is no batch."""
        self._stages.tell(Stage.DB_WAIT, self._clock, self._began_ns)

    def left(self) -> None:
        """The `with` block is over."""
        self._left_ns = perf_counter_ns() - self._clock.told_ns

    def ended(self) -> None:
        """The batch is committed, or isn't."""
        clock, began_ns, locked_ns, left_ns = self._clock, self._began_ns, self._locked_ns, self._left_ns
        ended_ns, told_ns = clock.ended_ns, clock.told_ns
        now_ns = perf_counter_ns() - told_ns
        lap_ns = now_ns - ended_ns + told_ns - clock.told_before_ns
        self._stages.end_lap((began_ns - ended_ns, locked_ns - began_ns, left_ns - locked_ns, now_ns - left_ns, lap_ns))
        # The batch is told of, too: the clock goes back to where it stood when the batch began.
        clock.ended_ns = began_ns
        clock.told_ns = clock.told_before_ns = told_ns + now_ns - began_ns


class Stages:
    """Sums up the stages of any number of threads."""

    def __init__(self) -> None:
        self._here = _ThreadClock()
        self._laps: list[_Spans] = []  # summed up some hundreds at a time, which is cheaper
        self._sums = {stage: _Sum() for stage in Stage}
        self._lock = threading.Lock()

    def lap(self) -> Lap:
        """A batch begins."""
        return Lap(self, self._here.clock)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block as a stage; `SettingsError` if there is none of that name."""
        if name not in _TELLABLE:
            raise SettingsError(f"a stage is one of {', '.join(_TELLABLE)}, not {name!r:.80}")
        clock = self._here.clock
        began_ns = perf_counter_ns() - clock.told_ns
        try:
            yield
        finally:
            self.tell(Stage(name), clock, began_ns)

    def tell(self, stage: Stage, clock: _Clock, began_ns: int) -> None:
        """A stage lasted until now."""
        span_ns = perf_counter_ns() - clock.told_ns - began_ns
        clock.told_ns += span_ns
        with self._lock:
            self._sums[stage].add((span_ns,))

    def times(self) -> dict[Stage, StageTimes]:
        """What was measured so far, in the order of Apama's table."""
        with self._lock:
            self._sum_up()
            all_ns = sum(self._sums[stage].total_ns for stage in _TELLABLE)
            return {stage: told.times(all_ns) for stage, told in self._sums.items()}

    def end_lap(self, spans_ns: _Spans) -> None:
        self._laps.append(spans_ns)
        if len(self._laps) >= _MOST_LAPS:
            with self._lock:
                self._sum_up()

    def _sum_up(self) -> None:
        laps = self._laps[:]
        del self._laps[: len(laps)]  # others may append meanwhile
        for stage, spans_ns in zip(_OF_A_LAP, zip(*laps, strict=True), strict=False):
            self._sums[stage].add(spans_ns)


def stage_table(times: Mapping[Stage, StageTimes]) -> str:
    """The stages as text, one a line."""
    lines = [f"{'stage':<24}{'share':>7}{'count':>12}{'total s':>12}{'min s':>11}{'mean s':>11}{'max s':>11}"]
    lines += [
        f"{stage:<24}{of.share:>7.1%}{of.count:>12,}{of.total_secs:>12,.3f}"
        f"{of.min_secs:>11.6f}{of.mean_secs:>11.6f}{of.max_secs:>11.6f}"
        for stage, of in times.items()
    ]
    return "\n".join(lines)
