"""A report as a list of blocks: texts, lists, tables and charts. `terminal.py` prints them, `html.py` makes a page of them.

All texts are harmless: text from a log is sanitised. The cells of a table are formatted texts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Self, TypeVar

from receiver.simulate.figures import Grade, LogFigures

T = TypeVar("T")

MARK = "> "
"""Marks a table's recommended row or cell, because pipes and some terminals have no colours."""


class Only(Enum):
    """The only place where a block or column is shown."""

    TERMINAL = auto()
    PAGE = auto()


class Style(Enum):
    """The role of a text in its report."""

    PLAIN = auto()
    """A paragraph that begins a new topic."""
    SAID = auto()
    """A sentence on the block above it."""
    NOTE = auto()
    """A note on a table, or on how the log was read."""
    CODE = auto()
    """Lines to copy."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The advice, the most important sentence of a report."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    style: Style = Style.SAID
    grade: Grade | None = None
    """The evidence for the text, shown behind it."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list. Without a title it continues the block above it."""

    title: str
    texts: Sequence[str]


class Cells(Enum):
    """The kind of a column's cells."""

    FIGURE = auto()
    WORD = auto()
    """A short text, which is never wrapped."""
    NAME = auto()
    """A text that loses its middle if there is little room."""
    POLICY = auto()
    """A text that is wrapped before its parameters if there is little room."""
    TEXT = auto()
    """A text that may be wrapped anywhere."""


class Column(NamedTuple):
    name: str
    cells: Cells = Cells.FIGURE
    only: Only | None = None
    is_spare: bool = False
    """Whether the column is left out if there is little room."""


Shown = tuple[Column, Callable[[T], str]]
"""A column, and the function that formats its cell for an item."""


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = frozenset()
    """The indices of the rows that stand out."""
    note: str = ""
    """The meanings of the table's signs, and what is left out, each on a line of its own."""

    @classmethod
    def of(
        cls, title: str, items: Sequence[T], columns: Sequence[Shown[T]], *, marked: Collection[T] = (), note: str = ""
    ) -> Self:
        """A table with a row for each item."""
        rows = [[cell(item) for _, cell in columns] for item in items]
        stand_out = {index for index, item in enumerate(items) if item in marked}
        return cls(title, [column for column, _ in columns], rows, stand_out, note)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its words. On a terminal, a chart with `instead` is shown as its `numbers`, or as `instead` if these don't fit.
    Other charts are only on pages."""

    id: str
    title: str
    caption: str
    draw: Callable[[Any], dict[str, Any]]
    """Makes the specification. Its argument is the module `charts`, which only pages need."""
    numbers: Table | None = None
    instead: Table | None = None
    least_width_em: int = 0
    """On a narrower page the chart is scrolled."""


Content = Lead | Text | Items | Table | Chart


class Block(NamedTuple):
    section: str
    """The block's section on a page. A terminal shows blocks in order."""
    content: Content
    only: Only | None = None


def blocks(section: str, *contents: Content | str | None, only: Only | None = None) -> list[Block]:
    """The contents as blocks of a section. A string becomes a `Text`; empty contents and None are left out."""
    given = [Text(content) if isinstance(content, str) else content for content in contents if content]
    return [Block(section, content, only) for content in given]


class Document(NamedTuple):
    command: str
    title: str
    log: LogFigures
    key: str
    sections: Mapping[str, str]
    """A page's sections in order, with their titles. A section without title has a table or chart with its own."""
    blocks: Sequence[Block]
    words: Mapping[str, str]
    """The meanings of the words that the report uses."""
