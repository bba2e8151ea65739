"""A comparison on a terminal: the policies side by side, what stands out, and where they disagree."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.compare.comparison import Comparison
from receiver.report.compare_words import (
    best_of,
    disagreement,
    meanings,
    named,
    notes,
    recommended_of,
    sides,
    standing_out,
    whose,
)
from receiver.report.terminal import heading, paragraph, plain_table, print_log
from receiver.report.words import count, duration, size, tamed

__all__ = ["print_table"]

_BEST_STYLE = "bold green"
_BEST, _RECOMMENDED = ">", "*"
_LEAST_NAME_WIDTH = 8
_LEAST_WIDTH_FOR_MEMORY = 76
_LEAST_ID_WIDTH = 12
_MOST_ID_WIDTH = 48
_DISPUTE_WIDTH = 58
_NONE = "-"


def print_table(comparison: Comparison, console: Console) -> None:
    """Print the comparison for a person; without colours and within 80 columns where the console is no terminal."""
    print_log(comparison.log, comparison.key, console)
    _print_policies(comparison, console)
    _print_standing_out(comparison, console)
    _print_disputes(comparison, console)
    for note in notes(comparison):
        console.print()
        paragraph(console, note, first="")


def _print_policies(comparison: Comparison, console: Console) -> None:
    best, recommended = best_of(comparison), recommended_of(comparison)
    figures_shown = 5 if console.width >= _LEAST_WIDTH_FOR_MEMORY else 4

    def table_of(names: Sequence[str]) -> Table:
        table = plain_table()
        table.add_column("", no_wrap=True)
        table.add_column(Text("policy"), overflow="fold")
        names_of_figures = "caught", "missed", "false", "most ids\nkept", "memory"
        for name in names_of_figures[:figures_shown]:
            table.add_column(Text(name), justify="right", no_wrap=True)
        for place, (name, figures) in enumerate(zip(names, comparison.policies, strict=True)):
            marks = _BEST * (place in best) + _RECOMMENDED * (place == recommended)
            cells = (
                count(figures.caught),
                count(figures.missed),
                count(figures.false_duplicates),
                count(figures.peak_ids),
                size(figures.memory_bytes),
            )
            row = f"{marks:<2}{place + 1:>3}", name, *cells[:figures_shown]
            table.add_row(*map(Text, row), style=_BEST_STYLE if place in best else "")
        return table

    without_names = console.measure(table_of([""] * len(comparison.policies))).maximum
    width = max(console.width - without_names + len("policy"), _LEAST_NAME_WIDTH)
    console.print()
    console.print(table_of([_folded(named(figures.policy), width) for figures in comparison.policies]))
    paragraph(console, "missed: duplicates let through; false: new messages dropped", style="dim", first="")
    if best:
        paragraph(console, f"{_BEST} never wrong, with the fewest ids", style="dim", first="")
    if recommended is not None:
        paragraph(console, f"{_RECOMMENDED} the two-tier setting recommended for this log", style="dim", first="")
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


def _print_standing_out(comparison: Comparison, console: Console) -> None:
    heading(console, "What stands out")
    for text in standing_out(comparison):
        paragraph(console, text, first="- ")
    for cause, meaning in meanings(comparison):
        paragraph(console, f"{cause}: {meaning}", style="dim")


def _print_disputes(comparison: Comparison, console: Console) -> None:
    if text := disagreement(comparison):
        heading(console, text)
    if not comparison.disputes:
        return
    paragraph(
        console,
        "row: its place in the log, from 0; age: since the id last came; under duplicate and new: the policies that say so, "
        "by their numbers above, and why those are wrong that are.",
    )
    width = min(_MOST_ID_WIDTH, max(_LEAST_ID_WIDTH, console.width - _DISPUTE_WIDTH))
    table = plain_table()
    for name, justify in (("row", "right"), ("id", "left"), ("age", "right")):
        table.add_column(Text(name), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("duplicate", "new"):
        table.add_column(Text(name))
    for dispute in comparison.disputes:
        age = _NONE if dispute.age_us is None else duration(dispute.age_us)
        cells = str(dispute.row), tamed(dispute.unique_message_id, width), age, *sides(dispute)
        table.add_row(*map(Text, cells))
    console.print(table)
