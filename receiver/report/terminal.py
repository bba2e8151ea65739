"""Prints reports on a terminal, and the lines of all commands there, without text that a terminal would take for commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, compress

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from receiver.report.document import MARK, Cells, Chart, Content, Document, Items, Lead, Only, Style, Table, Text
from receiver.report.words import sanitised
from receiver.simulate.figures import Grade

_HIGHLIGHT = "bold green"
_GRADES = {Grade.STRONG: "green", Grade.FAIR: "yellow", Grade.WEAK: "red"}
_STYLES = {Style.PLAIN: ("", ""), Style.NOTE: ("dim", ""), Style.SAID: ("", "  "), Style.CODE: ("", "  ")}
"""By a text's style: the colour, and the beginning of the first line."""
_LONGEST_LINE = 1_000
_MOST_CHART_ROWS = 24
_LEAST_NAME_WIDTH = 12
_MOST_NAME_WIDTH = 48
_ANY_WIDTH = 100_000
_NAMES = frozenset({Cells.NAME, Cells.POLICY})
"""Cells that are shortened, or wrapped, if there is little room."""
_KEPT = {Cells.TEXT: _LEAST_NAME_WIDTH, Cells.NAME: 0, Cells.POLICY: 0}
"""The least width of such cells; other cells keep their full width."""

# Everything is printed as rich's `Text`: in a plain string, rich would read `[red]` or `:smile:` as markup.


def print_document(document: Document, console: Console) -> None:
    """Print a report for a person; without colours and within 80 columns if the console isn't a terminal."""
    print_contents([block.content for block in document.blocks if block.only is not Only.PAGE], console)


def print_contents(contents: Sequence[Content], console: Console) -> None:
    for index, content in enumerate(contents):
        if index and isinstance(content, Text) and content.style is Style.PLAIN:
            console.print()
        _print(content, console)


def _print(content: Content, console: Console) -> None:
    match content:
        case Lead(text):
            paragraph(console, RichText(text, style=_HIGHLIGHT), first="")
        case Text(text, _, Grade() as grade):
            paragraph(console, RichText.assemble(text, " ", (f"Evidence: {grade}.", _GRADES[grade])))
        case Text(text, style):
            for each in text.splitlines():
                paragraph(console, each, *_STYLES[style])
        case Items(title, texts):
            if title:
                heading(console, title)
            for each in texts:
                paragraph(console, each, first="- ")
        case Table():
            _print_table(content, console)
        case Chart(numbers=numbers, instead=Table() as instead):
            rows, width = (0, 0) if numbers is None else (len(numbers.rows), _width(_rich(numbers), console))
            _print_table(
                numbers if numbers and rows <= _MOST_CHART_ROWS and width <= console.width else instead, console
            )


def heading(console: Console, text: str) -> None:
    console.print()
    paragraph(console, text, style="bold", first="")


def line(console: Console, text: str, style: str = "") -> None:
    """Print a text, sanitised, on one line that the terminal may wrap."""
    console.print(RichText(sanitised(text, _LONGEST_LINE), style=style), soft_wrap=True)


def paragraph(console: Console, text: str | RichText, style: str = "", first: str = "  ") -> None:
    styled = text if isinstance(text, RichText) else RichText(text, style=style)
    # Wrapped here, because rich fills the lines of padded text with spaces, which would end up in a pipe.
    for index, line in enumerate(styled.wrap(console, max(console.width - len(first), 20))):
        line.rstrip()
        console.print(RichText(" " * len(first) if index else first) + line)


def _print_table(table: Table, console: Console) -> None:
    """Print a table, with its title as a heading. If there is little room, spare columns are left out and names shortened."""
    heading(console, table.title)
    console.print(_rich(_fitted(table, console)), crop=False)  # half of a figure is another figure
    for text in table.note.splitlines():
        paragraph(console, text, style="dim", first="")


def _fitted(table: Table, console: Console) -> Table:
    """The table for this width: spare columns are left out, the last one first, until names have room; then names are shortened."""
    hidden = [column for column in table.columns if column.only is Only.PAGE]
    spare = [column for column in table.columns if column.is_spare and column not in hidden]
    for kept in reversed(range(len(spare) + 1)):
        fitted = _some_of(table, [column not in hidden + spare[kept:] for column in table.columns])
        shortest = _mapped(fitted, lambda kind, cell: "-" * _LEAST_NAME_WIDTH if kind in _NAMES else cell)
        left = console.width - _width(_rich(shortest), console)
        if left >= 0:
            break
    names = sum(column.cells in _NAMES for column in fitted.columns)
    most = _LEAST_NAME_WIDTH + max(left, 0) // max(names, 1)
    return _mapped(fitted, lambda kind, cell: _shortened(kind, cell, most))


def _some_of(table: Table, wanted: Sequence[bool]) -> Table:
    """The table with the wanted columns."""
    rows = [list(compress(row, wanted)) for row in table.rows]
    return replace(table, columns=list(compress(table.columns, wanted)), rows=rows)


def _mapped(table: Table, change: Callable[[Cells, str], str]) -> Table:
    """The table with each cell changed, by its kind."""
    kinds = [column.cells for column in table.columns]
    return replace(table, rows=[list(map(change, kinds, row)) for row in table.rows])


def _shortened(kind: Cells, cell: str, most: int) -> str:
    if kind is Cells.NAME:
        return sanitised(cell, min(most, _MOST_NAME_WIDTH))
    return _folded(cell, most) if kind is Cells.POLICY else cell


def _folded(name: str, width: int) -> str:
    """A policy's text on lines of at most `width`, if possible, broken only before parameters."""
    lines = [""]
    for part in re.split("(?<=[:,])", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _width(table: RichTable, console: Console) -> int:
    # Measured with a huge width, because rich limits the result to the given width.
    return console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum


def _rich(table: Table) -> RichTable:
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for index, (name, cells, *_) in enumerate(table.columns):
        lines = chain(*map(str.splitlines, [name, *(row[index] for row in table.rows)]))
        made.add_column(
            RichText(name),
            justify="right" if cells is Cells.FIGURE else "left",
            no_wrap=cells in {Cells.FIGURE, Cells.WORD, Cells.NAME},
            overflow="ellipsis" if cells is Cells.NAME else "fold",
            min_width=max((RichText(line[: _KEPT.get(cells)]).cell_len for line in lines), default=0),
        )
    for index, row in enumerate(table.rows):
        made.add_row(*map(_cell, row), style=_HIGHLIGHT if index in table.marked else "")
    return made


def _cell(text: str) -> RichText:
    first, *others = text.split("\n", 1)
    style = _HIGHLIGHT if first.startswith(MARK) else ""
    return RichText.assemble((first, style), *(("\n" + other, "") for other in others))
