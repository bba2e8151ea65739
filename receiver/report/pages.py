"""What stands on the HTML pages of both reports: the answer, charts with their words, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from receiver.compare import Cause, Comparison
from receiver.report import charts
from receiver.report.comparing import (
    best_of,
    counted_causes,
    disagreement,
    fitted_words,
    meanings,
    notes,
    recommended_policy,
    sides,
    standing_out,
    whose,
    with_number,
)
from receiver.report.html import Figure, Numbers, page_text
from receiver.report.sizing import (
    Grid,
    frontier_of,
    grid_of,
    headroom_left,
    recommended_of,
    setting_asked_for,
    thinned,
)
from receiver.report.words import (
    count,
    duration,
    named_domain,
    named_source,
    of_duplicates,
    or_dash,
    sanitised,
    second,
    seconds,
    size,
)
from receiver.simulate.figures import Analysis, DomainFigures, Histogram, SettingFigures

__all__ = ["analysis_page", "comparison_page"]

_MOST_GRID_LINES = 40
_MOST_CELLS_AS_TABLE = 400
_MOST_ROWS = 50
_LONGEST_PARAGRAPH = 2_000
_LONGEST_NAME = 120


def analysis_page(analysis: Analysis) -> str:
    """The report of `receiver simulate --report`, a whole HTML file.

    Its size depends little on the grid and the number of domains: both are cut, and the page says so.
    """
    return page_text(
        "simulate",
        analysis.log,
        analysis.key,
        asked=setting_asked_for(analysis),
        answer=_answer(analysis),
        findings=[sanitised(finding.text, _LONGEST_PARAGRAPH) for finding in analysis.findings],
        figures=_analysis_figures(analysis),
        tables=[table for table in (_domains(analysis), _sources(analysis)) if table.rows],
    )


def _answer(analysis: Analysis) -> dict[str, Any]:
    recommendation = analysis.recommendation
    setting = recommendation.setting
    return {
        "window": count(setting.window),
        "expiry": seconds(setting.expiry_us),
        "settings": {
            "dupDetectionPerSourceExpiryWindowSize": str(setting.window),
            "dupDetectionExpiryTimeSecs": seconds(setting.expiry_us).removesuffix(" s").replace(",", ""),
        },
        "missed": of_duplicates(setting.missed, analysis.log.duplicates),
        "missed_none": not setting.missed,
        "ids": count(setting.peak_ids),
        "memory": size(recommendation.sized.memory_bytes),
        "database": size(recommendation.sized.database_bytes),
        "margin": f"{recommendation.margin:g}",
        "why": sanitised(recommendation.why, _LONGEST_PARAGRAPH),
        "headroom": headroom_left(analysis),
    }


def _analysis_figures(analysis: Analysis) -> list[Figure]:
    """The charts that the analysis has figures for."""
    return [*_setting_figures(analysis), *_need_figures(analysis), *_headroom_figures(analysis), *_timeline(analysis)]


def _setting_figures(analysis: Analysis) -> list[Figure]:
    if not analysis.settings:
        return []
    # Without a duplicate there is nothing to weigh against memory.
    return [_heat_map(analysis), *([_frontier(analysis)] if analysis.log.duplicates else [])]


def _heat_map(analysis: Analysis) -> Figure:
    grid = grid_of(analysis, most_windows=_MOST_GRID_LINES, most_expiries=_MOST_GRID_LINES)
    recommended = recommended_of(analysis)
    caption = "Green cells miss nothing; the darker the others, the more they miss. The framed cell is the recommended setting."
    if grid.left_out:
        caption += f" {count(grid.left_out)} of the {count(len(analysis.settings))} settings tried are left out here."
    return Figure(
        "missed",
        "What each setting would have missed",
        caption,
        charts.heat_map(grid, recommended, analysis.bytes_per_id),
        _grid_numbers(grid),
        least_width_em=6 + (3 if charts.is_numbered(grid) else 1) * len(grid.expiries_us),
    )


def _frontier(analysis: Analysis) -> Figure:
    caption = (
        "Blue settings are the ones to choose among: no other misses fewer duplicates for the same memory or less. The ring is "
        "the recommended setting; it may cost more than the blue one beside it, because it holds a margin."
    )
    best = thinned(frontier_of(analysis), _MOST_ROWS)
    return Figure(
        "frontier",
        "What catching more costs",
        caption,
        charts.frontier_chart(analysis),
        _settings_numbers("Settings that no other beats", best, analysis.bytes_per_id),
    )


def _grid_numbers(grid: Grid) -> Numbers | None:
    if len(grid.cells) > _MOST_CELLS_AS_TABLE:
        return None

    def cell(window: int, expiry_us: int) -> str:
        setting = grid.cells.get((window, expiry_us))
        return f"{count(setting.missed)} ({count(setting.peak_ids)})" if setting else "-"

    return Numbers(
        "Duplicates missed, and in brackets the most ids kept, by window W and expiry E",
        ["W \\ E", *map(seconds, grid.expiries_us)],
        [[count(window), *(cell(window, expiry_us) for expiry_us in grid.expiries_us)] for window in grid.windows],
    )


def _settings_numbers(caption: str, settings: Sequence[SettingFigures], bytes_per_id: int) -> Numbers:
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
    return Numbers(caption, ["W", "E", "missed", "caught", "most ids kept", "memory"], rows)


def _need_figures(analysis: Analysis) -> list[Figure]:
    recommended = recommended_of(analysis)
    return [
        *_histogram(
            analysis.window_needs,
            count,
            name="window-needs",
            title="The window that each duplicate needs",
            caption="The smallest W that catches the duplicate without the time tier: one more than the distinct ids that "
            "its source sent in between.",
            axis="smallest W",
            within=recommended.window,
        ),
        *_histogram(
            analysis.expiry_needs_us,
            duration,
            name="expiry-needs",
            title="The expiry that each duplicate needs",
            caption="The smallest E that catches the duplicate without the per-source tier. A duplicate is caught where "
            "either tier reaches, so W and E need not both cover it.",
            axis="smallest E",
            within=recommended.expiry_us,
        ),
    ]


def _headroom_figures(analysis: Analysis) -> list[Figure]:
    headroom = analysis.headroom
    if headroom is None:
        return []
    return [
        *_histogram(
            headroom.window_left,
            count,
            name="window-left",
            title="How much of W was left",
            caption=f"For the {count(headroom.caught_by_source, 'duplicate')} that a source's own queue catches with the "
            "recommended setting: how many more ids of the source could have come first. Bars near 0 are close calls.",
            axis="ids to spare",
        ),
        *_histogram(
            headroom.expiry_left_us,
            duration,
            name="expiry-left",
            title="How much of E was left",
            caption=f"For the {count(headroom.caught_by_time, 'duplicate')} that only the time queue catches with the "
            "recommended setting: how much more time could have passed. Bars near 0 are close calls.",
            axis="time to spare",
        ),
    ]


def _histogram(
    values: Histogram,
    word: Callable[[int], str],
    *,
    name: str,
    title: str,
    caption: str,
    axis: str,
    within: int | None = None,
) -> list[Figure]:
    bins = charts.filled_bins(values)
    if not bins:
        return []
    spec = charts.histogram(values, word, f"{axis}; a bar goes from its label to the next", within=within)
    rows = [[charts.bin_words(low, high, word), count(number)] for low, high, number in bins]
    return [Figure(name, title, caption, spec, Numbers(title, [axis, "duplicates"], rows))]


def _timeline(analysis: Analysis) -> list[Figure]:
    timeline = analysis.timeline
    if timeline is None:
        return []
    return [
        Figure(
            noun,
            f"{noun.capitalize()} over time",
            f"Per slice of {duration(timeline.slice_us)}, by the time received as the log has it, in UTC.",
            charts.timeline_chart(timeline, counts, noun),
        )
        for noun, counts in (("receipts", timeline.receipts), ("duplicates", timeline.duplicates))
    ]


def _domains(analysis: Analysis) -> Numbers:
    worst = sorted(analysis.domains, key=lambda domain: (-domain.duplicates, -domain.receipts, domain.domain))
    more = len(worst) - _MOST_ROWS
    caption = "Domains, most duplicates first" + (f"; {count(more)} more are not shown" if more > 0 else "")
    recommended = recommended_of(analysis)
    shown = worst[:_MOST_ROWS]
    rows = [
        [
            named_domain(domain.domain, _LONGEST_NAME),
            count(domain.receipts),
            count(domain.sources),
            count(domain.duplicates),
        ]
        for domain in shown
    ]
    columns = ["domain", "receipts", "sources", "duplicates"]
    settings = [_same_setting(domain, recommended) for domain in shown]
    # A recommendation off the grid has no figures by domain.
    if any(settings):
        columns += ["missed if recommended", "most ids kept"]
        for row, setting in zip(rows, settings, strict=True):
            row.extend([count(setting.missed), count(setting.peak_ids)] if setting else ["-", "-"])
    return Numbers(caption, columns, rows, texts=1)


def _same_setting(domain: DomainFigures, wanted: SettingFigures) -> SettingFigures | None:
    pairs = ((setting, (setting.window, setting.expiry_us)) for setting in domain.settings)
    return next((setting for setting, pair in pairs if pair == (wanted.window, wanted.expiry_us)), None)


def _sources(analysis: Analysis) -> Numbers:
    rows = [
        [
            named_source(source.source, _LONGEST_NAME),
            named_domain(source.domain, _LONGEST_NAME),
            count(source.receipts),
            count(source.duplicates),
            count(source.window_need),
            duration(source.expiry_need_us),
            or_dash(source.window_left),
            or_dash(source.expiry_left_us, duration),
        ]
        for source in analysis.sources[:_MOST_ROWS]
    ]
    columns = ["source", "domain", "receipts", "duplicates", "needs W", "or E", "W to spare", "E to spare"]
    return Numbers("Sources that need most, worst first", columns, rows, texts=2)


def comparison_page(comparison: Comparison) -> str:
    """The report of `receiver compare --report`, a whole HTML file."""
    unanimous = "" if comparison.disputes else disagreement(comparison)
    return page_text(
        "compare",
        comparison.log,
        comparison.key,
        policies=_policies(comparison),
        whose=whose(comparison),
        fitted=fitted_words(comparison),
        recommended=_recommended_words(comparison),
        findings=[*standing_out(comparison), *notes(comparison), *filter(None, [unanimous])],
        figures=_comparison_figures(comparison),
        tables=[_disputes(comparison)] if comparison.disputes else [],
        meanings=meanings(comparison),
    )


def _policies(comparison: Comparison) -> Numbers:
    best = best_of(comparison)
    rows = [
        [
            with_number(index, figures, _LONGEST_NAME) + ", fitted" * figures.is_fitted,
            count(figures.caught),
            count(figures.missed),
            count(figures.false_duplicates),
            count(figures.peak_ids),
            size(figures.memory_bytes),
        ]
        for index, figures in enumerate(comparison.policies)
    ]
    caption = "The policies side by side" + "; green is never wrong, with the fewest ids" * bool(best)
    columns = ["policy", "caught", "missed", "false duplicates", "most ids kept", "memory"]
    return Numbers(caption, columns, rows, texts=1, marked=best)


def _recommended_words(comparison: Comparison) -> str:
    index = recommended_policy(comparison)
    if index is None or comparison.recommendation is None:
        return ""
    setting = comparison.recommendation.setting
    why = sanitised(comparison.recommendation.why, _LONGEST_PARAGRAPH)
    return (
        f"Policy {index + 1} is the two-tier setting recommended for this log, W = {count(setting.window)} with "
        f"E = {seconds(setting.expiry_us)}. {why}"
    )


def _comparison_figures(comparison: Comparison) -> list[Figure]:
    policies = comparison.policies
    return [
        Figure(
            "memory-missed",
            "What catching more costs",
            "The most ids kept against the duplicates missed, by the policies' numbers. Of the green ones, which are never "
            "wrong, those further left cost less.",
            charts.memory_chart(policies),
        ),
        *_causes(
            "missed-causes",
            "Why duplicates are missed",
            [(with_number(index, figures), figures.missed_causes) for index, figures in enumerate(policies)],
        ),
        *_causes(
            "false-causes",
            "Why new messages are taken for duplicates",
            [(with_number(index, figures), figures.false_causes) for index, figures in enumerate(policies)],
        ),
    ]


def _causes(id_: str, title: str, causes: Sequence[tuple[str, dict[Cause, int]]]) -> list[Figure]:
    wrong = [(name, counts) for name, counts in causes if any(counts.values())]
    if not wrong:
        return []
    rows = [[name, count(sum(counts.values())), counted_causes(counts)] for name, counts in wrong]
    numbers = Numbers(title, ["policy", "receipts", "by cause"], rows, texts=1)
    caption = "Receipts by policy and cause; the causes are explained below."
    return [Figure(id_, title, caption, charts.causes_chart(wrong), numbers)]


def _disputes(comparison: Comparison) -> Numbers:
    columns = ["id", "source", "domain", "say duplicate", "say new", "row", "age", "received, UTC"]
    rows = [
        [
            sanitised(dispute.unique_message_id, _LONGEST_NAME),
            named_source(dispute.message_source_id, _LONGEST_NAME),
            named_domain(dispute.domain, _LONGEST_NAME),
            *(side or "-" for side in sides(dispute)),
            str(dispute.row),
            or_dash(dispute.age_us, duration),
            second(dispute.received_at_us),
        ]
        for dispute in comparison.disputes
    ]
    return Numbers(disagreement(comparison), columns, rows, texts=5)
