"""How a log is cut up: its domains, the receipts at which their chunks begin, and which chunks share a task.

`plan_of`: in, the `UnitReport`s with their samples of receipts; out, the `CutPlan`. `cut_ids` and `cut_receipts`: in, each
`Piece`; out, its `Ids` for the partitions of their digests, and its `TaskReceipts` for the tasks of their chunks. A cut is a
place in the order of the log. So each receipt is in exactly one chunk, however inexact the samples are: they only decide how
large chunks come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.domains import Channel, DomainKey, domain_key
from receiver.simulate.numbering import distinct
from receiver.simulate.shares import parted_queues
from receiver.steps.arrow_rows import Row, changes, order_unless_sorted, runs, used
from receiver.steps.reports import carry_us_of, names_of
from receiver.steps.schemas import CutPlan, Ids, Latest, Piece, TaskReceipts, Unit, UnitReport, channel_of, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt

_BEFORE_EVERYTHING = -1


class _Samples(NamedTuple):
    """Some receipts of one domain, in order, by which it may be cut."""

    key_us: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    receipts: npt.NDArray[np.float64]
    """How many, about, each stands for."""


class _Chunk(NamedTuple):
    domain: int
    key_us: int
    unit: int
    row: int
    receipts: float


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

    `chunks_per_domain` forces their number, as far as samples allow; `keeps_rows` is for verdicts.
    """
    channels = [channels_of(report) for report in reports]
    name_of = names_of(reports, key)
    domains = sorted(set(name_of.values()))
    number = {name: index for index, name in enumerate(domains)}
    domain_of = [np.array([number[name_of[channel]] for channel in each], np.int64) for each in channels]
    carry_us = carry_us_of(reports, units)
    chunks = [
        chunk
        for domain, samples in enumerate(_samples(reports, domain_of, carry_us, len(domains)))
        for chunk in _cut(domain, samples, chunks_per_domain or -(-round(samples.receipts.sum()) // chunk_rows))
    ]
    chunk_domain = np.array([chunk.domain for chunk in chunks], np.int32)
    receipts = sum(report.receipts for report in reports)
    looks_across_domains = splits_a_queue(name_of)
    return CutPlan(
        key=key.text,
        domains=domains,
        carry_us=carry_us,
        chunk_domain=chunk_domain,
        chunk_task=tasks_of([chunk.receipts for chunk in chunks], chunk_rows),
        cut_key_us=np.array([chunk.key_us for chunk in chunks], np.int64),
        cut_unit=np.array([chunk.unit for chunk in chunks], np.int32),
        cut_row=np.array([chunk.row for chunk in chunks], np.int64),
        partitions=max(cores, -(-receipts // partition_rows)),
        unit_number=np.cumsum([0, *(report.receipts for report in reports)], dtype=np.int64),
        keeps_rows=keeps_rows,
        is_whole=(np.bincount(chunk_domain, minlength=len(domains)) == 1) & (not looks_across_domains),
        looks_across_domains=looks_across_domains,
    )


def splits_a_queue(name_of: dict[Channel, str]) -> bool:
    """Whether at least one queue is read in several domains, so that a repeat may hide from all of them."""
    return bool((parted_queues(name_of.keys(), name_of.values()) >= 0).any())


def _samples(
    reports: Sequence[UnitReport],
    domain_of: Sequence[npt.NDArray[np.int64]],
    carry_us: npt.NDArray[np.int64],
    domains: int,
) -> Iterable[_Samples]:
    """The samples of each domain."""
    domain, key_us, unit, row, receipts = (
        np.concatenate(column)
        for column in zip(
            *(
                (
                    of_channel[report.samples_channel],
                    np.maximum(report.samples_latest_us, carry_us[report.unit]),
                    np.full(len(report.samples_row), report.unit, np.int32),
                    report.samples_row,
                    _receipts_per_sample(report),
                )
                for report, of_channel in zip(reports, domain_of, strict=True)
            ),
            strict=True,
        )
    )
    order = np.lexsort((row, unit, key_us, domain))
    ends = np.searchsorted(domain[order], np.arange(domains), side="right").tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        rows = order[start:end]
        yield _Samples(key_us[rows], unit[rows], row[rows], receipts[rows])


def _receipts_per_sample(report: UnitReport) -> npt.NDArray[np.float64]:
    """A channel's receipts, dealt evenly to its samples."""
    samples = np.bincount(report.samples_channel, minlength=len(report.receipts_by_channel))
    each: npt.NDArray[np.float64] = (report.receipts_by_channel / samples)[report.samples_channel]
    return each


def _cut(domain: int, samples: _Samples, wanted: int) -> list[_Chunk]:
    """At most so many chunks of about the same number of receipts; the first begins before everything."""
    ends = np.cumsum(samples.receipts)
    before = ends - samples.receipts
    total = float(ends[-1])
    near = np.searchsorted(before, total * np.arange(1, wanted) / wanted - 0.5)  # half a receipt, for rounding
    cuts = np.unique(near[(near > 0) & (near < len(before))])
    sizes = np.diff(before[cuts], prepend=0, append=total).tolist()
    first = _Chunk(domain, _BEFORE_EVERYTHING, 0, 0, sizes[0])
    return [first] + [
        _Chunk(domain, int(samples.key_us[cut]), int(samples.unit[cut]), int(samples.row[cut]), size)
        for cut, size in zip(cuts.tolist(), sizes[1:], strict=True)
    ]


def tasks_of(sizes: Sequence[float], most: int) -> npt.NDArray[np.int32]:
    """Chunks that follow each other are worked on together as long as they hold no more than so many receipts."""
    task_of = np.zeros(len(sizes), np.int32)
    task, held = 0, 0.0
    for chunk, size in enumerate(sizes):
        if held and held + size > most:
            task, held = task + 1, 0.0
        held += size
        task_of[chunk] = task
    return task_of


def latest_before_us(plan: CutPlan, latest: Sequence[Latest]) -> npt.NDArray[np.int64]:
    """Per chunk, the largest time of the receipts with an id in its domain's earlier chunks, -1 if none."""
    latest_us = np.full(plan.chunks, -1, np.int64)
    for each in latest:
        latest_us[each.chunk] = np.maximum(latest_us[each.chunk], each.latest_us)
    before_us = np.full(plan.chunks, -1, np.int64)
    for domain in range(len(plan.domains)):
        chunks = plan.of_domain(domain)
        before_us[chunks.start + 1 : chunks.stop] = np.maximum.accumulate(latest_us[chunks.start : chunks.stop - 1])
    return before_us


_Number = TypeVar("_Number", bound=np.generic)


def cut_ids(plan: CutPlan) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """For `RowFlow.map`: each `Piece` becomes `Ids`, one for each partition, and `Latest`."""
    return partial(_cut_pieces, plan, _ids)


def cut_receipts(plan: CutPlan) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """For `RowFlow.map`: each `Piece` becomes `TaskReceipts`, one for each task."""
    return partial(_cut_pieces, plan, _task_receipts)


class _Cuts(NamedTuple):
    """Where chunks begin that aren't the first of their domain."""

    chunk: npt.NDArray[np.int64]
    key_us: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]

    def positions(self, piece: Piece, key_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many receipts of a piece come before each."""
        own = np.clip(self.row - piece.first_row, 0, len(key_us))
        others = np.where(
            self.unit > piece.unit,
            np.searchsorted(key_us, self.key_us, side="right"),
            np.searchsorted(key_us, self.key_us, side="left"),
        )
        return np.where(self.unit == piece.unit, own, others)


def _chunks_of_pieces(
    plan: CutPlan,
) -> Callable[[Piece], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """Tells of each receipt of a piece its key and its chunk."""
    name = domain_key(plan.key).name
    numbers = {domain: number for number, domain in enumerate(plan.domains)}
    later = np.flatnonzero(plan.cut_key_us >= 0)
    cuts = _Cuts(later, plan.cut_key_us[later], plan.cut_unit[later], plan.cut_row[later])

    def of_piece(piece: Piece) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        domains = np.array([numbers[name(channel)] for channel in channels_of(piece)], np.int64)
        key_us = keys_us(plan, piece)
        return key_us, _chunks(plan, cuts, domains[channel_of(piece)], cuts.positions(piece, key_us))

    return of_piece


def keys_us(plan: CutPlan, piece: Piece) -> npt.NDArray[np.int64]:
    """Of each receipt of a piece, the largest time of its file up to it."""
    latest_us = max(piece.latest_us, int(plan.carry_us[piece.unit]))
    keys: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(piece.received_at_us, latest_us))
    return keys


def _chunks(
    plan: CutPlan, cuts: _Cuts, domain: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """The chunk of each receipt of a piece, by its domain and the cuts that the piece lies behind."""
    passed = np.bincount(plan.chunk_domain[cuts.chunk[positions == 0]], minlength=len(plan.domains))
    first = np.searchsorted(plan.chunk_domain, np.arange(len(plan.domains)))
    chunk: npt.NDArray[np.int32] = (first + passed).astype(np.int32)[domain]
    for within in np.flatnonzero((positions > 0) & (positions < len(domain))).tolist():
        position = positions[within]
        chunk[position:] += domain[position:] == plan.chunk_domain[cuts.chunk[within]]
    return chunk


_Cutter = Callable[[CutPlan, Piece, "npt.NDArray[np.int64]", "npt.NDArray[np.int32]"], Iterable[Row]]


def _cut_pieces(plan: CutPlan, cutter: _Cutter, rows: Iterator[Row]) -> Iterator[Row]:
    of_piece = _chunks_of_pieces(plan)
    for row in rows:
        yield from cutter(plan, row.value, *of_piece(row.value))


class _Group(NamedTuple):
    """The receipts of a piece that go to one task: as they stand, but that those of one chunk stand together."""

    key: int
    chunk: npt.NDArray[np.int32]
    chunk_end: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | slice

    def of(self, column: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """These receipts of a column; none of one that isn't there."""
        return column[self.rows] if len(column) else column


def _groups(key: npt.NDArray[np.int32], chunk: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> Iterator[_Group]:
    """`key` and `chunk` are those of `rows`."""
    chunks, at = distinct(chunk)
    keys, to = distinct(key)
    order = order_unless_sorted(to.astype(np.int64) * len(chunks) + at)
    if order is not None:
        at, to, rows = at[order], to[order], rows[order]
    for first, end in runs(changes(to)):
        begins = np.flatnonzero(changes(at[first:end]))
        in_row = rows[end - 1] - rows[first] == end - 1 - first and order is None
        yield _Group(
            int(keys[to[first]]),
            chunks[at[first:end][begins]].astype(np.int32),
            np.append(begins[1:], end - first),
            slice(int(rows[first]), int(rows[end - 1]) + 1) if in_row else rows[first:end],
        )


def _ids(plan: CutPlan, piece: Piece, key_us: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]) -> Iterator[Row]:
    rows = np.flatnonzero(piece.id_high | piece.id_low)
    latest_us = np.full(plan.chunks, -1, np.int64)
    np.maximum.at(latest_us, chunk[rows], piece.received_at_us[rows])
    chunks = np.flatnonzero(latest_us >= 0)
    yield Row(piece.unit % plan.partitions, Latest(chunks.astype(np.int32), latest_us[chunks]))
    partition = _partitions(plan, chunk[rows], piece.id_low[rows])
    unit_row = (piece.first_row + np.arange(len(chunk))).astype(np.int32)
    channels_of_rows = channel_of(piece) if plan.looks_across_domains else piece.channel[:0]
    for group in _groups(partition, chunk[rows], rows):
        source, sources = used(group.of(piece.source), piece.sources)
        channel, channels = used(
            group.of(channels_of_rows),
            list(zip(piece.connections, piece.destinations, strict=True)),
        )
        yield Row(
            group.key,
            Ids(
                unit=piece.unit,
                chunk=group.chunk,
                chunk_end=group.chunk_end,
                unit_row=group.of(unit_row),
                key_us=group.of(key_us),
                id_high=group.of(piece.id_high),
                id_low=group.of(piece.id_low),
                source=source,
                sources=sources,
                digest_hash=group.of(piece.digest_hash),
                channel=channel,
                connections=[connection for connection, _ in channels],
                destinations=[destination for _, destination in channels],
            ),
        )


def _partitions(plan: CutPlan, chunk: npt.NDArray[np.int32], id_low: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The partition that each id goes to: equal ids of a domain go to the same one.

    Where only ids of one domain are compared, all ids of a small domain go to one partition. Otherwise each of many small
    domains would be torn into as many rows as it has ids.
    """
    partitions = (id_low.view(np.uint64) % np.uint64(plan.partitions)).astype(np.int32)
    if not plan.is_whole.any():
        return partitions
    domain = plan.chunk_domain[chunk]
    return np.where(plan.is_whole[domain], domain % plan.partitions, partitions).astype(np.int32)


def _task_receipts(
    plan: CutPlan, piece: Piece, key_us: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]
) -> Iterator[Row]:
    clock_steps_back = not np.array_equal(key_us, piece.received_at_us)
    unit_row = (piece.first_row + np.arange(len(chunk))).astype(np.int32)
    has_id = (piece.id_high | piece.id_low) != 0
    redelivered = np.zeros(len(chunk), np.bool_)
    redelivered[piece.redelivered_row] = True
    for group in _groups(plan.chunk_task[chunk], chunk, np.arange(len(chunk))):
        source, sources = used(group.of(piece.source), piece.sources)
        numbers = group.of(unit_row)
        yield Row(
            group.key,
            TaskReceipts(
                unit=piece.unit,
                chunk=group.chunk,
                chunk_end=group.chunk_end,
                first_row=int(numbers[0]),
                unit_row=numbers[:0] if isinstance(group.rows, slice) else numbers,
                received_at_us=group.of(piece.received_at_us),
                key_us=group.of(key_us) if clock_steps_back else key_us[:0],
                source=source,
                sources=sources,
                redelivered_row=np.flatnonzero(group.of(redelivered)).astype(np.int32),
                row_id=group.of(piece.row_id),
                unchecked_row=np.flatnonzero(~group.of(has_id)).astype(np.int32),
            ),
        )
