"""Compact logs of receipts on Spark: spark-submit spark_jobs/compact_logs.py LOG... OUT [--append] [OPTIONS].

OUT is a folder of Parquet files by domain and day that keeps the order of receipts. `receiver simulate OUT` gives the same
figures as for the logs under the same KEY, in a fraction of the time.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from receiver.cli import options, run
from receiver.cli.output import note_folders_left_out, stages
from receiver.domains import domain_key
from receiver.quantities import count

_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@_app.command(cls=options.CommandWithSettings)
def compact_logs(
    logs: options.Logs,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder to make, at a path that every executor sees, or at a URL.")
    ],
    *,
    domain: options.Domain = "default",
    column_map: options.ColumnMap = None,
    time_unit: options.TimeUnit = None,
    time_zone: options.TimeZone = "UTC",
    on_error: options.WhenUnreadable = "stop",
    rows_per_file: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most rows in a file. A task holds about as many in memory.")
    ] = 1_000_000,
    append: Annotated[bool, typer.Option("--append", help="Add to the compacted log OUT, if it exists.")] = False,
    master: options.Master = None,
    verbose: options.Verbose = False,
) -> None:
    """Write the receipts of logs as Parquet by domain and day, in order.

    With --append, receipts are added to a compacted log. It must have no later receipts in their domains. With --on-error
    skip, OUT/_bad_rows.jsonl lists the rows that were left out, and why.
    """
    from receiver.spark.session import check_installed, session

    check_installed()  # first, for its extra has all that the imports below need

    from receiver.logs.compacted import BAD_ROWS, folder_at, manifest_of, new_folder
    from receiver.logs.files import find_files

    key = domain_key(domain)
    how = options.read_options(column_map, time_unit, time_zone, on_error)
    files = find_files(logs, growing=False)  # recordings are compacted once their files are finished
    folder = folder_at(out)
    before = manifest_of(folder) if append and folder.is_dir() else None
    with ExitStack() as ending:
        target = folder if before else ending.enter_context(new_folder(folder))
        on_progress = ending.enter_context(stages("Starting Spark"))
        spark = ending.enter_context(session(master, verbose=verbose))

        from receiver.spark.compacting import compact  # imported once Spark has started

        manifest = compact(
            spark, files, how, key, target, before=before, rows_per_file=rows_per_file, on_progress=on_progress
        )
    note_folders_left_out(logs)
    written = sum(len(each.files) for each in manifest.domains)
    of_domains = f"{count(manifest.receipts, 'receipt')} of {count(len(manifest.domains), 'domain')}"
    print(f"{of_domains} in {count(written, 'file')}: {folder}")
    if manifest.skipped:
        print(f"{count(manifest.skipped, 'unreadable row')} left out: {folder / BAD_ROWS}")


def main() -> int:
    return run(_app, "compact_logs.py")


if __name__ == "__main__":
    sys.exit(main())
