"""The charts of both reports, as Vega-Lite specifications that ask nothing of the network.

Text and lines take the page's colour (`currentColor`), so that one drawing serves light and dark. No chart holds a text
of the log: names of policies are sanitised, all other labels are figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt

from receiver.compare import Cause, PolicyFigures
from receiver.report.comparing import with_number
from receiver.report.sizing import Grid, all_settings, frontier, recommended_of, thinned
from receiver.report.words import compact, count, duration, second, seconds, size
from receiver.simulate.figures import Analysis, Histogram, SettingFigures, Timeline

__all__ = [
    "CONFIG",
    "Spec",
    "bin_words",
    "causes_chart",
    "filled_bins",
    "frontier_chart",
    "heat_map",
    "histogram",
    "is_numbered",
    "memory_chart",
    "timeline_chart",
]

Spec = dict[str, Any]

_GREEN, _AMBER, _RED, _BLUE = "#2f9e6e", "#d9a021", "#d1603d", "#4a86c8"
_INK = "currentColor"

CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "domainColor": _INK,
        "tickColor": _INK,
        "gridColor": _INK,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "gridOpacity": 0.12,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "legend": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 12, "orient": "top", "title": None},
}
"""What all charts share."""


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart, height: int) -> Spec:
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    # Nothing in the page may look like an address, and the shared look is CONFIG.
    del spec["$schema"], spec["config"]
    return spec


def _chart(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _figure_tooltip(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", format=",d", title=title)


def _cost_axis(rows: list[dict[str, Any]], field: str, title: str, word: Callable[[int], str], padding: int) -> alt.X:
    """The horizontal axis for the rows' cost in memory: a log scale, whose values `word` writes."""
    ticks = _one_two_five(min(row[field] for row in rows), max(row[field] for row in rows))
    return (
        alt.X(f"{field}:Q", title=title)
        .scale(type="log", nice=False, padding=padding)
        .axis(values=ticks, labelExpr=_labels(ticks, word), labelOverlap=True)
    )


def _missed_axis(rows: list[dict[str, Any]], headroom: int = 1) -> alt.Y:
    """The vertical axis for the duplicates that the rows miss, up to `headroom` times the most."""
    most = max(row["missed"] for row in rows)
    return (
        alt.Y("missed:Q", title="duplicates missed")
        .scale(type="symlog", domain=[0, max(headroom * most, 1)], nice=False)
        .axis(values=_decades(most), format=",d")
    )


def _decades(most: float) -> list[int]:
    return [0, *(10**power for power in range(int(math.log10(max(most, 1))) + 1))]


