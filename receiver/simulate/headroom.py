"""Replaying a domain, or a chunk of one, under every setting asked for; and the headroom of the duplicates that are caught.

The *slack* of a duplicate under a setting is by how much W or E exceeds what it needs: how close it came to being missed.
Users read of it as headroom. A *section* is a domain, or a chunk of one behind its starting state. An engine is a `Replays`:
it has the sections, and here is what is asked of each, and what the answers add up to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.simulate.compiled import compiled
from receiver.simulate.distances import expiry_need_us
from receiver.simulate.kernel import WindowAsked, WindowCounts, is_caught, replay_windows
from receiver.simulate.replays import NONE_CAUGHT, PairOutcome, Replayed

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.domain_rows import DomainRows
    from receiver.simulate.replays import Facts, PerPart


class ReplayAsked(NamedTuple):
    """A grid and pairs (window, expiry_us) to replay. What is counted for a window and an expiry is a *cell*."""

    windows: list[WindowAsked]
    """Every window, once; its expiries are cells, which are numbered window by window."""
    grid: npt.NDArray[np.intp]
    """[window, expiry] -> cell"""
    pairs: Sequence[tuple[int, int]]
    pair_cell: npt.NDArray[np.intp]
    sources: dict[tuple[int, str], int]
    """The sources whose headroom is wanted: (the domain's number, source) -> the source's index in `Facts.sources`."""

    @classmethod
    def of(
        cls, facts: Facts, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]
    ) -> ReplayAsked:
        of_window: dict[int, set[int]] = {window: set(expiries_us) for window in windows}
        for window, expiry_us in pairs:
            of_window.setdefault(window, set()).add(expiry_us)
        with_pairs = {window for window, _ in pairs}
        asked = [WindowAsked(window, sorted(tried), window in with_pairs) for window, tried in of_window.items()]
        cells = ((each.window, expiry_us) for each in asked for expiry_us in each.expiries_us)
        cell = {pair: number for number, pair in enumerate(cells)}
        grid = [[cell[window, expiry_us] for expiry_us in expiries_us] for window in windows]
        domain = {each.domain: number for number, each in enumerate(facts.domains)}
        sources = {(domain[each.domain], each.source): index for index, each in enumerate(facts.sources)}
        return cls(asked, np.array(grid, np.intp), pairs, np.array([cell[pair] for pair in pairs], np.intp), sources)


class Section(NamedTuple):
    """A domain, or a chunk of one behind the receipts that make its starting state."""

    domain: int
    """The domain's number."""
    rows: DomainRows
    counted_from: int
    """The first row of the domain or chunk itself; 0 for a whole domain."""
    sources: Sequence[str]
    """Number of a source in `rows` -> source."""
    window_needs: npt.NDArray[np.int64]
    """Per duplicate of the section."""
    in_first_half: int
    """How many of the duplicates are in the first half of the log: the first ones."""
    threads: int | None = None
    """As for `replay_windows`."""

    @property
    def duplicates(self) -> npt.NDArray[np.intp]:
        """The rows of its duplicates."""
        return np.flatnonzero(self.rows.earlier[self.counted_from :] >= 0) + self.counted_from

    def replay(self, asked: Sequence[WindowAsked]) -> list[WindowCounts]:
        return replay_windows(self.rows, asked, counted_from=self.counted_from, threads=self.threads)


@dataclass(frozen=True, slots=True)
class ReplayShare:
    """What the replay of one section comes to."""

    domain: int
    caught: npt.NDArray[np.int64]
    """[cell]"""
    peak_ids: npt.NDArray[np.int64]
    caught_in_first_half: npt.NDArray[np.int64]
    """[pair]"""
    by_source: npt.NDArray[np.int64]
    """[pair]: duplicates whose id a source's queue still holds."""
    by_time: npt.NDArray[np.int64]
    """[pair]: duplicates whose id only the time queue still holds."""
    least_window: npt.NDArray[np.int64]
    """[pair, source], row by row: the least slack in W of each source of `Facts.sources`, in their order, and last of all
    others together; `NONE_CAUGHT` where nothing is caught.
    """
    least_expiry_us: npt.NDArray[np.int64]
    """[pair, source], row by row: the least slack in microseconds of E."""


def replay_section(section: Section, asked: ReplayAsked) -> ReplayShare:
    """Replay a section: each window once."""
    counts = section.replay(asked.windows)
    needs_us = {tried.window: of_window.needs_us for tried, of_window in zip(asked.windows, counts, strict=True)}
    in_first_half, by_source, by_time = (np.zeros(len(asked.pairs), np.int64) for _ in range(3))
    least_window, least_expiry_us = (np.full((len(asked.pairs), len(asked.sources) + 1), NONE_CAUGHT) for _ in range(2))
    source = _source_index(section, asked)
    for k, (window, expiry_us) in enumerate(asked.pairs):
        in_first_half[k] = np.count_nonzero(is_caught(needs_us[window][: section.in_first_half], expiry_us))
        by_source[k], by_time[k] = count_slack(
            window, expiry_us, section.window_needs, needs_us[window], source, least_window[k], least_expiry_us[k]
        )
    return ReplayShare(
        section.domain,
        np.concatenate([each.caught for each in counts]),
        np.concatenate([each.peak_ids for each in counts]),
        in_first_half,
        by_source,
        by_time,
        least_window.ravel(),
        least_expiry_us.ravel(),
    )


def _source_index(section: Section, asked: ReplayAsked) -> npt.NDArray[np.int32]:
    """Per duplicate, the index of its source in `Facts.sources`; how many these are, for any other source."""
    indexes = [asked.sources.get((section.domain, source), len(asked.sources)) for source in section.sources]
    return np.array(indexes, np.int32)[section.rows.source[section.duplicates]]


@compiled()
def count_slack(  # noqa: PLR0917 - compiled functions take no names
    window: int,
    expiry_us: int,
    window_needs: npt.NDArray[np.int64],
    needs_us: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    least_window: npt.NDArray[np.int64],
    least_expiry_us: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Count the duplicates that a pair catches, by tier, and lower the least slack of their sources.

    Each column has a value per duplicate:
    - `window_needs`: the window that catches it alone;
    - `needs_us`: the expiry, never 0, that catches it together with the pair's window; -1 where that window does alone;
    - `source`: the index of its source in `least_window` and `least_expiry_us`.
    """
    by_source, by_time = 0, 0
    for k in range(len(needs_us)):
        if needs_us[k] < 0:
            by_source += 1
            least_window[source[k]] = min(least_window[source[k]], window - window_needs[k])
        elif needs_us[k] <= expiry_us:
            by_time += 1
            least_expiry_us[source[k]] = min(least_expiry_us[source[k]], expiry_us - needs_us[k])
    return by_source, by_time


def replayed_of(shares: Iterable[ReplayShare], domains: int, asked: ReplayAsked) -> Replayed:
    """Add up all sections: a peak of a domain is the largest of its sections', that of the log the sum of the domains'."""
    caught, peak_ids = (
        np.zeros((domains, sum(len(each.expiries_us) for each in asked.windows)), np.int64) for _ in range(2)
    )
    in_first_half, by_source, by_time = (np.zeros(len(asked.pairs), np.int64) for _ in range(3))
    least_window, least_expiry_us = (np.full((len(asked.pairs), len(asked.sources) + 1), NONE_CAUGHT) for _ in range(2))
    for share in shares:
        caught[share.domain] += share.caught
        np.maximum(peak_ids[share.domain], share.peak_ids, out=peak_ids[share.domain])
        in_first_half += share.caught_in_first_half
        by_source += share.by_source
        by_time += share.by_time
        np.minimum(least_window, share.least_window.reshape(least_window.shape), out=least_window)
        np.minimum(least_expiry_us, share.least_expiry_us.reshape(least_window.shape), out=least_expiry_us)
    counts = (by_source, by_time, in_first_half, peak_ids.sum(axis=0)[asked.pair_cell])
    outcomes = zip(*(column.tolist() for column in counts), least_window, least_expiry_us, strict=True)
    return Replayed(
        caught=tuple(caught[:, asked.grid]),
        peak_ids=tuple(peak_ids[:, asked.grid]),
        pairs=tuple(PairOutcome(*outcome) for outcome in outcomes),
    )


@dataclass(frozen=True, slots=True)
class TopNeeds:
    """The largest expiries that duplicates of one section, in one half of the log, need beside a window which misses them."""

    window: int
    half: int
    """0 for the first half, 1 for the second."""
    expiry_us: npt.NDArray[np.int64]


def top_needs(section: Section, windows: Sequence[int], max_missed: int) -> Iterator[TopNeeds]:
    """For each window and half, no more than one more than may be missed."""
    asked = [WindowAsked(window, [], with_needs=True) for window in windows]
    for window, (_, _, needs_us) in zip(windows, section.replay(asked), strict=True):
        for half, of_half in enumerate((needs_us[: section.in_first_half], needs_us[section.in_first_half :])):
            top_us = np.sort(of_half[of_half >= 0])[-max_missed - 1 :]
            if len(top_us):
                yield TopNeeds(window, half, top_us)


_Counts = TypeVar("_Counts")


class Replays(ABC):
    """A log that can be counted and replayed, section by section."""

    @abstractmethod
    def facts(self) -> Facts:
        """Everything that doesn't depend on a setting."""

    @abstractmethod
    def in_sections(
        self, what: str, work: Callable[[Section], Iterable[_Counts]], kind: type[_Counts], largest: tuple[int, int], /
    ) -> Iterable[_Counts]:
        """Everything that `work` makes of sections, which replay no larger window and expiry than `largest`.

        `what` names the step to those who wait.
        """

    def expiry_needs_us(self, tried: PerPart[Sequence[int]], max_missed: int) -> PerPart[list[int]]:
        """Per window tried for each part, the smallest E that together with it misses no more than `max_missed` of the
        part's duplicates; 0 where none is needed. `max_missed` is that of the facts.
        """
        parts = self.facts().parts
        # A window that catches all of a part needs no expiry, and the need without a window is known.
        windows = sorted({w for part, of in zip(parts, tried, strict=True) for w in of if 0 < w < part.windows.most})

        def work(section: Section) -> Iterator[TopNeeds]:
            return top_needs(section, windows, max_missed)

        needs_us: defaultdict[tuple[int, int], list[npt.NDArray[np.int64]]] = defaultdict(list)
        for top in self.in_sections("Trying windows", work, TopNeeds, (windows[-1], 0)) if windows else ():
            for part in (0, 1 + top.half):
                needs_us[part, top.window].append(top.expiry_us)

        def need_us(part: int, window: int) -> int:
            if window == 0:
                return parts[part].expiry_us
            own = needs_us.get((part, window))
            return expiry_need_us(np.concatenate(own), max_missed) if own else 0

        whole, first, second = ([need_us(part, window) for window in of] for part, of in enumerate(tried))
        return whole, first, second

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        """Replay the grid of `windows` and `expiries_us`, both ascending, and the pairs (window, expiry_us)."""
        asked = ReplayAsked.of(self.facts(), windows, expiries_us, pairs)
        largest = max(each.window for each in asked.windows), max(each.expiries_us[-1] for each in asked.windows)

        def work(section: Section) -> Iterator[ReplayShare]:
            yield replay_section(section, asked)

        shares = self.in_sections("Replaying", work, ReplayShare, largest)
        return replayed_of(shares, len(self.facts().domains), asked)
