"""The verdict on every receipt of a log in chunks, as the rows of a table in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver.errors import OutputError
from receiver.logs.writer import open_table
from receiver.message import Verdict
from receiver.simulate.verdicts import SCHEMA, VERDICTS, is_caught, stretches, verdict_batch
from receiver.steps.columns import column
from receiver.steps.columns import joined as joined_numbers
from receiver.steps.log import ChunkedLog
from receiver.steps.outcomes import Caught, Judged, Strip
from receiver.steps.replaying import grid_counts, started
from receiver.steps.rows import Flow, Row, values_in
from receiver.steps.schemas import Body
from receiver.steps.slices import Places, joined

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["caught_rows", "verdict_batches", "write_parts"]


def verdict_batches(log: ChunkedLog, window: int, expiry_us: int) -> Iterator[pa.RecordBatch]:
    """As `receiver.simulate.verdicts.verdict_batches`; no more than a slice of the log is held here at a time.

    The log was made `with_verdicts`, as for `write_parts`.
    """
    places, receipts = _receipts_and_caught(log, window, expiry_us)
    judged = receipts.grouped(partial(_judged_rows, places), places.slices, Judged)
    judged, _ = judged.kept("Judging receipts")
    try:
        for some in judged.in_order("Writing verdicts"):
            yield _batch(some)
    finally:
        judged.forget()


def write_parts(log: ChunkedLog, window: int, expiry_us: int, folder: Path) -> None:
    """Write these rows into an empty folder that every task can write to (see `logs.output.appearing`).

    It holds files of Parquet then, ordered by name as their rows are.
    """
    places, receipts = _receipts_and_caught(log, window, expiry_us)
    receipts.grouped(partial(_write, places, folder), places.slices, Judged).collect("Writing verdicts")
    for leftover in folder.glob(".*"):
        leftover.unlink()  # of a task that was killed, and tried again


def _receipts_and_caught(log: ChunkedLog, window: int, expiry_us: int) -> tuple[Places, Flow]:
    """`Strip` and `Caught`, by slice."""
    assert log.slices is not None  # noqa: S101 - whoever asks for verdicts has said so before
    strips, places = log.slices
    return places, strips.plus(log.judged(partial(_catch, places, window, expiry_us), window, expiry_us, Caught))


def _catch(places: Places, window: int, expiry_us: int, _bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
    """`Ready`, `Tail` and `Body` become `Caught`."""
    found = joined_numbers(np.int64, (number for number, _ in _caught(window, expiry_us, rows)))
    for each, some in places.by_slice(found):
        yield Row(each, Caught(some, np.zeros(0, np.bool_)))


def caught_rows(log: ChunkedLog, window: int, expiry_us: int) -> Flow:
    """`Caught`, of all receipts that are duplicates by verdict, with their tiers. The log was made `with_verdicts`."""
    return log.judged(partial(_catch_all, window, expiry_us), window, expiry_us, Caught)


def _catch_all(window: int, expiry_us: int, bundle: int, rows: Iterator[Row]) -> Iterator[Row]:
    for number, by_time in _caught(window, expiry_us, rows):
        yield Row(bundle, Caught(number, by_time))


def _caught(
    window: int, expiry_us: int, rows: Iterator[Row]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]:
    """Chunk by chunk, the numbers of the duplicates by verdict, and whether only the time queue held each."""
    held = list(rows)
    bodies = [row.value for row in held if isinstance(row.value, Body)]
    body_of = {body.chunk: body for body in bodies}
    for chunk in started(row for row in held if not isinstance(row.value, Body)):
        duplicates = np.flatnonzero(chunk.rows.earlier[chunk.counted_from :] >= 0)
        needs_us = grid_counts(chunk, [window], [expiry_us], with_needs=True).needs_us[:, 0]
        caught = is_caught(needs_us, expiry_us)
        yield body_of[chunk.ready.chunk].number[duplicates[caught]], needs_us[caught] >= 0


def _judged_rows(places: Places, each: int, rows: Iterator[Row]) -> Iterator[Row]:
    return (Row(each, judged) for judged in _judged(places, each, rows))


def _judged(places: Places, each: int, rows: Iterator[Row]) -> Iterator[Judged]:
    """The rows of a slice, in order."""
    strips, caught = values_in(rows, Strip, Caught)
    receipts = joined(strips)
    del strips
    sizes_bytes = pc.binary_length(receipts.ids).to_numpy()[receipts.id_place]
    verdicts = np.full(len(receipts.number), VERDICTS.index(Verdict.NEW), np.int32)
    verdicts[sizes_bytes == 0] = VERDICTS.index(Verdict.UNCHECKED)
    verdicts[np.isin(receipts.number, column(caught, "number", np.int64))] = VERDICTS.index(Verdict.DUPLICATE)
    for some in stretches(len(verdicts), lambda some: sizes_bytes[some]):
        yield Judged(
            first_row=int(places.first_row[each]) + some.start,
            ids=receipts.ids.take(pa.array(receipts.id_place[some])).cast(pa.string()),
            domain=receipts.domain[some],
            domains=receipts.domains,
            source=receipts.source[some],
            sources=receipts.sources,
            verdicts=verdicts[some],
        )


def _write(places: Places, folder: Path, each: int, rows: Iterator[Row]) -> Iterator[Row]:
    if not folder.is_dir():
        raise OutputError(
            f"a task can't see {folder.parent}, where verdicts are written",
            hint="name a folder that all machines of the cluster share",
        )
    digits = max(5, len(str(places.slices - 1)))
    with open_table(folder / f"part-{each:0{digits}}.parquet", SCHEMA) as part:
        for judged in _judged(places, each, rows):
            part.write(_batch(judged))
    return iter(())


def _batch(judged: Judged) -> pa.RecordBatch:
    return verdict_batch(
        judged.first_row,
        judged.ids,
        domain=pa.DictionaryArray.from_arrays(pa.array(judged.domain), pa.array(judged.domains, pa.string())),
        source=pa.DictionaryArray.from_arrays(pa.array(judged.source), pa.array(judged.sources, pa.string())),
        verdicts=[judged.verdicts],
    )
