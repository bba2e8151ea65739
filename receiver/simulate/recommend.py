"""The cheapest setting that misses no more than is allowed, with a margin over what the log needed.

Caught duplicates only grow with W and with E. So for each window w there is one smallest expiry e(w) that misses no more
than allowed, and (w, e(w)) are the log's needs. The windows tried are 0 (the time queue alone), the largest need (the
per-source tier alone), and the quantiles of the duplicates' needs in between, where one tier takes over from the other.
Each need is multiplied by the margin and rounded up to two digits, an expiry to a second at the least, since the clocks and
pauses that it must stand vary by milliseconds anyway; of these settings the one with the fewest remembered
ids at its peak is recommended, by the exact replay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from receiver.settings import expiry_us_of
from receiver.simulate.figures import Recommendation, SettingFigures
from receiver.simulate.kernel import replay_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver.settings import ReceiverSettings, SimulateSettings
    from receiver.simulate.needs import Needs
    from receiver.simulate.replay import Domain

__all__ = ["Choice", "recommend"]

_LEAST_EXPIRY_US = 1_000_000
_QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Choice:
    """A recommendation, and what each duplicate of each domain needs beside its window."""

    recommendation: Recommendation
    needs_us: list[npt.NDArray[np.int64]]
    """Per domain and duplicate, the smallest E that catches it with the recommended W; -1 where W alone does."""


def _rounded_up(value: float) -> int:
    """To two significant digits, upwards: settings are read by people."""
    if value <= 0:
        return 0
    unit: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def _candidates(needs: Sequence[Needs], max_missed: int) -> list[int]:
    windows = np.sort(np.concatenate([need.window for need in needs]))
    enough = int(windows[max(0, len(windows) - 1 - max_missed)])
    return sorted({0, enough, *(int(windows[int(q * (len(windows) - 1))]) for q in _QUANTILES)})


def _expiry_need_us(needs_us: npt.NDArray[np.int64], max_missed: int) -> int:
    """The smallest E that leaves no more than `max_missed` uncaught, of needs with -1 for caught anyway."""
    uncaught = needs_us[needs_us >= 0]
    if len(uncaught) <= max_missed:
        return 0
    at = len(uncaught) - 1 - max_missed
    return max(1, int(np.partition(uncaught, at)[at]))


def _log_needs(domains: Sequence[Domain], needs: Sequence[Needs], max_missed: int) -> list[tuple[int, int]]:
    windows = _candidates(needs, max_missed)
    tried = np.array(windows, np.int64)
    columns = [replay_grid(d.rows, tried, np.zeros(1, np.int64), with_needs=True).needs_us for d in domains]
    matrix = np.concatenate(columns)
    return [(window, _expiry_need_us(matrix[:, k], max_missed)) for k, window in enumerate(windows)]


def _with_margin(log_needs: list[tuple[int, int]], margin: float) -> dict[tuple[int, int], tuple[int, int]]:
    """Settings worth recommending -> the log's needs that they came from."""
    settings: dict[tuple[int, int], tuple[int, int]] = {}
    for window, expiry_us in log_needs:
        expiry = max(_LEAST_EXPIRY_US, _rounded_up(margin * expiry_us)) if expiry_us else 0
        if window or expiry:
            settings.setdefault((_rounded_up(margin * window), expiry), (window, expiry_us))
    return settings


def _replay(
    domains: Sequence[Domain], windows: list[int], expiries_us: list[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    counts = [
        replay_grid(d.rows, np.array(windows, np.int64), np.array(expiries_us, np.int64), with_needs=True)
        for d in domains
    ]
    caught = np.sum([count.caught for count in counts], axis=0)
    peaks = np.sum([count.peak_ids for count in counts], axis=0)
    return caught, peaks, [count.needs_us for count in counts]


def recommend(
    domains: Sequence[Domain], needs: Sequence[Needs], settings: SimulateSettings, defaults: ReceiverSettings
) -> Choice:
    """The setting to take, by a log whose `domains` and `needs` these are."""
    duplicates = sum(len(need.row) for need in needs)
    with_margin = _with_margin(_log_needs(domains, needs, settings.max_missed), settings.margin) if duplicates else {}
    pairs = sorted(with_margin) or [
        (defaults.dup_detection_per_source_expiry_window_size, expiry_us_of(defaults.dup_detection_expiry_time_secs))
    ]
    windows, expiries_us = sorted({w for w, _ in pairs}), sorted({e for _, e in pairs})
    caught, peaks, needs_us = _replay(domains, windows, expiries_us)
    places = [(windows.index(w), expiries_us.index(e)) for w, e in pairs]
    k, e = min(places, key=lambda place: (int(peaks[place]), place))
    figures = SettingFigures(
        windows[k], expiries_us[e], int(caught[k, e]), duplicates - int(caught[k, e]), int(peaks[k, e])
    )
    why = _why(figures, with_margin.get((windows[k], expiries_us[e])), len(pairs), duplicates, settings)
    return Choice(
        Recommendation(
            setting=figures,
            memory_bytes=figures.peak_ids * settings.memory_bytes_per_id,
            database_bytes=figures.peak_ids * settings.database_bytes_per_id,
            margin=settings.margin,
            why=why,
        ),
        [matrix[:, k] for matrix in needs_us],
    )


def _why(
    figures: SettingFigures, need: tuple[int, int] | None, tried: int, duplicates: int, settings: SimulateSettings
) -> str:
    if need is None:
        return "The log holds no duplicate, so it says nothing about the windows; these are the defaults."
    window, expiry_us = need
    secs = f"{expiry_us / 1_000_000:.6f}".rstrip("0").rstrip(".")
    if expiry_us == 0:
        needed = f"W = {window:,} and no expiry"
    elif window == 0:
        needed = f"E = {secs} s and no window"
    else:
        needed = f"W = {window:,} with E = {secs} s"
    allowed = (
        f"all {duplicates:,}" if settings.max_missed == 0 else f"all but {settings.max_missed:,} of {duplicates:,}"
    )
    least = ", an expiry to a second at least," if figures.expiry_us == _LEAST_EXPIRY_US else ""
    return (
        f"To catch {allowed} duplicates, this log needed {needed}. "
        f"{settings.margin:g} times that, rounded up{least} misses {figures.missed:,} and remembers {figures.peak_ids:,} ids "
        f"at the peak, the fewest of the {tried} such settings compared."
    )
