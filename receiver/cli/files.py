"""The files that a command which reads a log writes beside what it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from receiver.errors import SettingsError

__all__ = ["Report", "report_file", "spare_logs"]

Report = Annotated[str | None, typer.Option(metavar="FILE.html", help="Write a report to look at in a browser.")]

T = TypeVar("T")


@contextmanager
def report_file(path: str | None, page: Callable[[T], str]) -> Iterator[Callable[[T], None]]:
    """Makes the file at once, where there is to be one; the function it gives writes the page of what was found out."""
    if path is None:
        yield lambda _found: None
        return

    from receiver.logs.writer import replacing

    with replacing(path) as file:

        def write(found: T) -> None:
            file.write(page(found).encode())

        yield write


def spare_logs(logs: Iterable[str], *, report: str | None, verdicts: str | None) -> None:
    """Refuse to write where something is read from, or two results into one file. Nothing is in its place yet."""
    read = {Path(log).resolve() for log in logs}
    outputs = [Path(path).resolve() for path in (report, verdicts) if path is not None]
    for path in outputs:
        if path in read and path.is_file():
            raise SettingsError(f"{path} is a log to read, and would be overwritten", hint="name another file")
    if len(outputs) > len(set(outputs)) and not outputs[0].is_char_device():
        raise SettingsError("--report and --verdicts name the same file", hint="name two files")
