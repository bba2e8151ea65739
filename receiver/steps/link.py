"""Finds the receipts that repeat an id of their domain, and the receipts of a chunk to which later chunks refer.

In: every `Piece`, whose `Ids` go to the partitions of their digests. Out: the `Links` of each chunk; `Latest` and `IdCounts` for
the driver. A partition has all receipts of its ids, of all domains and chunks. A receipt is a duplicate exactly if its id came
before in its domain, and is replaced exactly if its source sends the id again. So a partition alone can tell both.

A later chunk that has the id refers to the newest receipt of each source before it. So the chunks that refer to a
receipt are all later ones with its id, up to the one in which it is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.domains import Channel
from receiver.simulate.compiled import Flags, Int32s, Int64s
from receiver.simulate.shares import IdCounts, cross_domain_counts, queues_of
from receiver.steps.arrow_rows import Row, RowFlow, changes, column, in_one, joined, split_by, used, values_in
from receiver.steps.digests import numbered
from receiver.steps.plan import CutPiece, CutPlan, cut_pieces, grouped_by
from receiver.steps.schemas import NEVER, Ids, Latest, Links, channel_column, channels_of, parts_of

if TYPE_CHECKING:
    import numpy.typing as npt


def link(pieces: RowFlow, plan: CutPlan) -> tuple[RowFlow, Int64s, list[IdCounts]]:
    """Kept `Links`; for each chunk the latest time of its domain before it, or -1; and the counts of ids."""
    links = cut_ids(pieces, plan).grouped(partial(link_partition, plan), plan.partitions, Links, Latest, IdCounts)
    kept, (latest, id_counts) = links.kept("Linking ids", Latest, IdCounts)
    return kept.only(Links), _latest_before_us(plan, latest), id_counts


def _latest_before_us(plan: CutPlan, latest: Sequence[Latest]) -> Int64s:
    """For each chunk, the largest time of receipts with an id in its domain's earlier chunks, or -1."""
    latest_us = np.full(plan.chunks, -1, np.int64)
    for each in latest:
        latest_us[each.chunk] = np.maximum(latest_us[each.chunk], each.latest_us)
    before_us = np.full(plan.chunks, -1, np.int64)
    for domain in range(len(plan.domains)):
        chunks = plan.of_domain(domain)
        before_us[chunks.start + 1 : chunks.stop] = np.maximum.accumulate(latest_us[chunks.start : chunks.stop - 1])
    return before_us


def cut_ids(pieces: RowFlow, plan: CutPlan) -> RowFlow:
    """`Ids` with the key of their partition, and `Latest`, which may go to any."""

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        for cut in cut_pieces(plan, rows):
            checked = np.flatnonzero(cut.piece.id_high | cut.piece.id_low)
            yield Row(cut.piece.unit % plan.partitions, _latest(plan, cut, checked))
            yield from _ids(plan, cut, checked)

    return pieces.map(work, Ids, Latest)


def _latest(plan: CutPlan, cut: CutPiece, checked: npt.NDArray[np.intp]) -> Latest:
    latest_us = np.full(plan.chunks, -1, np.int64)
    np.maximum.at(latest_us, cut.chunk[checked], cut.piece.received_at_us[checked])
    chunks = np.flatnonzero(latest_us >= 0)
    return Latest(chunks.astype(np.int32), latest_us[chunks])


def _ids(plan: CutPlan, cut: CutPiece, checked: npt.NDArray[np.intp]) -> Iterator[Row]:
    piece, chunk = cut.piece, cut.chunk[checked]
    unit_row, piece_channels = cut.unit_row, channels_of(piece)
    piece_channel = channel_column(piece) if plan.looks_across_domains else piece.channel[:0]
    for group in grouped_by(_partitions(plan, chunk, piece.id_low[checked]), chunk, checked):
        source, sources = used(group.of(piece.source), piece.sources)
        channel, channels = used(group.of(piece_channel), piece_channels)
        ids = Ids(
            unit=piece.unit,
            chunk=group.chunk,
            chunk_end=group.chunk_end,
            unit_row=group.of(unit_row),
            key_us=group.of(cut.key_us),
            id_high=group.of(piece.id_high),
            id_low=group.of(piece.id_low),
            source=source,
            sources=sources,
            digest_hash=group.of(piece.digest_hash),
            channel=channel,
            channels=parts_of(channels),
        )
        yield Row(group.key, ids)


