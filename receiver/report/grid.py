"""The settings that a person looks at: the grid, thinned where it is large, and the frontier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from receiver.simulate.figures import Analysis, SettingFigures

__all__ = ["Grid", "all_settings", "frontier", "frontier_of", "grid_of", "recommended_of", "thinned"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """Settings by window and expiry. A pair may be missing: 0 with 0, or beside a recommendation that lies off the grid."""

    windows: tuple[int, ...]
    expiries_us: tuple[int, ...]
    cells: dict[tuple[int, int], SettingFigures]
    left_out: int
    """Settings of the analysis that the grid doesn't show."""


def recommended_of(analysis: Analysis) -> SettingFigures:
    """The recommended setting, on the grid or not."""
    return analysis.recommendation.setting


def all_settings(analysis: Analysis) -> list[SettingFigures]:
    """The settings tried, and the recommended one where it lies off the grid."""
    recommended = recommended_of(analysis)
    off_grid = recommended not in analysis.settings
    return [*analysis.settings, *([recommended] if off_grid else [])]


def grid_of(analysis: Analysis, *, most_windows: int, most_expiries: int) -> Grid:
    """The grid with at most so many windows and expiries, and always the recommended ones, on the grid or not."""
    settings = {(setting.window, setting.expiry_us): setting for setting in all_settings(analysis)}
    recommended = recommended_of(analysis)
    windows = _axis((window for window, _ in settings), most_windows, recommended.window)
    expiries = _axis((expiry for _, expiry in settings), most_expiries, recommended.expiry_us)
    cells = {
        (window, expiry): settings[window, expiry]
        for window in windows
        for expiry in expiries
        if (window, expiry) in settings
    }
    return Grid(windows, expiries, cells, left_out=len(settings) - len(cells))


def _axis(values: Iterable[int], most: int, kept: int) -> tuple[int, ...]:
    distinct = sorted(set(values))
    if len(distinct) <= most:
        return tuple(distinct)
    return tuple(sorted({*thinned(distinct, most - 1), kept}))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items (two or more), evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[round(place * last / (most - 1))] for place in range(most)]


def frontier(settings: Iterable[SettingFigures]) -> list[SettingFigures]:
    """The settings that no other beats in ids kept and in duplicates missed, by ids kept.

    Of settings with equal figures the one with the smaller window, then the smaller expiry, stands for all.
    """
    best: list[SettingFigures] = []
    for setting in sorted(settings, key=lambda s: (s.peak_ids, s.missed, s.window, s.expiry_us)):
        if not best or setting.missed < best[-1].missed:
            best.append(setting)
    return best


def frontier_of(analysis: Analysis) -> list[SettingFigures]:
    """The frontier of all settings, the recommended one included."""
    return frontier(all_settings(analysis))
