"""How far a step of Spark has come, and in the end what each has cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["OnProgress", "costs", "watched"]

OnProgress = Callable[[str, int, int], None]
"""Called with what is being worked on, how many tasks are done, and how many there are in the stages that run now."""

_LOOK_SECS = 0.2
_PATIENCE_SECS = 10
_DESCRIPTION = "spark.job.description"


@contextmanager
def watched(context: SparkContext, what: str, on_progress: OnProgress | None) -> Iterator[None]:
    """Name the Spark jobs that the block starts, and report them while they run."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(what)
    ended = Event()
    watcher = Thread(target=_watch, args=(context, what, on_progress, ended), daemon=True)
    if on_progress is not None:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if on_progress is not None:
            watcher.join()
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


def _watch(context: SparkContext, what: str, on_progress: OnProgress, ended: Event) -> None:
    tracker = context.statusTracker()
    while not ended.wait(_LOOK_SECS):
        try:
            stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        except (Py4JError, OSError):
            return  # Spark is gone, which whoever waits for the step will hear
        on_progress(what, sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))


def costs(context: SparkContext) -> Iterator[str]:
    """A line for each step: its seconds, tasks, rows and shuffled megabytes, as Spark's own UI has them; none without a UI."""
    if context.uiWebUrl is None:
        return
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages?status=complete"
    with urlopen(url, timeout=_PATIENCE_SECS) as answer:  # noqa: S310 - Spark's own
        stages = sorted(json.load(answer), key=lambda stage: stage["stageId"])
    for step, group in groupby(stages, lambda stage: stage.get("description") or stage["name"]):
        of_step = list(group)
        began, ended = min(map(_moment("submissionTime"), of_step)), max(map(_moment("completionTime"), of_step))
        tasks, rows, shuffled_bytes = (
            sum(stage[name] for stage in of_step for name in names)
            for names in (["numTasks"], ["inputRecords", "shuffleReadRecords"], ["shuffleWriteBytes"])
        )
        yield (
            f"{step}: {(ended - began).total_seconds():.1f} s, {tasks:,} tasks, {rows:,} rows, "
            f"{shuffled_bytes / 1e6:,.1f} MB shuffled"
        )


def _moment(name: str) -> Callable[[dict[str, Any]], datetime]:
    return lambda stage: datetime.fromisoformat(stage[name].replace("GMT", "+00:00"))
