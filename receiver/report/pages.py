"""What stands on the HTML pages of both reports: the answer, charts with their words, tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from receiver.compare import Cause, Comparison
from receiver.quantities import count, duration, seconds, three_digits
from receiver.report import charts
from receiver.report.advice import (
    MEANINGS,
    SETTING_COLUMNS,
    change,
    cost,
    guarantees,
    named_kinds,
    present_is_default,
    present_of,
    price_setters,
    properties,
    setting_rows,
    shortfall,
    sized_of,
    sureness,
)
from receiver.report.charts import marks_of
from receiver.report.comparing import (
    best_of,
    counted_causes,
    disagreement,
    fitted_words,
    meanings,
    named_policy,
    notes,
    recommended_policy,
    sides,
    standing_out,
    system_of,
    with_number,
)
from receiver.report.elsewhere import systems_of
from receiver.report.html import Figure, Numbers, page_text
from receiver.report.sizing import Grid, grid_of, headroom_left, recommended_of, setting_asked_for
from receiver.report.words import (
    named_domain,
    named_source,
    of_duplicates,
    or_dash,
    sanitised,
    second,
    size,
)
from receiver.simulate.figures import Analysis, DomainFigures, Grade, Kind, SettingFigures, Steps

__all__ = ["analysis_page", "comparison_page"]

_MOST_GRID_LINES = 40
_MOST_CELLS_AS_TABLE = 400
_MOST_ROWS = 50
_LONGEST_PARAGRAPH = 2_000
_LONGEST_NAME = 120
_FEW_SOURCES = 3
_FEW_POLICIES = 3
_MOST_SOURCES = 10
_MOST_STEPS = 20
_GRADES = {
    Grade.STRONG: "Many disturbances, and each half of the log predicts the other",
    Grade.FAIR: "Enough disturbances to go by, and each half of the log predicts the other",
    Grade.WEAK: "This log is too short to go below Apama's defaults",
}
_KINDS = {
    Kind.BOTH: "both tiers",
    Kind.WINDOW: "window",
    Kind.LEAN: "lean",
    Kind.DEFAULT: "Apama's defaults",
    Kind.PRESENT: "yours",
}


def analysis_page(analysis: Analysis, provenance: str | None = None) -> str:
    """The report of `receiver simulate --report`, a whole HTML file; `provenance` says at its foot what made it.

    Its size depends little on the grid and the number of domains: both are cut, and the page says so.
    """
    return page_text(
        "simulate",
        analysis.log,
        analysis.key,
        provenance=sanitised(provenance or "", _LONGEST_PARAGRAPH),
        answer=_answer(analysis),
        kinds={_KINDS[kind]: meaning for kind, meaning in MEANINGS.items()},
        facts=_facts(analysis),
        headroom=headroom_left(analysis),
        cost=_cost(analysis),
        present=_present(analysis),
        price=_price(analysis),
        findings=[sanitised(finding.text, _LONGEST_PARAGRAPH) for finding in analysis.findings],
        curves=_curves(analysis),
        figures=[*([_heat_map(analysis)] if analysis.settings else []), *_timeline(analysis)],
        tables=[table for table in (_sources(analysis), _systems(analysis), _domains(analysis)) if table.rows],
    )


def _answer(analysis: Analysis) -> dict[str, Any]:
    recommendation = analysis.recommendation
    grade, sure = sureness(analysis)
    rows = setting_rows(analysis)
    names = _kind_names(analysis)
    return {
        "window": count(recommendation.setting.window),
        "expiry": seconds(recommendation.setting.expiry_us),
        "meaning": _sentence(MEANINGS[recommendation.sized.kind]),
        "grade": str(grade),
        "sure": sure,
        "grade_meaning": _GRADES[grade],
        "guarantees": guarantees(analysis),
        "properties": properties(analysis),
        "why": "" if recommendation.sized.kind is Kind.BOTH else sanitised(recommendation.why, _LONGEST_PARAGRAPH),
        "kinds": Numbers(
            "Yours against this",
            ["", *SETTING_COLUMNS],
            [[names[row.sized.kind], *row.cells] for row in rows],
            texts=1,
            marked=frozenset(index for index, row in enumerate(rows) if row.is_recommended),
        ),
    }


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _kind_names(analysis: Analysis) -> dict[Kind, str]:
    """How the page calls each kind; the recommended one says so."""
    names = named_kinds(analysis, _KINDS)
    names[analysis.recommendation.sized.kind] += " (this)"
    return names


def _facts(analysis: Analysis) -> list[tuple[str, str]]:
    """What the advice rests on: figures, each with what it counts."""
    evidence, duplicates = analysis.evidence, analysis.log.duplicates
    if not duplicates:
        return []
    facts = [(of_duplicates(analysis.recommendation.setting.missed, duplicates), "missed in this log")]
    unseen = sized_of(analysis, Kind.BOTH).unseen
    if unseen is not None:
        facts.append(
            (of_duplicates(unseen.missed, unseen.duplicates), "missed in one half with the other half's setting")
        )
    times = f", {three_digits(evidence.span_us / evidence.expiry_need_us)} times" if evidence.expiry_need_us else ""
    return [
        *facts,
        (count(evidence.bursts, "burst"), "of duplicates, each from one disturbance"),
        (
            f"{duration(evidence.span_us)}{times}",
            f"the longest repeat ({duration(evidence.expiry_need_us)})" if times else "of log",
        ),
    ]


def _curves(analysis: Analysis) -> list[Figure]:
    """What each tier alone misses; a log without duplicates has none."""
    if not analysis.log.duplicates:
        return []
    evidence = analysis.evidence
    settings = {
        "recommended": recommended_of(analysis),
        "yours": present_of(analysis).setting,
        "default": sized_of(analysis, Kind.DEFAULT).setting,
    }
    window_need = evidence.window_need, count(evidence.window_need)
    expiry_need = evidence.expiry_need_us, duration(evidence.expiry_need_us)
    windows = marks_of(window_need, {name: setting.window for name, setting in settings.items()}, count)
    expiries = marks_of(expiry_need, {name: setting.expiry_us for name, setting in settings.items()}, seconds)
    return [
        _curve(("by-window", "W alone (E = 0)"), "window W", analysis.missed_by_window, windows, count),
        _curve(("by-expiry", "E alone (W = 0)"), "expiry E", analysis.missed_by_expiry_us, expiries, duration),
    ]


def _curve(
    named: tuple[str, str], axis: str, curve: Steps, marks: list[charts.Mark], word: Callable[[int], str]
) -> Figure:
    id_, title = named
    rows = [[word(value), count(missed)] for value, missed in curve[-_MOST_STEPS:]]
    numbers = Numbers(f"Missed with {title}, near the largest needs", [axis, "missed"], rows)
    last = curve[-2][1]
    they = "The last one needs" if last == 1 else f"The last {count(last)} need up to"
    caption = f"{they} {word(curve[-1][0])}."
    return Figure(id_, title, caption, charts.curve_chart(curve, marks, word, axis), numbers)


def _cost(analysis: Analysis) -> dict[str, Any]:
    names = _kind_names(analysis)
    kinds = setting_rows(analysis)
    rows = [
        [names[sized.kind], count(sized.setting.peak_ids), size(sized.memory_bytes), size(sized.database_bytes)]
        for sized, _, _ in kinds
    ]
    marked = frozenset(index for index, kind in enumerate(kinds) if kind.is_recommended)
    return {
        "said": cost(analysis),
        "kinds": Numbers("By setting", ["", "most ids kept", "memory", "database"], rows, texts=1, marked=marked),
    }


def _present(analysis: Analysis) -> dict[str, Any]:
    present, recommended, evidence = present_of(analysis), analysis.recommendation.sized, analysis.evidence
    both, has_duplicates = (present.setting, recommended.setting), bool(analysis.log.duplicates)
    rows = [
        [
            "window W",
            *(count(setting.window) for setting in both),
            count(evidence.window_need) if has_duplicates else "-",
        ],
        [
            "expiry E",
            *(seconds(setting.expiry_us) for setting in both),
            duration(evidence.expiry_need_us) if has_duplicates else "-",
        ],
        ["duplicates missed", *(count(setting.missed) for setting in both), ""],
        ["most ids kept", *(count(setting.peak_ids) for setting in both), ""],
        ["memory", *(size(sized.memory_bytes) for sized in (present, recommended)), ""],
    ]
    return {
        "said": f"{change(analysis)} {shortfall(analysis)}",
        "is_default": present_is_default(analysis),
        "asked": setting_asked_for(analysis),
        "changes": Numbers("What changes", ["", "yours", "recommended", "the log needs"], rows, texts=1),
    }


def _price(analysis: Analysis) -> dict[str, Any]:
    sources = analysis.sources
    rows = [
        [named_source(source.source, _LONGEST_NAME), count(source.window_need), duration(source.expiry_need_us)]
        for source in sources[:_FEW_SOURCES]
    ]
    return {
        "said": price_setters(analysis),
        "sources": Numbers("Sources that need most", ["source", "needs W", "or E"], rows, texts=1) if rows else None,
    }


def _heat_map(analysis: Analysis) -> Figure:
    recommended, present = recommended_of(analysis), present_of(analysis).setting
    grid = grid_of(analysis, most_windows=_MOST_GRID_LINES, most_expiries=_MOST_GRID_LINES, beside=[present])
    caption = (
        "Green cells miss nothing; the darker the others, the more they miss. The solid frame is the recommended setting, "
        "the dashed one yours. Point at a cell to see its ids and memory."
    )
    if grid.left_out:
        caption += f" {count(grid.left_out)} of the {count(len(analysis.settings))} settings tried are left out here."
    return Figure(
        "missed",
        "What each setting would have missed",
        caption,
        charts.heat_map(grid, recommended, present, analysis.bytes_per_id),
        _grid_numbers(grid),
        least_width_em=6 + (3 if charts.is_numbered(grid) else 1) * len(grid.expiries_us),
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
            count(domain.window_need),
            duration(domain.expiry_need_us),
        ]
        for domain in shown
    ]
    columns = ["domain", "receipts", "sources", "duplicates", "needs W", "or E"]
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
        for source in analysis.sources[:_MOST_SOURCES]
    ]
    columns = ["source", "domain", "receipts", "duplicates", "needs W", "or E", "W to spare", "E to spare"]
    return Numbers(
        "The ten sources that need most, worst first"
        if len(analysis.sources) > _MOST_SOURCES
        else "Sources with duplicates, worst first",
        columns,
        rows,
        texts=2,
    )


def _systems(analysis: Analysis) -> Numbers:
    rows = [
        [need.system, need.setting or "-", need.needs, need.with_margin, need.default, str(need.enough)]
        for need in systems_of(analysis)
    ]
    columns = ["system", "its setting", "needs", "with the margin", "its default", "enough?"]
    return Numbers("What other systems would need to miss none of these duplicates", columns, rows, texts=2)


def comparison_page(comparison: Comparison, provenance: str | None = None) -> str:
    """The report of `receiver compare --report`, a whole HTML file; `provenance` says at its foot what made it."""
    answer, *others = standing_out(comparison)
    best = [comparison.policies[index] for index in sorted(best_of(comparison))]
    unanimous = "" if comparison.disputes else disagreement(comparison)
    return page_text(
        "compare",
        comparison.log,
        comparison.key,
        answer=answer,
        best=[(system_of(figures.policy), named_policy(figures.policy)) for figures in best[:_FEW_POLICIES]],
        policies=_policies(comparison),
        fitted=fitted_words(comparison),
        recommended=_recommended_words(comparison),
        findings=[*others, *notes(comparison), *filter(None, [unanimous])],
        figures=_comparison_figures(comparison),
        tables=[_disputes(comparison)] if comparison.disputes else [],
        meanings=meanings(comparison),
        provenance=sanitised(provenance or "", _LONGEST_PARAGRAPH),
    )


def _policies(comparison: Comparison) -> Numbers:
    best = best_of(comparison)
    rows = [
        [
            with_number(index, figures, _LONGEST_NAME) + ", fitted" * figures.is_fitted,
            system_of(figures.policy) or "-",
            count(figures.caught),
            count(figures.missed),
            count(figures.false_duplicates),
            count(figures.peak_ids),
            size(figures.memory_bytes),
        ]
        for index, figures in enumerate(comparison.policies)
    ]
    caption = "The policies side by side" + "; green is never wrong, with the fewest ids" * bool(best)
    columns = ["policy", "system", "caught", "missed", "false duplicates", "most ids kept", "memory"]
    return Numbers(caption, columns, rows, texts=2, marked=best)


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
