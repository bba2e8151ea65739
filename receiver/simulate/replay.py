"""A log's receipts, domain by domain, with the figures that don't depend on a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.rows import DomainRows, link_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

__all__ = ["Domain", "split_domains"]

_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain of a log."""

    name: str
    receipts: int
    """Unchecked ones included."""
    rows: DomainRows
    log_rows: npt.NDArray[np.int64]
    """Row of the domain -> row of the log."""
    source_numbers: npt.NDArray[np.int32]
    """Source of the domain -> its number in the log; checked receipts only."""
    sources: int
    """Distinct sources, those of unchecked receipts included."""
    clock_clamped: int
    largest_step_back_us: int


@compiled()
def _number_densely(
    numbers: npt.NDArray[np.int32], seen: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Number anew from 0 in the order of first coming; `seen` is all -1 and is left so. Also gives new -> old."""
    dense = np.empty_like(numbers)
    count = 0
    for row in range(len(numbers)):
        if seen[numbers[row]] == _NOTHING:
            seen[numbers[row]] = count
            count += 1
        dense[row] = seen[numbers[row]]
    old = np.empty(count, np.int32)
    for row in range(len(numbers)):
        old[dense[row]] = numbers[row]
    for number in old:
        seen[number] = _NOTHING
    return dense, old


def split_domains(receipts: Receipts) -> Iterator[Domain]:
    """The domains of a log, ordered by name."""
    domain = receipts.domain_number
    few = len(receipts.domains) <= 1 << 16  # numbers of 16 bits are sorted many times faster
    order = np.argsort(domain.astype(np.uint16) if few else domain, kind="stable")
    ends = np.cumsum(np.bincount(domain, minlength=len(receipts.domains)))
    ids_seen = np.full(receipts.ids.count, _NOTHING, np.int32)
    sources_seen = np.full(len(receipts.sources), _NOTHING, np.int32)
    for number in sorted(range(len(receipts.domains)), key=receipts.domains.__getitem__):
        log_rows = order[ends[number - 1] if number else 0 : ends[number]]
        yield _domain(receipts, receipts.domains[number], log_rows, ids_seen, sources_seen)


def _domain(
    receipts: Receipts,
    name: str,
    log_rows: npt.NDArray[np.int64],
    ids_seen: npt.NDArray[np.int32],
    sources_seen: npt.NDArray[np.int32],
) -> Domain:
    _, all_sources = _number_densely(receipts.source_number[log_rows], sources_seen)
    checked = log_rows[receipts.id_number[log_rows] != 0]
    ids, distinct_ids = _number_densely(receipts.id_number[checked], ids_seen)
    source, source_numbers = _number_densely(receipts.source_number[checked], sources_seen)
    as_read = receipts.received_at_us[checked]
    clamped = np.maximum.accumulate(as_read) if len(as_read) else as_read
    steps_back = clamped - as_read
    return Domain(
        name=name,
        receipts=len(log_rows),
        rows=link_rows(clamped, source, ids, sources=len(source_numbers), distinct_ids=len(distinct_ids)),
        log_rows=checked,
        source_numbers=source_numbers,
        sources=len(all_sources),
        clock_clamped=int(np.count_nonzero(steps_back)),
        largest_step_back_us=int(steps_back.max(initial=0)),
    )
