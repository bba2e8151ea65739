"""A log that one process holds whole: what is true of it whatever the setting, and its replay domain by domain."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.figures import Elsewhere, LogFigures, Timeline
from receiver.simulate.headroom import (
    Duplicates,
    SlackCounts,
    expiry_need_us,
    grid_and_pairs,
    pair_outcome,
    reuse_distances,
    source_indexes,
)
from receiver.simulate.kernel import WindowAsked, replay_windows
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.repeats import burst_gap_us, bursts, first_receipt_needs, second_counts
from receiver.simulate.replays import (
    STEPS,
    CrossDomainDuplicates,
    DomainCounts,
    Facts,
    PartNeeds,
    PerPart,
    Replayed,
    SourceNeeds,
    ValueCounts,
    counts_of,
    cross_domain_counts,
    histogram_of,
    in_order,
    maybe_worst,
    parted_queues,
    slices_of,
    worst,
)
from receiver.simulate.rows import split_domains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from receiver.simulate.headroom import ReuseDistances
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.rows import Domain

__all__ = ["WholeLog", "log_figures"]


class WholeLog:
    """The `Replays` of receipts in memory. `advance` is called with 1 for each domain whose grid is done.

    `max_missed` is how many duplicates a recommended setting may miss. `domains` are those of the log, ordered by name.
    """

    def __init__(
        self, receipts: Receipts, *, max_missed: int = 0, advance: Callable[[int], None] | None = None
    ) -> None:
        self._receipts = receipts
        self._advance = advance
        self.domains = list(split_domains(receipts))
        self._distances = [reuse_distances(domain.rows) for domain in self.domains]
        middle_us = log_figures(receipts, self.domains).middle_us
        self._in_first_half = [
            int(np.searchsorted(domain.rows.received_at_us[each.row], middle_us))
            for domain, each in zip(self.domains, self._distances, strict=True)
        ]
        self._facts = _facts_of(receipts, self.domains, self._distances, self._in_first_half, max_missed)

    def facts(self) -> Facts:
        return self._facts

    def expiry_needs_us(self, tried: PerPart[Sequence[int]], max_missed: int) -> PerPart[list[int]]:
        parts = (self._facts.whole, *self._facts.halves)
        # A window that catches all of a part needs no expiry, and the need without a window is known.
        asked = sorted({w for part, of in zip(parts, tried, strict=True) for w in of if 0 < w < part.windows.most})
        needs_us: dict[int, PerPart[list[npt.NDArray[np.int64]]]] = {window: ([], [], []) for window in asked}
        for domain, in_first in zip(self.domains, self._in_first_half, strict=True):
            counts = replay_windows(domain.rows, [WindowAsked(window, [], with_needs=True) for window in asked])
            for window, (_, _, of_window_us) in zip(asked, counts, strict=True):
                for kept, values in zip(needs_us[window], _parts(of_window_us, in_first), strict=True):
                    kept.append(values)

        def need_us(part: int, window: int) -> int:
            if window == 0:
                return parts[part].expiry_us
            if window not in needs_us:
                return 0
            return expiry_need_us(np.concatenate(needs_us[window][part]), max_missed)

        whole, first, second = ([need_us(part, window) for window in of] for part, of in enumerate(tried))
        return whole, first, second

    def replay(self, windows: Sequence[int], expiries_us: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Replayed:
        grids: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        figures = np.zeros((len(pairs), 3), np.int64)
        slack = [SlackCounts.none(len(self._facts.sources))] * len(pairs)
        for domain, duplicates in zip(self.domains, self._duplicates(), strict=True):
            replay = partial(replay_windows, domain.rows)
            *grid, outcomes = grid_and_pairs(replay, windows, expiries_us, pairs, duplicates)
            grids.append((grid[0], grid[1]))
            for k, (*counts, slack_here) in enumerate(outcomes):
                figures[k] += counts
                slack[k] += slack_here
            if self._advance:
                self._advance(1)
        return Replayed(
            caught=tuple(caught for caught, _ in grids),
            peak_ids=tuple(peak_ids for _, peak_ids in grids),
            pairs=tuple(
                pair_outcome(caught, in_first_half, peak_ids, pair_slack)
                for (caught, in_first_half, peak_ids), pair_slack in zip(figures.tolist(), slack, strict=True)
            ),
        )

    def _duplicates(self) -> Iterator[Duplicates]:
        """Of each domain."""
        sources = self._facts.sources
        for domain, distances, in_first in zip(self.domains, self._distances, self._in_first_half, strict=True):
            names = [self._receipts.sources[number] for number in domain.source_numbers.tolist()]
            source = source_indexes(sources, domain.name, names)[domain.rows.source[distances.row]]
            yield Duplicates(distances.window, source, len(sources), in_first)


def _parts(values: npt.NDArray[np.int64], in_first_half: int) -> PerPart[npt.NDArray[np.int64]]:
    """A column of a domain's duplicates: the whole, and both halves."""
    return values, values[:in_first_half], values[in_first_half:]


