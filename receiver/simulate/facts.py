"""What is true of a log that is held whole, whatever the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.crossing import crossing_of
from receiver.simulate.figures import LogFigures, Timeline
from receiver.simulate.numbering import lacking_parts
from receiver.simulate.replays import DomainCounts, Facts, SourceNeeds, ValueCounts
from receiver.simulate.summaries import counts_of, histogram_of, in_order, maybe_worst, slices_of, worst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain

__all__ = ["facts_of", "log_figures"]


class _Sources(NamedTuple):
    """The sources of a domain that have duplicates, in columns."""

    number: npt.NDArray[np.intp]
    """In the domain."""
    receipts: npt.NDArray[np.intp]
    duplicates: npt.NDArray[np.intp]
    window_needs: npt.NDArray[np.int64]
    expiry_needs_us: npt.NDArray[np.int64]


def facts_of(receipts: Receipts, domains: Sequence[Domain], needs: Sequence[Needs]) -> Facts:
    """Count what `domains`, all of a log's, and the `needs` of each one's duplicates show."""
    sources = [_sources(domain, need) for domain, need in zip(domains, needs, strict=True)]
    windows = np.concatenate([need.window for need in needs])
    expiries_us = np.concatenate([need.expiry_us for need in needs])
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
        timeline=_timeline(receipts, domains, needs),
        crossing=crossing_of(receipts, domains),
        lacking=lacking_parts(receipts.channels, _by_channel(receipts)),
        has_digest=receipts.digest_hash is not None,
        reused=_reused(receipts.digest_hash, domains, needs),
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
    """What a log amounts to; `domains` are all of its domains."""
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


def _sources(domain: Domain, needs: Needs) -> _Sources:
    count = len(domain.source_numbers)
    source = domain.rows.source[needs.row]
    windows, expiries_us = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(windows, source, needs.window)
    np.maximum.at(expiries_us, source, needs.expiry_us)
    receipts, duplicates = np.bincount(domain.rows.source, minlength=count), np.bincount(source, minlength=count)
    number = np.flatnonzero(duplicates)
    return _Sources(number, *(column[number] for column in (receipts, duplicates, windows, expiries_us)))


def _named(domain: Domain, columns: _Sources, names: Sequence[str]) -> Iterator[SourceNeeds]:
    """Those of a domain that may be among the worst."""
    places = maybe_worst(columns.window_needs, columns.expiry_needs_us)
    for number, *counts in zip(*(column[places].tolist() for column in columns), strict=True):
        yield SourceNeeds(domain.name, names[domain.source_numbers[number]], *counts)


def _of_ended_sources(domain: Domain, middle_us: int) -> npt.NDArray[np.intp]:
    """The receipts of each source of a domain that has none from the middle on."""
    source, sources = domain.rows.source, len(domain.source_numbers)
    middle = np.searchsorted(domain.rows.received_at_us, middle_us)
    before, after = np.bincount(source[:middle], minlength=sources), np.bincount(source[middle:], minlength=sources)
    ended: npt.NDArray[np.intp] = before[after == 0]
    return ended


def _timeline(receipts: Receipts, domains: Sequence[Domain], needs: Sequence[Needs]) -> Timeline | None:
    times = receipts.received_at_us
    if not len(times):
        return None
    start_us = int(times.min())
    slice_us, slices = slices_of(start_us, int(times.max()))
    every = np.bincount((times - start_us) // slice_us, minlength=slices)
    rows = np.concatenate([domain.log_rows[need.row] for domain, need in zip(domains, needs, strict=True)])
    duplicates = np.bincount((times[rows] - start_us) // slice_us, minlength=slices)
    return Timeline(start_us, slice_us, tuple(every.tolist()), tuple(duplicates.tolist()))


def _reused(digests: npt.NDArray[np.uint64] | None, domains: Sequence[Domain], needs: Sequence[Needs]) -> int:
    if digests is None:
        return 0
    reused = 0
    for domain, need in zip(domains, needs, strict=True):
        now = digests[domain.log_rows[need.row]]
        before = digests[domain.log_rows[domain.rows.earlier[need.row]]]
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
