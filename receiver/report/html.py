"""The analysis as one HTML file that explains itself, asks nothing of the network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from receiver.report import charts
from receiver.report.grid import Grid, frontier, grid_of
from receiver.report.words import (
    count,
    duration,
    headroom_left,
    of_duplicates,
    reading,
    remarks,
    seconds,
    size,
    tamed,
    without_recommendation,
)
from receiver.simulate.figures import Analysis, DomainFigures, Histogram, SettingFigures

__all__ = ["html_text"]

_MOST_GRID_LINES = 40
_MOST_CELLS_AS_TABLE = 400
_MOST_ROWS = 50
_LONGEST_NAME = 120
_LONGEST_PARAGRAPH = 2_000


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A table: its caption, the names of its columns, its rows. The first `texts` columns are text, the others figures."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 0


@dataclass(frozen=True, slots=True)
class _Figure:
    """A chart with its words, and the numbers behind it where they are few."""

    id: str
    title: str
    caption: str
    spec: charts.Spec
    numbers: _Numbers | None = None
    least_width_em: int = 0
    """Narrower, it scrolls."""


def html_text(analysis: Analysis) -> str:
    """The whole file. Its size depends little on the grid and the number of domains: both are cut, and the page says so."""
    figures = _figures(analysis)
    scripts = [_vega(), _script_text("draw.js")]
    environment = Environment(
        loader=PackageLoader("receiver", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html.j2").render(
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own
        script_hashes=[_csp_hash(script) for script in scripts],
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own
        drawing={"config": charts.CONFIG, "charts": {figure.id: figure.spec for figure in figures}},
        reading=reading(analysis),
        remarks=remarks(analysis),
        answer=_answer(analysis),
        findings=[tamed(finding.text, _LONGEST_PARAGRAPH) for finding in analysis.findings],
        figures=figures,
        tables=[table for table in (_domains(analysis), _sources(analysis)) if table.rows],
    )


def _packaged(name: str) -> str:
    return resources.files("receiver.report").joinpath(name).read_text(encoding="utf-8")


def _script_text(name: str) -> str:
    return _for_script_element(_packaged(name))


def _for_script_element(javascript: str) -> str:
    # The two texts that end or change the state of a script element; both can stand in literals only.
    return re.sub("<(?=/script|!--)", r"\\x3c", javascript, flags=re.IGNORECASE).replace("\r\n", "\n")


@cache
def _vega() -> str:
    return _for_script_element(vl_convert.javascript_bundle())


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _answer(analysis: Analysis) -> dict[str, Any]:
    recommendation = analysis.recommendation
    if recommendation is None:
        return {"found": False, "why": without_recommendation(analysis)}
    setting = recommendation.setting
    return {
        "found": True,
        "window": count(setting.window),
        "expiry": seconds(setting.expiry_us),
        "settings": {
            "dupDetectionPerSourceExpiryWindowSize": str(setting.window),
            "dupDetectionExpiryTimeSecs": seconds(setting.expiry_us).removesuffix(" s").replace(",", ""),
        },
        "missed": of_duplicates(setting.missed, analysis.log.duplicates),
        "missed_none": not setting.missed,
        "ids": count(setting.peak_ids),
        "memory": size(recommendation.memory_bytes),
        "database": size(recommendation.database_bytes),
        "margin": f"{recommendation.margin:g}",
        "why": tamed(recommendation.why, _LONGEST_PARAGRAPH),
        "headroom": headroom_left(analysis),
    }


def _figures(analysis: Analysis) -> list[_Figure]:
    return [*_setting_figures(analysis), *_need_figures(analysis), *_headroom_figures(analysis), *_timeline(analysis)]


def _recommended(analysis: Analysis) -> SettingFigures | None:
    return analysis.recommendation.setting if analysis.recommendation else None


def _setting_figures(analysis: Analysis) -> list[_Figure]:
    if not analysis.settings:
        return []
    recommended = _recommended(analysis)
    grid = grid_of(analysis, most_windows=_MOST_GRID_LINES, most_expiries=_MOST_GRID_LINES)
    caption = "Green cells miss nothing; the darker the others, the more they miss."
    if recommended:
        caption += " The framed cell is the recommended setting."
    if grid.left_out:
        caption += f" {count(grid.left_out)} of the {count(len(analysis.settings))} settings tried are left out here."
    best = frontier([*analysis.settings, *([recommended] if recommended else [])])
    return [
        _Figure(
            "missed",
            "What each setting would have missed",
            caption,
            charts.heat_map(grid, recommended, analysis.bytes_per_id),
            _grid_numbers(grid),
            least_width_em=6 + (3 if len(grid.expiries_us) <= _MOST_GRID_LINES // 2 else 1) * len(grid.expiries_us),
        ),
        _Figure(
            "frontier",
            "What catching more costs",
            "Blue settings are the ones to choose among: no other misses fewer duplicates for the same memory or less. "
            "The ring is the recommended setting; it may cost more than the blue one beside it, because it holds a margin.",
            charts.frontier_chart(analysis),
            _settings_numbers("The settings that no other beats", best[:_MOST_ROWS], analysis.bytes_per_id),
        ),
    ]


def _grid_numbers(grid: Grid) -> _Numbers | None:
    if len(grid.cells) > _MOST_CELLS_AS_TABLE:
        return None

    def cell(window: int, expiry_us: int) -> str:
        setting = grid.cells.get((window, expiry_us))
        return f"{count(setting.missed)} ({count(setting.peak_ids)})" if setting else "–"

    return _Numbers(
        "Duplicates missed, and in brackets the most ids kept, by window W and expiry E",
        ["W \\ E", *map(seconds, grid.expiries_us)],
        [[count(window), *(cell(window, expiry_us) for expiry_us in grid.expiries_us)] for window in grid.windows],
    )


def _settings_numbers(caption: str, settings: Sequence[SettingFigures], bytes_per_id: int) -> _Numbers:
    rows = [
        [
            count(setting.window),
            seconds(setting.expiry_us),
            count(setting.missed),
            count(setting.caught),
            count(setting.peak_ids),
            size(setting.peak_ids * bytes_per_id),
        ]
        for setting in settings
    ]
    return _Numbers(caption, ["W", "E", "missed", "caught", "most ids kept", "memory"], rows)


def _need_figures(analysis: Analysis) -> list[_Figure]:
    recommended = _recommended(analysis)
    return [
        *_histogram(
            "window-needs",
            "The window that each duplicate needs",
            "The smallest W that catches the duplicate without the time tier: one more than the distinct ids that its "
            "source sent in between.",
            analysis.window_needs,
            count,
            "smallest W, each bar from its label up to the next",
            within=recommended.window if recommended else None,
        ),
        *_histogram(
            "expiry-needs",
            "The expiry that each duplicate needs",
            "The smallest E that catches the duplicate without the per-source tier. A duplicate is caught where either "
            "tier reaches, so W and E need not both cover it.",
            analysis.expiry_needs_us,
            duration,
            "smallest E, each bar from its label up to the next",
            within=recommended.expiry_us if recommended else None,
        ),
    ]


def _headroom_figures(analysis: Analysis) -> list[_Figure]:
    headroom = analysis.headroom
    if headroom is None:
        return []
    return [
        *_histogram(
            "window-left",
            "How much of W was left",
            f"For the {count(headroom.caught_by_source)} duplicates that a source's own queue catches with the recommended "
            "setting: how many more ids of the source could have come first. Bars near 0 are close calls.",
            headroom.window_left,
            count,
            "ids to spare, each bar from its label up to the next",
        ),
        *_histogram(
            "expiry-left",
            "How much of E was left",
            f"For the {count(headroom.caught_by_time)} duplicates that only the time queue catches: how much more time "
            "could have passed. Bars near 0 are close calls.",
            headroom.expiry_left_us,
            duration,
            "time to spare, each bar from its label up to the next",
        ),
    ]


def _histogram(
    name: str, title: str, caption: str, values: Histogram, word: Callable[[int], str], axis: str, within: int | None = None
) -> list[_Figure]:
    bins = charts.filled_bins(values)
    if not bins:
        return []
    rows = [[charts.bin_words(low, high, word), count(number)] for low, high, number in bins]
    numbers = _Numbers(title, ["from, to", "duplicates"], rows)
    return [_Figure(name, title, caption, charts.histogram(values, word, axis, within=within), numbers)]


def _timeline(analysis: Analysis) -> list[_Figure]:
    timeline = analysis.timeline
    if timeline is None:
        return []
    return [
        _Figure(
            noun,
            f"{noun.capitalize()} over time",
            f"Per slice of {duration(timeline.slice_us)}, by the time received as the log has it, in UTC.",
            charts.timeline_chart(timeline, counts, noun),
        )
        for noun, counts in (("receipts", timeline.receipts), ("duplicates", timeline.duplicates))
    ]


def _domains(analysis: Analysis) -> _Numbers:
    worst = sorted(analysis.domains, key=lambda domain: (-domain.duplicates, -domain.receipts, domain.domain))
    more = len(worst) - _MOST_ROWS
    caption = "Domains, most duplicates first" + (f"; {count(more)} more are not shown" if more > 0 else "")
    recommended = _recommended(analysis)
    rows = [
        [
            tamed(domain.domain, _LONGEST_NAME) or "(no name)",
            count(domain.receipts),
            count(domain.sources),
            count(domain.duplicates),
            *_with_recommended(domain, recommended),
        ]
        for domain in islice(worst, _MOST_ROWS)
    ]
    columns = ["domain", "receipts", "sources", "duplicates", "missed if recommended", "most ids kept"]
    return _Numbers(caption, columns, rows, texts=1)


def _with_recommended(domain: DomainFigures, recommended: SettingFigures | None) -> tuple[str, str]:
    for setting in domain.settings:
        if recommended and (setting.window, setting.expiry_us) == (recommended.window, recommended.expiry_us):
            return count(setting.missed), count(setting.peak_ids)
    return "–", "–"


def _sources(analysis: Analysis) -> _Numbers:
    rows = [
        [
            tamed(source.source, _LONGEST_NAME) or "(anonymous)",
            tamed(source.domain, _LONGEST_NAME) or "(no name)",
            count(source.receipts),
            count(source.duplicates),
            count(source.window_need),
            duration(source.expiry_need_us),
            "–" if source.window_left is None else count(source.window_left),
            "–" if source.expiry_left_us is None else duration(source.expiry_left_us),
        ]
        for source in analysis.sources[:_MOST_ROWS]
    ]
    columns = ["source", "domain", "receipts", "duplicates", "needs W", "or E", "W to spare", "E to spare"]
    return _Numbers("Sources that need most, worst first", columns, rows, texts=2)
