"""Compact logs of receipts on Spark: Parquet by domain and day, in order, so that later replays are cheap.

    spark-submit spark_jobs/compact_logs.py LOG... OUT [--domain KEY] [--on-error skip] [--rows-per-file N]

OUT reads back as the log it was made of: `receiver simulate OUT` gives the same figures by the same KEY.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from receiver.chunks.compacting import ROWS_PER_FILE, compact
from receiver.cli import run
from receiver.cli.reading import ColumnMap, Domain, Logs, OnError, TimeUnit, TimeZone, WhenUnreadable, read_options
from receiver.domains import domain_key
from receiver.logs import checked_options
from receiver.logs.compacted import BAD_ROWS
from receiver.logs.files import find_files
from receiver.logs.output import appearing
from receiver.spark.session import session

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def compact_logs(
    logs: Logs,
    out: Annotated[Path, typer.Argument(help="The folder to make, at a path that every executor sees.")],
    *,
    domain: Domain = "default",
    column_map: ColumnMap = None,
    time_unit: TimeUnit = None,
    time_zone: TimeZone = "UTC",
    on_error: WhenUnreadable = OnError.STOP,
    rows_per_file: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows of a file at most; a task holds about so many in memory.")
    ] = ROWS_PER_FILE,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Spark runs: local[N], spark://HOST:7077, yarn, k8s://...")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what Spark and Java say.")] = False,
) -> None:
    """Write the receipts of logs as Parquet by domain and day, in order.

    With --on-error skip, OUT/_bad_rows.jsonl tells which rows were left out, and why.
    """
    key = domain_key(domain)
    options = checked_options(read_options(column_map, time_unit, time_zone, on_error))
    files = find_files(logs)
    with appearing(out) as folder, session(master, verbose=verbose) as spark:
        from receiver.spark.flow import start

        manifest = compact(files, options, key, folder, start=partial(start, spark), rows_per_file=rows_per_file)
    parts = sum(len(each.files) for each in manifest.domains)
    print(f"{manifest.receipts:,} receipts of {len(manifest.domains):,} domains in {parts:,} files: {out}")
    if manifest.skipped:
        print(f"{manifest.skipped:,} rows couldn't be read and were left out: {out / BAD_ROWS}")


if __name__ == "__main__":
    sys.exit(run(app, "compact_logs.py"))
