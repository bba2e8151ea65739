"""How far a step of Spark has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["Told", "watched"]

Told = Callable[[str, int, int], None]
"""Hears what is being worked on, how many tasks are done, and how many there are in the stages that run now."""

_LOOK_SECS = 0.2
_DESCRIPTION = "spark.job.description"


@contextmanager
def watched(context: SparkContext, what: str, told: Told | None) -> Iterator[None]:
    """Name the Spark jobs that the block starts, and tell of them while they run."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(what)
    ended = Event()
    watcher = Thread(target=_watch, args=(context, what, told, ended), daemon=True)
    if told is not None:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if told is not None:
            watcher.join()
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


def _watch(context: SparkContext, what: str, told: Told, ended: Event) -> None:
    tracker = context.statusTracker()
    while not ended.wait(_LOOK_SECS):
        try:
            stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        except (Py4JError, OSError):
            return  # Spark is gone, which whoever waits for the step will hear
        told(what, sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))
