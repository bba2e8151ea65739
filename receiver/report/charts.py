"""The charts of both reports, as Vega-Lite specifications that make no network requests.

Text and lines take the page's colour (`currentColor`), so that a drawing suits light and dark. No chart has text from the log:
names of policies are sanitised, and all other labels are figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from receiver.compare import Cause, PolicyFigures
from receiver.message import LATEST_US
from receiver.quantities import DAY_US, count, duration, seconds
from receiver.report.comparing import with_number
from receiver.report.sizing import ShownGrid
from receiver.report.words import compact, second, size
from receiver.simulate.figures import Curve, SettingFigures, Timeline

Spec = dict[str, Any]

_GREEN, _AMBER, _RED, _BLUE = "#2f9e6e", "#d9a021", "#d1603d", "#4a86c8"
_INK, _GREY = "currentColor", "#8b93a1"

CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), _INK),
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
"""The configuration of all charts."""


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart, height: int) -> Spec:
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    # The page must have no URLs, and all charts share CONFIG.
    del spec["$schema"], spec["config"]
    return spec


def _chart(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _figure_tooltip(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", format=",d", title=title)


def _log_axis(
    field: str, title: str, least: int, most: int, word: Callable[[int], str], *, grid: bool = True, **scale: Any
) -> alt.X:
    """A logarithmic horizontal axis from `least` to `most`. `word` formats its values."""
    ticks = _one_two_five(least, most)
    labels = json.dumps({str(value): word(value) for value in ticks}) + "[datum.value]"
    axis = alt.X(f"{field}:Q", title=title).scale(type="log", nice=False, **scale)
    return axis.axis(values=ticks, labelExpr=labels, labelOverlap=True, grid=grid)


def _missed_axis(rows: list[dict[str, Any]], headroom: int = 1) -> alt.Y:
    """The vertical axis of missed duplicates, up to `headroom` times the most that a row misses."""
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


_NOTHING_MISSED = "#7fd1a6"
_FEW_MISSED, _MANY_MISSED = "#fdebd8", "#c2410c"
_MOST_LEVEL_LABELS = 10
_LABEL_SHARE = 0.06
"""The share of the chart's width that a label takes."""
_NEVER_WRONG, _MISSES, _DROPS = "never wrong", "misses duplicates", "drops new messages"
_RIGHTNESS = {_NEVER_WRONG: _GREEN, _MISSES: _AMBER, _DROPS: _RED}
_CAUSES = dict(zip(Cause, (_BLUE, _AMBER, _GREEN, "#8b6fc0", _RED), strict=True))
_MARKS = {"recommended": _GREEN, "yours": _BLUE, "supported": _GREY}
_MARK_ROW_PX = 15
_MOST_DAYS_WITH_TIME = 180
"""For more days the ticks are months apart, perhaps in different years, so they show the year."""
_CURVE_SPAN = 10_000
"""The largest size on a curve divided by the least, unless a mark is smaller."""


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


