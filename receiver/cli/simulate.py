"""`receiver simulate`: size the two windows from a log of receipts; and `receiver generate`, which makes such a log."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from receiver.cli import options, output
from receiver.cli.options import Fields, examples, under_headings, with_fields
from receiver.domains import domain_key
from receiver.errors import SettingsError
from receiver.quantities import count, seconds
from receiver.settings import ReceiverSettings, SimulateSettings, doubt_about
from receiver.simulate.scenarios import SCENARIOS, ScenarioPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from receiver.logs import ReadOptions
    from receiver.logs.files import LogFile
    from receiver.simulate.figures import Analysis
    from receiver.simulate.question import Question
    from receiver.spark.flow import OnProgress
    from receiver.spark.sources import Read

_MISSED_TOO_MANY = 1
_GROUPED = re.compile(r"[1-9]\d{0,2}(,\d{3})*,0\d\d(,\d{3})*")
"""A list that looks like one number, such as 2,000: nobody writes leading zeros in a list."""
_POINTED = re.compile(r"\d+\.\d+")
"""A window with a fraction, or with a point between the thousands."""
_LIKELY_WINDOW = 1_000
"""If W is below this and E has at least as many seconds, they are probably swapped."""
_LEAST_BUDGET_BYTES = 100_000
"""A smaller budget is probably a mistake: it is enough for a few hundred ids."""
_BRIEF_BYTES = 4 << 20
"""Spark takes only seconds for a smaller log, of a few hundred thousand receipts."""


class SimulateRequest(NamedTuple):
    """The arguments of `receiver simulate`, parsed."""

    logs: list[str]
    question: Question
    how: ReadOptions
    report: str | None
    """The path of the report, which mustn't be one of the logs."""
    verdicts: str | None
    query: str | None
    """The query to the database that `logs` names."""
    master: str | None
    """Where Spark runs. This and the following fields are only for Spark."""
    order_by: str | None
    verbose: bool


@examples(
    "receiver simulate receipts.csv.gz --domain destination --report report.html",
    "receiver simulate receipts.csv.gz --current 2000,120 --budget 500MB",
    "receiver simulate logs/ --window 0,100:20000:16 --expiry 0,1:600:12 --json",
    "receiver simulate receipts.parquet --window {receiver.dup_detection_per_source_expiry_window_size} --expiry {receiver.dup_detection_expiry_time_secs} --verdicts verdicts.csv --fail-on-missed 0",
    "receiver simulate correlator.log --domain name:orders --map unique_message_id=OrderId",
)
@under_headings(
    {
        "Results": "--json --report --verdicts --fail-on-missed",
        "The advice": "--current --margin --max-missed --budget",
        "Reading the log": "--query --map --time-unit --time-zone --on-error",
        "Spark": "--engine --master --order-by --verbose",
    }
)
@with_fields
def simulate(
    logs: options.Logs,
    *,
    query: options.Query = None,
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
    domain: options.Domain = "default",
    as_json: options.AsJson = False,
    report: options.Report = None,
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
    settings: Annotated[SimulateSettings, Fields(max_missed="--max-missed N", margin="--margin TIMES")],
    current: Annotated[
        str | None,
        typer.Option(
            metavar="W,E",
            help="What is set today: the advice keeps, raises or lowers it. [default: "
            "{receiver.dup_detection_per_source_expiry_window_size},{receiver.dup_detection_expiry_time_secs}]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most memory of this package that the recommended setting may take: 500MB, 2GB, 1e9. The advice lowers "
            "today's setting only to fit it. [default: {simulate.budget_bytes} bytes]",
        ),
    ] = None,
    column_map: options.ColumnMap = None,
    time_unit: options.TimeUnit = None,
    time_zone: options.TimeZone = "UTC",
    on_error: options.WhenUnreadable = "stop",
    engine: Annotated[Literal["local", "spark"], typer.Option(help="Where to run the replay.")] = "local",
    master: options.Master = None,
    order_by: options.OrderBy = None,
    verbose: options.Verbose = False,
) -> int:
    """Replay a log of receipts under many settings at once.

    Each source keeps its newest W ids. An id pushed out of W is kept until one that came more than E later is pushed out
    too. A repeat is caught while its id is kept.

    The command shows what each W and E would have missed and what it costs. It says whether to keep, raise or lower what
    is set today, and why.
    """
    local = engine == "local"
    output.check_extras(report, on_spark=not local)
    if local:
        _refuse_options_of_spark({"--master": master, "--order-by": order_by, "--verbose": verbose})
        if query is None:
            options.refuse_tables(logs, "add --engine spark")
    elif query is not None:
        raise SettingsError(
            "--query is for the local engine", hint="let Spark read the database, and give the frame to size_windows"
        )
    question = _question(domain, window, expiry, current, _with_budget(settings, budget))
    if verdicts is not None:
        _check_is_single(question)
    how = options.read_options(column_map, time_unit, time_zone, on_error)
    request = SimulateRequest(logs, question, how, report, verdicts, query, master, order_by, verbose)
    from receiver.report.sizing import analysis_document

    with output.report_file(report) as write_report:
        analysis = _simulate_here(request) if local else _simulate_on_spark(request)
        output.note_folders_left_out([] if order_by else logs)  # by a column, Spark reads all folders
        document = analysis_document(analysis, allowed_missed=fail_on_missed, present_is_named=current is not None)
        write_report(document)
    if as_json:
        from receiver.report.json_object import analysis_object

        output.print_json(analysis_object(analysis))
    else:
        output.print_report(document)
    return 0 if fail_on_missed is None else _status(analysis, question, fail_on_missed)


