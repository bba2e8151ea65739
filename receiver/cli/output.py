"""Results on standard output: exact as JSON, tame on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from receiver.durable.audit import StoreFigures

__all__ = ["AsJson", "console", "note_if_broken", "print_json"]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def print_json(text: str) -> None:
    """Print one object as bytes, so that it is the same whatever the terminal's encoding."""
    sys.stdout.buffer.write(text.encode() + b"\n")


def console() -> Console:
    """Standard output for text and tables; what its encoding lacks is escaped."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


def note_if_broken(figures: StoreFigures) -> None:
    """Say on standard error that a store is broken."""
    if figures.findings:
        print("note: the store is broken: receiver check tells where", file=sys.stderr)
