"""A log that one process holds whole: what is true of it whatever the setting, and its replay domain by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.figures import LogFigures, Timeline
from receiver.simulate.headroom import (
    SlackCounts,
    expiry_need_us,
    outcomes_of,
    pair_outcome,
    reuse_distances,
    source_indexes,
)
from receiver.simulate.kernel import replay_grid
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.replays import (
    CrossDomainDuplicates,
    DomainCounts,
    Facts,
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
    from receiver.simulate.kernel import GridCounts
    from receiver.simulate.rows import Domain

__all__ = ["WholeLog", "log_figures"]


class WholeLog:
    """The `Replays` of receipts in memory. `advance` is called with 1 for each domain whose grid is done.

    `domains` are those of the log, ordered by name.
    """

    def __init__(self, receipts: Receipts, *, advance: Callable[[int], None] | None = None) -> None:
        self._receipts = receipts
        self._advance = advance
        self.domains = list(split_domains(receipts))
        self._distances = [reuse_distances(domain.rows) for domain in self.domains]
        self._facts = _facts_of(receipts, self.domains, self._distances)

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
        slack = [SlackCounts.none(len(self._facts.sources))] * len(pairs)
        for domain, distances in zip(self.domains, self._distances, strict=True):
            grid.append(replay_grid(domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64)))
            for k, (caught, peak_ids, slack_here) in enumerate(self._outcomes(domain, distances, pairs)):
                figures[k] += caught, peak_ids
                slack[k] += slack_here
            if self._advance:
                self._advance(1)
        return Replayed(
            caught=tuple(counts.caught for counts in grid),
            peak_ids=tuple(counts.peak_ids for counts in grid),
            pairs=tuple(
                pair_outcome(caught, peak_ids, pair_slack)
                for (caught, peak_ids), pair_slack in zip(figures.tolist(), slack, strict=True)
            ),
        )

    def _outcomes(
        self, domain: Domain, distances: ReuseDistances, pairs: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int, SlackCounts]]:
        def replay(windows: Sequence[int], expiries_us: Sequence[int]) -> GridCounts:
            return replay_grid(
                domain.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64), with_needs=True
            )

        names = [self._receipts.sources[number] for number in domain.source_numbers.tolist()]
        source = source_indexes(self._facts.sources, domain.name, names)[domain.rows.source[distances.row]]
        return outcomes_of(pairs, replay, distances.window, source, len(self._facts.sources))


class _Sources(NamedTuple):
    """The sources of a domain that have duplicates, in columns."""

    number: npt.NDArray[np.intp]
    """The source's number in the domain."""
    receipts: npt.NDArray[np.intp]
    duplicates: npt.NDArray[np.intp]
    window_needs: npt.NDArray[np.int64]
    expiry_needs_us: npt.NDArray[np.int64]


def _facts_of(receipts: Receipts, domains: Sequence[Domain], distances: Sequence[ReuseDistances]) -> Facts:
    """Count what is true of a log, by all of its domains and the reuse distances of each one's duplicates."""
    sources = [_sources(domain, each) for domain, each in zip(domains, distances, strict=True)]
    windows = np.concatenate([each.window for each in distances])
    expiries_us = np.concatenate([each.expiry_us for each in distances])
    unmarked, marked = _against_flags(receipts.redelivered, domains)
    log = log_figures(receipts, domains)
    return Facts(
        log=log,
        domains=tuple(DomainCounts(d.name, d.receipts, d.rows.duplicates, d.sources) for d in domains),
        firsts=sum(len(domain.log_rows) - domain.rows.duplicates for domain in domains),
        window_needs=ValueCounts(*np.unique(windows, return_counts=True)),
        expiry_needs=histogram_of(counts_of(expiries_us)),
        most_expiry_need_us=int(expiries_us.max(initial=0)),
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