def heat_map(grid: ShownGrid, recommended: SettingFigures, present: SettingFigures, bytes_per_id: int) -> Spec:
    """Duplicates missed, by window and expiry. The recommended setting has a solid frame, the present setting a dashed one."""
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
    numbered = grid.is_numbered
    base = _chart(rows).encode(
        x=alt.X("E:O", sort=[seconds(us) for us in grid.expiries_us], title="expiry E")
        .axis(labelAngle=0 if len(grid.expiries_us) <= _MOST_LEVEL_LABELS else -45, labelOverlap=True)
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
    for setting, dashes in ((recommended, [1, 0]), (present, [5, 4])):
        frame = base.mark_rect(fill=None, stroke=_INK, strokeWidth=3, strokeDash=dashes, cornerRadius=2)
        of_setting = (count(setting.window) == alt.datum.W) & (seconds(setting.expiry_us) == alt.datum.E)
        layers.append(frame.transform_filter(of_setting))
    return _spec(alt.layer(*layers), height=max(len(grid.windows) * (34 if numbered else 12), 80))


class Mark(NamedTuple):
    """A setting that is marked on a curve."""

    value: int
    label: str
    color: str


def marks_of(need: tuple[int, str], settings: Mapping[str, int], word: Callable[[int], str]) -> list[Mark]:
    """Marks for the log's need and for the named settings. Settings of equal values share a mark; a value of 0 has none."""
    names: dict[int, list[str]] = {}
    for name, value in settings.items():
        names.setdefault(value, []).append(name)
    marks = [
        Mark(
            value, f"{', '.join(shared)} {word(value)}", next((_MARKS[name] for name in _MARKS if name in shared), _INK)
        )
        for value, shared in names.items()
    ]
    return sorted(mark for mark in (Mark(need[0], f"need {need[1]}", _INK), *marks) if mark.value)


def curve_chart(curve: Curve, marks: Sequence[Mark], word: Callable[[int], str], title: str) -> Spec:
    """How many duplicates one tier alone misses, by its size, with the labels of marks in rows above the curve."""
    need, (_, last_missed) = curve[-1][0], curve[-2]
    marked = [mark.value for mark in marks]
    most = max([need, *marked]) * 3 // 2 + 1
    # A mark left of the axis would be drawn across the page.
    least = min([max(most // _CURVE_SPAN, curve[0][0], 1), *marked])
    begin = max((point for point in curve if point[0] <= least), default=curve[0])
    points = [(least, begin[1]), *(point for point in curve if point[0] > least), (most, 0)]
    x = _log_axis("size", title, least, most, word, grid=False, domain=[least, most])
    rows: list[dict[str, Any]] = [{"size": value, "missed": missed, "setting": word(value)} for value, missed in points]
    decisive = {"size": need, "missed": last_missed}
    y = _missed_axis([*rows, decisive])  # if the axis begins at the need, no other row is as high
    base = _chart(rows).encode(x=x, y=y)
    last = _chart([decisive]).encode(x=x, y=y)
    layers = [
        base.mark_area(interpolate="step-after", color=_AMBER, opacity=0.2),
        base.mark_line(interpolate="step-after", color=_AMBER, strokeWidth=2),
        *_mark_layers(marks, x),
        last.mark_circle(color=_AMBER, size=60, opacity=1),
        base.mark_circle(opacity=0, size=120).encode(
            tooltip=[alt.Tooltip("setting:N", title=title), _figure_tooltip("missed", "missed")]
        ),
    ]
    return _spec(alt.layer(*layers), height=120)


def _mark_layers(marks: Sequence[Mark], x: alt.X) -> list[alt.Chart]:
    # Each label is left of its line, and higher for larger values, so labels don't overlap.
    layers = []
    for row, mark in enumerate(marks):
        base = _chart([{"size": mark.value, "label": mark.label}]).encode(x=x)
        top = alt.value(-6 - _MARK_ROW_PX * row)
        rule = base.mark_rule(color=mark.color, strokeWidth=1.5)
        label = base.mark_text(color=_INK, align="right", baseline="top", dx=-4, fontSize=11)
        layers += [rule.encode(y=top, y2=alt.value("height")), label.encode(y=top, text="label:N")]
    return layers


def timeline_chart(timeline: Timeline, counts: tuple[int, ...], noun: str) -> Spec:
    """Receipts, or duplicates, per slice of time. Both charts of a timeline have the same horizontal axis."""
    rows = [
        {
            "begin": (timeline.start_us + index * timeline.slice_us) / 1_000,
            # Limited, because a tick in the year 10000 would be shown as year 0000.
            "end": min((timeline.start_us + (index + 1) * timeline.slice_us) / 1_000, LATEST_US // 1_000),
            "from": second(timeline.start_us + index * timeline.slice_us),
            "number": number,
        }
        for index, number in enumerate(counts)
    ]
    chart = (
        _chart(rows)
        .mark_rect(color=_BLUE if noun == "receipts" else _AMBER)
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
    """The format of times on an axis that spans this many microseconds."""
    if span_us < 10 * 60 * 1_000_000:
        return "%H:%M:%S"
    if span_us < DAY_US:
        return "%H:%M"
    return "%m-%d %H:%M" if span_us < _MOST_DAYS_WITH_TIME * DAY_US else "%Y-%m-%d"


def memory_chart(policies: Sequence[PolicyFigures]) -> Spec:
    """Ids kept against duplicates missed; policies with equal figures share a point."""
    points: dict[tuple[int, int, str], list[int]] = {}
    for index, figures in enumerate(policies):
        rightness = _DROPS if figures.false_duplicates else _MISSES if figures.missed else _NEVER_WRONG
        points.setdefault((figures.peak_ids, figures.missed, rightness), []).append(index)
    rows: list[dict[str, Any]] = [
        {
            "ids": max(ids, 1),  # there is no logarithm of 0
            "missed": missed,
            "rightness": rightness,
            "numbers": [index + 1 for index in indices],
            "policies": ", ".join(with_number(index, policies[index]) for index in indices),
            "false": policies[indices[0]].false_duplicates,
            "memory": size(policies[indices[0]].memory_bytes),
        }
        for (ids, missed, rightness), indices in points.items()
    ]
    ids = [row["ids"] for row in rows]
    _label(rows)
    shown = [rightness for rightness in _RIGHTNESS if any(row["rightness"] == rightness for row in rows)]
    base = _chart(rows).encode(
        x=_log_axis("ids", "most ids kept", min(ids), max(ids), compact, padding=24),
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
    """Turn the `numbers` of each point into its label. A point too close to its left neighbour is listed in that label."""
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


def causes_chart(policies: Mapping[str, dict[Cause, int]]) -> Spec:
    """How many receipts each policy is wrong about: a bar for each policy, divided by cause."""
    rows = [
        {"policy": name, "cause": str(cause), "receipts": number, "order": list(Cause).index(cause)}
        for name, causes in policies.items()
        for cause, number in causes.items()
        if number
    ]
    shown = [cause for cause in _CAUSES if any(row["cause"] == cause for row in rows)]
    chart = (
        _chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("receipts:Q", title="receipts").axis(tickMinStep=1, format=",d"),
            y=alt.Y("policy:N", sort=list(policies), title=None).axis(labelLimit=300),
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
