"""What one task reads: a file, or some row groups of a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path

from receiver.chunks.parcels import Parcel, parcel_of
from receiver.chunks.values import Unit
from receiver.logs import Batch, ReadOptions
from receiver.logs.files import LogFile, open_log
from receiver.logs.parquet import RowGroups, group_sizes, read_parquet

__all__ = ["parcels_of", "read_unit", "units_of"]


def units_of(files: Sequence[LogFile], *, rows_per_unit: int | None) -> list[Unit]:
    """The units of files that each task can open, in order; whole files where `rows_per_unit` is None.

    Nothing is read but the footers of Parquet files that may be cut.
    """
    units: list[Unit] = []
    place = -1
    for file in files:
        place += not file.follows
        assert file.path is not None  # noqa: S101 - standard input can't be read by many
        path = os.fsencode(file.path.absolute())
        units += [
            Unit(len(units) + number, place, path, file.name, run.first, run.groups, run.rows_before)
            for number, run in enumerate(_runs(file.path, rows_per_unit))
        ]
    return units


def _runs(path: Path, rows_per_unit: int | None) -> list[RowGroups]:
    """Runs of row groups; one without groups stands for a whole file."""
    whole = [RowGroups(0, 0, 0)]
    if rows_per_unit is None:
        return whole
    sizes = group_sizes(path)
    before = list(accumulate(sizes, initial=0))
    together = [list(run) for _, run in groupby(range(len(sizes)), lambda group: before[group] // rows_per_unit)]
    return [RowGroups(run[0], len(run), before[run[0]]) for run in together] if len(together) > 1 else whole


def parcels_of(units: Iterable[Unit]) -> list[Parcel]:
    """Units on their way to the tasks that read them."""
    return [parcel_of(unit.number, unit) for unit in units]


def read_unit(unit: Unit, options: ReadOptions) -> Iterator[Batch]:
    """The receipts of a unit, or `LogFormatError`."""
    file = LogFile(Path(os.fsdecode(unit.path)), unit.name, 0)  # a size is for showing progress only
    with open_log(file, options) as (source, reader):
        if unit.groups:
            yield from read_parquet(source, options, RowGroups(unit.first_group, unit.groups, unit.first_row))
        else:
            yield from reader(source, options)