class _Sources(NamedTuple):
    """The sources of a domain that have duplicates, in columns."""

    number: npt.NDArray[np.intp]
    """The source's number in the domain."""
    receipts: npt.NDArray[np.intp]
    duplicates: npt.NDArray[np.intp]
    window_needs: npt.NDArray[np.int64]
    expiry_needs_us: npt.NDArray[np.int64]


def _facts_of(
    receipts: Receipts,
    domains: Sequence[Domain],
    distances: Sequence[ReuseDistances],
    in_first_half: Sequence[int],
    max_missed: int,
) -> Facts:
    """Count what is true of a log, by all of its domains and the reuse distances of each one's duplicates."""
    sources = [_sources(domain, each) for domain, each in zip(domains, distances, strict=True)]
    whole, *halves = _part_needs(distances, in_first_half, max_missed)
    unmarked, marked = _against_flags(receipts.redelivered, domains)
    log = log_figures(receipts, domains)
    return Facts(
        log=log,
        domains=tuple(
            _domain_counts(domain, each, max_missed) for domain, each in zip(domains, distances, strict=True)
        ),
        firsts=sum(len(domain.log_rows) - domain.rows.duplicates for domain in domains),
        whole=whole,
        halves=(halves[0], halves[1]),
        bursts=sum(
            bursts(domain.rows.received_at_us[each.row], burst_gap_us(log))
            for domain, each in zip(domains, distances, strict=True)
        ),
        elsewhere=_elsewhere(domains) if log.duplicates else None,
        peak_per_second=max((_peak_per_second(domain) for domain in domains), default=0),
        from_other_sources=sum(_from_other_sources(domain) for domain in domains),
        expiry_needs=histogram_of(
            sum((counts_of(each.expiry_us) for each in distances), np.zeros(len(STEPS), np.int64))
        ),
        most_expiry_need_us=max((int(each.expiry_us.max(initial=0)) for each in distances), default=0),
        sources=worst(
            source
            for domain, columns in zip(domains, sources, strict=True)
            for source in _named(domain, columns, receipts.sources)
        ),
        source_window_needs=ValueCounts.of(np.concatenate([columns.window_needs for columns in sources])),
        checked_sources=sum(len(domain.source_numbers) for domain in domains),
        ended_sources=ValueCounts.of(np.concatenate([_of_ended_sources(domain, log.middle_us) for domain in domains])),
        timeline=_timeline(receipts, domains, distances),
        cross_domain=_cross_domain_duplicates(receipts, domains),
        lacking=lacking_parts(receipts.channels, _by_channel(receipts)),
        has_digest=receipts.digest_hash is not None,
        reused=_reused(receipts.digest_hash, domains, distances),
        has_redelivered=receipts.redelivered is not None,
        unmarked_duplicates=unmarked,
        marked_firsts=marked,
        largest_step_back_us=max((domain.largest_step_back_us for domain in domains), default=0),
        status_lines=in_order(receipts.status_lines),
    )


def _part_needs(distances: Sequence[ReuseDistances], in_first_half: Sequence[int], max_missed: int) -> list[PartNeeds]:
    """Of the whole log and of both halves."""
    parts = zip(
        *(_parts(each.window, first) for each, first in zip(distances, in_first_half, strict=True)), strict=True
    )
    parts_us = zip(
        *(_parts(each.expiry_us, first) for each, first in zip(distances, in_first_half, strict=True)), strict=True
    )
    return [
        PartNeeds(ValueCounts.of(np.concatenate(windows)), expiry_need_us(np.concatenate(expiries_us), max_missed))
        for windows, expiries_us in zip(parts, parts_us, strict=True)
    ]


def _domain_counts(domain: Domain, distances: ReuseDistances, max_missed: int) -> DomainCounts:
    needs = PartNeeds(ValueCounts.of(distances.window), expiry_need_us(distances.expiry_us, max_missed))
    return DomainCounts(
        domain.name,
        domain.receipts,
        domain.rows.duplicates,
        domain.sources,
        needs.window(max_missed),
        needs.expiry_us,
    )


def _elsewhere(domains: Sequence[Domain]) -> Elsewhere:
    needs = [first_receipt_needs(domain.rows) for domain in domains]
    return Elsewhere(max(need.ring for need in needs), max(need.ttl_us for need in needs))


def _peak_per_second(domain: Domain) -> int:
    rows = domain.rows
    return int(second_counts(rows.source, rows.received_at_us, len(domain.source_numbers)).most.max(initial=0))


def _from_other_sources(domain: Domain) -> int:
    rows = domain.rows
    again = np.flatnonzero(rows.earlier >= 0)
    return int(np.count_nonzero(rows.source[again] != rows.source[rows.earlier[again]]))


def _by_channel(receipts: Receipts) -> list[int]:
    counts: list[int] = np.bincount(receipts.channel_number, minlength=len(receipts.channels)).tolist()
    return counts


