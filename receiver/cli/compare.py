"""`receiver compare`: the same log through other systems' rules."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from receiver.cli.files import Report, report_file, spare_logs
from receiver.cli.output import AsJson, console, print_json
from receiver.cli.progress import progress
from receiver.cli.reading import ColumnMap, Domain, Logs, OnError, TimeUnit, TimeZone, WhenUnreadable, read_options
from receiver.domains import domain_key
from receiver.policies.names import POLICIES, examples, form_of
from receiver.report.words import listed

if TYPE_CHECKING:
    from receiver.compare.figures import Comparison
    from receiver.logs import ReadOptions

__all__ = ["EPILOG", "compare"]

_COMPARED = [kind for kind in POLICIES if kind.declaration.twin is not None]
_EXAMPLE, _ANOTHER, *_ = examples()


def _whose() -> str:
    """`ttl is the rule of SQS FIFO (300)`: of those whose names don't say it."""
    rules: list[str] = []
    for kind in _COMPARED:
        systems = [
            system if vendor.sizes_are_ours or not vendor.sizes else f"{system} ({vendor.sizes.partition('=')[2]})"
            for vendor in kind.declaration.vendors
            for system in vendor.systems
        ]
        if systems and not kind.declaration.names_its_system:
            rules.append(f"{kind.name} is {'that' if rules else 'the rule'} of {listed(systems)}")
    return ", ".join(rules)


_BARE = [kind.name for kind in _COMPARED if kind.parameters and all(p.default for p in kind.parameters)]
EPILOG = f"""Policies: {" | ".join(map(form_of, _COMPARED))}. Times are in seconds. The sizes of {listed(_BARE)}
may be left out, for {{receiver.dup_detection_per_source_expiry_window_size}} and
{{receiver.dup_detection_expiry_time_secs}}, and the broker's own default. {_whose()}.

Examples:

receiver compare receipts.csv.gz --domain destination --report compare.html

receiver compare logs/ --policy {_EXAMPLE} --policy {_ANOTHER} --json

receiver compare receipts.parquet --policy {_EXAMPLE} --verdicts verdicts.csv
"""


def compare(  # noqa: PLR0917 - options of the command, given by name
    logs: Logs,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:k=v,...]",
            help=f"A rule to try, such as {_EXAMPLE}; may be repeated. Left out, all that can judge the "
            "log's ids, and the two-tier setting that simulate recommends.",
        ),
    ] = None,
    domain: Domain = "default",
    as_json: AsJson = False,  # noqa: FBT002
    report: Report = None,
    verdicts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every policy's verdict on each receipt (.csv, .jsonl, .parquet), one column per policy.",
        ),
    ] = None,
    column_map: ColumnMap = None,
    time_unit: TimeUnit = None,
    time_zone: TimeZone = "UTC",
    on_error: WhenUnreadable = OnError.STOP,
) -> None:
    """Replay a log of receipts through the rules of several systems, side by side.

    It says what each would have missed, what it would have dropped wrongly, what it keeps, and where they disagree.
    """
    from receiver.compare.policies import stated_policies

    domain_key(domain)  # refused before the log is read, as policies are
    texts = tuple(policy or ())
    stated_policies(texts)
    options = read_options(column_map, time_unit, time_zone, on_error)
    _print(_compare(_Asked(logs, texts, domain, options, report, verdicts)), as_json=as_json)


class _Asked(NamedTuple):
    """What to compare, and the files to write on the way."""

    logs: list[str]
    policies: tuple[str, ...]
    key: str
    options: ReadOptions
    report: str | None
    verdicts: str | None


def _compare(asked: _Asked) -> Comparison:
    """Read, judge and write the files asked for, which were made before the work begins."""
    from receiver.compare.engine import compare_policies
    from receiver.compare.verdicts import verdict_batches, verdict_schema
    from receiver.logs import read_logs
    from receiver.logs.writer import table_to_begin
    from receiver.simulate.ingest import ingest

    with ExitStack() as outputs:
        write_report = outputs.enter_context(report_file(asked.report, _page))
        begin_table = outputs.enter_context(table_to_begin(asked.verdicts)) if asked.verdicts is not None else None
        batches = read_logs(asked.logs, asked.options)
        spare_logs(batches.paths, report=asked.report, verdicts=asked.verdicts)
        with progress("Reading receipts", batches.size_bytes, in_bytes=True) as batches.on_read:
            receipts = ingest(batches, domain_key(asked.key))
        with progress("Comparing policies", len(receipts.domains)) as advance:
            compared = compare_policies(
                receipts, asked.key, asked.policies, with_verdicts=begin_table is not None, advance=advance
            )
        comparison = compared.comparison
        if begin_table is not None:
            table = begin_table(verdict_schema([figures.policy for figures in comparison.policies]))
            for batch in verdict_batches(receipts, compared):
                table.write(batch)
        write_report(comparison)
    return comparison


def _page(comparison: Comparison) -> str:
    from receiver.report.compare_html import html_text

    return html_text(comparison)


def _print(comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        from receiver.report.compare_json import json_text

        print_json(json_text(comparison))
    else:
        from receiver.report.compare_table import print_table

        print_table(comparison, console())