def _one_two_five(least: int, most: int) -> list[int]:
    """Round figures from `least` to `most`: 1, 2 and 5 of each decade, or 1 alone over more than three decades."""
    powers = range(int(math.log10(least)), int(math.log10(most)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)  # noqa: PLR2004
    return [factor * 10**power for power in powers for factor in factors if least <= factor * 10**power <= most]


def _labels(values: Iterable[int], word: Callable[[int], str]) -> str:
    return json.dumps({str(value): word(value) for value in values}) + "[datum.value]"


_NOTHING_MISSED = "#7fd1a6"
_FEW_MISSED, _MANY_MISSED = "#fdebd8", "#c2410c"
_MOST_FAINT_POINTS = 1_000
_MOST_NUMBERED_COLUMNS = 20
_LABEL_SHARE = 0.06
"""The share of the chart's width that a label takes."""
_NEVER_WRONG, _MISSES, _DROPS = "never wrong", "misses duplicates", "drops new messages"
_RIGHTNESS = {_NEVER_WRONG: _GREEN, _MISSES: _AMBER, _DROPS: _RED}
_CAUSES = dict(zip(Cause, (_BLUE, _AMBER, _GREEN, "#8b6fc0", _RED), strict=True))
_COVERS = {"within the setting": _GREEN, "in part": _AMBER, "beyond it": _RED}


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
    _figure_tooltip("missed", "missed"),
    _figure_tooltip("caught", "caught"),
    _figure_tooltip("ids", "most ids kept"),
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
    base = _chart(rows).encode(
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
    shades = shades.legend(None) if numbered else shades.legend(values=_decades(most), format=",d", gradientLength=240)
    layers = [
        base.mark_rect(cornerRadius=2).encode(
            color=alt.condition("datum.missed === 0", alt.value(_NOTHING_MISSED), shades)
        )
    ]
    if numbered:
        ink = alt.condition(alt.datum.dark, alt.value("#fff"), alt.value("#1c1917"))
        layers.append(base.mark_text(fontSize=12, aria=False).encode(text="label:N", color=ink))
    frame = base.mark_rect(fill=None, stroke=_INK, strokeWidth=3, cornerRadius=2).transform_filter(
        (count(recommended.window) == alt.datum.W) & (seconds(recommended.expiry_us) == alt.datum.E)
    )
    layers.append(frame)
    return _spec(alt.layer(*layers), height=max(len(grid.windows) * (34 if numbered else 12), 80))


def frontier_chart(analysis: Analysis) -> Spec:
    """Memory against duplicates missed: a line joins the settings that no other beats, the others are faint."""
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
    x = _cost_axis(all_rows, "bytes", "memory, for the most ids kept", size, padding=14)
    y = _missed_axis(all_rows)

    def layer(settings: Iterable[SettingFigures]) -> alt.Chart:
        return _chart(rows(settings)).encode(x=x, y=y, tooltip=_SETTING_TOOLTIP)

    layers = [
        layer(thinned(settings, _MOST_FAINT_POINTS)).mark_circle(color=_INK, opacity=0.22, size=45),
        layer(best).mark_line(color=_BLUE, interpolate="step-after", strokeWidth=2),
        layer(best).mark_circle(color=_BLUE, opacity=1, size=70),
    ]
    mark = layer([recommended])
    label = f"W = {count(recommended.window)}, E = {seconds(recommended.expiry_us)}"
    layers += [
        mark.mark_point(color=_GREEN, size=220, strokeWidth=3, filled=False, opacity=1),
        mark.mark_text(color=_INK, dy=-18, fontSize=12, fontWeight="bold").encode(text=alt.value(label)),
    ]
    return _spec(alt.layer(*layers), height=300)


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
    chart = _chart(rows).encode(
        x=alt.X("from:O", sort=[word(low) for low, _, _ in bins], title=title).axis(labelAngle=-45, labelOverlap=True),
        y=alt.Y("duplicates:Q", title="duplicates").axis(tickMinStep=1, format=",d"),
        tooltip=[alt.Tooltip("range:N", title="bar"), alt.Tooltip("duplicates:Q", format=",d")],
    )
    if within is None:
        return _spec(chart.mark_bar(color=_BLUE), height=200)
    covers = [cover for cover in _COVERS if any(row["cover"] == cover for row in rows)]
    colors = alt.Color("cover:N").scale(domain=covers, range=[_COVERS[cover] for cover in covers])
    return _spec(chart.mark_bar().encode(color=colors), height=200)


def _cover(low: int, high: int, within: int | None) -> str:
    within_it, in_part, beyond = _COVERS
    if within is None or low > within:
        return beyond
    return within_it if high - 1 <= within else in_part


def filled_bins(values: Histogram) -> list[tuple[int, int, int]]:
    """The bins from the first to the last non-empty one, as (lower edge, upper edge, count); the upper edge is exclusive."""
    bins = list(zip(values.edges, values.edges[1:], values.counts, strict=False))
    filled = [index for index, (_, _, number) in enumerate(bins) if number]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def bin_words(low: int, high: int, word: Callable[[int], str]) -> str:
    """Write a bin as `4 to 7` or `1.5 s to 2.25 s`, and a bin of one value as that value."""
    if high - low == 1:
        return word(low)
    return f"{word(low)} to {word(high - 1 if word is count else high)}"


def timeline_chart(timeline: Timeline, counts: tuple[int, ...], noun: str) -> Spec:
    """Receipts, or duplicates, per slice of time; the charts of one timeline share their horizontal axis."""
    rows = [
        {
            "begin": (timeline.start_us + index * timeline.slice_us) / 1_000,
            "end": (timeline.start_us + (index + 1) * timeline.slice_us) / 1_000,
            "from": second(timeline.start_us + index * timeline.slice_us),
            "number": number,
        }
        for index, number in enumerate(counts)
    ]
    chart = (
        _chart(rows)
        .mark_rect(color=_BLUE if noun == "receipts" else _RED)
        .encode(
            x=alt.X("begin:T", title=None)
            .scale(type="utc", nice=False)
            .axis(format=_clock(timeline.slice_us * len(counts)), tickCount=6, labelOverlap=True),
            x2="end:T",
            y=alt.Y("number:Q", title=f"{noun} per {duration(timeline.slice_us)}")
            .scale(domainMin=0)
            .axis(tickMinStep=1, tickCount=4, format=",d", minExtent=44),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("from:N", title="from (UTC)"), _figure_tooltip("number", noun)],
        )
    )
    return _spec(chart, height=130)


def _clock(span_us: int) -> str:
    """The format of the times along an axis that spans so many microseconds."""
    if span_us < 10 * 60 * 1_000_000:
        return "%H:%M:%S"
    return "%H:%M" if span_us < 86_400 * 1_000_000 else "%m-%d %H:%M"


def memory_chart(policies: Sequence[PolicyFigures]) -> Spec:
    """Ids kept against duplicates missed; policies with equal figures share a point."""
    points: dict[tuple[int, int, str], list[int]] = {}
    for index, figures in enumerate(policies):
        rightness = _DROPS if figures.false_duplicates else _MISSES if figures.missed else _NEVER_WRONG
        points.setdefault((figures.peak_ids, figures.missed, rightness), []).append(index)
    rows: list[dict[str, Any]] = [
        {
            "ids": max(ids, 1),  # a logarithm needs one at least
            "missed": missed,
            "rightness": rightness,
            "numbers": [index + 1 for index in indices],
            "policies": ", ".join(with_number(index, policies[index]) for index in indices),
            "false": policies[indices[0]].false_duplicates,
            "memory": size(policies[indices[0]].memory_bytes),
        }
        for (ids, missed, rightness), indices in points.items()
    ]
    _label(rows)
    shown = [rightness for rightness in _RIGHTNESS if any(row["rightness"] == rightness for row in rows)]
    base = _chart(rows).encode(
        x=_cost_axis(rows, "ids", "most ids kept", compact, padding=24),
        y=_missed_axis(rows, headroom=2),
        tooltip=[
            alt.Tooltip("policies:N", title="policy"),
            _figure_tooltip("missed", "missed"),
            _figure_tooltip("false", "false duplicates"),
            _figure_tooltip("ids", "most ids kept"),
            alt.Tooltip("memory:N", title="memory"),
        ],
    )
    colors = alt.Color("rightness:N").scale(domain=shown, range=[_RIGHTNESS[rightness] for rightness in shown])
    layers = (
        base.mark_circle(size=140, opacity=1).encode(color=colors),
        base.mark_text(color=_INK, dy=-15, fontSize=12, fontWeight="bold", aria=False).encode(text="numbers:N"),
    )
    return _spec(alt.layer(*layers), height=300)


def _label(rows: list[dict[str, Any]]) -> None:
    """Turn the `numbers` of each point into its label. A point too near to its left neighbour is labelled there."""
    from_left = sorted(rows, key=lambda row: (row["missed"], row["ids"]))
    span = max(row["ids"] for row in rows) / min(row["ids"] for row in rows)
    labelled = from_left[0]
    for row in from_left[1:]:
        if row["missed"] == labelled["missed"] and row["ids"] < labelled["ids"] * span**_LABEL_SHARE:
            labelled["numbers"] += row["numbers"]
            row["numbers"] = []
        else:
            labelled = row
    for row in rows:
        row["numbers"] = ", ".join(map(str, row["numbers"]))


def causes_chart(policies: Sequence[tuple[str, dict[Cause, int]]]) -> Spec:
    """How many receipts each policy is wrong about: a bar for each policy, divided by cause."""
    rows = [
        {"policy": name, "cause": str(cause), "receipts": number, "order": list(Cause).index(cause)}
        for name, causes in policies
        for cause, number in causes.items()
        if number
    ]
    shown = [cause for cause in _CAUSES if any(row["cause"] == cause for row in rows)]
    chart = (
        _chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("receipts:Q", title="receipts").axis(tickMinStep=1, format=",d"),
            y=alt.Y("policy:N", sort=[name for name, _ in policies], title=None).axis(labelLimit=300),
            color=alt.Color("cause:N").scale(domain=list(map(str, shown)), range=[_CAUSES[cause] for cause in shown]),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("policy:N", title="policy"),
                alt.Tooltip("cause:N", title="cause"),
                _figure_tooltip("receipts", "receipts"),
            ],
        )
    )
    return _spec(chart, height=max(40 * len(policies), 60))
