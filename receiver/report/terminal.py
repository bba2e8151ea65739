"""What the tables of all commands share: plain lines that fit the terminal, and no text that it would take for commands."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.report.words import reading, remarks, sanitised
from receiver.simulate.figures import LogFigures

__all__ = ["add_figure_columns", "add_row", "heading", "line", "paragraph", "plain_table", "print_log"]

_LONGEST_LINE = 1_000

# Everything is printed as `Text`: rich would read `[red]` or `:smile:` in a plain string as markup.


def print_log(log: LogFigures, key: str, console: Console) -> None:
    """What was read of the log, and how it was read."""
    paragraph(console, reading(log), first="")
    for remark in remarks(log, key):
        paragraph(console, remark, style="dim", first="")


def heading(console: Console, text: str) -> None:
    console.print()
    paragraph(console, text, style="bold", first="")


def line(console: Console, text: str, style: str = "") -> None:
    """Print a text on one line, which the terminal may wrap; the text is sanitised."""
    console.print(Text(sanitised(text, _LONGEST_LINE), style=style), soft_wrap=True)


def paragraph(console: Console, text: str | Text, style: str = "", first: str = "  ") -> None:
    styled = text if isinstance(text, Text) else Text(text, style=style)
    # Wrapped here, because rich fills the lines of a padded text with spaces, which a pipe would pass on.
    for index, line in enumerate(styled.wrap(console, max(console.width - len(first), 20))):
        line.rstrip()
        console.print(Text(" " * len(first) if index else first) + line)


def plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)


def add_figure_columns(table: Table, *names: str) -> None:
    """Add columns for figures, which are right-aligned and never wrapped."""
    for name in names:
        table.add_column(Text(name), justify="right", no_wrap=True)


def add_row(table: Table, cells: Iterable[str], style: str = "") -> None:
    table.add_row(*map(Text, cells), style=style)
