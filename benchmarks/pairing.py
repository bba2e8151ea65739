"""A comparison: two measurements by turns, the ratio of each turn, and the goal of the ratio."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio to reach, and the ratio to aim for. Lower ratios are better if `at_most`, else higher ones."""

    ratio: float
    aim: float
    at_most: bool = False
    enough: float | None = None
    """The figure of ours that is enough, whatever the ratio."""

    def reached_by(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    work: str
    """The work that is measured, with its sizes."""
    unit: str
    anchor_name: str
    our_figures: Sequence[float]
    """One for each turn, as `anchor_figures` has."""
    anchor_figures: Sequence[float]
    goal: Goal | None = None
    """None for a figure without a goal."""

    @property
    def ours(self) -> float:
        return statistics.median(self.our_figures)

    @property
    def anchor(self) -> float:
        return statistics.median(self.anchor_figures)

    @property
    def ratios(self) -> list[float]:
        """Ours divided by the anchor, for each turn."""
        return [ours / anchor for ours, anchor in zip(self.our_figures, self.anchor_figures, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_reached(self) -> bool | None:
        if self.goal is None:
            return None
        is_enough = self.goal.enough is not None and self.ours >= self.goal.enough
        return is_enough or self.goal.reached_by(self.ratio)


def by_turns(
    ours: Measure, anchor: Measure, *, turns: int, name: str, work: str, unit: str, anchor_name: str, goal: Goal | None
) -> Comparison:
    """Take both measurements in each of `turns` turns. Which one goes first alternates."""
    our_figures: list[float] = []
    anchor_figures: list[float] = []
    for turn in range(turns):
        pair = [(ours, our_figures), (anchor, anchor_figures)]
        for measure, figures in pair if turn % 2 == 0 else reversed(pair):
            figures.append(measure())
    return Comparison(name, work, unit, anchor_name, our_figures, anchor_figures, goal)


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """The time of a run: by default the processor time of all threads together, so that other programs don't count.

    The garbage collector leaves out the objects that existed before the run.
    """
    gc.collect()
    gc.freeze()
    start = clock()
    run()
    took = clock() - start
    gc.unfreeze()
    return took