def _refuse_options_of_spark(given: Mapping[str, object]) -> None:
    """`SettingsError` if an option was given that is only for Spark."""
    for option, value in given.items():
        if value:
            raise SettingsError(f"{option} is for Spark, and the engine is local", hint="add --engine spark")


def _check_is_single(question: Question) -> None:
    """`SettingsError` unless the question has one setting, as verdicts need."""
    if question.single is None:
        usual = ReceiverSettings()
        w, e = usual.dup_detection_per_source_expiry_window_size, usual.dup_detection_expiry_time_secs
        raise SettingsError(
            "--verdicts needs one setting",
            hint=f"give one --window and one --expiry, such as --window {w} --expiry {e:g}",
        )


def _status(analysis: Analysis, question: Question, allowed_missed: int) -> int:
    """The exit status under `--fail-on-missed`. If too many are missed, it says so."""
    judged = analysis.settings[0] if question.single else analysis.recommendation.setting
    if judged.missed <= allowed_missed:
        return 0
    missed = count(judged.missed, "duplicate")
    print(f"{missed} missed, {allowed_missed:,} allowed by --fail-on-missed", file=sys.stderr)
    return _MISSED_TOO_MANY


def _simulate_here(request: SimulateRequest) -> Analysis:
    """Replay the log in this process and write the verdicts. Their file is created before the work begins."""
    from receiver.logs import read_logs
    from receiver.logs.writer import open_table
    from receiver.simulate.analysis import analyse
    from receiver.simulate.ingest import ingest
    from receiver.simulate.whole import VERDICT_SCHEMA, WholeLog

    question, verdicts = request.question, request.verdicts
    with nullcontext() if verdicts is None else open_table(verdicts, VERDICT_SCHEMA) as write:
        batches = read_logs(request.logs, request.how, request.query)
        output.check_outputs(batches.paths, report=request.report, verdicts=verdicts)  # no output has been written yet
        output.note_other_key(batches.manifests, question.key)
        with output.progress("Reading receipts", batches.size_bytes, in_bytes=True) as batches.on_read:
            receipts = ingest(batches, domain_key(question.key))
        with output.progress("Replaying domains", len(receipts.domains)) as advance:
            log = WholeLog(receipts, max_missed=question.settings.max_missed, advance=advance)
            analysis = analyse(log, question)
        if write is not None and question.single is not None:
            for batch in log.verdict_batches(*question.single):
                write(batch)
    return analysis


def _simulate_on_spark(request: SimulateRequest) -> Analysis:
    """Replay the log in tasks of Spark and write the verdicts, to a file or to a folder of Parquet files."""
    from receiver.spark.session import session

    question = request.question
    with ExitStack() as stack:
        files = _local_files(request)
        if files is not None:
            files = stack.enter_context(_with_pipes_copied(files, request.master))
        on_progress = stack.enter_context(output.stages("Starting Spark"))
        brief = files is not None and sum(file.size_bytes or _BRIEF_BYTES for file in files) < _BRIEF_BYTES
        spark = stack.enter_context(session(request.master, verbose=request.verbose, brief=brief))

        # Imported once Spark has started.
        from receiver.simulate.analysis import analyse
        from receiver.spark.flow import costs
        from receiver.spark.frames import verdict_rows, verdicts_file
        from receiver.steps.log import chunked_log

        write_verdicts = stack.enter_context(verdicts_file(request.verdicts)) if request.verdicts is not None else None
        read = _read_on_spark(spark, request, files, on_progress)
        cores, keeps_rows = spark.sparkContext.defaultParallelism, request.verdicts is not None
        log = stack.enter_context(chunked_log(*read, question, cores=cores, keeps_rows=keeps_rows))
        analysis = analyse(log, question)
        if write_verdicts is not None and question.single is not None:
            write_verdicts(verdict_rows(read, log, *question.single))
        if request.verbose:
            for line in costs(spark.sparkContext):
                print(line, file=sys.stderr)
    return analysis


