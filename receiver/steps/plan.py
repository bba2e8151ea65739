"""Plans how a log is cut up: its domains, the receipts at which their chunks begin, and which chunks share a task.

`plan_of`: in, the `UnitReport`s with their samples of receipts; out, the `CutPlan`. `cut_pieces` finds the chunk of each
receipt of a `Piece`. A cut is a position in the order of the log. So each receipt is in exactly one chunk, however inexact the
samples are: they only decide the sizes of chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.domains import Channel, DomainKey, domain_key
from receiver.simulate.compiled import Flags, Int32s, Int64s
from receiver.simulate.numbering import distinct
from receiver.simulate.shares import parted_queues
from receiver.steps.arrow_rows import Row, changes, order_unless_sorted, runs, split_by
from receiver.steps.schemas import Piece, Unit, UnitReport, channel_column, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt

_BEFORE_EVERYTHING = -1


@dataclass(frozen=True, slots=True)
class CutPlan:
    """How the log is cut up. Receipts are ordered by (key, unit, row in unit). A receipt's key is the largest time of its file
    up to it.
    """

    key: str
    """The domain KEY."""
    domains: list[str]
    """Ordered by name."""
    carry_us: Int64s
    """For each unit, the largest time of its file before it, or -1."""
    chunk_domain: Int32s
    """Chunk -> domain. Chunks are numbered domain by domain, in order of receipt."""
    chunk_task: Int32s
    """Chunk -> the number of the task that works on it."""
    cut_key_us: Int64s
    """Chunk -> the receipt at which it begins, in three columns; a domain's first chunk begins before everything."""
    cut_unit: Int32s
    cut_row: Int64s
    partitions: int
    """The number of partitions of the ids."""
    unit_number: Int64s
    """Unit -> the number of its first receipt in the order of reading."""
    keeps_rows: bool
    """Whether each receipt keeps its number, because verdicts are asked for."""
    is_whole: Flags
    """For each domain, whether it is so small that all of its ids go to one partition."""
    looks_across_domains: bool
    """Whether ids of one queue may hide in several domains."""

    @property
    def chunks(self) -> int:
        return len(self.chunk_domain)

    @property
    def tasks(self) -> int:
        return int(self.chunk_task.max(initial=-1)) + 1

    @property
    def first_chunk(self) -> Int32s:
        """Chunk -> the first chunk of its domain."""
        return np.searchsorted(self.chunk_domain, self.chunk_domain).astype(np.int32)

    def of_domain(self, domain: int) -> range:
        first, last = np.searchsorted(self.chunk_domain, [domain, domain + 1])
        return range(int(first), int(last))


class _Places(NamedTuple):
    """Some receipts of one domain, in order: samples, or those at which its chunks begin."""

    key_us: Int64s
    unit: Int32s
    row: Int64s
    receipts: npt.NDArray[np.float64]
    """About how many receipts each of them stands for."""


