"""Replays a log, section by section, under every setting asked for, and adds up the results.

A *section* is a domain, or a chunk of one behind its starting state. Each engine is a `Replays`, which has the sections.
The *slack* of a duplicate under a setting is by how much W or E exceeds its need: it shows how nearly the duplicate was missed.
Users read *headroom*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled
from receiver.simulate.domain_rows import DomainRows
from receiver.simulate.figures import DomainFigures, HeadroomFigures, Pair, SettingFigures
from receiver.simulate.kernel import WindowAsked, WindowCounts, replay_windows

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.facts import Facts

NONE_CAUGHT = np.iinfo(np.int64).max
"""The least slack if there is no duplicate."""
_Counts = TypeVar("_Counts")


class Replays(ABC):
    """A log that can be counted and replayed, section by section."""

    facts: Facts
    """Everything that doesn't depend on a setting."""

    @abstractmethod
    def in_sections(
        self, what: str, work: Callable[[Section], Iterable[_Counts]], kind: type[_Counts], largest: Pair
    ) -> Iterable[_Counts]:
        """All values of a `kind` that `work` makes of the sections. It may replay no larger window and expiry than `largest`.
        `what` names the work to people who wait.
        """

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[Pair]) -> Replayed:
        """Replay the grid of `windows` and `expiries_us`, both ascending, and the pairs (window, expiry_us)."""
        asked = ReplayAsked.of(self.facts, windows, expiries_us, pairs)
        largest = max(each.window for each in asked.windows), max(each.expiries_us[-1] for each in asked.windows)

        def work(section: Section) -> Iterator[ReplayShare]:
            yield replay_section(section, asked)

        shares = self.in_sections("Replaying", work, ReplayShare, largest)
        return replayed_of(shares, self.facts.domains, asked)


class ReplayAsked(NamedTuple):
    """A grid and pairs (window, expiry_us) to replay. A *cell* is a window with one of its expiries."""

    windows: list[WindowAsked]
    """Every window, once."""
    cell: dict[Pair, int]
    """Window and expiry -> the number of their cell, which is the index of its counts in a `ReplayShare`."""
    grid: list[Pair]
    """The pairs of the grid in order, without 0 and 0."""
    pairs: Sequence[Pair]
    sources: dict[tuple[int, str], int]
    """The sources whose headroom is wanted: (number of the domain, source) -> index of the source in `Facts.sources`."""

    @classmethod
    def of(cls, facts: Facts, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[Pair]) -> ReplayAsked:
        of_window: dict[int, set[int]] = {window: set(expiries_us) for window in windows}
        for window, expiry_us in pairs:
            of_window.setdefault(window, set()).add(expiry_us)
        with_pairs = {window for window, _ in pairs}
        asked = [WindowAsked(window, sorted(tried), window in with_pairs) for window, tried in of_window.items()]
        cells = ((each.window, expiry_us) for each in asked for expiry_us in each.expiries_us)
        cell = {pair: number for number, pair in enumerate(cells)}
        grid = [pair for pair in product(windows, expiries_us) if pair != (0, 0)]  # 0 and 0 detect nothing
        domain = {each.domain: number for number, each in enumerate(facts.domains)}
        sources = {(domain[each.domain], each.source): index for index, each in enumerate(facts.sources)}
        return cls(asked, cell, grid, pairs, sources)


class Section(NamedTuple):
    """A domain, or a chunk of one behind the receipts that make its starting state."""

    domain: int
    """The domain's number."""
    rows: DomainRows
    counted_from: int
    """The first row of the domain or chunk itself; 0 for a whole domain."""
    sources: Sequence[str]
    """Number of a source in `rows` -> source."""
    window_needs: Int64s
    """The window need of each duplicate of the section."""
    in_first_half: int
    """How many of the duplicates, from the first on, are in the first half of the log."""
    threads: int | None = None
    """How many threads replay it; None: one for each processor."""

    @property
    def duplicates(self) -> npt.NDArray[np.intp]:
        """The rows of its duplicates."""
        return np.flatnonzero(self.rows.earlier[self.counted_from :] >= 0) + self.counted_from

    def replay(self, asked: Sequence[WindowAsked]) -> list[WindowCounts]:
        return replay_windows(self.rows, asked, counted_from=self.counted_from, threads=self.threads)

    def caught(self, window: int, expiry_us: int) -> tuple[npt.NDArray[np.intp], Flags]:
        """The rows of its duplicates by verdict under one setting; for each, whether only the time queue held the id."""
        (counts,) = self.replay([WindowAsked(window, [], with_needs=True)])
        is_caught = counts.needs_us <= expiry_us
        return self.duplicates[is_caught], counts.needs_us[is_caught] >= 0


@dataclass(frozen=True, slots=True)
class ReplayShare:
    domain: int
    caught: Int64s
    """[cell]"""
    peak_ids: Int64s
    counts: Int64s
    """[count, pair], row by row: the three counts of `count_slack`."""
    least_slack: Int64s
    """[W or E, pair, source], row by row: the least slack in W, and in E in microseconds, of each source of `Facts.sources`, in
    their order, and last that of all other sources together; `NONE_CAUGHT` if nothing is caught.
    """


