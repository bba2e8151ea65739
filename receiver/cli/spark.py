"""`receiver simulate` on Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from receiver.cli.output import spare_logs, stages
from receiver.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from receiver.cli.simulate import SimulateRequest
    from receiver.logs.files import LogFile
    from receiver.simulate.figures import Analysis
    from receiver.spark.flow import OnProgress
    from receiver.spark.sources import Read

_BRIEF_BYTES = 4 << 20
"""A log of fewer bytes takes seconds: it has a few hundred thousand receipts."""


class Cluster(NamedTuple):
    """How to run on Spark."""

    master: str | None
    verbose: bool
    order_by: str | None


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
        if write_verdicts is not None and question.single is not None:
            write_verdicts(verdict_rows(read, log, *question.single))
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
