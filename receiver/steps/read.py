"""Each unit read: its rows checked by the log's own readers, its ids made digests.

In: a `Unit`. Out: its `Piece`s in order, and one `UnitReport`, which says what is wrong with the unit instead of failing. So
`reports` raises the first error in the order of the log, as one process that reads it would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from receiver.errors import LogFormatError
from receiver.logs import LogBatch, ReadOptions, StatusLine, optional_columns
from receiver.logs.columns import TimeUnit
from receiver.logs.files import LogFile, open_log
from receiver.logs.parquet import RowGroups, group_sizes, read_parquet
from receiver.logs.remote import is_url
from receiver.simulate.numbering import (
    Channels,
    Texts,
    digest_hashes,
    distinct,
    longest_delivery_us,
    plain_text,
)
from receiver.steps.arrow_rows import Row, stable_order
from receiver.steps.digests import digests_of
from receiver.steps.schemas import Piece, Unit, UnitReport, part_lists

if TYPE_CHECKING:
    import numpy.typing as npt

SAMPLE_ROWS = 8_192
"""One receipt in so many of a channel shows the plan where it comes in the order: chunks come out about so exact."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How units are read."""

    options: ReadOptions
    """Checked ones."""
    digest_key: bytes
    with_ids: bool = False
    """Whether the texts of ids are kept too."""
    sample_rows: int = SAMPLE_ROWS


def reading(how: Reading) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """For `RowFlow.map`: each `Unit` becomes `Piece`s and one `UnitReport`."""

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            unit = row.value
            for value in pieces_of(unit.number, read_unit(unit, how.options), how):
                yield Row(unit.number, value)

    return work


def renumbered(numbers: dict[int, int]) -> Callable[[Row], Row]:
    """Gives pieces other units: where units are numbered as they are read, their order is known at the end."""
    return lambda row: Row(row.key, replace(row.value, unit=numbers[row.value.unit]))


def pieces_of(
    unit: int,
    batches: Iterator[LogBatch],
    how: Reading,
    carry: Callable[[Piece, LogBatch], Any] = lambda piece, _batch: piece,
) -> Iterator[Any]:
    """The pieces of a unit in order, then its report. The report says what is wrong with the unit.

    `carry` may make of a piece something that holds more of its batch.
    """
    counts = _UnitCounts(unit, how)
    problem = None
    try:
        for batch in batches:
            piece = counts.add(batch)
            if piece is not None:
                yield carry(piece, batch)
    except LogFormatError as error:
        problem = error
    yield counts.report(problem)


