"""A report as a list of blocks: texts, lists, tables and charts, made once. `terminal.py` prints it, `html.py` makes a page of it.

All texts are harmless: what comes from a log is sanitised. A table's cells are texts too, as a person reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from receiver.simulate.figures import Grade, LogFigures

T = TypeVar("T")

MARK = "> "
"""Stands before what a table recommends: not all terminals, and no pipe, have colours."""


class Only(Enum):
    """Where alone something is shown."""

    TERMINAL = auto()
    PAGE = auto()


class Style(Enum):
    """What a text is in its report."""

    PLAIN = auto()
    """A paragraph that begins something new."""
    SAID = auto()
    """A sentence on what stands above it."""
    NOTE = auto()
    """What is to be known of a table, or of the reading."""
    CODE = auto()
    """Lines to be copied."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The advice."""

    form: ClassVar = "lead"
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    form: ClassVar = "text"
    text: str
    style: Style = Style.SAID
    grade: Grade | None = None
    """How sure it is: the evidence, which stands behind it."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list; without a title it goes on with what stands above it."""

    form: ClassVar = "items"
    title: str
    texts: Sequence[str]


class Cells(Enum):
    """What a column's cells are."""

    FIGURE = auto()
    WORD = auto()
    """A short text, which is never broken."""
    NAME = auto()
    """A text that loses its middle where room is short."""
    POLICY = auto()
    """A text that is broken before its parameters where room is short."""
    TEXT = auto()
    """A text that may be broken anywhere."""


class Column(NamedTuple):
    name: str
    cells: Cells = Cells.FIGURE
    only: Only | None = None
    is_spare: bool = False
    """It is left out where room is short."""


Shown = tuple[Column, Callable[[T], str]]
"""A column, and how it shows an item."""


@dataclass(frozen=True, slots=True)
class Table:
    form: ClassVar = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = frozenset()
    """The indices of the rows that stand out."""
    note: str = ""
    """What its signs mean, and what is left out, on lines of their own."""

    @classmethod
    def of(
        cls,
        title: str,
        items: Sequence[T],
        columns: Sequence[Shown[T]],
        *,
        marked: Collection[T] = (),
        note: str = "",
    ) -> Self:
        """A row for each item."""
        rows = [[cell(item) for _, cell in columns] for item in items]
        stand_out = {index for index, item in enumerate(items) if item in marked}
        return cls(title, [column for column, _ in columns], rows, stand_out, note)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its words. A terminal shows its numbers, where there is something to show instead if they don't fit."""

    form: ClassVar = "chart"
    id: str
    title: str
    caption: str
    draw: Callable[[Any], dict[str, Any]]
    """Makes the specification. It is given the module `charts`, which only a page needs."""
    numbers: Table | None = None
    instead: Table | None = None
    least_width_em: int = 0
    """A page scrolls it below this width."""


Content = Lead | Text | Items | Table | Chart


class Block(NamedTuple):
    section: str
    """Where it stands on a page; a terminal shows blocks as they come."""
    content: Content
    only: Only | None = None


def blocks(section: str, *contents: Content | str | None, only: Only | None = None) -> list[Block]:
    """The contents as blocks of a section. A plain string is something said; what is empty or None is left out."""
    given = [Text(content) if isinstance(content, str) else content for content in contents if content]
    return [Block(section, content, only) for content in given]


class Document(NamedTuple):
    command: str
    title: str
    log: LogFigures
    key: str
    sections: Mapping[str, str]
    """A page's sections in their order, with their titles. An untitled one has a table or a chart, which has its own."""
    blocks: Sequence[Block]
    words: Mapping[str, str]
    """What the words mean that the report uses."""
