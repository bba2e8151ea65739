"""How far each source has come by each chunk: sums over the chunks before, and from which of them its newest ids come.

A *series* is one source of one domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.steps.schemas import ChunkCounts, CutPlan

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Depths", "Standings", "depths_of", "standings_of"]


@dataclass(frozen=True, slots=True)
class Standings:
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


def standings_of(plan: CutPlan, tallies: Sequence[ChunkCounts]) -> Standings:
    """Of the tallies of all chunks, in any order."""
    new_ids = np.zeros(plan.chunks, np.int64)
    for tally in tallies:
        new_ids[tally.chunk] = tally.receipts.sum() - tally.duplicates
    new_before = np.cumsum(new_ids) - new_ids
    several = np.bincount(plan.chunk_domain, minlength=len(plan.domains)) > 1
    series: dict[tuple[int, str], int] = {}
    entries, firsts, lasts = [], [], []
    for tally in sorted(tallies, key=lambda tally: tally.chunk):
        domain = int(plan.chunk_domain[tally.chunk])
        if several[domain]:
            numbers = [series.setdefault((domain, source), len(series)) for source in tally.sources]
            entries.append((np.array(numbers, np.int64) << 32) | tally.chunk)
            firsts.append(tally.firsts)
            lasts.append(tally.lasts)
    if not entries:
        nothing = np.empty(0, np.int64)
        return Standings(series, nothing, nothing, nothing, new_before)
    entry = np.concatenate(entries)
    order = np.argsort(entry)
    entry = entry[order]
    begins = np.flatnonzero(np.diff(entry >> 32, prepend=-1))
    firsts_so_far, lasts_so_far = (_running(np.concatenate(each)[order], begins) for each in (firsts, lasts))
    return Standings(series, entry, firsts_so_far, lasts_so_far, new_before)


def _running(counts: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Running sums that begin anew at these indices."""
    sums = np.cumsum(counts)
    before = np.concatenate([[0], sums])[begins]
    running: npt.NDArray[np.int64] = sums - np.repeat(before, np.diff(begins, append=len(sums)))
    return running


@dataclass(frozen=True, slots=True)
class Depths:
    """How many newest ids of a source each chunk gives to a later one, so that it has `depth` of them when it begins.

    Entries are ordered by the giving chunk.
    """

    chunk: npt.NDArray[np.int32]
    to_chunk: npt.NDArray[np.int32]
    series: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    reached: npt.NDArray[np.int32]
    """Per chunk, the newest chunk in which the `depth`-th newest id of any source lies, seen from the chunk's begin; -1 if none."""


@compiled()
def _walk(  # noqa: PLR0917 - compiled functions take no names
    chunks: int,
    first_chunk: npt.NDArray[np.int32],
    entry_chunk: npt.NDArray[np.int32],
    entry_series: npt.NDArray[np.int64],
    by_chunk: npt.NDArray[np.int64],
    alive: npt.NDArray[np.int64],
    gone_at: npt.NDArray[np.int64],
    gone_in: npt.NDArray[np.int32],
    gone_count: npt.NDArray[np.int64],
    depth: int,
    reached: npt.NDArray[np.int32],
    held: npt.NDArray[np.int64],
) -> int:
    """Fill `held` with (entry, to_chunk, count) as far as it has room; gives how many there are."""
    count = 0
    newest = np.full(int(entry_series.max()) + 1, -1, np.int64)  # series -> its newest entry so far
    seen, gone = 0, 0
    begin, end = 0, 0  # the series of the chunk's domain that have come so far
    for chunk in range(chunks):
        while seen < len(by_chunk) and entry_chunk[by_chunk[seen]] < chunk:
            newest[entry_series[by_chunk[seen]]] = by_chunk[seen]
            end = max(end, entry_series[by_chunk[seen]] + 1)
            seen += 1
        if first_chunk[chunk] == chunk:
            begin = end
        while gone < len(gone_in) and gone_in[gone] < chunk:
            alive[gone_at[gone]] -= gone_count[gone]
            gone += 1
        for s in range(begin, end):
            at, left = newest[s], depth
            while left > 0 and at >= 0 and entry_series[at] == s and entry_chunk[at] >= first_chunk[chunk]:
                ids = min(left, alive[at])
                if ids:
                    if count < len(held):
                        held[count, 0], held[count, 1], held[count, 2] = at, chunk, ids
                    count += 1
                    left -= ids
                if left == 0:
                    reached[chunk] = max(reached[chunk], entry_chunk[at])
                at -= 1
    return count


def depths_of(plan: CutPlan, standings: Standings, tallies: Sequence[ChunkCounts], depth: int) -> Depths:
    """Plan which receipts of which chunks the queues hold when each chunk begins."""
    reached = np.full(plan.chunks, -1, np.int32)
    if not len(standings.entry):
        nothing = np.empty(0, np.int32)
        return Depths(nothing, nothing, nothing.astype(np.int64), nothing.astype(np.int64), reached)
    alive = np.zeros(len(standings.entry), np.int64)
    gone: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]] = []
    for tally in tallies:
        domain = int(plan.chunk_domain[tally.chunk])
        if tally.sources and (domain, tally.sources[0]) in standings.series:
            numbers = np.array([standings.series[domain, source] for source in tally.sources], np.int64)
            at = np.searchsorted(standings.entry, (numbers << 32) | tally.chunk)
            alive[at] = tally.distinct
            gone.append((at[tally.replaced_source], tally.replaced_in, tally.replaced_count))
    gone_at, gone_in, gone_count = (np.concatenate(parts) for parts in zip(*gone, strict=True))
    order = np.argsort(gone_in, kind="stable")
    entry_chunk = (standings.entry & 0xFFFFFFFF).astype(np.int32)
    entry_series = standings.entry >> 32
    held = np.empty((4 * len(alive) + 16, 3), np.int64)
    while True:
        reached[:] = -1
        count = _walk(
            plan.chunks,
            plan.first_chunk,
            entry_chunk,
            entry_series,
            np.argsort(entry_chunk, kind="stable"),
            alive.copy(),
            gone_at[order],
            gone_in[order],
            gone_count[order],
            depth,
            reached,
            held,
        )
        if count <= len(held):
            break
        held = np.empty((count, 3), np.int64)
    held = held[:count]
    held = held[np.argsort(entry_chunk[held[:, 0]], kind="stable")]
    return Depths(entry_chunk[held[:, 0]], held[:, 1].astype(np.int32), entry_series[held[:, 0]], held[:, 2], reached)
