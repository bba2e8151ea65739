"""A `Flow` whose parcels are the rows of a Spark DataFrame.

Memory is bounded by the largest parcels, never by a partition: Spark hands rows to Python a few at a time and keeps
what is `kept` on the executors' disks. There is no sort, which would hold a parcel of every run it merges: a key has a
partition to itself instead.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from receiver.chunks.parcels import SCHEMA, Parcel
from receiver.errors import ReceiverError
from receiver.spark.progress import Told, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkFlow", "start"]

_SPARK_SCHEMA = "key long, kind string, payload binary"
_BATCH_BYTES = 1 << 20
_ERROR = "!"
"""The kind of a parcel that holds an error of the package's own, on its way to the driver."""


def start(spark: SparkSession, parcels: Iterable[Parcel], tasks: int, told: Told | None = None) -> SparkFlow:
    """Deal parcels to tasks by their keys, round and round. `told` hears how far each step has come."""
    frame = spark.createDataFrame(pa.table(_columns(list(parcels)), schema=SCHEMA), _SPARK_SCHEMA)
    # Spark takes what it keeps of one flow for any other that is made alike, though the files may have changed.
    frame = frame.where(lit(token_hex()).isNotNull())
    return SparkFlow(_dealt(frame, tasks), told)


@dataclass(frozen=True, slots=True)
class SparkFlow:
    """See `Flow`. A `ReceiverError` raised by work in a task is raised here as it is, by `kept` or `collect`; what Spark
    raises is left to the session to translate.
    """

    frame: DataFrame
    told: Told | None = None

    def map(self, work: Callable[[Iterator[Parcel]], Iterable[Parcel]]) -> SparkFlow:
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _worked(work, _parcels(batches))

        return replace(self, frame=self.frame.mapInArrow(task, _SPARK_SCHEMA))

    def grouped(self, work: Callable[[int, Iterator[Parcel]], Iterable[Parcel]], keys: int) -> SparkFlow:
        """A task for each key: so there should be few keys more than cores."""

        def of_key(parcels: Iterator[Parcel]) -> Iterable[Parcel]:
            first = next(parcels, None)
            return () if first is None else work(first.key, chain([first], parcels))

        return replace(self, frame=_dealt(self.frame, keys)).map(of_key)

    def only(self, *kinds: str) -> SparkFlow:
        return replace(self, frame=self.frame.where(col("kind").isin(_ERROR, *kinds)))

    def plus(self, *others: SparkFlow) -> SparkFlow:
        return replace(self, frame=reduce(DataFrame.unionAll, (other.frame for other in others), self.frame))

    def kept(self, what: str) -> SparkFlow:
        kept = replace(self, frame=self.frame.persist(StorageLevel.DISK_ONLY))
        kept.only().collect(what)  # works all out, and raises the errors met
        return kept

    def collect(self, what: str) -> list[Parcel]:
        with watched(self.frame.sparkSession.sparkContext, what, self.told):
            return list(_parcels(self.frame.toArrow().to_batches()))

    def in_order(self, what: str) -> Iterator[Parcel]:
        # A key has a partition to itself, and partitions come here one by one.
        with watched(self.frame.sparkSession.sparkContext, what, self.told):
            for key, kind, payload in self.frame.toLocalIterator():
                yield Parcel(key, kind, bytes(payload))

    def forget(self) -> None:
        self.frame.unpersist()


def _dealt(frame: DataFrame, partitions: int) -> DataFrame:
    return frame.repartitionById(partitions, (col("key") % partitions).cast("int"))


def _worked(
    work: Callable[[Iterator[Parcel]], Iterable[Parcel]], parcels: Iterator[Parcel]
) -> Iterator[pa.RecordBatch]:
    """What a task does, in the Python process of an executor."""
    pa.set_cpu_count(1)  # a task has one core
    return _batches(_with_errors(work, parcels))


def _with_errors(work: Callable[[Iterator[Parcel]], Iterable[Parcel]], parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    try:
        yield from work(parcels)
        for _ in parcels:  # an error among them must not be passed over
            pass
    except ReceiverError as error:
        # Raised, it would come out as Java's exception about text, after as many attempts as Spark gives a task.
        yield Parcel(0, _ERROR, pickle.dumps(error))


def _parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
    """The rows. An error among them is raised, so that each step passes it on as its own."""
    for batch in batches:
        for cells in zip(*batch.columns, strict=True):
            parcel = Parcel(*(cell.as_py() for cell in cells))
            if parcel.kind == _ERROR:
                error: ReceiverError = pickle.loads(parcel.payload)  # noqa: S301 - written by `_with_errors`
                raise error
            yield parcel


def _batches(parcels: Iterable[Parcel]) -> Iterator[pa.RecordBatch]:
    """Small parcels go together; a large one doesn't wait for others."""
    waiting: list[Parcel] = []
    waiting_bytes = 0
    for parcel in parcels:
        waiting.append(parcel)
        waiting_bytes += len(parcel.payload)
        if waiting_bytes >= _BATCH_BYTES:
            yield pa.record_batch(_columns(waiting), schema=SCHEMA)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.record_batch(_columns(waiting), schema=SCHEMA)


def _columns(parcels: list[Parcel]) -> dict[str, list[object]]:
    return {name: [parcel[place] for parcel in parcels] for place, name in enumerate(SCHEMA.names)}
