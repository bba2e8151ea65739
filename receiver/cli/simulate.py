"""`receiver simulate`: size the two windows from a log of receipts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.output import console, print_json
from receiver.cli.progress import progress
from receiver.cli.reading import ColumnMap, Domain, Logs, OnError, TimeUnit, TimeZone, WhenUnreadable, read_options
from receiver.domains import domain_key
from receiver.errors import SettingsError
from receiver.settings import SimulateSettings

if TYPE_CHECKING:
    from receiver.logs import ReadOptions
    from receiver.simulate.analysis import Question
    from receiver.simulate.figures import Analysis

__all__ = ["EPILOG", "simulate"]

EPILOG = """Examples:

receiver simulate receipts.csv.gz --domain destination --report report.html

receiver simulate logs/ --window 0,100:20000:16 --expiry 0,1:600:12 --json

receiver simulate receipts.parquet --window 2000 --expiry 120 --verdicts verdicts.csv --fail-on-missed 0

receiver simulate correlator.log --domain name:orders --map unique_message_id=OrderId
"""

_MISSED_TOO_MANY = 1


class _Engine(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


def simulate(  # noqa: PLR0917 - options of the command, given by name
    logs: Logs,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Windows W to try, in ids per source: 2000, 0,100,2000 or 100:20000:16. Chosen from the log if left out.",
        ),
    ] = None,
    expiry: Annotated[
        str | None, typer.Option(metavar="LIST", help="Expiries E to try, in seconds. Chosen from the log if left out.")
    ] = None,
    domain: Domain = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,  # noqa: FBT002
    report: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a report to look at in a browser.")
    ] = None,
    verdicts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the verdict on each receipt (.csv, .jsonl, .parquet); one setting only."
        ),
    ] = None,
    fail_on_missed: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Exit with 1 if the single, or else the recommended, setting misses more."
        ),
    ] = None,
    max_missed: Annotated[
        int | None, typer.Option(metavar="N", help="Duplicates that the recommended setting may miss. [default: 0]")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="How many times the log's need to recommend. [default: 2.0]")
    ] = None,
    column_map: ColumnMap = None,
    time_unit: TimeUnit = None,
    time_zone: TimeZone = "UTC",
    on_error: WhenUnreadable = OnError.STOP,
    engine: Annotated[_Engine, typer.Option(help="Where to run.")] = _Engine.LOCAL,
) -> int:
    """Replay a log of receipts under many settings at once.

    It says what each would have missed and what it costs, recommends one, and says why.
    """
    if engine is _Engine.SPARK:
        raise SettingsError("this version has no Spark engine", hint="leave --engine out")
    question = _question(domain, window, expiry, max_missed, margin)
    single = _single_setting(question)
    if verdicts is not None and single is None:
        raise SettingsError(
            "--verdicts needs one setting",
            hint="give one --window and one --expiry, such as --window 2000 --expiry 120",
        )
    analysis = _answer(logs, question, read_options(column_map, time_unit, time_zone, on_error), report, verdicts)
    _print(analysis, as_json=as_json)
    if fail_on_missed is None:
        return 0
    judged = analysis.settings[0] if single else analysis.recommendation and analysis.recommendation.setting
    if judged and judged.missed <= fail_on_missed:
        return 0
    missed = f"{judged.missed:,} duplicates missed" if judged else "no setting qualifies"
    print(f"{missed}, {fail_on_missed:,} allowed by --fail-on-missed", file=sys.stderr)
    return _MISSED_TOO_MANY


def _question(
    domain: str, window: str | None, expiry: str | None, max_missed: int | None, margin: float | None
) -> Question:
    from receiver.simulate.analysis import Question
    from receiver.simulate.grid import check_grid, parse_expiries_us, parse_windows

    domain_key(domain)  # refuses an unknown one before the log is read
    settings = SimulateSettings()
    if max_missed is not None:
        settings = replace(settings, max_missed=max_missed)
    if margin is not None:
        settings = replace(settings, margin=margin)
    windows = None if window is None else parse_windows(window)
    expiries_us = None if expiry is None else parse_expiries_us(expiry)
    if windows is not None and expiries_us is not None:
        check_grid(windows, expiries_us)
    given = [values for values in (windows, expiries_us) if values is not None]
    if given and all(0 in values for values in given):  # a list chosen from the log holds 0
        print("note: the pair of a window of 0 and an expiry of 0 detects nothing and is left out", file=sys.stderr)
    return Question(domain, windows, expiries_us, settings)


def _single_setting(question: Question) -> tuple[int, int] | None:
    """The one pair asked for, if it is one; its expiry is in microseconds."""
    pairs = [
        (window, expiry_us)
        for window in question.windows or ()
        for expiry_us in question.expiries_us or ()
        if (window, expiry_us) != (0, 0)
    ]
    return pairs[0] if len(pairs) == 1 else None


def _answer(
    logs: list[str], question: Question, options: ReadOptions, report: str | None, verdicts: str | None
) -> Analysis:
    """Read, replay and write the files asked for, which were made before the work begins."""
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
        if table is not None and (single := _single_setting(question)):
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


def _print(analysis: Analysis, *, as_json: bool) -> None:
    if as_json:
        from receiver.report.json_object import json_text

        print_json(json_text(analysis))
    else:
        from receiver.report.table import print_table

        print_table(analysis, console())
