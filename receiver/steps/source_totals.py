"""How many ids each source has sent by each chunk: sums on the driver.

In: the `SourceCounts` of all chunks. Out: `SourceTotals`, by which `measuring` counts the ids between two chunks. A chunk
counts an id only where its source sends it first, or last, in all of the log. So a sum counts no id twice. A *series* is
one source of one domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.steps.schemas import CutPlan, SourceCounts

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """One entry per chunk in which a series has receipts, ordered by series, then chunk."""

    series: dict[tuple[int, str], int]
    """(domain, source) -> its number; only domains of several chunks. Numbered as they come, chunk by chunk."""
    entry: npt.NDArray[np.int64]
    """series << 32 | chunk."""
    firsts: npt.NDArray[np.int64]
    """Ids that the source sent first in this chunk or before."""
    lasts: npt.NDArray[np.int64]
    """Ids that the source sent last in this chunk or before."""
    new_before: npt.NDArray[np.int64]
    """Per chunk of the plan, the receipts of all chunks before it whose ids were new in their domain."""

    def firsts_before(self, series: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        return self._before(self.firsts, series, chunk)

    def lasts_before(self, series: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        return self._before(self.lasts, series, chunk)

    def _before(
        self, sums: npt.NDArray[np.int64], series: npt.NDArray[np.int64], chunk: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        at = np.searchsorted(self.entry, (series << 32) | chunk) - 1
        same = (at >= 0) & (self.entry[at] >> 32 == series)
        return np.where(same, sums[at], 0)


def source_totals_of(plan: CutPlan, counts: Sequence[SourceCounts]) -> SourceTotals:
    """Add up the counts of all chunks, which come in order."""
    new_ids = np.zeros(plan.chunks, np.int64)
    for each in counts:
        new_ids[each.chunk] = each.new_ids
    new_before = np.cumsum(new_ids) - new_ids
    several = np.bincount(plan.chunk_domain, minlength=len(plan.domains)) > 1
    series: dict[tuple[int, str], int] = {}
    entries, firsts, lasts = [], [], []
    for each in counts:
        domain = int(plan.chunk_domain[each.chunk])
        if several[domain]:
            numbers = [series.setdefault((domain, source), len(series)) for source in each.sources]
            entries.append((np.array(numbers, np.int64) << 32) | each.chunk)
            firsts.append(each.firsts)
            lasts.append(each.lasts)
    if not entries:
        nothing = np.empty(0, np.int64)
        return SourceTotals(series, nothing, nothing, nothing, new_before)
    entry = np.concatenate(entries)
    order = np.argsort(entry)
    entry = entry[order]
    begins = np.flatnonzero(np.diff(entry >> 32, prepend=-1))
    firsts_so_far, lasts_so_far = (_running(np.concatenate(each)[order], begins) for each in (firsts, lasts))
    return SourceTotals(series, entry, firsts_so_far, lasts_so_far, new_before)


def _running(counts: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Running sums that begin anew at these indices."""
    sums = np.cumsum(counts)
    before = np.concatenate([[0], sums])[begins]
    running: npt.NDArray[np.int64] = sums - np.repeat(before, np.diff(begins, append=len(sums)))
    return running