def _partitions(plan: CutPlan, chunk: Int32s, id_low: Int64s) -> Int32s:
    """The partition of each id: equal ids of a domain have the same one.

    If only ids of one domain are compared, all ids of a small domain go to one partition. Otherwise each of many small domains
    would be split into as many rows as it has ids.
    """
    partitions = (id_low.view(np.uint64) % np.uint64(plan.partitions)).astype(np.int32)
    if not plan.is_whole.any():
        return partitions
    domain = plan.chunk_domain[chunk]
    return np.where(plan.is_whole[domain], domain % plan.partitions, partitions).astype(np.int32)


def link_partition(plan: CutPlan, partition: int, rows: Iterator[Row]) -> Iterator[Row]:
    """`Ids` of all receipts of the partition's ids -> `Links`, one `IdCounts`; `Latest` is passed on."""
    ids, latest = values_in(rows, Ids, Latest)
    yield from (Row(0, each) for each in latest)
    recurring, channels = _recurring(ids)
    runs = _runs(plan, recurring)
    yield from _links(plan, partition, runs)
    yield Row(0, _counts(runs, _cross_domain(runs, channels) if plan.looks_across_domains else {}))


class _Recurring(NamedTuple):
    """Receipts whose id comes more than once, in any domains: in most logs they are few, and links need no others."""

    id: Int32s
    """Numbered in the partition."""
    chunk: Int32s
    key_us: Int64s
    unit: Int32s
    unit_row: Int32s
    source: Int32s
    digest_hash: npt.NDArray[np.uint64]
    """0 for a missing digest."""
    channel: Int32s
    """Empty unless the plan looks across domains."""

    def taken(self, rows: npt.NDArray[np.intp]) -> _Recurring:
        return _Recurring._make(values[rows] if len(values) else values for values in self)


