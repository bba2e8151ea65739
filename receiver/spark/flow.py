"""A `RowFlow` with its rows in a Spark DataFrame with typed columns (see `steps.schemas`); and the progress of its steps.

Spark hands a few rows at a time to Python, and keeps `kept` rows on the executors' disks. So memory is bounded by the rows of one
key in a step. Nothing is sorted: each key has a partition of its own instead.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from http.client import HTTPException
from itertools import chain, groupby
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from receiver.errors import ReceiverError
from receiver.steps.arrow_rows import LEAD, Failure, Row, batches_of, by_kind, rows_of, schema_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SPARK_TYPES = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}

_Map = Callable[[Iterator[Row]], Iterable[Row]]
_OfKey = Callable[[int, Iterator[Row]], Iterable[Row]]


def ddl_of(*kinds: type[Any]) -> str:
    """The columns of rows with values of these kinds, as Spark's DDL."""
    return ", ".join(f"`{field.name}` {_type(field.type)}" for field in schema_of(*kinds))


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_type(field.type)}' for field in kind)}>"
    return _SPARK_TYPES[kind]


def start(
    spark: SparkSession, rows: Iterable[Row], tasks: int, kind: type[Any], on_progress: OnProgress | None = None
) -> SparkFlow:
    """Deal rows with values of a kind to tasks, round robin by key. `on_progress` gets the progress of each step."""
    batches = list(batches_of(rows, kind))
    table = pa.Table.from_batches(batches, schema_of(kind)) if batches else []
    frame = spark.createDataFrame(table, ddl_of(kind))
    frame = frame.repartitionById(tasks, (col("key") % tasks).cast("int"))
    return SparkFlow(frame, (kind,), on_progress)


@dataclass(frozen=True, slots=True)
class SparkFlow:
    """A `RowFlow` on Spark. `kept` and `collect` raise a `ReceiverError` of a task as it is; the session translates errors of
    Spark.
    """

    frame: DataFrame
    kinds: tuple[type[Any], ...]
    on_progress: OnProgress | None = None
    arriving: Callable[[Row], Row] | None = None
    """A function that changes each row before work sees it, for example the number of its unit."""
    held: DataFrame | None = None
    """The kept frame, which `forget` frees; `frame` may be a part of it."""

    def map(self, work: _Map, *kinds: type[Any]) -> SparkFlow:
        frame = self.to_frame(lambda rows: task_output(work, rows, *kinds), ddl_of(*kinds))
        return replace(self, frame=frame, kinds=kinds, arriving=None, held=None)

    def to_frame(self, work: Callable[[Iterator[Row]], Iterator[pa.RecordBatch]], columns: str) -> DataFrame:
        """The batches that `work` makes of the rows, as a frame with these columns."""
        taken, arriving = self.kinds, self.arriving

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = rows_of(batches, *taken)
            return work(rows if arriving is None else map(arriving, rows))

        return self.frame.mapInArrow(task, columns)

    def dealt(self, keys: int) -> SparkFlow:
        return replace(self, frame=self.frame.repartitionById(keys, col("key")), held=None)

    def each_key(self, work: _OfKey, *kinds: type[Any]) -> SparkFlow:
        def of_key(rows: Iterator[Row]) -> Iterable[Row]:
            first = next(rows, None)
            return () if first is None else work(first.key, _of_one_key(first.key, chain([first], rows)))

        return self.map(of_key, *kinds)

    def grouped(self, work: _OfKey, keys: int, *kinds: type[Any]) -> SparkFlow:
        """Work on all rows of a key at once, each key in a task of its own: so there should be few more keys than cores."""
        return self.dealt(keys).each_key(work, *kinds)

    def only(self, *kinds: type[Any]) -> SparkFlow:
        names = [kind.__name__ for kind in (*kinds, Failure)]
        there = reduce(lambda one, other: one | other, (col(name).isNotNull() for name in names))
        return replace(self, frame=self.frame.select(*LEAD, *names).where(there), kinds=kinds)

    def plus(self, *others: SparkFlow) -> SparkFlow:
        frames = (other.frame for other in others)
        united = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames, self.frame)
        kinds = tuple(dict.fromkeys(kind for flow in (self, *others) for kind in flow.kinds))
        return replace(self, frame=united, kinds=kinds, held=None)

    def kept(self, what: str, *counts: type[Any]) -> tuple[SparkFlow, tuple[list[Any], ...]]:
        # Recomputed rows may differ, because a sort draws its partitions anew. And Spark recomputes rows that are only persisted
        # whenever it fails to see that a plan is the one it keeps. So this is a checkpoint.
        with watched(self.frame.sparkSession.sparkContext, what, self.on_progress):
            frame = self.frame.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
        kept = replace(self, frame=frame, held=frame)
        try:
            return kept, by_kind(kept.only(*counts).collect(what), *counts)
        except ReceiverError:
            kept.forget()
            raise

    def collect(self, what: str) -> list[Any]:
        with watched(self.frame.sparkSession.sparkContext, what, self.on_progress):
            return [row.value for row in rows_of(self.frame.toArrow().to_batches(), *self.kinds)]

    def forget(self) -> None:
        if self.held is None:
            return
        with suppress(Py4JError, OSError):  # Spark may be gone, with all that it kept
            # A frame's `unpersist` only frees what was persisted.
            self.held._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: FBT003, SLF001 - Java's own


def _of_one_key(key: int, rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        if row.key != key:
            raise AssertionError("rows of several keys came to one task")
        yield row


def task_output(work: _Map, rows: Iterator[Any], *kinds: type[Any]) -> Iterator[pa.RecordBatch]:
    """The output of a task, in the Python process of an executor."""
    pa.set_cpu_count(1)  # a task has one core
    return batches_of(_with_failure(work, rows), *kinds)


def _with_failure(work: _Map, rows: Iterator[Any]) -> Iterator[Row]:
    try:
        yield from work(rows)
        for _ in rows:  # raises a failure among the remaining rows
            pass
    except ReceiverError as error:
        # If it were raised, it would become Java's exception with a text, after all of Spark's attempts.
        yield Row(0, Failure(pickle.dumps(error)))


OnProgress = Callable[[str, int, int], None]
"""A callback for progress: takes the name of the work, the number of tasks done, and their total in the running stages."""

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
            return  # Spark is gone: the step itself raises the error
        on_progress(what, sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))


def costs(context: SparkContext) -> Iterator[str]:
    """A line for each step, with seconds, tasks, rows and shuffled megabytes from Spark's own UI; none without a UI."""
    if context.uiWebUrl is None:
        return
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages?status=complete"
    try:
        # Spark's own server, on this machine: no proxy can reach it.
        with build_opener(ProxyHandler({})).open(url, timeout=_PATIENCE_SECS) as answer:
            stages = sorted(json.load(answer), key=lambda stage: stage["stageId"])
    except (OSError, HTTPException, ValueError) as error:  # for example if it wants a password
        yield f"what each step cost can't be read at {url}: {error}"
        return
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
