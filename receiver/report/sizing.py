"""What is shown of an analysis, on a terminal as on a page: the grid, thinned where it is large, the frontier, the sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from receiver.report.words import count, duration, of_duplicates, seconds
from receiver.simulate.figures import Analysis, SettingFigures

__all__ = [
    "Grid",
    "all_settings",
    "frontier",
    "frontier_of",
    "grid_of",
    "headroom_left",
    "recommended_of",
    "setting_asked_for",
    "thinned",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """Settings by window and expiry. A pair may be missing: 0 with 0, or beside a recommendation that lies off the grid."""

    windows: tuple[int, ...]
    expiries_us: tuple[int, ...]
    cells: dict[tuple[int, int], SettingFigures]
    left_out: int
    """How many settings of the analysis the grid doesn't show."""


def recommended_of(analysis: Analysis) -> SettingFigures:
    """The recommended setting, on the grid or not."""
    return analysis.recommendation.setting


def all_settings(analysis: Analysis) -> list[SettingFigures]:
    """The settings tried, and the recommended one where it lies off the grid."""
    recommended = recommended_of(analysis)
    off_grid = recommended not in analysis.settings
    return [*analysis.settings, *([recommended] if off_grid else [])]


def grid_of(
    analysis: Analysis, *, most_windows: int, most_expiries: int, beside: Sequence[SettingFigures] = ()
) -> Grid:
    """The grid with at most so many windows and expiries.

    The recommended setting is always there, on the grid or not, and so are those `beside` it.
    """
    settings = {(setting.window, setting.expiry_us): setting for setting in (*all_settings(analysis), *beside)}
    kept = (recommended_of(analysis), *beside)
    windows = _axis((window for window, _ in settings), most_windows, {setting.window for setting in kept})
    expiries = _axis((expiry for _, expiry in settings), most_expiries, {setting.expiry_us for setting in kept})
    cells = {
        (window, expiry): settings[window, expiry]
        for window in windows
        for expiry in expiries
        if (window, expiry) in settings
    }
    return Grid(windows, expiries, cells, left_out=len(settings) - len(cells))


def _axis(values: Iterable[int], most: int, kept: set[int]) -> tuple[int, ...]:
    distinct = sorted(set(values))
    if len(distinct) <= most:
        return tuple(distinct)
    return tuple(sorted({*thinned(distinct, most - len(kept)), *kept}))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items (2 or more), evenly spaced; the first and the last are among them."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[round(index * last / (most - 1))] for index in range(most)]


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


def setting_asked_for(analysis: Analysis) -> str:
    """What the one setting that was tried would have done; empty where there were more to choose from."""
    if len(analysis.settings) != 1:
        return ""
    (setting,) = analysis.settings
    return (
        f"The setting asked for, W = {count(setting.window)} with E = {seconds(setting.expiry_us)}, misses "
        f"{of_duplicates(setting.missed, analysis.log.duplicates)} and keeps at most {count(setting.peak_ids, 'id')}."
    )


def headroom_left(analysis: Analysis) -> str:
    """How close the duplicates that the recommended setting catches came to being missed; empty where there are none."""
    headroom = analysis.headroom
    if headroom is None:
        return ""
    said = []
    if headroom.caught_by_source:
        text = f"{count(headroom.caught_by_source, 'duplicate')} caught by a source's own queue"
        least = headroom.least_window_left
        said.append(text if least is None else f"{text}, the closest with {count(least, 'id')} to spare")
    if headroom.caught_by_time:
        text = f"{count(headroom.caught_by_time, 'duplicate')} caught by the time queue alone"
        least = headroom.least_expiry_left_us
        said.append(text if least is None else f"{text}, the closest with {duration(least)} to spare")
    return "; ".join(said) + "." if said else ""
