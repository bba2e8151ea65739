"""How a log is cut up: its domains, the receipts at which their chunks begin, and what is worked on together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.domains import Channel, DomainKey
from receiver.simulate.replays import parted_queues, slices_of
from receiver.steps.schemas import CutPlan, Unit, UnitReport, channels_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["names_of", "plan_of"]

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
    tasks: int = 1,
    chunks_per_domain: int | None = None,
    keeps_rows: bool = False,
) -> CutPlan:
    """Cut a log into chunks and bundles of about `chunk_rows` receipts, and its ids into parts of about
    `partition_rows`, at least one for each of `tasks` that run at once.

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
    start_us, slice_us, slices = time_of(reports)
    receipts = sum(report.receipts for report in reports)
    looks_across_domains = splits_a_queue(name_of)
    return CutPlan(
        key=key.text,
        domains=domains,
        carry_us=carry_us,
        chunk_domain=chunk_domain,
        chunk_bundle=bundles_of([chunk.receipts for chunk in chunks], chunk_rows),
        cut_key_us=np.array([chunk.key_us for chunk in chunks], np.int64),
        cut_unit=np.array([chunk.unit for chunk in chunks], np.int32),
        cut_row=np.array([chunk.row for chunk in chunks], np.int64),
        partitions=max(tasks, -(-receipts // partition_rows)),
        unit_number=np.cumsum([0, *(report.receipts for report in reports)], dtype=np.int64),
        keeps_rows=keeps_rows,
        is_whole=(np.bincount(chunk_domain, minlength=len(domains)) == 1) & (not looks_across_domains),
        start_us=start_us,
        slice_us=slice_us,
        slices=slices,
        looks_across_domains=looks_across_domains,
    )


def names_of(reports: Iterable[UnitReport], key: DomainKey) -> dict[Channel, str]:
    """The domain of each channel."""
    return {
        channel: key.name(channel) for channel in {channel for report in reports for channel in channels_of(report)}
    }


def time_of(reports: Sequence[UnitReport]) -> tuple[int, int, int]:
    """The timeline: its start, the length of a slice, and how many there are."""
    start_us = min((report.first_us for report in reports if report.receipts), default=0)
    return start_us, *slices_of(start_us, max(start_us, *(report.last_us for report in reports)))


def carry_us_of(reports: Sequence[UnitReport], units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """Per unit, the largest time of its file before it, -1 if none: `CutPlan.carry_us`."""
    carry_us = np.full(len(units), -1, np.int64)
    for before, unit in pairwise(units):
        if before.file == unit.file:
            carry_us[unit.number] = max(int(carry_us[before.number]), reports[before.number].last_us)
    return carry_us


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


def bundles_of(sizes: Sequence[float], most: int) -> npt.NDArray[np.int32]:
    """Chunks that follow each other are worked on together as long as they hold no more than so many receipts."""
    bundles = np.zeros(len(sizes), np.int32)
    bundle, held = 0, 0.0
    for chunk, size in enumerate(sizes):
        if held and held + size > most:
            bundle, held = bundle + 1, 0.0
        held += size
        bundles[chunk] = bundle
    return bundles