def _is_table_or_url(log: str) -> bool:
    from receiver.logs.remote import TABLE, is_url

    return is_url(log) or log.startswith(TABLE)


def _local_files(request: SimulateRequest) -> list[LogFile] | None:
    """The files that this package's readers read in Spark's tasks; None if Spark itself reads the log."""
    from receiver.logs.files import find_files
    from receiver.logs.remote import local_path

    files = None
    if request.order_by is not None or any(map(_is_table_or_url, request.logs)):
        local = [local_path(log) for log in request.logs if not _is_table_or_url(log)]
        read_from = [path for log in local for path in glob(log)]  # noqa: PTH207 - files and folders, as Spark finds them
    else:
        files = find_files(request.logs)
        read_from = [str(file.path) for file in files if file.path is not None]
    output.check_outputs(read_from, report=request.report, verdicts=request.verdicts)
    return files


def _read_on_spark(
    spark: SparkSession, request: SimulateRequest, files: list[LogFile] | None, on_progress: OnProgress
) -> Read:
    from receiver.logs.files import find_files, is_compacted, manifests_of
    from receiver.logs.remote import local_path
    from receiver.spark.sources import read_files, read_table_or_urls, spark_url

    with_ids = request.verdicts is not None
    if files is None and request.order_by is None and any(map(is_compacted, request.logs)):
        files = find_files(request.logs)
    if files is not None:
        output.note_other_key(manifests_of(files), request.question.key)
        return read_files(spark, files, request.how, with_ids=with_ids, on_progress=on_progress)
    return read_table_or_urls(
        spark,
        [log if _is_table_or_url(log) else spark_url(Path(local_path(log))) for log in request.logs],
        request.how,
        order_by=request.order_by,
        with_ids=with_ids,
        on_progress=on_progress,
        note=output.note,
    )


@contextmanager
def _with_pipes_copied(files: list[LogFile], master: str | None) -> Iterator[list[LogFile]]:
    """Copy logs from pipes into temporary files, which tasks can open."""
    piped = [file for file in files if not file.can_reopen]
    if not piped:
        yield files
        return
    if master is not None and not master.startswith("local"):
        raise SettingsError(
            f"{piped[0].name} comes through a pipe, which the executors of {master} can't read",
            hint="save it to a file that all of them see",
        )

    from receiver.logs.opening import spooled

    with TemporaryDirectory(prefix="receiver-") as folder:
        yield [
            file if file.can_reopen else spooled(file, Path(folder) / str(index)) for index, file in enumerate(files)
        ]


def _with_budget(settings: SimulateSettings, budget: str | None) -> SimulateSettings:
    from receiver.simulate.question import parse_budget_bytes

    if budget is None:
        return settings
    size_bytes = parse_budget_bytes(budget)
    if size_bytes < _LEAST_BUDGET_BYTES and budget.strip().isdecimal():
        output.note(f"--budget {budget} is {count(size_bytes, 'byte')}; for megabytes write {budget.strip()}MB")
    return replace(settings, budget_bytes=size_bytes)


def _question(
    domain: str, window: str | None, expiry: str | None, current: str | None, settings: SimulateSettings
) -> Question:
    from receiver.simulate.question import Question, parse_expiries_us, parse_present, parse_windows

    for option, text in (("--window", window), ("--expiry", expiry)):
        if text is not None and _GROUPED.fullmatch(text):
            output.note(f"{option} {text} is a list: write {text.replace(',', '')} for one number")
    windows = None if window is None else parse_windows(window)
    expiries_us = None if expiry is None else parse_expiries_us(expiry)
    if expiries_us and len(expiries_us) == 1 and (doubt := doubt_about(expiries_us[0])):
        output.note(f"--expiry: {doubt}")
    present = ReceiverSettings().sizes if current is None else parse_present(current)
    for option, text in (("--window", window), ("--current", current and current.partition(",")[0])):
        for item in map(str.strip, (text or "").split(",")):
            if _POINTED.fullmatch(item):
                output.note(f"{option}: {item} is W = {parse_windows(item, option)[0]}: write a window without a point")
    if current is not None:
        _note_doubt(*present)
    question = Question(domain, windows, expiries_us, settings, present)
    given = [values for values in (windows, expiries_us) if values is not None]
    if given and all(0 in values for values in given):  # a list that is chosen from the log has 0, too
        output.note("a window of 0 with an expiry of 0 detects nothing, so this pair is left out")
    return question


