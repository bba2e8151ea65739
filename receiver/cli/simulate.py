"""`receiver simulate`: size the two windows from a log of receipts."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli.engines import (
    Cluster,
    Master,
    OrderBy,
    SimulateRequest,
    Verbose,
    simulate_here,
    simulate_on_spark,
    single_setting,
)
from receiver.cli.fields import Fields, with_fields
from receiver.cli.options import (
    AsJson,
    ColumnMap,
    Domain,
    Logs,
    OnError,
    Report,
    TimeUnit,
    TimeZone,
    WhenUnreadable,
    read_options,
)
from receiver.cli.output import console, print_json
from receiver.errors import SettingsError
from receiver.settings import ReceiverSettings, SimulateSettings

if TYPE_CHECKING:
    from receiver.simulate.analysis import Question

EPILOG = """Examples:

receiver simulate receipts.csv.gz --domain destination --report report.html

receiver simulate receipts.csv.gz --current 2000,120 --budget 500MB

receiver simulate logs/ --window 0,100:20000:16 --expiry 0,1:600:12 --json

receiver simulate receipts.parquet --window {receiver.dup_detection_per_source_expiry_window_size} --expiry {receiver.dup_detection_expiry_time_secs} --verdicts verdicts.csv --fail-on-missed 0

receiver simulate correlator.log --domain name:orders --map unique_message_id=OrderId
"""

_MISSED_TOO_MANY = 1


class _Engine(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


@with_fields
def simulate(
    logs: Logs,
    *,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Windows W to try, in ids per source: 2000, 0,100,2000 or 100:20000:16. [default: chosen from the log]",
        ),
    ] = None,
    expiry: Annotated[
        str | None, typer.Option(metavar="LIST", help="Expiries E to try, in seconds. [default: chosen from the log]")
    ] = None,
    domain: Domain = "default",
    as_json: AsJson = False,
    report: Report = None,
    verdicts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the verdict on each receipt: .csv, .jsonl or .parquet; on Spark also FOLDER/, with Parquet parts. "
            "Needs one setting.",
        ),
    ] = None,
    fail_on_missed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Exit with 1 if the single given setting (otherwise the recommended one) misses more than N.",
        ),
    ] = None,
    settings: Annotated[SimulateSettings, Fields(max_missed="--max-missed N", margin="--margin")],
    current: Annotated[
        str | None,
        typer.Option(
            metavar="W,E",
            help="Your setting, to compare the advice with. [default: "
            "{receiver.dup_detection_per_source_expiry_window_size},{receiver.dup_detection_expiry_time_secs}]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The recommended setting may take so much memory: 500MB, 2GB, 1e9. [default: {simulate.budget_bytes}]",
        ),
    ] = None,
    column_map: ColumnMap = None,
    time_unit: TimeUnit = None,
    time_zone: TimeZone = "UTC",
    on_error: WhenUnreadable = OnError.STOP,
    engine: Annotated[_Engine, typer.Option(help="Where to run the replay.")] = _Engine.LOCAL,
    master: Master = None,
    order_by: OrderBy = None,
    verbose: Verbose = False,
) -> int:
    """Replay a log of receipts under many settings at once.

    The command shows what each setting would have missed and what it costs. It recommends one, and says why.
    """
    if engine is _Engine.LOCAL:
        for option, value in (("--master", master), ("--order-by", order_by), ("--verbose", verbose)):
            if value:
                raise SettingsError(f"{option} is for Spark, and the engine is local", hint="add --engine spark")
    question = _question(domain, window, expiry, current, _with_budget(settings, budget))
    single = single_setting(question)
    if verdicts is not None and single is None:
        usual = ReceiverSettings()
        w, e = usual.dup_detection_per_source_expiry_window_size, usual.dup_detection_expiry_time_secs
        raise SettingsError(
            "--verdicts needs one setting",
            hint=f"give one --window and one --expiry, such as --window {w} --expiry {e:g}",
        )
    request = SimulateRequest(
        logs, question, read_options(column_map, time_unit, time_zone, on_error), report, verdicts
    )
    local = engine is _Engine.LOCAL
    analysis = simulate_here(request) if local else simulate_on_spark(request, Cluster(master, verbose, order_by))
    if as_json:
        from receiver.report.json_object import analysis_json

        print_json(analysis_json(analysis))
    else:
        from receiver.report.sizing import analysis_document
        from receiver.report.terminal import print_document

        print_document(analysis_document(analysis), console())
    if fail_on_missed is None:
        return 0
    judged = analysis.settings[0] if single else analysis.recommendation.setting
    if judged.missed <= fail_on_missed:
        return 0
    print(f"{judged.missed:,} duplicates missed, {fail_on_missed:,} allowed by --fail-on-missed", file=sys.stderr)
    return _MISSED_TOO_MANY


def _with_budget(settings: SimulateSettings, budget: str | None) -> SimulateSettings:
    from receiver.simulate.analysis import parse_budget_bytes

    return settings if budget is None else replace(settings, budget_bytes=parse_budget_bytes(budget))


def _question(
    domain: str, window: str | None, expiry: str | None, current: str | None, settings: SimulateSettings
) -> Question:
    from receiver.simulate.analysis import Question, parse_expiries_us, parse_present, parse_windows

    windows = None if window is None else parse_windows(window)
    expiries_us = None if expiry is None else parse_expiries_us(expiry)
    present = ReceiverSettings().sizes if current is None else parse_present(current)
    question = Question(domain, windows, expiries_us, settings, present)
    given = [values for values in (windows, expiries_us) if values is not None]
    if given and all(0 in values for values in given):  # a list chosen from the log holds 0
        print("note: a window of 0 with an expiry of 0 detects nothing, so this pair is left out", file=sys.stderr)
    return question
