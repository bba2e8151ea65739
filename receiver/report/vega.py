"""What all charts share: Vega-Lite specifications that ask nothing of the network.

Text and lines take the page's colour (`currentColor`), so that one drawing serves light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import altair as alt

__all__ = [
    "AMBER",
    "BLUE",
    "CONFIG",
    "GREEN",
    "INK",
    "RED",
    "Spec",
    "decades",
    "inline",
    "labels",
    "one_two_five",
    "spec",
]

Spec = dict[str, Any]

GREEN, AMBER, RED, BLUE = "#2f9e6e", "#d9a021", "#d1603d", "#4a86c8"
INK = "currentColor"

CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": INK,
        "tickColor": INK,
        "gridColor": INK,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "gridOpacity": 0.12,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "orient": "top", "title": None},
}
"""What all charts share."""


def spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart, height: int) -> Spec:
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    # Nothing in the page may look like an address, and the shared look is CONFIG.
    del spec["$schema"], spec["config"]
    return spec


def inline(rows: list[dict[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def decades(most: float) -> list[int]:
    return [0, *(10**power for power in range(int(math.log10(max(most, 1))) + 1))]


def one_two_five(least: int, most: int) -> list[int]:
    """Round figures from the one to the other; fewer of each decade where there are many decades."""
    powers = range(int(math.log10(least)), int(math.log10(most)) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)  # noqa: PLR2004
    return [factor * 10**power for power in powers for factor in factors if least <= factor * 10**power <= most]


def labels(values: Iterable[int], word: Callable[[int], str]) -> str:
    return json.dumps({str(value): word(value) for value in values}) + "[datum.value]"
