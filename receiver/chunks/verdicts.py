"""The verdict on every receipt of a log in chunks, as the rows of a table in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver.chunks.chunked import ChunkedLog
from receiver.chunks.columns import column
from receiver.chunks.parcels import Flow, Parcel, parcel_of, unpack, values_in
from receiver.chunks.replaying import grid_counts, started
from receiver.chunks.slices import Places, Strip, joined
from receiver.chunks.values import Body
from receiver.errors import OutputError
from receiver.logs.writer import open_table
from receiver.message import Verdict
from receiver.simulate.verdicts import SCHEMA, VERDICTS, is_caught, stretches, verdict_batch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["verdict_batches", "write_parts"]


@dataclass(frozen=True, slots=True)
class Caught:
    """The numbers of receipts that are duplicates by verdict. Key: the slice."""

    number: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judged:
    """Receipts that follow each other in the log, as `verdict_batch` takes them. Key: the slice."""

    first_row: int
    ids: pa.Array
    domain: npt.NDArray[np.int32]
    domains: list[str]
    source: npt.NDArray[np.int32]
    sources: list[str]
    verdicts: npt.NDArray[np.int32]

    def batch(self) -> pa.RecordBatch:
        return verdict_batch(
            self.first_row,
            self.ids,
            domain=pa.DictionaryArray.from_arrays(pa.array(self.domain), pa.array(self.domains, pa.string())),
            source=pa.DictionaryArray.from_arrays(pa.array(self.source), pa.array(self.sources, pa.string())),
            verdicts=[self.verdicts],
        )


def verdict_batches(log: ChunkedLog, window: int, expiry_us: int) -> Iterator[pa.RecordBatch]:
    """As `receiver.simulate.verdicts.verdict_batches`; no more than a slice of the log is held here at a time.

    The log was made `with_verdicts`, as for `write_parts`.
    """
    places, receipts = _receipts_and_caught(log, window, expiry_us)
    judged = receipts.grouped(partial(_judged_parcels, places), places.slices).kept("Judging receipts")
    try:
        for parcel in judged.in_order("Writing verdicts"):
            yield unpack(Judged, parcel.payload).batch()
    finally:
        judged.forget()


def write_parts(log: ChunkedLog, window: int, expiry_us: int, folder: Path) -> None:
    """Write these rows into an empty folder that every task can write to (see `logs.output.appearing`).

    It holds files of Parquet then, ordered by name as their rows are.
    """
    places, receipts = _receipts_and_caught(log, window, expiry_us)
    receipts.grouped(partial(_write, places, folder), places.slices).collect("Writing verdicts")
    for leftover in folder.glob(".*"):
        leftover.unlink()  # of a task that was killed, and tried again


def _receipts_and_caught(log: ChunkedLog, window: int, expiry_us: int) -> tuple[Places, Flow]:
    """`Strip` and `Caught`, by slice."""
    assert log.slices is not None  # noqa: S101 - whoever asks for verdicts has said so before
    strips, places = log.slices
    return places, strips.plus(log.judged(partial(_catch, places, window, expiry_us), window, expiry_us))


def _catch(places: Places, window: int, expiry_us: int, _bundle: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """`Ready`, `Tail` and `Body` become `Caught`."""
    held = list(parcels)
    (bodies,) = values_in((parcel for parcel in held if parcel.kind == Body.__name__), Body)
    body_of = {body.chunk: body for body in bodies}
    numbers = []
    for chunk in started(parcel for parcel in held if parcel.kind != Body.__name__):
        duplicates = np.flatnonzero(chunk.rows.earlier[chunk.counted_from :] >= 0)
        needs_us = grid_counts(chunk, [window], [expiry_us], with_needs=True).needs_us[:, 0]
        rows = duplicates[is_caught(needs_us, expiry_us)]
        body = body_of[chunk.ready.chunk]
        numbers.append(places.unit_number[body.unit[rows]] + body.unit_row[rows])
    for each, some in places.by_slice(np.concatenate(numbers)):
        yield parcel_of(each, Caught(some))


def _judged_parcels(places: Places, each: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    return (parcel_of(each, judged) for judged in _judged(places, each, parcels))


def _judged(places: Places, each: int, parcels: Iterator[Parcel]) -> Iterator[Judged]:
    """The rows of a slice, in order."""
    strips, caught = values_in(parcels, Strip, Caught)
    rows = joined(strips)
    del strips
    sizes_bytes = pc.binary_length(rows.ids).to_numpy()[rows.id_place]
    verdicts = np.full(len(rows.number), VERDICTS.index(Verdict.NEW), np.int32)
    verdicts[sizes_bytes == 0] = VERDICTS.index(Verdict.UNCHECKED)
    verdicts[np.isin(rows.number, column(caught, "number", np.int64))] = VERDICTS.index(Verdict.DUPLICATE)
    for some in stretches(len(verdicts), lambda some: sizes_bytes[some]):
        yield Judged(
            first_row=int(places.first_row[each]) + some.start,
            ids=rows.ids.take(pa.array(rows.id_place[some])).cast(pa.string()),
            domain=rows.domain[some],
            domains=rows.domains,
            source=rows.source[some],
            sources=rows.sources,
            verdicts=verdicts[some],
        )


def _write(places: Places, folder: Path, each: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    if not folder.is_dir():
        raise OutputError(
            f"a task can't see {folder.parent}, where verdicts are written",
            hint="name a folder that all machines of the cluster share",
        )
    digits = max(5, len(str(places.slices - 1)))
    with open_table(folder / f"part-{each:0{digits}}.parquet", SCHEMA) as part:
        for judged in _judged(places, each, parcels):
            part.write(judged.batch())
    return iter(())
