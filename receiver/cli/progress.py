"""How far a command has come, for those who wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

__all__ = ["progress", "stages"]

_PATIENCE_SECS = 2.0


@contextmanager
def progress(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Counts what is done, by the function it gives, towards `total`, where that is known; `in_bytes` says the unit.

    A bar on standard error, once the work has taken two seconds; nothing where that is no terminal.
    """
    with _bar(what, total, in_bytes=in_bytes) as update:
        yield lambda done: update(advance=done)


@contextmanager
def stages(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """As `progress`, of work in stages. It begins with `what`; then the function is told what goes on, done, and total."""
    with _bar(what, None) as update:
        yield lambda now, done, total: update(description=now, completed=done, total=total or None)


@contextmanager
def _bar(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[..., None]]:
    if not sys.stderr.isatty():
        yield lambda **_changes: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    start = Timer(_PATIENCE_SECS, bar.start)
    start.daemon = True
    start.start()
    try:
        yield lambda **changes: bar.update(task, **changes)
    finally:
        start.cancel()
        start.join()
        bar.stop()