def _recurring(ids: Sequence[Ids]) -> tuple[_Recurring, list[Channel]]:
    """The recurring receipts of these ids, and the channels for their numbers."""
    number, count = numbered(*(column(ids, half, np.int64) for half in ("id_high", "id_low")))
    comes_again = np.bincount(number, minlength=count) > 1
    ends = np.cumsum([len(each.unit_row) for each in ids]).tolist()
    numbers = [number[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    rows = [(each, np.flatnonzero(comes_again[own])) for each, own in zip(ids, numbers, strict=True)]
    chunk = (each.chunk[np.searchsorted(each.chunk_end, here, side="right")] for each, here in rows)
    digests = (each.digest_hash if len(each.digest_hash) else np.zeros(len(each.unit_row), np.uint64) for each in ids)
    channel, channels = in_one(
        used(each.channel[here] if len(each.channel) else each.channel, channels_of(each)) for each, here in rows
    )
    recurring = _Recurring(
        id=joined(np.int32, (own[here] for own, (_, here) in zip(numbers, rows, strict=True))),
        chunk=joined(np.int32, chunk),
        key_us=joined(np.int64, (each.key_us[here] for each, here in rows)),
        unit=joined(np.int32, (np.full(len(here), each.unit, np.int32) for each, here in rows)),
        unit_row=joined(np.int32, (each.unit_row[here] for each, here in rows)),
        source=in_one(used(each.source[here], each.sources) for each, here in rows)[0],
        digest_hash=joined(np.uint64, (all_[here] for all_, (_, here) in zip(digests, rows, strict=True))),
        channel=channel,
    )
    return recurring, channels


class _Runs(NamedTuple):
    """`_Recurring`, ordered by id, domain and receipt. So the receipts of one id and domain are adjacent: a *run*."""

    receipts: _Recurring
    run: npt.NDArray[np.intp]
    first: Flags
    """Whether a run begins here."""
    replaces: Flags
    """As in `Links`."""
    replaced_by: npt.NDArray[np.intp]
    """The row that replaces this one, or -1."""


def _runs(plan: CutPlan, recurring: _Recurring) -> _Runs:
    order = np.lexsort((recurring.unit_row, recurring.unit, recurring.key_us, recurring.chunk, recurring.id))
    receipts = recurring.taken(order)
    # Chunks are numbered domain by domain.
    first = changes(receipts.id) | changes(plan.chunk_domain[receipts.chunk])
    run = np.cumsum(first) - 1
    run_and_source = (run << 32) | receipts.source
    by_source = np.argsort(run_and_source, kind="stable")
    same_source = ~changes(run_and_source[by_source])[1:]
    replaced, replacing = by_source[:-1][same_source], by_source[1:][same_source]
    replaces, replaced_by = np.zeros(len(run), np.bool_), np.full(len(run), -1)
    replaces[replacing] = True
    replaced_by[replaced] = replacing
    return _Runs(receipts, run, first, replaces, replaced_by)


def _links(plan: CutPlan, partition: int, runs: _Runs) -> Iterator[Row]:
    receipts = runs.receipts
    rows = np.flatnonzero(np.bincount(runs.run)[runs.run] > 1)
    next_in = np.where(runs.replaced_by >= 0, receipts.chunk[runs.replaced_by], np.int32(NEVER))
    ref_row, ref_to = _references(runs)
    refs_of = dict(split_by(receipts.chunk[ref_row]))
    for chunk, at in split_by(receipts.chunk[rows]):
        here, refs = rows[at], refs_of.get(chunk, np.empty(0, np.int64))
        links = Links(
            chunk=chunk,
            unit=receipts.unit[here],
            unit_row=receipts.unit_row[here],
            label=runs.run[here] * plan.partitions + partition,
            is_duplicate=~runs.first[here],
            replaces=runs.replaces[here],
            next_in=next_in[here],
            ref_at=np.searchsorted(here, ref_row[refs]).astype(np.int32),
            ref_to=ref_to[refs],
        )
        yield Row(int(plan.chunk_task[chunk]), links)


def _references(runs: _Runs) -> tuple[npt.NDArray[np.intp], Int32s]:
    """The receipts to which later chunks refer, once for each such chunk; and these chunks."""
    chunk = runs.receipts.chunk
    # A stop is a group of adjacent rows of one run in one chunk.
    stops = runs.first | changes(chunk)
    stop = np.cumsum(stops) - 1
    last_stop = stop[np.roll(runs.first, -1)]
    # All stops after a receipt's own refer to it, up to the stop where it is replaced, which may be its own.
    until = np.where(runs.replaced_by >= 0, stop[runs.replaced_by], last_stop[runs.run])
    refs = until - stop
    row = np.repeat(np.arange(len(refs)), refs)
    return row, chunk[stops][stop[row] + _counted_up(refs)]


def _counted_up(lengths: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """1, 2, ... up to each length in turn."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(1, 1 + int(lengths.sum())) - np.repeat(begins, lengths)


def _counts(runs: _Runs, cross_domain: dict[tuple[str, str], int]) -> IdCounts:
    is_duplicate, source = ~runs.first[1:], runs.receipts.source
    now, before = runs.receipts.digest_hash[1:], runs.receipts.digest_hash[:-1]
    reused = is_duplicate & (now != before) & (now != 0) & (before != 0)
    from_other_sources = is_duplicate & (source[1:] != source[:-1])
    most_repeats = int(np.bincount(runs.run).max(initial=1)) - 1
    return IdCounts.of(
        int(np.count_nonzero(reused)), int(np.count_nonzero(from_other_sources)), most_repeats, cross_domain
    )


def _cross_domain(runs: _Runs, channels: Sequence[Channel]) -> dict[tuple[str, str], int]:
    """Counts of repeats that the domain KEY hides: ids of one queue that are new in several domains."""
    receipts = runs.receipts
    queue = queues_of(channel.destination for channel in channels)[receipts.channel]
    in_several = np.bincount(receipts.id[runs.first]) > 1
    rows = np.flatnonzero(in_several[receipts.id] & (queue >= 0))
    order = rows[np.lexsort((receipts.unit_row[rows], receipts.unit[rows], receipts.key_us[rows]))]
    connections = [channel.connection_id for channel in channels]
    return cross_domain_counts(
        queue[order], receipts.id[order], runs.first[order], receipts.channel[order], connections
    )
