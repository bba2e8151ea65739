"""The tables of both reports on a terminal: the answer first, then what it rests on and what to know of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.compare import Comparison
from receiver.report.advice import (
    SETTING_COLUMNS,
    change,
    cost,
    decision,
    guarantees,
    named_kinds,
    properties,
    reasons,
    setting_rows,
    sureness,
    weakness,
)
from receiver.report.comparing import (
    best_of,
    disagreement,
    fitted_words,
    meanings,
    named_policy,
    notes,
    recommended_policy,
    sides,
    standing_out,
    whose,
)
from receiver.report.elsewhere import print_systems
from receiver.report.sizing import (
    Grid,
    frontier_of,
    grid_of,
    recommended_of,
    setting_asked_for,
    thinned,
)
from receiver.report.terminal import add_figure_columns, add_row, heading, paragraph, plain_table, print_log
from receiver.report.words import (
    compact,
    count,
    duration,
    named_domain,
    named_source,
    or_dash,
    reading,
    remarks,
    sanitised,
    seconds,
    size,
)
from receiver.simulate.figures import Analysis, Grade, Kind, SettingFigures

__all__ = ["print_analysis", "print_comparison"]

_HIGHLIGHT = "bold green"
_GRADES = {Grade.STRONG: "green", Grade.FAIR: "yellow", Grade.WEAK: "red"}
_NAMES = {kind: str(kind) for kind in Kind} | {Kind.PRESENT: "yours"}
_MOST_GRID_ROWS = 24
_MOST_FRONTIER_ROWS = 20
_MOST_SOURCES = 10
_ANY_WIDTH = 100_000
_LEAST_WIDTH_FOR_DOMAINS = _LEAST_WIDTH_FOR_MEMORY = 76
_LONGEST_PARAGRAPH = 1_000
_RECOMMENDED_SETTING = "> "
_BEST_POLICY, _RECOMMENDED_POLICY, _FITTED_POLICY = ">", "*", "+"
_LEAST_NAME_WIDTH = 8
_LEAST_ID_WIDTH = 12
_MOST_ID_WIDTH = 48
_DISPUTE_WIDTH = 58
"""The width of a dispute's other columns."""


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print the analysis for a person; without colours and within 80 columns where the console is no terminal."""
    _print_decision(analysis, console)
    _print_kinds(analysis, console)
    _print_settings(analysis, console)
    findings = [sanitised(finding.text, _LONGEST_PARAGRAPH) for finding in analysis.findings]
    _print_list("What to know about this log", findings, console)
    _print_sources(analysis, console)
    print_systems(analysis, console)
    _print_list("How it was read", remarks(analysis.log, analysis.key), console)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison for a person; without colours and within 80 columns where the console is no terminal."""
    print_log(comparison.log, comparison.key, console)
    _print_policies(comparison, console)
    _print_list("What stands out", standing_out(comparison), console)
    for cause, meaning in meanings(comparison):
        paragraph(console, f"{cause}: {meaning}", style="dim")
    _print_disputes(comparison, console)
    for note in notes(comparison):
        console.print()
        paragraph(console, note, first="")


def _print_list(title: str, texts: Sequence[str], console: Console) -> None:
    if texts:
        heading(console, title)
    for text in texts:
        paragraph(console, text, first="- ")


def _print_decision(analysis: Analysis, console: Console) -> None:
    """What to set, how sure that is and what it guarantees, in nine lines at most."""
    grade, sure = sureness(analysis)
    paragraph(console, Text.assemble((decision(analysis), _HIGHLIGHT), " ", (sure, _GRADES[grade])), first="")
    for text in (*guarantees(analysis), weakness(analysis), *reasons(analysis), cost(analysis)):
        if text:
            paragraph(console, text)
    console.print()
    paragraph(console, reading(analysis.log), first="")


