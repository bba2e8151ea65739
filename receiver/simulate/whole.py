"""A log that one process holds whole, replayed domain by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.facts import facts_of
from receiver.simulate.headroom import LeftCounts, expiry_need_us, outcomes_of, pair_outcome, places_of
from receiver.simulate.kernel import replay_grid
from receiver.simulate.needs import needs_of
from receiver.simulate.replay import split_domains
from receiver.simulate.replays import Replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.kernel import GridCounts
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain
    from receiver.simulate.replays import Facts

__all__ = ["WholeLog"]


class WholeLog:
    """The `Replays` of receipts in memory. `advance` is told of each domain whose grid is done.

    `domains` are those of the log, ordered by name.
    """

    def __init__(self, receipts: Receipts, *, advance: Callable[[int], None] | None = None) -> None:
        self._receipts = receipts
        self._advance = advance
        self.domains = list(split_domains(receipts))
        self._needs = [needs_of(domain.rows) for domain in self.domains]
        self._facts = facts_of(receipts, self.domains, self._needs)

    def facts(self) -> Facts:
        return self._facts

    def expiry_needs_us(self, windows: Sequence[int], max_missed: int) -> list[int]:
        tried, none = np.array(windows, np.int64), np.zeros(1, np.int64)
        needs_us = np.concatenate(
            [replay_grid(domain.rows, tried, none, with_needs=True).needs_us for domain in self.domains]
        )
        return [expiry_need_us(needs_us[:, k], max_missed) for k in range(len(windows))]

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        grid: list[GridCounts] = []
        figures = np.zeros((len(pairs), 2), np.int64)
        lefts = [LeftCounts.none(len(self._facts.sources))] * len(pairs)
        for domain, needs in zip(self.domains, self._needs, strict=True):
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
    ) -> list[tuple[int, int, LeftCounts]]:
        def replay(windows: Sequence[int], expiries_us: Sequence[int]) -> GridCounts:
            return replay_grid(
                domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64), with_needs=True
            )

        names = [self._receipts.sources[number] for number in domain.source_numbers.tolist()]
        source = places_of(self._facts.sources, domain.name, names)[domain.rows.source[needs.row]]
        return outcomes_of(pairs, replay, needs.window, source, len(self._facts.sources))
