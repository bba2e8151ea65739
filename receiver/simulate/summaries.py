"""Summaries of needs and headroom: histograms, the sources that need most, the course of time."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from receiver.simulate.figures import Headroom, Histogram, SourceFigures, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver.simulate.figures import SettingFigures
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain

__all__ = ["WORST_SOURCES", "headroom_of", "histogram", "most_by_source", "timeline_of", "worst_sources"]

WORST_SOURCES = 50
_SLICES = 200
_STEPS = np.array([0, *chain.from_iterable((10**p, 2 * 10**p, 5 * 10**p) for p in range(18))], np.int64)


def histogram(values: npt.NDArray[np.int64]) -> Histogram:
    """Counts between the steps 0, 1, 2, 5, 10, 20, ... that the values span."""
    if not len(values):
        return Histogram((), ())
    bins = np.searchsorted(_STEPS, values, side="right") - 1
    first, last = int(bins.min()), int(bins.max())
    counts = np.bincount(bins - first, minlength=last - first + 1)
    return Histogram(tuple(_STEPS[first : last + 2].tolist()), tuple(counts.tolist()))


def _left(
    setting: SettingFigures, needs: Needs, needs_us: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which duplicates the source's queue and the time queue alone catch, and the headroom of each duplicate."""
    by_source = needs_us < 0
    by_time = ~by_source & (needs_us <= setting.expiry_us) & (setting.expiry_us > 0)
    return by_source, setting.window - needs.window, by_time, setting.expiry_us - needs_us


def headroom_of(
    setting: SettingFigures, needs: Sequence[Needs], needs_us: Sequence[npt.NDArray[np.int64]]
) -> Headroom | None:
    """How close the duplicates that a setting catches came to being missed; None where it catches none."""
    lefts = [_left(setting, *pair) for pair in zip(needs, needs_us, strict=True)]
    windows = np.concatenate([left[caught] for caught, left, _, _ in lefts])
    expiries = np.concatenate([left[caught] for _, _, caught, left in lefts])
    if not len(windows) and not len(expiries):
        return None
    return Headroom(
        caught_by_source=len(windows),
        caught_by_time=len(expiries),
        window_left=histogram(windows),
        expiry_left_us=histogram(expiries),
        least_window_left=int(windows.min()) if len(windows) else None,
        least_expiry_left_us=int(expiries.min()) if len(expiries) else None,
    )


def _least_by_source(
    sources: int, source: npt.NDArray[np.int32], left: npt.NDArray[np.int64], caught: npt.NDArray[np.bool_]
) -> list[int | None]:
    most = np.iinfo(np.int64).max
    least = np.full(sources, most)
    np.minimum.at(least, source[caught], left[caught])
    return [None if value == most else value for value in least.tolist()]


def most_by_source(domain: Domain, needs: Needs, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per source of a domain, the largest of its duplicates' values; 0 for a source without duplicates."""
    most = np.zeros(len(domain.source_numbers), np.int64)
    np.maximum.at(most, domain.rows.source[needs.row], values)
    return most


def _sources_of(
    domain: Domain, names: list[str], setting: SettingFigures, needs: Needs, needs_us: npt.NDArray[np.int64]
) -> list[SourceFigures]:
    count = len(domain.source_numbers)
    source = domain.rows.source[needs.row]
    windows, expiries = most_by_source(domain, needs, needs.window), most_by_source(domain, needs, needs.expiry_us)
    receipts = np.bincount(domain.rows.source, minlength=count)
    duplicates = np.bincount(source, minlength=count)
    by_source, window_left, by_time, expiry_left = _left(setting, needs, needs_us)
    least_window = _least_by_source(count, source, window_left, by_source)
    least_expiry = _least_by_source(count, source, expiry_left, by_time)
    worst = np.lexsort((-receipts, -expiries, -windows))[:WORST_SOURCES]
    return [
        SourceFigures(
            domain=domain.name,
            source=names[domain.source_numbers[number]],
            receipts=int(receipts[number]),
            duplicates=int(duplicates[number]),
            window_need=int(windows[number]),
            expiry_need_us=int(expiries[number]),
            window_left=least_window[number],
            expiry_left_us=least_expiry[number],
        )
        for number in worst.tolist()
        if duplicates[number]
    ]


def worst_sources(
    receipts: Receipts,
    domains: Sequence[Domain],
    setting: SettingFigures,
    needs: Sequence[Needs],
    needs_us: Sequence[npt.NDArray[np.int64]],
) -> tuple[SourceFigures, ...]:
    """The sources with duplicates that need most, worst first."""
    found = [
        figures
        for domain, need, need_us in zip(domains, needs, needs_us, strict=True)
        for figures in _sources_of(domain, receipts.sources, setting, need, need_us)
    ]
    found.sort(key=lambda s: (-s.window_need, -s.expiry_need_us, s.domain, s.source))
    return tuple(found[:WORST_SOURCES])


def timeline_of(receipts: Receipts, domains: Sequence[Domain], needs: Sequence[Needs]) -> Timeline | None:
    """Receipts and duplicates over time, in at most some two hundred slices of a round length."""
    times = receipts.received_at_us
    if not len(times):
        return None
    start, end = int(times.min()), int(times.max())
    slice_us = max(1, int(_STEPS[np.searchsorted(_STEPS, (end - start) // _SLICES + 1)]))
    slices = (end - start) // slice_us + 1
    all_counts = np.bincount((times - start) // slice_us, minlength=slices)
    rows = np.concatenate([domain.log_rows[need.row] for domain, need in zip(domains, needs, strict=True)])
    duplicates = np.bincount((times[rows] - start) // slice_us, minlength=slices)
    return Timeline(start, slice_us, tuple(all_counts.tolist()), tuple(duplicates.tolist()))
