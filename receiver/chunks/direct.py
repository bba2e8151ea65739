"""Chunks straight from the files of a compacted log: what its manifest says is the plan, so no receipt has to move.

The manifest tells how many receipts each file has, of which domain, and up to which time. A chunk is a file, or some
that follow each other, and whoever reads the files of a bundle makes its chunks at once. Whether the manifest was right
is seen when they have been read: nobody gets figures by one that isn't.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.chunks.assemble import Stretch, chunks_of, keys_us, stretches_of
from receiver.chunks.ingest import pieces_of, reports_of
from receiver.chunks.parcels import Flow, Parcel, parcel_of, unpack
from receiver.chunks.plan import bundles_of, names_of, splits_a_queue, time_of
from receiver.chunks.units import parcels_of, units_of
from receiver.chunks.values import Piece, Plan, Unit, UnitReport
from receiver.domains import DomainKey
from receiver.errors import LogFormatError
from receiver.logs import ReadOptions
from receiver.logs.compacted import COMPACT_AGAIN, Manifest
from receiver.logs.files import LogFile

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Layout", "layout_of", "made_directly"]

_MOST_CHUNKS_PER_FILE = 1.5
"""What is in one file is read by one task, so a file of more leaves cores without work, and a task without memory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of a compacted log, and what its manifest says of each."""

    files: Sequence[LogFile]
    domains: list[str]
    """Ordered by name."""
    domain: npt.NDArray[np.int32]
    """File -> domain; -1 for the one of the status lines, which has no receipts."""
    rows: npt.NDArray[np.int64]
    latest_us: npt.NDArray[np.int64]
    splits_a_queue: bool

    @property
    def receipts(self) -> int:
        return int(self.rows.sum())

    def fits(self, chunk_rows: int) -> bool:
        """Whether the files may stand for chunks of so many rows."""
        return int(self.rows.max()) <= _MOST_CHUNKS_PER_FILE * chunk_rows


def layout_of(files: Sequence[LogFile], options: ReadOptions, key: DomainKey) -> Layout | None:
    """The layout of files that are one compacted log, made by the same KEY; None of any others."""
    manifest = files[0].manifest if files else None
    if manifest is None or any(file.manifest is not manifest for file in files):
        return None
    if manifest.domain_key != key.text or options.column_map:
        return None
    names = [each.domain for each in manifest.domains]
    if names != sorted(set(names)) or not all(each.files for each in manifest.domains):
        return None
    return _layout(files, manifest)


def _layout(files: Sequence[LogFile], manifest: Manifest) -> Layout:
    parts = [part for each in manifest.domains for part in each.files]
    of_status_lines = [-1] * (len(files) - len(parts))
    sizes = [len(each.files) for each in manifest.domains]
    return Layout(
        files=files,
        domains=[each.domain for each in manifest.domains],
        domain=np.array([*of_status_lines, *np.repeat(np.arange(len(sizes)), sizes)], np.int32),
        rows=np.array([0 for _ in of_status_lines] + [part.rows for part in parts], np.int64),
        latest_us=np.array(of_status_lines + [part.latest_us for part in parts], np.int64),
        splits_a_queue=manifest.splits_a_queue,
    )


class _Reading(NamedTuple):
    """What tasks have to know."""

    options: ReadOptions
    plan: Plan
    chunk: npt.NDArray[np.int32]
    """Unit -> the chunk that it is of, or -1."""


def made_directly(
    layout: Layout,
    options: ReadOptions,
    key: DomainKey,
    *,
    start: Callable[[list[Parcel], int], Flow],
    chunk_rows: int,
    partition_rows: int,
    tasks: int,
) -> tuple[Plan, list[UnitReport], Flow]:
    """Read a compacted log into chunks of about `chunk_rows` receipts. `LogFormatError` where it isn't as it was made."""
    units = units_of(layout.files, rows_per_unit=None)
    chunk = _chunk_of_files(layout, chunk_rows)
    plan = _plan(layout, key, chunk, chunk_rows, max(tasks, -(-layout.receipts // partition_rows)))
    # What goes to the tasks of the bundles is the names of files.
    parcels = [
        parcel._replace(key=int(plan.chunk_bundle[max(0, number)]))
        for parcel, number in zip(parcels_of(units), chunk.tolist(), strict=True)
    ]
    reading = partial(_read_bundle, _Reading(options, plan, chunk))
    made = start(parcels, 1).grouped(reading, plan.bundles).kept("Reading receipts")
    reports = reports_of(made.only(UnitReport.__name__).collect("Reading receipts"), units, key)
    _check(layout, units, reports, key)
    start_us, slice_us, slices = time_of(reports)
    return replace(plan, start_us=start_us, slice_us=slice_us, slices=slices), reports, made


def _chunk_of_files(layout: Layout, chunk_rows: int) -> npt.NDArray[np.int32]:
    """Files of a domain that follow each other are one chunk as long as they hold no more than so many receipts."""
    begins = np.searchsorted(layout.domain, np.arange(len(layout.domains)))
    chunks = [np.full(begins[0], -1, np.int32)]
    count = 0
    for rows in np.split(layout.rows, begins)[1:]:
        chunks.append(count + bundles_of(rows.tolist(), chunk_rows))
        count = int(chunks[-1][-1]) + 1
    return np.concatenate(chunks)


def _plan(layout: Layout, key: DomainKey, chunk: npt.NDArray[np.int32], chunk_rows: int, partitions: int) -> Plan:
    """All but the timeline, which takes the times of the receipts."""
    first = np.flatnonzero(np.diff(chunk, prepend=-1))  # the files that chunks begin with
    opens = np.diff(layout.domain, prepend=-1)[first] > 0
    carry_us = np.full(len(chunk), -1, np.int64)
    carry_us[1:] = np.where(layout.domain[1:] == layout.domain[:-1], layout.latest_us[:-1], -1)
    receipts = np.bincount(chunk[chunk >= 0], weights=layout.rows[chunk >= 0]).astype(np.float64)
    return Plan(
        key=key.text,
        domains=layout.domains,
        carry_us=carry_us,
        chunk_domain=layout.domain[first],
        chunk_receipts=receipts,
        chunk_bundle=bundles_of(receipts.tolist(), chunk_rows),
        cut_key_us=np.where(opens, -1, carry_us[first]),
        cut_unit=np.where(opens, 0, first).astype(np.int32),
        cut_row=np.zeros(len(first), np.int64),
        partitions=partitions,
        hash_seed=secrets.randbits(63),
        is_whole=(np.bincount(layout.domain[first]) == 1) & (not layout.splits_a_queue),
        start_us=0,
        slice_us=0,
        slices=0,
        looks_for_crossing=layout.splits_a_queue,
        keeps_channels=layout.splits_a_queue,
    )


def _read_bundle(reading: _Reading, bundle: int, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
    """Of the `Unit`s of a bundle, each chunk's `Opening`, `Body` and `Ids`; and each unit's report."""
    units = [unpack(Unit, parcel.payload) for parcel in parcels]
    reports: list[UnitReport] = []
    stretches = _stretches(reading, units, reports)
    first = next(stretches, None)
    if first is not None:
        yield from chunks_of(reading.plan, bundle, chain([first], stretches))
    for report in reports:
        yield parcel_of(bundle, report)


def _stretches(reading: _Reading, units: Sequence[Unit], reports: list[UnitReport]) -> Iterator[Stretch]:
    for unit in units:
        for value in pieces_of(unit, reading.options):
            if isinstance(value, Piece):
                chunk = np.full(len(value.received_at_us), reading.chunk[unit.number], np.int32)
                for _, stretch in stretches_of(reading.plan, value, keys_us(reading.plan, value), chunk):
                    yield stretch
            else:
                reports.append(value)


def _check(layout: Layout, units: Sequence[Unit], reports: Sequence[UnitReport], key: DomainKey) -> None:
    """`LogFormatError` where the files aren't what the plan was made for."""
    latest_us, domain = -1, -1
    for unit, report in zip(units, reports, strict=True):
        latest_us = max(latest_us, report.last_us) if layout.domain[unit.number] == domain else report.last_us
        domain = int(layout.domain[unit.number])
        rows = int(layout.rows[unit.number])
        if report.receipts != rows:
            raise _changed(unit.name, f"{report.receipts:,} receipts, not {rows:,}")
        if set(names_of([report], key).values()) - {layout.domains[domain]}:
            raise _changed(unit.name, "receipts of another domain")
        if latest_us != layout.latest_us[unit.number]:
            raise _changed(unit.name, "receipts of other times")
    if splits_a_queue(names_of(reports, key)) != layout.splits_a_queue:
        raise _changed(os.path.commonpath([unit.name for unit in units]), "queues read in other domains")


def _changed(place: str, what: str) -> LogFormatError:
    return LogFormatError(place, f"{what}: it isn't what the compacted log's manifest tells of", hint=COMPACT_AGAIN)
