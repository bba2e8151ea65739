"""The charts of a sizing. No chart holds a text of the log: all labels are figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import altair as alt

from receiver.report.grid import Grid, all_settings, frontier, recommended_of, thinned
from receiver.report.vega import AMBER, BLUE, GREEN, INK, RED, Spec, decades, inline, labels, one_two_five, spec
from receiver.report.words import compact, count, duration, second, seconds, size
from receiver.simulate.figures import Analysis, Histogram, SettingFigures, Timeline

__all__ = [
    "bin_words",
    "filled_bins",
    "frontier_chart",
    "heat_map",
    "histogram",
    "is_numbered",
    "timeline_chart",
]

_NOTHING_MISSED = "#7fd1a6"
_FEW_MISSED, _MANY_MISSED = "#fdebd8", "#c2410c"
_MOST_FAINT_POINTS = 1_000
_MOST_NUMBERED_COLUMNS = 20


def _setting_row(setting: SettingFigures, bytes_per_id: int) -> dict[str, Any]:
    return {
        "W": count(setting.window),
        "E": seconds(setting.expiry_us),
        "missed": setting.missed,
        "caught": setting.caught,
        "ids": setting.peak_ids,
        "memory": size(setting.peak_ids * bytes_per_id),
    }


_SETTING_TOOLTIP = [
    alt.Tooltip("W:N", title="window W"),
    alt.Tooltip("E:N", title="expiry E"),
    alt.Tooltip("missed:Q", format=",d", title="missed"),
    alt.Tooltip("caught:Q", format=",d", title="caught"),
    alt.Tooltip("ids:Q", format=",d", title="most ids kept"),
    alt.Tooltip("memory:N", title="memory"),
]


def is_numbered(grid: Grid) -> bool:
    """Whether the cells of the heat map are wide enough for their figures."""
    return len(grid.expiries_us) <= _MOST_NUMBERED_COLUMNS


def heat_map(grid: Grid, recommended: SettingFigures, bytes_per_id: int) -> Spec:
    """Duplicates missed by window and expiry; the recommended setting is framed."""
    most = max((setting.missed for setting in grid.cells.values()), default=0)
    rows = [
        {
            **_setting_row(setting, bytes_per_id),
            "label": compact(setting.missed),
            # Figures are white on the darkest cells only, on a dark page too.
            "dark": math.log1p(setting.missed) > 0.8 * math.log1p(max(most, 1)),
        }
        for setting in grid.cells.values()
    ]
    numbered = is_numbered(grid)
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("E:O", sort=[seconds(us) for us in grid.expiries_us], title="expiry E")
        .axis(labelAngle=0 if len(grid.expiries_us) <= _MOST_NUMBERED_COLUMNS // 2 else -45, labelOverlap=True)
        .scale(paddingInner=0.04),
        y=alt.Y("W:O", sort=[count(window) for window in reversed(grid.windows)], title="window W")
        .axis(labelOverlap=True)
        .scale(paddingInner=0.04),
        tooltip=_SETTING_TOOLTIP,
    )
    shades = alt.Color("missed:Q", title="missed").scale(
        type="symlog", domain=[0, max(most, 1)], range=[_FEW_MISSED, _MANY_MISSED]
    )
    shades = shades.legend(None) if numbered else shades.legend(values=decades(most), format=",d", gradientLength=240)
    layers = [
        base.mark_rect(cornerRadius=2).encode(
            color=alt.condition("datum.missed === 0", alt.value(_NOTHING_MISSED), shades)
        )
    ]
    if numbered:
        ink = alt.condition(alt.datum.dark, alt.value("#fff"), alt.value("#1c1917"))
        layers.append(base.mark_text(fontSize=12, aria=False).encode(text="label:N", color=ink))
    frame = base.mark_rect(fill=None, stroke=INK, strokeWidth=3, cornerRadius=2).transform_filter(
        (count(recommended.window) == alt.datum.W) & (seconds(recommended.expiry_us) == alt.datum.E)
    )
    layers.append(frame)
    return spec(alt.layer(*layers), height=max(len(grid.windows) * (34 if numbered else 12), 80))


def frontier_chart(analysis: Analysis) -> Spec:
    """Memory against duplicates missed: the settings that no other beats are joined, the others are faint."""
    recommended = recommended_of(analysis)
    settings = all_settings(analysis)
    best = frontier(settings)

    def rows(settings: Iterable[SettingFigures]) -> list[dict[str, Any]]:
        # A logarithm needs a byte at least.
        return [
            {**_setting_row(setting, analysis.bytes_per_id), "bytes": max(setting.peak_ids * analysis.bytes_per_id, 1)}
            for setting in settings
        ]

    all_rows = rows(settings)
    x_ticks = one_two_five(min(row["bytes"] for row in all_rows), max(row["bytes"] for row in all_rows))
    most_missed = max(row["missed"] for row in all_rows)
    x = alt.X("bytes:Q", title="memory, for the most ids kept").scale(type="log", nice=False, padding=14)
    y = alt.Y("missed:Q", title="duplicates missed").scale(type="symlog", domain=[0, max(most_missed, 1)], nice=False)
    x = x.axis(values=x_ticks, labelExpr=labels(x_ticks, size), labelOverlap=True)
    y = y.axis(values=decades(most_missed), format=",d")

    def layer(settings: Iterable[SettingFigures]) -> alt.Chart:
        return alt.Chart(inline(rows(settings))).encode(x=x, y=y, tooltip=_SETTING_TOOLTIP)

    layers = [
        layer(thinned(settings, _MOST_FAINT_POINTS)).mark_circle(color=INK, opacity=0.22, size=45),
        layer(best).mark_line(color=BLUE, interpolate="step-after", strokeWidth=2),
        layer(best).mark_circle(color=BLUE, opacity=1, size=70),
    ]
    mark = layer([recommended])
    label = f"W = {count(recommended.window)}, E = {seconds(recommended.expiry_us)}"
    layers += [
        mark.mark_point(color=GREEN, size=220, strokeWidth=3, filled=False, opacity=1),
        mark.mark_text(color=INK, dy=-18, fontSize=12, fontWeight="bold").encode(text=alt.value(label)),
    ]
    return spec(alt.layer(*layers), height=300)


def histogram(values: Histogram, word: Callable[[int], str], title: str, *, within: int | None = None) -> Spec:
    """Duplicates by size of need or headroom; with `within`, coloured by whether a setting of that size covers them."""
    bins = filled_bins(values)
    rows = [
        {
            "from": word(low),
            "range": bin_words(low, high, word),
            "duplicates": number,
            "cover": _cover(low, high, within),
        }
        for low, high, number in bins
    ]
    chart = alt.Chart(inline(rows)).encode(
        x=alt.X("from:O", sort=[word(low) for low, _, _ in bins], title=title).axis(labelAngle=-45, labelOverlap=True),
        y=alt.Y("duplicates:Q", title="duplicates").axis(tickMinStep=1, format=",d"),
        tooltip=[alt.Tooltip("range:N", title="bar"), alt.Tooltip("duplicates:Q", format=",d")],
    )
    if within is None:
        return spec(chart.mark_bar(color=BLUE), height=200)
    covers = [cover for cover in _COVERS if any(row["cover"] == cover for row in rows)]
    colors = alt.Color("cover:N").scale(domain=covers, range=[_COVERS[cover] for cover in covers])
    return spec(chart.mark_bar().encode(color=colors), height=200)


_COVERS = {"within the setting": GREEN, "in part": AMBER, "beyond it": RED}


def _cover(low: int, high: int, within: int | None) -> str:
    within_it, in_part, beyond = _COVERS
    if within is None or low > within:
        return beyond
    return within_it if high - 1 <= within else in_part


def filled_bins(values: Histogram) -> list[tuple[int, int, int]]:
    """The bins from the first to the last that hold anything: (from, up to but without, count)."""
    bins = list(zip(values.edges, values.edges[1:], values.counts, strict=False))
    filled = [place for place, (_, _, number) in enumerate(bins) if number]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def bin_words(low: int, high: int, word: Callable[[int], str]) -> str:
    """`4 to 7`, `1.5 s to 2.25 s`; a bin of one value is that value."""
    if high - low == 1:
        return word(low)
    return f"{word(low)} to {word(high - 1 if word is count else high)}"


def timeline_chart(timeline: Timeline, counts: tuple[int, ...], noun: str) -> Spec:
    """Receipts, or duplicates, per slice of time; the charts of one timeline stand exactly below each other."""
    rows = [
        {
            "begin": (timeline.start_us + place * timeline.slice_us) / 1_000,
            "end": (timeline.start_us + (place + 1) * timeline.slice_us) / 1_000,
            "from": second(timeline.start_us + place * timeline.slice_us),
            "number": number,
        }
        for place, number in enumerate(counts)
    ]
    chart = (
        alt.Chart(inline(rows))
        .mark_rect(color=BLUE if noun == "receipts" else RED)
        .encode(
            x=alt.X("begin:T", title=None)
            .scale(type="utc", nice=False)
            .axis(format=_clock(timeline.slice_us * len(counts)), tickCount=6, labelOverlap=True),
            x2="end:T",
            y=alt.Y("number:Q", title=f"{noun} per {duration(timeline.slice_us)}")
            .scale(domainMin=0)
            .axis(tickMinStep=1, tickCount=4, format=",d", minExtent=44),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("from:N", title="from (UTC)"), alt.Tooltip("number:Q", format=",d", title=noun)],
        )
    )
    return spec(chart, height=130)


def _clock(span_us: int) -> str:
    """How times are written along an axis of that length."""
    if span_us < 10 * 60 * 1_000_000:
        return "%H:%M:%S"
    return "%H:%M" if span_us < 86_400 * 1_000_000 else "%m-%d %H:%M"