def _note_doubt(window: int, expiry_us: int) -> None:
    """Print a note if W and E are valid but probably a mistake."""
    doubt = doubt_about(expiry_us)
    if doubt is None and 0 < window < _LIKELY_WINDOW <= expiry_us / 1_000_000:
        doubt = f"W = {count(window, 'id')} and E = {seconds(expiry_us)}: are they swapped? W comes first"
    if doubt is not None:
        output.note(f"--current: {doubt}")


_SCENARIOS_HELP = "\n\n".join(["What goes wrong:", *(f"{name}: {what}." for name, what in SCENARIOS.items())])
_DEFAULTS = ScenarioPlan(scenario="steady", receipts=1)


@examples(
    "receiver generate storm.csv --scenario redelivery-storm --receipts 100000 --seed 7",
    "receiver generate large.parquet --scenario mixed --receipts 10000000 --sources 50 --rate 2000",
    "receiver generate quiet.jsonl.zst --scenario quiet-source --receipts 500000 --start 2026-03-01T00:00:00Z",
    "receiver generate vectors.jsonl --vectors --receipts 1000",
)
def generate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The log to write. Its ending says the format: .csv, .jsonl, .ndjson (each also .gz, .zst), .parquet.",
        ),
    ],
    *,
    receipts: Annotated[int, typer.Option(metavar="N", help="How many rows to write; with --vectors, traces.")],
    scenario: Annotated[str | None, typer.Option(metavar="NAME", help=_SCENARIOS_HELP)] = None,
    vectors: Annotated[
        bool,
        typer.Option(
            "--vectors",
            help="Write worked cases of the rule instead, to hold another implementation against: JSON Lines, on each a"
            " trace with its settings and verdicts. --receipts and --seed alone go with it. Needs the extra testing.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Equal seeds and options give equal logs.")] = _DEFAULTS.seed,
    sources: Annotated[int, typer.Option(metavar="N", help="How many senders.")] = _DEFAULTS.sources,
    rate: Annotated[float, typer.Option(metavar="N", help="Messages per second, over all sources.")] = _DEFAULTS.rate,
    duplicates: Annotated[
        float, typer.Option(metavar="SHARE", help="About this share of the receipts are duplicates: 0 to 0.9.")
    ] = _DEFAULTS.duplicates,
    start: Annotated[
        str, typer.Option(metavar="TIME", help="Time of the first receipt, ISO 8601. UTC if it names no zone.")
    ] = _DEFAULTS.start.isoformat().replace("+00:00", "Z"),
) -> None:
    """Write a synthetic log of receipts to try settings on."""
    if not (scenario or vectors):
        raise SettingsError("--scenario is missing", hint=f"one of {', '.join(SCENARIOS)}")
    plan = ScenarioPlan(
        scenario=scenario or _DEFAULTS.scenario,
        receipts=receipts,
        seed=seed,
        sources=sources,
        rate=rate,
        duplicates=duplicates,
        start=_time(start),
    )
    if vectors:
        if scenario or plan != replace(_DEFAULTS, receipts=receipts, seed=seed):
            raise SettingsError("with --vectors go --receipts and --seed alone", hint="leave out the other options")
        _write_vectors(file, receipts, seed)
        return
    from receiver.logs.writer import open_table
    from receiver.simulate.synthetic import SYNTHETIC_SCHEMA, batches

    with open_table(file, SYNTHETIC_SCHEMA) as write, output.progress("Generating", receipts) as advance:
        for batch in batches(plan):
            write(batch)
            advance(batch.num_rows)


def _write_vectors(file: Path, traces: int, seed: int) -> None:
    from receiver.logs.writer import replacing
    from receiver.testing.rule import worked_cases

    if file.suffix not in {".jsonl", ".ndjson"}:
        raise SettingsError(f"{file} isn't named as JSON Lines", hint="with --vectors, name it .jsonl or .ndjson")
    with replacing(file) as lines:
        for case in worked_cases(traces, seed):
            lines.write(json.dumps(case, separators=(",", ":")).encode() + b"\n")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--start {text!r} isn't a time", hint="write it as 2026-01-05T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
