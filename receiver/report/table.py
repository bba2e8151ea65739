"""The analysis on a terminal: the answer first, then the settings it was chosen from, and what to know of the log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.report.grid import Grid, frontier_of, grid_of, recommended_of, thinned
from receiver.report.terminal import heading, paragraph, plain_table, print_log
from receiver.report.words import (
    compact,
    count,
    duration,
    headroom_left,
    of_duplicates,
    seconds,
    setting_asked_for,
    size,
    tamed,
)
from receiver.simulate.figures import Analysis, SettingFigures

__all__ = ["print_table"]

_MOST_GRID_ROWS = 24
_MOST_FRONTIER_ROWS = 20
_MOST_SOURCES = 10
_ANY_WIDTH = 100_000
_LEAST_WIDTH_FOR_DOMAINS = 76
_LONGEST_PARAGRAPH = 1_000
_RECOMMENDED = "bold green"
_MARK = "> "


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the analysis for a person; without colours and within 80 columns where the console is no terminal."""
    print_log(analysis.log, analysis.key, console)
    _print_answer(analysis, console)
    _print_settings(analysis, console)
    _print_findings(analysis, console)
    _print_sources(analysis, console)


def _print_answer(analysis: Analysis, console: Console) -> None:
    if asked := setting_asked_for(analysis):
        console.print()
        paragraph(console, asked, first="")
    recommendation = analysis.recommendation
    setting = recommendation.setting
    console.print()
    answer = f"window W = {count(setting.window)} ids per source, expiry E = {seconds(setting.expiry_us)}"
    console.print(Text.assemble(("Recommended: ", "bold"), (answer, _RECOMMENDED)))
    paragraph(
        console,
        f"Misses {of_duplicates(setting.missed, analysis.log.duplicates)}; keeps at most {count(setting.peak_ids, 'id')}: "
        f"{size(recommendation.memory_bytes)} of memory, {size(recommendation.database_bytes)} in the database.",
    )
    for text in (tamed(recommendation.why, _LONGEST_PARAGRAPH), headroom_left(analysis)):
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
        paragraph(console, f"{_MARK}recommended   - not tried", style="dim", first="")
    else:
        _print_frontier(analysis, console)


def _grid_table(grid: Grid, recommended: SettingFigures) -> Table:
    table = plain_table()
    table.add_column(Text("W \\ E"), justify="right", no_wrap=True)
    for expiry_us in grid.expiries_us:
        table.add_column(Text(seconds(expiry_us)), justify="right", no_wrap=True)
    for window in grid.windows:
        row = [grid.cells.get((window, expiry_us)) for expiry_us in grid.expiries_us]
        table.add_row(Text(count(window)), *(_cell(setting, setting == recommended) for setting in row))
    return table


def _cell(setting: SettingFigures | None, is_recommended: bool) -> Text:  # noqa: FBT001
    if setting is None:
        return Text("-", style="dim")
    # The mark, not the colour alone, tells the recommended cell: a pipe has no colours.
    missed = _MARK * is_recommended + count(setting.missed)
    style = _RECOMMENDED if is_recommended else "" if setting.missed else "green"
    return Text.assemble((missed, style), "\n", (compact(setting.peak_ids), _RECOMMENDED if is_recommended else "dim"))


def _print_frontier(analysis: Analysis, console: Console) -> None:
    recommended = recommended_of(analysis)
    best = frontier_of(analysis)
    shown = thinned(best, _MOST_FRONTIER_ROWS)
    if recommended not in shown:
        shown = sorted([*shown, recommended], key=lambda setting: (setting.peak_ids, -setting.missed))
    heading(console, f"The settings worth a look: of {count(len(analysis.settings))} tried, none misses fewer for less")
    table = plain_table()
    for name in ("W", "E", "missed", "most ids kept", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for setting in shown:
        is_recommended = setting == recommended
        cells = (
            _MARK * is_recommended + count(setting.window),
            seconds(setting.expiry_us),
            count(setting.missed),
            count(setting.peak_ids),
            size(setting.peak_ids * analysis.bytes_per_id),
        )
        table.add_row(*map(Text, cells), style=_RECOMMENDED if is_recommended else "")
    console.print(table)
    paragraph(console, f"{_MARK}recommended", style="dim", first="")
    hidden = sum(setting not in shown for setting in best)
    if hidden:
        paragraph(console, f"{count(hidden)} more between these are left out.", style="dim", first="")


def _print_findings(analysis: Analysis, console: Console) -> None:
    if not analysis.findings:
        return
    heading(console, "What to know about this log")
    for finding in analysis.findings:
        paragraph(console, tamed(finding.text, _LONGEST_PARAGRAPH), first="- ")


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
    for name in ("receipts", "duplicates", "needs W", "or E"):
        table.add_column(name, justify="right", no_wrap=True)
    for source in sources:
        names: Sequence[str] = [tamed(source.source, most) or "(anonymous)"]
        if with_domains:
            names = [*names, tamed(source.domain, most) or "(no name)"]
        figures = (
            compact(source.receipts),
            compact(source.duplicates),
            compact(source.window_need),
            duration(source.expiry_need_us),
        )
        table.add_row(*map(Text, (*names, *figures)))
    console.print(table)