def plan_of(
    reports: Sequence[UnitReport],
    units: Sequence[Unit],
    key: DomainKey,
    *,
    chunk_rows: int,
    partition_rows: int,
    cores: int = 1,
    chunks_per_domain: int | None = None,
    keeps_rows: bool = False,
) -> CutPlan:
    """Cut a log into chunks, chunks into tasks of about `chunk_rows` receipts, and ids into partitions of about
    `partition_rows`, at least one for each of the `cores`.

    `chunks_per_domain` forces the number of chunks, as far as samples allow; `keeps_rows` is for verdicts.
    """
    channels = [channels_of(report) for report in reports]
    name_of = names_of(reports, key)
    domains = sorted(set(name_of.values()))
    number = {name: index for index, name in enumerate(domains)}
    domain_of = [np.array([number[name_of[channel]] for channel in each], np.int64) for each in channels]
    carry_us = carry_us_of(reports, units)
    chunks = [
        _chunks_by(samples, chunks_per_domain or -(-round(samples.receipts.sum()) // chunk_rows))
        for samples in _samples(reports, domain_of, carry_us)
    ]
    key_us, unit, row, sizes = (np.concatenate(column) for column in zip(*chunks, strict=True))
    chunk_domain = np.repeat(np.arange(len(domains), dtype=np.int32), [len(own.row) for own in chunks])
    receipts = sum(report.receipts for report in reports)
    looks_across_domains = bool((parted_queues(name_of.keys(), name_of.values()) >= 0).any())
    return CutPlan(
        key=key.text,
        domains=domains,
        carry_us=carry_us,
        chunk_domain=chunk_domain,
        chunk_task=_tasks_of(sizes.tolist(), chunk_rows),
        cut_key_us=key_us,
        cut_unit=unit,
        cut_row=row,
        partitions=max(cores, -(-receipts // partition_rows)),
        unit_number=np.cumsum([0, *(report.receipts for report in reports)], dtype=np.int64),
        keeps_rows=keeps_rows,
        is_whole=(np.bincount(chunk_domain, minlength=len(domains)) == 1) & (not looks_across_domains),
        looks_across_domains=looks_across_domains,
    )


def names_of(reports: Iterable[UnitReport], key: DomainKey) -> dict[Channel, str]:
    """The domain of each channel."""
    channels = {channel for report in reports for channel in channels_of(report)}
    return {channel: key.name(channel) for channel in channels}


def carry_us_of(reports: Sequence[UnitReport], units: Sequence[Unit]) -> Int64s:
    """`CutPlan.carry_us`: for each unit, the largest time of its file before it, or -1."""
    carry_us = np.full(len(units), -1, np.int64)
    for before, unit in pairwise(units):
        if before.file == unit.file:
            carry_us[unit.number] = max(int(carry_us[before.number]), reports[before.number].last_us)
    return carry_us


def _samples(reports: Sequence[UnitReport], domain_of: Sequence[Int64s], carry_us: Int64s) -> Iterable[_Places]:
    """The samples of each domain, in order. Each has one, for the first receipt of a channel is sampled. `domain_of` has the
    domain of each report's channels."""
    pairs = zip(domain_of, reports, strict=True)
    domain = np.concatenate([of_channel[report.samples_channel] for of_channel, report in pairs])
    key_us = np.concatenate([np.maximum(report.samples_latest_us, carry_us[report.unit]) for report in reports])
    unit = np.concatenate([np.full(len(report.samples_row), report.unit, np.int32) for report in reports])
    row = np.concatenate([report.samples_row for report in reports])
    receipts = np.concatenate([_receipts_per_sample(report) for report in reports])
    order = np.lexsort((row, unit, key_us))
    for _, at in split_by(domain[order]):
        yield _Places(*(column[order[at]] for column in (key_us, unit, row, receipts)))


def _receipts_per_sample(report: UnitReport) -> npt.NDArray[np.float64]:
    """For each sample, its equal share of its channel's receipts."""
    samples = np.bincount(report.samples_channel, minlength=len(report.receipts_by_channel))
    each: npt.NDArray[np.float64] = (report.receipts_by_channel / samples)[report.samples_channel]
    return each


def _chunks_by(samples: _Places, wanted: int) -> _Places:
    """The begins of at most `wanted` chunks with about equal numbers of receipts."""
    before = np.cumsum(samples.receipts) - samples.receipts
    total = float(samples.receipts.sum())
    near = np.searchsorted(before, total * np.arange(1, wanted) / wanted - 0.5)  # half a receipt, for rounding
    begins = np.unique([0, *near[near < len(before)]])
    key_us = samples.key_us[begins]
    key_us[0] = _BEFORE_EVERYTHING
    return _Places(key_us, samples.unit[begins], samples.row[begins], np.diff(before[begins], append=total))


def _tasks_of(sizes: Sequence[float], most: int) -> Int32s:
    """The task of each chunk: adjacent chunks share a task while together they have at most `most` receipts."""
    task_of = np.zeros(len(sizes), np.int32)
    task, held = 0, 0.0
    for chunk, size in enumerate(sizes):
        if held and held + size > most:
            task, held = task + 1, 0.0
        held += size
        task_of[chunk] = task
    return task_of


_Number = TypeVar("_Number", bound=np.generic)


class CutPiece(NamedTuple):
    """A piece, with the keys and chunks of its receipts."""

    piece: Piece
    key_us: Int64s
    chunk: Int32s

    @property
    def unit_row(self) -> Int32s:
        return (self.piece.first_row + np.arange(len(self.chunk))).astype(np.int32)


def cut_pieces(plan: CutPlan, rows: Iterable[Row]) -> Iterator[CutPiece]:
    """Each piece with the keys and the chunks of its receipts."""
    name = domain_key(plan.key).name
    numbers = {domain: number for number, domain in enumerate(plan.domains)}
    cuts = np.flatnonzero(plan.cut_key_us >= 0)
    for row in rows:
        piece = row.value
        domains = np.array([numbers[name(channel)] for channel in channels_of(piece)], np.int64)
        key_us = keys_us(plan, piece)
        yield CutPiece(piece, key_us, _chunks(plan, cuts, domains[channel_column(piece)], piece, key_us))


def keys_us(plan: CutPlan, piece: Piece) -> Int64s:
    """The key of each receipt of a piece: the largest time of its file up to it."""
    latest_us = max(piece.latest_us, int(plan.carry_us[piece.unit]))
    keys: Int64s = np.maximum.accumulate(np.maximum(piece.received_at_us, latest_us))
    return keys


def _chunks(plan: CutPlan, cuts: npt.NDArray[np.intp], domain: Int64s, piece: Piece, key_us: Int64s) -> Int32s:
    """The chunk of each receipt of a piece. `cuts` are the chunks that aren't the first of their domain."""
    before = _receipts_before(plan, cuts, piece, key_us)
    # Most cuts lie before the whole piece, or behind it. Each of the few within it is handled separately.
    passed = np.bincount(plan.chunk_domain[cuts[before == 0]], minlength=len(plan.domains))
    first = np.searchsorted(plan.chunk_domain, np.arange(len(plan.domains)))
    chunk: Int32s = (first + passed).astype(np.int32)[domain]
    for within in np.flatnonzero((before > 0) & (before < len(domain))).tolist():
        at = before[within]
        chunk[at:] += domain[at:] == plan.chunk_domain[cuts[within]]
    return chunk


def _receipts_before(plan: CutPlan, cuts: npt.NDArray[np.intp], piece: Piece, key_us: Int64s) -> Int64s:
    """How many receipts of a piece come before each cut: by key, then unit, then row."""
    cut_key_us, cut_unit = plan.cut_key_us[cuts], plan.cut_unit[cuts]
    if_own = np.clip(plan.cut_row[cuts] - piece.first_row, 0, len(key_us))
    if_later = np.searchsorted(key_us, cut_key_us, side="right")
    if_earlier = np.searchsorted(key_us, cut_key_us, side="left")
    before: Int64s = np.where(cut_unit > piece.unit, if_later, if_earlier)
    return np.where(cut_unit == piece.unit, if_own, before)


class _Group(NamedTuple):
    """The receipts of a piece that go to one task or partition: in their order, but grouped by chunk."""

    key: int
    chunk: Int32s
    chunk_end: Int64s
    rows: Int64s | slice

    def of(self, column: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """The values of a column for these receipts; none if the column is empty."""
        return column[self.rows] if len(column) else column


def grouped_by(key: Int32s, chunk: Int32s, rows: Int64s) -> Iterator[_Group]:
    """The receipts at `rows`, grouped by `key`, which is their task or partition."""
    chunks, at = distinct(chunk)
    keys, to = distinct(key)
    order = order_unless_sorted(to.astype(np.int64) * len(chunks) + at)
    if order is not None:
        at, to, rows = at[order], to[order], rows[order]
    for first, end in runs(changes(to)):
        begins = np.flatnonzero(changes(at[first:end]))
        follow_each_other = rows[end - 1] - rows[first] == end - 1 - first and order is None
        yield _Group(
            int(keys[to[first]]),
            chunks[at[first:end][begins]].astype(np.int32),
            np.append(begins[1:], end - first),
            # A slice copies nothing, and most whole pieces go to one task.
            slice(int(rows[first]), int(rows[end - 1]) + 1) if follow_each_other else rows[first:end],
        )