def log_figures(receipts: Receipts, domains: Sequence[Domain]) -> LogFigures:
    """The figures of a log; `domains` are all of its domains."""
    times = receipts.received_at_us
    return LogFigures(
        receipts=len(times),
        unchecked=int(np.count_nonzero(receipts.id_number == 0)),
        skipped=receipts.skipped,
        duplicates=sum(domain.rows.duplicates for domain in domains),
        domains=len(domains),
        sources=sum(domain.sources for domain in domains),
        first_received_at_us=int(times.min()) if len(times) else None,
        last_received_at_us=int(times.max()) if len(times) else None,
        clock_clamped=sum(domain.clock_clamped for domain in domains),
        redelivered=0 if receipts.redelivered is None else int(np.count_nonzero(receipts.redelivered)),
        max_delivery_secs=receipts.max_delivery_us / 1_000_000,
    )


def _sources(domain: Domain, distances: ReuseDistances) -> _Sources:
    count = len(domain.source_numbers)
    source = domain.rows.source[distances.row]
    windows, expiries_us = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(windows, source, distances.window)
    np.maximum.at(expiries_us, source, distances.expiry_us)
    receipts, duplicates = np.bincount(domain.rows.source, minlength=count), np.bincount(source, minlength=count)
    number = np.flatnonzero(duplicates)
    return _Sources(number, *(column[number] for column in (receipts, duplicates, windows, expiries_us)))


def _named(domain: Domain, columns: _Sources, names: Sequence[str]) -> Iterator[SourceNeeds]:
    """The sources of a domain that may be among the worst, with their names."""
    indexes = maybe_worst(columns.window_needs, columns.expiry_needs_us)
    for number, *counts in zip(*(column[indexes].tolist() for column in columns), strict=True):
        yield SourceNeeds(domain.name, names[domain.source_numbers[number]], *counts)


def _of_ended_sources(domain: Domain, middle_us: int) -> npt.NDArray[np.intp]:
    """The receipts of each source of a domain that has none from the middle on."""
    source, sources = domain.rows.source, len(domain.source_numbers)
    middle = np.searchsorted(domain.rows.received_at_us, middle_us)
    before, after = np.bincount(source[:middle], minlength=sources), np.bincount(source[middle:], minlength=sources)
    ended: npt.NDArray[np.intp] = before[after == 0]
    return ended


def _timeline(receipts: Receipts, domains: Sequence[Domain], distances: Sequence[ReuseDistances]) -> Timeline | None:
    times = receipts.received_at_us
    if not len(times):
        return None
    start_us = int(times.min())
    slice_us, slices = slices_of(start_us, int(times.max()))
    every = np.bincount((times - start_us) // slice_us, minlength=slices)
    rows = np.concatenate([domain.log_rows[each.row] for domain, each in zip(domains, distances, strict=True)])
    duplicates = np.bincount((times[rows] - start_us) // slice_us, minlength=slices)
    return Timeline(start_us, slice_us, tuple(every.tolist()), tuple(duplicates.tolist()))


def _reused(
    digests: npt.NDArray[np.uint64] | None, domains: Sequence[Domain], distances: Sequence[ReuseDistances]
) -> int:
    if digests is None:
        return 0
    reused = 0
    for domain, each in zip(domains, distances, strict=True):
        now = digests[domain.log_rows[each.row]]
        before = digests[domain.log_rows[domain.rows.earlier[each.row]]]
        reused += int(np.count_nonzero((now != before) & (now != 0) & (before != 0)))
    return reused


def _against_flags(flags: npt.NDArray[np.bool_] | None, domains: Sequence[Domain]) -> tuple[int, int]:
    """Duplicates without the flag, and first receipts with it."""
    if flags is None:
        return sum(domain.rows.duplicates for domain in domains), 0
    unmarked = marked = 0
    for domain in domains:
        flagged, new = flags[domain.log_rows], domain.rows.earlier < 0
        unmarked += int(np.count_nonzero(~flagged & ~new))
        marked += int(np.count_nonzero(flagged & new))
    return unmarked, marked


def _cross_domain_duplicates(receipts: Receipts, domains: Sequence[Domain]) -> CrossDomainDuplicates | None:
    """The cross-domain duplicates of a log that is held whole; None without any."""
    queue_of_channel = parted_queues(receipts.channels, receipts.domain_of_channel.tolist())
    if (queue_of_channel < 0).all():
        return None
    ids = receipts.id_number
    new = np.zeros(len(ids), np.bool_)
    for domain in domains:
        new[domain.log_rows[domain.rows.earlier < 0]] = True
    shared = np.bincount(ids[new], minlength=receipts.ids.count) > 1
    rows = np.flatnonzero(shared[ids])
    rows = rows[queue_of_channel[receipts.channel_number[rows]] >= 0]
    channel = receipts.channel_number[rows]
    names = [channel.connection_id for channel in receipts.channels]
    counts = cross_domain_counts(queue_of_channel[channel], ids[rows], new[rows], channel, names)
    return CrossDomainDuplicates(sum(counts.values()), counts) if counts else None