def replay_section(section: Section, asked: ReplayAsked) -> ReplayShare:
    """Replay a section: each window once."""
    replayed = section.replay(asked.windows)
    needs_us = {tried.window: counts.needs_us for tried, counts in zip(asked.windows, replayed, strict=True)}
    counts = np.zeros((3, len(asked.pairs)), np.int64)
    least = np.full((2, len(asked.pairs), len(asked.sources) + 1), NONE_CAUGHT)
    # All sources that aren't among `Facts.sources` count as one more source.
    indexes = [asked.sources.get((section.domain, source), len(asked.sources)) for source in section.sources]
    source = np.array(indexes, np.int32)[section.rows.source[section.duplicates]]
    for pair, (window, expiry_us) in enumerate(asked.pairs):
        needs = section.window_needs, needs_us[window], section.in_first_half
        counts[:, pair] = count_slack(window, expiry_us, *needs, source, *least[:, pair])
    return ReplayShare(
        section.domain,
        np.concatenate([counts.caught for counts in replayed]),
        np.concatenate([counts.peak_ids for counts in replayed]),
        counts.ravel(),  # shares travel as flat columns
        least.ravel(),
    )


@compiled()
def count_slack(  # noqa: PLR0917 - compiled functions take no names
    window: int,
    expiry_us: int,
    window_needs: Int64s,
    needs_us: Int64s,
    in_first_half: int,
    source: Int32s,
    least_window: Int64s,
    least_expiry_us: Int64s,
) -> tuple[int, int, int]:
    """Count the duplicates that a pair catches: by a source's queue, by the time queue alone, and in the first half of the
    log. Lowers the least slack of their sources.

    Each column has a value for each duplicate. The first `in_first_half` of them are in the first half of the log.
    - `window_needs`: the window that catches it alone;
    - `needs_us`: the expiry, never 0, that catches it together with the pair's window; -1 if that window does alone;
    - `source`: the index of its source in `least_window` and `least_expiry_us`.
    """
    by_source, by_time, caught_in_first_half = 0, 0, 0
    for k in range(len(needs_us)):
        if needs_us[k] < 0:
            by_source += 1
            least_window[source[k]] = min(least_window[source[k]], window - window_needs[k])
        elif needs_us[k] <= expiry_us:
            by_time += 1
            least_expiry_us[source[k]] = min(least_expiry_us[source[k]], expiry_us - needs_us[k])
        else:
            continue
        caught_in_first_half += k < in_first_half
    return by_source, by_time, caught_in_first_half


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """One pair (W, E) over the whole log."""

    by_source: int
    """Duplicates whose id a source's queue still holds."""
    by_time: int
    """Duplicates whose id only the time queue still holds."""
    caught_in_first_half: int
    peak_ids: int
    """The sum of the domains' peaks."""
    least_window: Int64s
    """The least slack in W by source, as in `ReplayShare.least_slack`."""
    least_expiry_us: Int64s
    """The least slack in E by source, as in `ReplayShare.least_slack`."""

    @property
    def caught(self) -> int:
        return self.by_source + self.by_time

    @property
    def headroom(self) -> HeadroomFigures:
        least = _or_none(self.least_window.min()), _or_none(self.least_expiry_us.min())
        return HeadroomFigures(self.by_source, self.by_time, *least)

    def left(self, source: int) -> tuple[int | None, int | None]:
        """The least headroom of a source of `Facts.sources`: in W, and in E (microseconds)."""
        return _or_none(self.least_window[source]), _or_none(self.least_expiry_us[source])


def _or_none(least: np.int64) -> int | None:
    return None if least == NONE_CAUGHT else int(least)


@dataclass(frozen=True, slots=True)
class Replayed:
    settings: tuple[SettingFigures, ...]
    """Sums over the domains, for every pair of the grid but 0 with 0."""
    domains: tuple[DomainFigures, ...]
    """The domains, with their settings."""
    pairs: dict[Pair, PairOutcome]


def replayed_of(shares: Iterable[ReplayShare], domains: Sequence[DomainFigures], asked: ReplayAsked) -> Replayed:
    """Add up all sections. A domain's peak is the largest peak of its sections; the log's is the sum over the domains."""
    caught, peak_ids = np.zeros((2, len(domains), len(asked.cell)), np.int64)
    counts = np.zeros((3, len(asked.pairs)), np.int64)
    least = np.full((2, len(asked.pairs), len(asked.sources) + 1), NONE_CAUGHT)
    for share in shares:
        caught[share.domain] += share.caught
        np.maximum(peak_ids[share.domain], share.peak_ids, out=peak_ids[share.domain])
        counts += share.counts.reshape(counts.shape)
        np.minimum(least, share.least_slack.reshape(least.shape), out=least)
    peaks = [int(peak_ids[:, asked.cell[pair]].sum()) for pair in asked.pairs]
    outcomes = zip(*counts.tolist(), peaks, *least, strict=True)
    cells = [asked.cell[pair] for pair in asked.grid]

    def figures(duplicates: int, caught: Int64s, peak_ids: Int64s) -> tuple[SettingFigures, ...]:
        of_grid = zip(asked.grid, caught[cells].tolist(), peak_ids[cells].tolist(), strict=True)
        return tuple(SettingFigures(*pair, count, duplicates - count, peak) for pair, count, peak in of_grid)

    return Replayed(
        settings=figures(sum(domain.duplicates for domain in domains), caught.sum(axis=0), peak_ids.sum(axis=0)),
        domains=tuple(
            replace(domain, settings=figures(domain.duplicates, *counted))
            for domain, *counted in zip(domains, caught, peak_ids, strict=True)
        ),
        pairs={pair: PairOutcome(*outcome) for pair, outcome in zip(asked.pairs, outcomes, strict=True)},
    )
