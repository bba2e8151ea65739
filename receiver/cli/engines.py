"""The two engines of `receiver simulate`: this process, or Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from receiver.cli.output import progress, spare_logs, stages
from receiver.domains import domain_key
from receiver.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from receiver.logs import ReadOptions
    from receiver.logs.files import LogFile
    from receiver.simulate.figures import Analysis
    from receiver.simulate.question import Question
    from receiver.spark.flow import OnProgress
    from receiver.spark.sources import Read

_BRIEF_BYTES = 4 << 20
"""A log of fewer bytes takes seconds: it has a few hundred thousand receipts."""


def single_setting(question: Question) -> tuple[int, int] | None:
    """The window and the expiry (in microseconds) of a question about one pair; None for any other."""
    pairs = [
        (window, expiry_us)
        for window in question.windows or ()
        for expiry_us in question.expiries_us or ()
        if (window, expiry_us) != (0, 0)
    ]
    return pairs[0] if len(pairs) == 1 else None


class SimulateRequest(NamedTuple):
    """What to simulate, and where to write the verdicts."""

    logs: list[str]
    question: Question
    options: ReadOptions
    report: str | None
    """Where a report is written meanwhile, which mustn't be one of the logs."""
    verdicts: str | None
    query: str | None = None
    """What to ask the database for that `logs` names."""


class Cluster(NamedTuple):
    """How to run on Spark."""

    master: str | None
    verbose: bool
    order_by: str | None


def simulate_here(request: SimulateRequest) -> Analysis:
    """Replay the log in this process and write the verdicts, whose file is created before the work begins."""
    from receiver.logs import read_logs
    from receiver.logs.writer import open_table
    from receiver.simulate.analysis import analyse
    from receiver.simulate.ingest import ingest
    from receiver.simulate.whole import VERDICT_SCHEMA, WholeLog, verdict_batches

    question, verdicts = request.question, request.verdicts
    with nullcontext() if verdicts is None else open_table(verdicts, VERDICT_SCHEMA) as table:
        batches = read_logs(request.logs, request.options, request.query)
        spare_logs(batches.paths, report=request.report, verdicts=verdicts)  # no output has been written yet
        with progress("Reading receipts", batches.size_bytes, in_bytes=True) as batches.on_read:
            receipts = ingest(batches, domain_key(question.key))
        with progress("Replaying domains", len(receipts.domains)) as advance:
            log = WholeLog(receipts, max_missed=question.settings.max_missed, advance=advance)
            analysis = analyse(log, question)
        if table is not None and (single := single_setting(question)):
            for batch in verdict_batches(receipts, *single):
                table.write(batch)
    return analysis


def simulate_on_spark(request: SimulateRequest, cluster: Cluster) -> Analysis:
    """Replay the log in tasks of Spark and write the verdicts, whose path may be that of a folder for Parquet files."""
    from receiver.spark.session import session

    question = request.question
    with ExitStack() as outputs:
        files = _files(request, cluster)
        if files is not None:
            files = outputs.enter_context(_at_hand(files, cluster.master))
        on_progress = outputs.enter_context(stages("Starting Spark"))
        brief = files is not None and sum(file.size_bytes or _BRIEF_BYTES for file in files) < _BRIEF_BYTES
        spark = outputs.enter_context(session(cluster.master, verbose=cluster.verbose, brief=brief))

        # Once it is known that there is a Spark.
        from receiver.simulate.analysis import analyse
        from receiver.spark.flow import costs
        from receiver.spark.frames import verdict_rows, verdicts_file
        from receiver.steps.log import chunked_log

        write_verdicts = (
            outputs.enter_context(verdicts_file(request.verdicts)) if request.verdicts is not None else None
        )
        read = _read(spark, request, cluster, files, on_progress)
        cores, keeps_rows = spark.sparkContext.defaultParallelism, request.verdicts is not None
        log = outputs.enter_context(chunked_log(*read, question, cores=cores, keeps_rows=keeps_rows))
        analysis = analyse(log, question)
        if write_verdicts is not None and (single := single_setting(question)):
            write_verdicts(verdict_rows(read, log, *single))
        if cluster.verbose:
            for line in costs(spark.sparkContext):
                print(line, file=sys.stderr)
    return analysis


def _is_elsewhere(log: str) -> bool:
    from receiver.logs.remote import TABLE, is_url

    return is_url(log) or log.startswith(TABLE)


def _files(request: SimulateRequest, cluster: Cluster) -> list[LogFile] | None:
    """The files that our readers read in tasks; None if Spark itself reads the log."""
    from receiver.logs.files import find_files

    if cluster.order_by is not None or any(map(_is_elsewhere, request.logs)):
        return None
    files = find_files(request.logs)
    read_from = [str(file.path) for file in files if file.path is not None]
    spare_logs(read_from, report=request.report, verdicts=request.verdicts)
    return files


def _read(
    spark: SparkSession,
    request: SimulateRequest,
    cluster: Cluster,
    files: list[LogFile] | None,
    on_progress: OnProgress,
) -> Read:
    from receiver.logs.files import find_files, is_compacted
    from receiver.spark.sources import read_elsewhere, read_files

    options, with_ids = request.options, request.verdicts is not None
    if files is None and cluster.order_by is None and any(map(is_compacted, request.logs)):
        files = find_files(request.logs)
    if files is not None:
        return read_files(spark, files, options, with_ids=with_ids, on_progress=on_progress)
    return read_elsewhere(
        spark,
        [
            log if _is_elsewhere(log) or log.startswith("file:") else Path(log).absolute().as_uri()
            for log in request.logs
        ],
        options,
        order_by=cluster.order_by,
        with_ids=with_ids,
        on_progress=on_progress,
        note=lambda text: print(f"note: {text}", file=sys.stderr),
    )


@contextmanager
def _at_hand(files: list[LogFile], master: str | None) -> Iterator[list[LogFile]]:
    """Copy what comes through a pipe into files, which tasks can open, for as long as they need it."""
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
