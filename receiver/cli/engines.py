"""Where `receiver simulate` does its work, and what it writes on the way."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.progress import progress
from receiver.domains import domain_key
from receiver.errors import SettingsError

if TYPE_CHECKING:
    from receiver.logs import ReadOptions
    from receiver.simulate.analysis import Question
    from receiver.simulate.figures import Analysis

__all__ = ["Master", "Verbose", "simulate_here", "single_setting"]

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://HOST:7077, yarn, k8s://HOST:PORT. Left out, it is as Spark is "
        "configured, or else all cores here.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Let through what Spark and Java say.")]


def single_setting(question: Question) -> tuple[int, int] | None:
    """The one pair asked for, if it is one; its expiry is in microseconds."""
    pairs = [
        (window, expiry_us)
        for window in question.windows or ()
        for expiry_us in question.expiries_us or ()
        if (window, expiry_us) != (0, 0)
    ]
    return pairs[0] if len(pairs) == 1 else None


def simulate_here(
    logs: list[str], question: Question, options: ReadOptions, report: str | None, verdicts: str | None
) -> Analysis:
    """Read, replay and write the files asked for, which were made before the work begins: in this process."""
    from receiver.logs import read_logs
    from receiver.logs.output import replacing
    from receiver.logs.writer import open_table
    from receiver.simulate.analysis import analyse
    from receiver.simulate.ingest import ingest
    from receiver.simulate.verdicts import SCHEMA, verdict_batches
    from receiver.simulate.whole import WholeLog

    with ExitStack() as outputs:
        report_file = outputs.enter_context(replacing(report)) if report is not None else None
        table = outputs.enter_context(open_table(verdicts, SCHEMA)) if verdicts is not None else None
        batches = read_logs(logs, options)
        _spare_logs(batches.paths, report, verdicts)  # nothing is in its place yet
        with progress("Reading receipts", None) as advance:
            receipts = ingest(batches, domain_key(question.key), advance=advance)
        with progress("Replaying domains", len(receipts.domains)) as advance:
            analysis = analyse(WholeLog(receipts, advance=advance), question)
        if table is not None and (single := single_setting(question)):
            for batch in verdict_batches(receipts, *single):
                table.write(batch)
        if report_file is not None:
            from receiver.report.html import html_text

            report_file.write(html_text(analysis).encode())
    return analysis


def _spare_logs(logs: Iterable[str], report: str | None, verdicts: str | None) -> None:
    """Refuse to write where something is read from, or two results into one file."""
    read = {Path(log).resolve() for log in logs}
    outputs = [Path(path).resolve() for path in (report, verdicts) if path is not None]
    for path in outputs:
        if path in read and path.is_file():
            raise SettingsError(f"{path} is a log to read, and would be overwritten", hint="name another file")
    if len(outputs) > len(set(outputs)) and not outputs[0].is_char_device():
        raise SettingsError("--report and --verdicts name the same file", hint="name two files")
