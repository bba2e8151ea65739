"""The cheapest setting that misses no more than is allowed, with a margin over what the log needed.

Caught duplicates only grow with W and with E. So for each window w there is one smallest expiry e(w) that misses no more
than allowed, and (w, e(w)) are the log's needs. The windows tried are 0 (the time queue alone), the largest need (the
per-source tier alone), and the quantiles of the duplicates' needs in between, where one tier takes over from the other.
Each need is multiplied by the margin and rounded up to two digits, an expiry to at least a second, since clocks and pauses
vary by milliseconds anyway. Each of these settings is replayed, and the one with the fewest remembered ids at its peak is
recommended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver.settings import expiry_us_of
from receiver.simulate.figures import Recommendation, SettingFigures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver.settings import ReceiverSettings, SimulateSettings
    from receiver.simulate.replays import PairOutcome, Replays, ValueCounts

__all__ = ["Candidate", "candidates_of", "recommend", "with_margin"]

_LEAST_EXPIRY_US = 1_000_000
_QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that may be recommended."""

    pair: tuple[int, int]
    """The window, and the expiry in microseconds."""
    need: tuple[int, int] | None
    """What the log needs, before the margin; None where it says nothing."""


def _rounded_up(value: float) -> int:
    """To two significant digits, upwards: settings are read by people."""
    if value <= 0:
        return 0
    unit: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def _windows(needs: ValueCounts, max_missed: int) -> list[int]:
    last = needs.total - 1
    ranks = (max(0, last - max_missed), *(int(q * last) for q in _QUANTILES))
    return sorted({0, *(needs.at(rank) for rank in ranks)})


def with_margin(window: int, expiry_us: int, margin: float) -> tuple[int, int]:
    """The setting that stands for a need: so many times as much, rounded up."""
    expiry = max(_LEAST_EXPIRY_US, _rounded_up(margin * expiry_us)) if expiry_us else 0
    return _rounded_up(margin * window), expiry


def candidates_of(
    replays: Replays, needs: ValueCounts, settings: SimulateSettings, defaults: ReceiverSettings
) -> list[Candidate]:
    """The settings to choose from, ascending, for a log whose duplicates have these window `needs`."""
    needs_by_setting: dict[tuple[int, int], tuple[int, int] | None] = {}
    if needs.total:
        windows = _windows(needs, settings.max_missed)
        expiries_us = replays.expiry_needs_us(windows, settings.max_missed)
        for need in zip(windows, expiries_us, strict=True):
            if need != (0, 0):
                needs_by_setting.setdefault(with_margin(*need, settings.margin), need)
    if not needs_by_setting:
        pair = (
            defaults.dup_detection_per_source_expiry_window_size,
            expiry_us_of(defaults.dup_detection_expiry_time_secs),
        )
        needs_by_setting[pair] = None
    return [Candidate(pair, needs_by_setting[pair]) for pair in sorted(needs_by_setting)]


def recommend(
    candidates: Sequence[Candidate], outcomes: Sequence[PairOutcome], duplicates: int, settings: SimulateSettings
) -> tuple[Recommendation, PairOutcome]:
    """The candidate to take, by what a replay of each came to, and its outcome."""
    candidate, outcome = min(
        zip(candidates, outcomes, strict=True), key=lambda tried: (tried[1].peak_ids, tried[0].pair)
    )
    figures = SettingFigures(*candidate.pair, outcome.caught, duplicates - outcome.caught, outcome.peak_ids)
    recommendation = Recommendation(
        setting=figures,
        memory_bytes=figures.peak_ids * settings.memory_bytes_per_id,
        database_bytes=figures.peak_ids * settings.database_bytes_per_id,
        margin=settings.margin,
        why=_why(figures, candidate.need, len(candidates), duplicates, settings),
    )
    return recommendation, outcome


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