def _print_kinds(analysis: Analysis, console: Console) -> None:
    heading(console, "The settings to choose from")
    table = plain_table()
    table.add_column("", no_wrap=True)
    add_figure_columns(table, *SETTING_COLUMNS)
    names = named_kinds(analysis, _NAMES)
    for row in setting_rows(analysis):
        mark = _RECOMMENDED_SETTING if row.is_recommended else "  "
        add_row(table, (mark + names[row.sized.kind], *row.cells), _HIGHLIGHT if row.is_recommended else "")
    console.print(table)
    why = (
        ""
        if analysis.recommendation.sized.kind is Kind.BOTH
        else sanitised(analysis.recommendation.why, _LONGEST_PARAGRAPH)
    )
    for text in (
        why,
        setting_asked_for(analysis),
        change(analysis),
        "In Apama's receiver bean:",
        *properties(analysis),
    ):
        if text:
            paragraph(console, text)


def _print_settings(analysis: Analysis, console: Console) -> None:
    if not analysis.settings:
        return
    # Room for all of them, and for a recommended setting off the grid.
    most = len(analysis.settings) + 1
    grid = grid_of(analysis, most_windows=most, most_expiries=most)
    table = _grid_table(grid, recommended_of(analysis))
    # Measured with room to spare: rich cuts what it measures to the room it is given.
    width = console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum
    if len(grid.windows) <= _MOST_GRID_ROWS and width <= console.width:
        heading(console, "Duplicates missed, and below them the most ids kept, by window W and expiry E")
        console.print(table)
        paragraph(console, f"{_RECOMMENDED_SETTING}recommended   - not tried", style="dim", first="")
    else:
        _print_frontier(analysis, console)


def _grid_table(grid: Grid, recommended: SettingFigures) -> Table:
    table = plain_table()
    add_figure_columns(table, "W \\ E", *map(seconds, grid.expiries_us))
    for window in grid.windows:
        row = [grid.cells.get((window, expiry_us)) for expiry_us in grid.expiries_us]
        table.add_row(Text(count(window)), *(_cell(setting, setting == recommended) for setting in row))
    return table


def _cell(setting: SettingFigures | None, is_recommended: bool) -> Text:  # noqa: FBT001
    if setting is None:
        return Text("-", style="dim")
    # The sign, not the colour alone, shows the recommended cell: a pipe has no colours.
    missed = _RECOMMENDED_SETTING * is_recommended + count(setting.missed)
    style = _HIGHLIGHT if is_recommended else "" if setting.missed else "green"
    return Text.assemble((missed, style), "\n", (compact(setting.peak_ids), _HIGHLIGHT if is_recommended else "dim"))


def _print_frontier(analysis: Analysis, console: Console) -> None:
    recommended = recommended_of(analysis)
    best = frontier_of(analysis)
    shown = thinned(best, _MOST_FRONTIER_ROWS)
    if recommended not in shown:
        shown = sorted([*shown, recommended], key=lambda setting: (setting.peak_ids, -setting.missed))
    heading(console, f"The settings worth a look: of {count(len(analysis.settings))} tried, none misses fewer for less")
    table = plain_table()
    add_figure_columns(table, "W", "E", "missed", "most ids kept", "memory")
    for setting in shown:
        is_recommended = setting == recommended
        cells = (
            _RECOMMENDED_SETTING * is_recommended + count(setting.window),
            seconds(setting.expiry_us),
            count(setting.missed),
            count(setting.peak_ids),
            size(setting.peak_ids * analysis.bytes_per_id),
        )
        add_row(table, cells, _HIGHLIGHT if is_recommended else "")
    console.print(table)
    paragraph(console, f"{_RECOMMENDED_SETTING}recommended", style="dim", first="")
    hidden = sum(setting not in shown for setting in best)
    if hidden:
        paragraph(console, f"{count(hidden)} more between these are left out.", style="dim", first="")


