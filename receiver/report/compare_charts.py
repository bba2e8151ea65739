"""The charts of a comparison. No chart holds a text of the log: names of policies are tamed, all else are figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from receiver.compare.comparison import Cause, PolicyFigures
from receiver.report.vega import AMBER, BLUE, GREEN, INK, RED, Spec, decades, inline, labels, one_two_five, spec
from receiver.report.words import compact, size, tamed

__all__ = ["causes_chart", "memory_chart", "with_number"]

_LONGEST_LABEL = 48
_LABEL_SHARE = 0.06
"""Of the chart's width, what a label takes of it."""
_NEVER_WRONG, _MISSES, _DROPS = "never wrong", "misses duplicates", "drops new messages"
_RIGHTNESS = {_NEVER_WRONG: GREEN, _MISSES: AMBER, _DROPS: RED}
_CAUSES = dict(zip(Cause, (BLUE, AMBER, GREEN, "#8b6fc0", RED), strict=True))


def with_number(place: int, figures: PolicyFigures, most: int = _LONGEST_LABEL) -> str:
    """A policy's name after its number, which also tells equal names apart."""
    return f"{place + 1}. {tamed(figures.policy, most)}"


def memory_chart(policies: Sequence[PolicyFigures]) -> Spec:
    """Ids kept against duplicates missed, a point for all policies of equal figures."""
    points: dict[tuple[int, int, str], list[int]] = {}
    for place, figures in enumerate(policies):
        rightness = _DROPS if figures.false_duplicates else _MISSES if figures.missed else _NEVER_WRONG
        points.setdefault((figures.peak_ids, figures.missed, rightness), []).append(place)
    rows: list[dict[str, Any]] = [
        {
            "ids": max(ids, 1),  # a logarithm needs one at least
            "missed": missed,
            "rightness": rightness,
            "numbers": [place + 1 for place in places],
            "policies": ", ".join(with_number(place, policies[place]) for place in places),
            "false": policies[places[0]].false_duplicates,
            "memory": size(policies[places[0]].memory_bytes),
        }
        for (ids, missed, rightness), places in points.items()
    ]
    _label(rows)
    most_missed = max(row["missed"] for row in rows)
    x_ticks = one_two_five(min(row["ids"] for row in rows), max(row["ids"] for row in rows))
    shown = [rightness for rightness in _RIGHTNESS if any(row["rightness"] == rightness for row in rows)]
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("ids:Q", title="most ids kept")
        .scale(type="log", nice=False, padding=24)
        .axis(values=x_ticks, labelExpr=labels(x_ticks, compact), labelOverlap=True),
        y=alt.Y("missed:Q", title="duplicates missed")
        .scale(type="symlog", domain=[0, max(2 * most_missed, 1)], nice=False)
        .axis(values=decades(most_missed), format=",d"),
        tooltip=[
            alt.Tooltip("policies:N", title="policy"),
            alt.Tooltip("missed:Q", format=",d", title="missed"),
            alt.Tooltip("false:Q", format=",d", title="false duplicates"),
            alt.Tooltip("ids:Q", format=",d", title="most ids kept"),
            alt.Tooltip("memory:N", title="memory"),
        ],
    )
    colors = alt.Color("rightness:N").scale(domain=shown, range=[_RIGHTNESS[rightness] for rightness in shown])
    layers = (
        base.mark_circle(size=140, opacity=1).encode(color=colors),
        base.mark_text(color=INK, dy=-15, fontSize=12, fontWeight="bold", aria=False).encode(text="numbers:N"),
    )
    return spec(alt.layer(*layers), height=300)


def _label(rows: list[dict[str, Any]]) -> None:
    """Give a point its policies' numbers, and after them those of right neighbours that would be written over them."""
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
    """Receipts that policies are wrong about, a bar for each, cut by cause."""
    rows = [
        {"policy": name, "cause": str(cause), "receipts": number, "order": list(Cause).index(cause)}
        for name, causes in policies
        for cause, number in causes.items()
        if number
    ]
    shown = [cause for cause in _CAUSES if any(row["cause"] == cause for row in rows)]
    chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("receipts:Q", title="receipts").axis(tickMinStep=1, format=",d"),
            y=alt.Y("policy:N", sort=[name for name, _ in policies], title=None).axis(labelLimit=300),
            color=alt.Color("cause:N").scale(domain=list(map(str, shown)), range=[_CAUSES[cause] for cause in shown]),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("policy:N", title="policy"),
                alt.Tooltip("cause:N", title="cause"),
                alt.Tooltip("receipts:Q", format=",d", title="receipts"),
            ],
        )
    )
    return spec(chart, height=max(40 * len(policies), 60))
