"""Reads each unit, checks its rows by the log's own readers, and turns its ids into digests.

`reading`: in, a `Unit`; out, its `Piece`s in order, and one `UnitReport`. A `LogFormatError` isn't raised, but is in the report.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from receiver.errors import LogFormatError
from receiver.logs import LogBatch, ReadOptions, StatusLine, optional_columns
from receiver.logs.files import LogFile
from receiver.logs.opening import read_file
from receiver.logs.parquet import RowGroups, group_sizes
from receiver.logs.remote import is_url
from receiver.simulate import numbering
from receiver.simulate.compiled import Int32s, Int64s, check_numbered
from receiver.steps.arrow_rows import Row, stable_order
from receiver.steps.digests import digests_of
from receiver.steps.schemas import Piece, Unit, UnitReport, parts_of

SAMPLE_ROWS = 8_192
"""One receipt in so many of a channel is a sample for the plan. The sizes of chunks are about this exact."""


@dataclass(frozen=True, slots=True)
class Reading:
    options: ReadOptions
    digest_key: bytes
    with_ids: bool = False
    """Whether to keep the texts of ids too."""
    sample_rows: int = SAMPLE_ROWS


def units_of(files: Sequence[LogFile], *, rows_per_unit: int) -> list[Unit]:
    """The units of these files, which every task can open, in order. Units of a Parquet file have about `rows_per_unit` rows.

    Reads only the footers of Parquet files that may be cut.
    """
    units: list[Unit] = []
    file_index = -1
    for file in files:
        file_index += not file.follows
        path = file.url if file.path is None else file.path.absolute()
        assert path is not None  # noqa: S101 - standard input can't be read by many
        units += [
            Unit(len(units) + number, file_index, os.fsencode(path), file.name, run.first, run.groups, run.rows_before)
            for number, run in enumerate(_runs(file.path, rows_per_unit))
        ]
    return units


def _runs(path: Path | None, rows_per_unit: int) -> list[RowGroups]:
    """Runs of row groups. A run without groups stands for a whole file."""
    whole = [RowGroups(0, 0, 0)]
    if path is None:
        return whole
    sizes = group_sizes(path)
    before = list(accumulate(sizes, initial=0))
    together = [list(run) for _, run in groupby(range(len(sizes)), lambda group: before[group] // rows_per_unit)]
    return [RowGroups(run[0], len(run), before[run[0]]) for run in together] if len(together) > 1 else whole


def read_unit(unit: Unit, options: ReadOptions) -> Iterator[LogBatch]:
    """The receipts of a unit, or `LogFormatError`."""
    path = os.fsdecode(unit.path)
    url = path if is_url(path) else None
    file = LogFile(None if url else Path(path), unit.name, 0, url=url)  # the size is only for showing progress
    groups = RowGroups(unit.first_group, unit.groups, unit.first_row) if unit.groups else None
    return read_file(file, options, groups=groups)


def reading(how: Reading, rows: Iterator[Row]) -> Iterator[Row]:
    """Turn each `Unit` into `Piece`s and one `UnitReport`."""
    for row in rows:
        unit = row.value
        for value in pieces_of(unit.number, read_unit(unit, how.options), how):
            yield Row(unit.number, value)


def pieces_of(
    unit: int,
    batches: Iterator[LogBatch],
    how: Reading,
    carry: Callable[[Piece, LogBatch], Any] = lambda piece, _batch: piece,
) -> Iterator[Any]:
    """The pieces of a unit in order, then its report, with the error if the unit has one.

    `carry` may turn a piece into a value with more columns of its batch.
    """
    reader = _UnitReader(unit, how)
    problem = None
    try:
        for batch in batches:
            piece = reader.add(batch)
            if piece is not None:
                yield carry(piece, batch)
    except LogFormatError as error:
        problem = error
    yield reader.report(problem)


class _UnitReader:
    """Turns a unit's batches into pieces, and counts them for the report."""

    def __init__(self, unit: int, how: Reading) -> None:
        self._how = how
        self._report = UnitReport(unit)
        self._columns: set[str] = set()
        self._channels = numbering.Channels()
        self._by_channel = np.zeros(0, np.int64)
        self._sources: set[tuple[str, int]] = set()
        """Pairs of a source and a channel to which it sent."""
        self._samples = [(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))]

    def add(self, batch: LogBatch) -> Piece | None:
        """Count a batch. Returns its receipts, or None without any."""
        report = self._report
        report.skipped += batch.skipped
        report.status_lines += [json.dumps([line.logged_at_us, line.values]) for line in batch.status_lines]
        self._columns |= optional_columns(batch)
        if batch.time_unit is not None:
            report.time_unit, report.time_unit_line = batch.time_unit
        if not len(batch):
            return None
        channel = self._channels.column(batch)
        piece = self._piece(batch, channel)
        running_us = np.maximum.accumulate(np.maximum(batch.received_at_us, report.last_us))
        self._sample(channel, running_us)
        first_us = int(batch.received_at_us.min())
        report.first_us = first_us if report.first_us < 0 else min(report.first_us, first_us)
        report.last_us = int(running_us[-1])
        report.receipts += len(batch)
        check_numbered(report.receipts, "receipts in one file", "cut the file in two, or make a Parquet file of it")
        report.unchecked += int(np.count_nonzero((piece.id_high == 0) & (piece.id_low == 0)))
        report.redelivered += len(piece.redelivered_row)
        report.max_delivery_us = max(report.max_delivery_us, numbering.longest_delivery_us(batch))
        return piece

    def _piece(self, batch: LogBatch, channel: Int32s) -> Piece:
        sources = numbering.Texts()
        source = sources.column(batch.message_source_id, len(batch))
        used, of_used = numbering.distinct(channel)
        pairs, _ = numbering.distinct(source.astype(np.int64) * len(used) + of_used)
        self._sources |= {(sources.names[pair // len(used)], int(used[pair % len(used)])) for pair in pairs.tolist()}
        ids = numbering.plain_text(batch.unique_message_id)
        id_high, id_low = digests_of(ids, self._how.digest_key)
        redelivered = () if batch.jms_redelivered is None else batch.jms_redelivered
        digests = batch.body_digest
        return Piece(
            unit=self._report.unit,
            first_row=self._report.receipts,
            latest_us=self._report.last_us,
            received_at_us=batch.received_at_us,
            id_high=id_high,
            id_low=id_low,
            unique_message_id=ids if self._how.with_ids else ids[:0],
            source=source,
            sources=sources.names,
            channel=of_used if len(used) > 1 else of_used[:0],
            channels=parts_of(self._channels.names[number] for number in used.tolist()),
            redelivered_row=np.flatnonzero(redelivered).astype(np.int32),
            digest_hash=np.zeros(0, np.uint64) if digests is None else numbering.digest_hashes(digests),
            row_id=np.zeros(0, np.int64),
        )

    def _sample(self, channel: Int32s, running_us: Int64s) -> None:
        counts = np.bincount(channel, minlength=len(self._channels.names))
        seen = np.zeros(len(counts), np.int64)
        seen[: len(self._by_channel)] = self._by_channel
        order = stable_order(channel)
        # Each receipt's number within its channel in the unit, from 0.
        number = np.arange(len(channel)) + np.repeat(seen - (np.cumsum(counts) - counts), counts)
        rows = order[number % self._how.sample_rows == 0]
        self._samples.append((channel[rows], running_us[rows], rows + self._report.receipts))
        self._by_channel = seen + counts

    def report(self, problem: LogFormatError | None) -> UnitReport:
        sources = sorted(self._sources)
        channel, latest_us, row = (np.concatenate(column) for column in zip(*self._samples, strict=True))
        return replace(
            self._report,
            columns_present=sorted(self._columns),
            channels=parts_of(self._channels.names),
            receipts_by_channel=self._by_channel,
            sources=[source for source, _ in sources],
            sources_channel=np.array([channel for _, channel in sources], np.int32),
            samples_channel=channel,
            samples_latest_us=latest_us,
            samples_row=row,
            problem=b"" if problem is None else pickle.dumps(problem),
        )


def status_lines_of(reports: Iterable[UnitReport]) -> Iterator[StatusLine]:
    """The status lines in the units, in the order of reading."""
    for report in reports:
        for line in report.status_lines:
            yield StatusLine(*json.loads(line))
