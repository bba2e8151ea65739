"""How far a command has come, for those who wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]

_PATIENCE_SECS = 2.0


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Counts what is done, by the function it gives, towards `total`, where that is known.

    A bar on standard error, once the work has taken two seconds; nothing where that is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    began = time.monotonic()

    def advance(done: int) -> None:
        bar.advance(task, done)
        if time.monotonic() - began > _PATIENCE_SECS:
            bar.start()  # does nothing the second time

    try:
        yield advance
    finally:
        bar.stop()