def _print_sources(analysis: Analysis, console: Console) -> None:
    sources = [source for source in analysis.sources if source.duplicates][:_MOST_SOURCES]
    if not sources:
        return
    heading(console, "Sources that need most, and the W or E that would do for each alone")
    table = plain_table()
    with_domains = len(analysis.domains) > 1 and console.width >= _LEAST_WIDTH_FOR_DOMAINS
    # What the figures leave, in equal shares.
    most = max(12, (console.width - 51) // (2 if with_domains else 1))
    for name in ("source", *(["domain"] if with_domains else [])):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    add_figure_columns(table, "receipts", "duplicates", "needs W", "or E")
    for source in sources:
        names = [named_source(source.source, most), *([named_domain(source.domain, most)] if with_domains else [])]
        figures = (
            compact(source.receipts),
            compact(source.duplicates),
            compact(source.window_need),
            duration(source.expiry_need_us),
        )
        add_row(table, (*names, *figures))
    console.print(table)


def _print_policies(comparison: Comparison, console: Console) -> None:
    best, recommended = best_of(comparison), recommended_policy(comparison)
    figures_shown = 5 if console.width >= _LEAST_WIDTH_FOR_MEMORY else 4

    def table_of(names: Sequence[str]) -> Table:
        table = plain_table()
        table.add_column("", no_wrap=True)
        table.add_column(Text("policy"), overflow="fold")
        names_of_figures = "caught", "missed", "false", "most ids\nkept", "memory"
        add_figure_columns(table, *names_of_figures[:figures_shown])
        for index, (name, figures) in enumerate(zip(names, comparison.policies, strict=True)):
            signs = (
                _BEST_POLICY * (index in best)
                + _RECOMMENDED_POLICY * (index == recommended)
                + _FITTED_POLICY * figures.is_fitted
            )
            cells = (
                count(figures.caught),
                count(figures.missed),
                count(figures.false_duplicates),
                count(figures.peak_ids),
                size(figures.memory_bytes),
            )
            row = f"{signs:<2}{index + 1:>3}", name, *cells[:figures_shown]
            add_row(table, row, _HIGHLIGHT if index in best else "")
        return table

    without_names = console.measure(table_of([""] * len(comparison.policies))).maximum
    width = max(console.width - without_names + len("policy"), _LEAST_NAME_WIDTH)
    console.print()
    console.print(table_of([_folded(named_policy(figures.policy), width) for figures in comparison.policies]))
    paragraph(console, "missed: duplicates let through; false: new messages dropped", style="dim", first="")
    if best:
        paragraph(console, f"{_BEST_POLICY} never wrong, with the fewest ids", style="dim", first="")
    if recommended is not None:
        paragraph(
            console, f"{_RECOMMENDED_POLICY} the two-tier setting recommended for this log", style="dim", first=""
        )
    if fitted := fitted_words(comparison):
        paragraph(console, f"{_FITTED_POLICY} {fitted}", style="dim", first="")
    if systems := whose(comparison):
        paragraph(console, systems, style="dim", first="")


def _folded(name: str, width: int) -> str:
    """A policy's text on lines of that width, broken before a parameter where that is possible."""
    lines = [""]
    for part in re.split("(?<=[:,])", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _print_disputes(comparison: Comparison, console: Console) -> None:
    if text := disagreement(comparison):
        heading(console, text)
    if not comparison.disputes:
        return
    paragraph(
        console,
        "row: the receipt's number in the log, from 0; age: time since the id last came; duplicate and new: the policies that "
        "say so, by their numbers above, and why the wrong ones are wrong.",
    )
    width = min(_MOST_ID_WIDTH, max(_LEAST_ID_WIDTH, console.width - _DISPUTE_WIDTH))
    table = plain_table()
    for name, justify in (("row", "right"), ("id", "left"), ("age", "right")):
        table.add_column(Text(name), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("duplicate", "new"):
        table.add_column(Text(name))
    for dispute in comparison.disputes:
        id_ = sanitised(dispute.unique_message_id, width)
        add_row(table, (str(dispute.row), id_, or_dash(dispute.age_us, duration), *sides(dispute)))
    console.print(table)