@dataclass(slots=True)
class _UnitCounts:
    """What is known of a unit so far."""

    unit: int
    how: Reading
    receipts: int = 0
    unchecked: int = 0
    skipped: int = 0
    redelivered: int = 0
    max_delivery_us: int = 0
    first_us: int = -1
    latest_us: int = -1
    time_unit: TimeUnit | None = None
    columns_present: set[str] = field(default_factory=set)
    status_lines: list[StatusLine] = field(default_factory=list)
    channels: Channels = field(default_factory=Channels)
    by_channel: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    samples: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    sources: set[tuple[str, int]] = field(default_factory=set)
    """With the channel that each sent to."""

    def add(self, batch: LogBatch) -> Piece | None:
        """Count a batch, and give its receipts if there are any."""
        self.skipped += batch.skipped
        self.status_lines += batch.status_lines
        self.columns_present |= optional_columns(batch)
        self.time_unit = batch.time_unit
        if not len(batch):
            return None
        channel = self.channels.column(batch)
        piece = self._piece(batch, channel)
        running = np.maximum.accumulate(np.maximum(batch.received_at_us, self.latest_us))
        self._sample(channel, running)
        first_us = int(batch.received_at_us.min())
        self.first_us = first_us if self.first_us < 0 else min(self.first_us, first_us)
        self.latest_us = int(running[-1])
        self.receipts += len(batch)
        self.unchecked += int(np.count_nonzero((piece.id_high == 0) & (piece.id_low == 0)))
        self.redelivered += len(piece.redelivered_row)
        self.max_delivery_us = max(self.max_delivery_us, longest_delivery_us(batch))
        return piece

    def _piece(self, batch: LogBatch, channel: npt.NDArray[np.int32]) -> Piece:
        sources = Texts()
        source = sources.column(batch.message_source_id, len(batch))
        used, of_used = distinct(channel)
        channels = [self.channels.names[number] for number in used.tolist()]
        pairs, _ = distinct(source.astype(np.int64) * len(used) + of_used)
        self.sources |= {(sources.names[pair // len(used)], int(used[pair % len(used)])) for pair in pairs.tolist()}
        ids = plain_text(batch.unique_message_id)
        id_high, id_low = digests_of(ids, self.how.digest_key)
        return Piece(
            unit=self.unit,
            first_row=self.receipts,
            latest_us=self.latest_us,
            received_at_us=batch.received_at_us,
            id_high=id_high,
            id_low=id_low,
            unique_message_id=ids if self.how.with_ids else ids[:0],
            source=source,
            sources=sources.names,
            channel=of_used if len(used) > 1 else of_used[:0],
            **part_lists(channels),
            redelivered_row=np.flatnonzero(() if batch.jms_redelivered is None else batch.jms_redelivered).astype(
                np.int32
            ),
            digest_hash=np.zeros(0, np.uint64) if batch.body_digest is None else digest_hashes(batch.body_digest),
            row_id=np.zeros(0, np.int64),
        )

    def _sample(self, channel: npt.NDArray[np.int32], running: npt.NDArray[np.int64]) -> None:
        counts = np.bincount(channel, minlength=len(self.channels.names))
        seen = np.zeros(len(counts), np.int64)
        seen[: len(self.by_channel)] = self.by_channel
        order = stable_order(channel)
        # Of the n-th receipt in this order, the number among all of its channel.
        number = np.arange(len(channel)) + np.repeat(seen - (np.cumsum(counts) - counts), counts)
        rows = order[number % self.how.sample_rows == 0]
        self.samples.append((channel[rows], running[rows], rows + self.receipts))
        self.by_channel = seen + counts

    def report(self, problem: LogFormatError | None) -> UnitReport:
        sources = sorted(self.sources)
        channel, latest_us, row = (np.concatenate(column) for column in zip(_NO_SAMPLE, *self.samples, strict=True))
        return UnitReport(
            unit=self.unit,
            file="",
            first_row=-1,
            last_row=-1,
            receipts=self.receipts,
            unchecked=self.unchecked,
            skipped=self.skipped,
            redelivered=self.redelivered,
            max_delivery_us=self.max_delivery_us,
            first_us=self.first_us,
            last_us=self.latest_us,
            time_unit=self.time_unit.unit if self.time_unit else "",
            time_unit_line=self.time_unit.line if self.time_unit else 0,
            columns_present=sorted(self.columns_present),
            **part_lists(self.channels.names),
            receipts_by_channel=self.by_channel,
            sources=[source for source, _ in sources],
            sources_channel=np.array([channel for _, channel in sources], np.int32),
            samples_channel=channel,
            samples_latest_us=latest_us,
            samples_row=row,
            status_at_us=np.array([line.logged_at_us for line in self.status_lines], np.int64),
            status_values=[json.dumps(line.values) for line in self.status_lines],
            problem_location=problem.location if problem else "",
            problem=problem.problem if problem else "",
            problem_hint=(problem.hint or "") if problem else "",
        )


_NO_SAMPLE = (np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))


def units_of(files: Sequence[LogFile], *, rows_per_unit: int | None) -> list[Unit]:
    """The units of files that each task can open, in order; whole files where `rows_per_unit` is None.

    Nothing is read but the footers of Parquet files that may be cut.
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


def _runs(path: Path | None, rows_per_unit: int | None) -> list[RowGroups]:
    """Runs of row groups; one without groups stands for a whole file."""
    whole = [RowGroups(0, 0, 0)]
    if rows_per_unit is None or path is None:
        return whole
    sizes = group_sizes(path)
    before = list(accumulate(sizes, initial=0))
    together = [list(run) for _, run in groupby(range(len(sizes)), lambda group: before[group] // rows_per_unit)]
    return [RowGroups(run[0], len(run), before[run[0]]) for run in together] if len(together) > 1 else whole


def read_unit(unit: Unit, options: ReadOptions) -> Iterator[LogBatch]:
    """The receipts of a unit, or `LogFormatError`."""
    path = os.fsdecode(unit.path)
    url = path if is_url(path) else None
    file = LogFile(None if url else Path(path), unit.name, 0, url=url)  # a size is for showing progress only
    with open_log(file, options) as (source, reader):
        if unit.groups:
            yield from read_parquet(source, options, RowGroups(unit.first_group, unit.groups, unit.first_row))
        else:
            yield from reader(source, options)
