"""A log that one process holds whole, replayed domain by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.facts import facts_of
from receiver.simulate.headroom import LeftCounts, count_left, pair_outcome
from receiver.simulate.kernel import replay_grid
from receiver.simulate.needs import needs_of
from receiver.simulate.replay import split_domains
from receiver.simulate.replays import Replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.kernel import GridCounts
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain
    from receiver.simulate.replays import Facts

__all__ = ["WholeLog"]


class WholeLog:
    """The `Replays` of receipts in memory. `advance` is told of each domain whose grid is done."""

    def __init__(self, receipts: Receipts, *, advance: Callable[[int], None] | None = None) -> None:
        self._receipts = receipts
        self._advance = advance
        self._domains = list(split_domains(receipts))
        self._needs = [needs_of(domain.rows) for domain in self._domains]
        self._facts = facts_of(receipts, self._domains, self._needs)

    def facts(self) -> Facts:
        return self._facts

    def expiry_needs_us(self, windows: Sequence[int], max_missed: int) -> list[int]:
        tried, none = np.array(windows, np.int64), np.zeros(1, np.int64)
        needs_us = np.concatenate(
            [replay_grid(domain.rows, tried, none, with_needs=True).needs_us for domain in self._domains]
        )
        return [_expiry_need_us(needs_us[:, k], max_missed) for k in range(len(windows))]

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        grid: list[GridCounts] = []
        figures = np.zeros((len(pairs), 2), np.int64)
        lefts = [LeftCounts.none(len(self._facts.sources))] * len(pairs)
        for domain, needs in zip(self._domains, self._needs, strict=True):
            grid.append(replay_grid(domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64)))
            for k, (caught, peak_ids, left) in enumerate(self._outcomes(domain, needs, pairs)):
                figures[k] += caught, peak_ids
                lefts[k] += left
            if self._advance:
                self._advance(1)
        return Replayed(
            caught=tuple(counts.caught for counts in grid),
            peak_ids=tuple(counts.peak_ids for counts in grid),
            pairs=tuple(
                pair_outcome(caught, peak_ids, left)
                for (caught, peak_ids), left in zip(figures.tolist(), lefts, strict=True)
            ),
        )

    def _outcomes(
        self, domain: Domain, needs: Needs, pairs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, LeftCounts]]:
        """Per pair: duplicates caught, ids at the peak, and what the pair left."""
        windows, expiries_us = (sorted({pair[of] for pair in pairs}) for of in (0, 1))
        counts = replay_grid(domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64), with_needs=True)
        source = self._places(domain)[domain.rows.source[needs.row]]
        for pair in pairs:
            at = windows.index(pair[0]), expiries_us.index(pair[1])
            left = count_left(pair, needs.window, counts.needs_us[:, at[0]], source, len(self._facts.sources))
            yield int(counts.caught[at]), int(counts.peak_ids[at]), left

    def _places(self, domain: Domain) -> npt.NDArray[np.int32]:
        """Per source of a domain, its place among the sources of the facts, or their number."""
        worst, names = self._facts.sources, self._receipts.sources
        places = {source.source: place for place, source in enumerate(worst) if source.domain == domain.name}
        return np.array([places.get(names[number], len(worst)) for number in domain.source_numbers.tolist()], np.int32)


def _expiry_need_us(needs_us: npt.NDArray[np.int64], max_missed: int) -> int:
    """The smallest E that leaves no more than `max_missed` uncaught, of needs with -1 for caught anyway."""
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))
