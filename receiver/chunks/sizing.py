"""From the files of a log to a `ChunkedLog`: read, plan, assemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from receiver.chunks.assemble import assembled, cut
from receiver.chunks.chunked import ChunkedLog
from receiver.chunks.ingest import ingest, reports_of
from receiver.chunks.parcels import Flow, Parcel
from receiver.chunks.plan import plan_of
from receiver.chunks.slices import sliced
from receiver.chunks.units import parcels_of, units_of
from receiver.chunks.values import Piece, UnitReport
from receiver.domains import DomainKey
from receiver.logs import ReadOptions
from receiver.logs.files import LogFile

__all__ = ["Sizes", "chunked_log"]

_LEAST_CHUNK_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a task holds at most, in receipts: they bound its memory."""

    chunk_rows: int = 1_000_000
    partition_rows: int = 1_000_000
    slice_rows: int = 500_000
    """Of the whole log, for verdicts; whoever writes them into one file holds so many too."""


def chunked_log(
    files: Sequence[LogFile],
    options: ReadOptions,
    key: DomainKey,
    *,
    start: Callable[[list[Parcel], int], Flow],
    cores: int,
    sizes: Sizes | None = None,
    with_verdicts: bool = False,
) -> ChunkedLog:
    """Read a log and cut it up. `start` makes a flow of parcels in so many tasks; `cores` work at once.

    `with_verdicts` keeps what it takes to tell the verdict on each receipt.
    """
    sizes = sizes or Sizes()
    units = units_of(files, rows_per_unit=sizes.chunk_rows)
    pieces = start(parcels_of(units), len(units)).map(ingest(options)).kept("Reading receipts")
    reports = reports_of(pieces.only(UnitReport.__name__).collect("Reading receipts"), units, key)
    receipts = sum(report.receipts for report in reports)
    chunk_rows = min(sizes.chunk_rows, max(_LEAST_CHUNK_ROWS, -(-receipts // cores)))
    plan = plan_of(reports, units, key, chunk_rows=chunk_rows, partition_rows=sizes.partition_rows, tasks=cores)
    chunks = (
        pieces.only(Piece.__name__).map(cut(plan)).grouped(assembled(plan), plan.bundles).kept("Cutting into chunks")
    )
    slices = sliced(pieces, plan, reports, units, min(chunk_rows, sizes.slice_rows)) if with_verdicts else None
    pieces.forget()
    return ChunkedLog(plan, reports, chunks, slices=slices)
