"""`receiver compare`: the same log through other systems' rules."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.cli import options, output
from receiver.domains import domain_key
from receiver.policies.names import POLICIES, examples, form_of, stated_policies
from receiver.report.words import listed

if TYPE_CHECKING:
    from receiver.compare import Comparison
    from receiver.logs import ReadOptions

_COMPARED = [kind for kind in POLICIES if kind.declaration.compiled_policy is not None]
_EXAMPLE, _ANOTHER, *_ = examples()


def _whose() -> str:
    """The systems with rules that aren't named after them: `ttl is the rule of SQS FIFO (300)`."""
    rules: list[str] = []
    for kind in _COMPARED:
        systems = [
            system if vendor.sizes_are_ours or not vendor.sizes else f"{system} ({vendor.sizes.partition('=')[2]})"
            for vendor in kind.declaration.vendors
            if vendor.is_tried
            for system in vendor.systems
        ]
        if systems and not kind.declaration.names_its_system:
            rules.append(f"{kind.name} is {'that' if rules else 'the rule'} of {listed(systems)}")
    return ", ".join(rules)


_BARE = [kind.name for kind in _COMPARED if kind.parameters and all(p.default for p in kind.parameters)]


@options.examples(
    "receiver compare receipts.csv.gz --domain destination --report compare.html",
    f"receiver compare logs/ --policy {_EXAMPLE} --policy {_ANOTHER} --json",
    f"receiver compare receipts.parquet --policy {_EXAMPLE} --verdicts verdicts.csv",
    above=f"Policies: {' | '.join(map(form_of, _COMPARED))}. Times are in seconds. {listed(_BARE)} may stand "
    "without sizes: then they have {receiver.dup_detection_per_source_expiry_window_size} and "
    f"{{receiver.dup_detection_expiry_time_secs}}, and the broker's own default. {_whose()}.",
)
def compare(
    logs: options.Logs,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:k=v,...]",
            help=f"A rule to try, such as {_EXAMPLE}. May be repeated. [default: every rule that can judge the log's ids, "
            "at its vendor's size and fitted to the log, and the two-tier setting that simulate recommends]",
        ),
    ] = None,
    query: options.Query = None,
    domain: options.Domain = "default",
    as_json: options.AsJson = False,
    report: options.Report = None,
    verdicts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every policy's verdict on each receipt, one column per policy: .csv, .jsonl or .parquet.",
        ),
    ] = None,
    column_map: options.ColumnMap = None,
    time_unit: options.TimeUnit = None,
    time_zone: options.TimeZone = "UTC",
    on_error: options.WhenUnreadable = "stop",
) -> None:
    """Replay a log of receipts through several systems' rules.

    The command shows what each rule would have missed, what it would have dropped wrongly, how many ids it keeps, and
    where the rules disagree.
    """
    output.check_extras(report)
    domain_key(domain)  # an unknown KEY is refused before the log is read, as an unknown policy is
    texts = tuple(policy or ())
    stated_policies(texts)
    if query is None:
        options.refuse_tables(logs, "write it as Parquet, and compare that")
    how = options.read_options(column_map, time_unit, time_zone, on_error)
    from receiver.report.comparing import comparison_document

    with output.report_file(report) as write_report:
        comparison = _compare(logs, query, texts, domain, how, report=report, verdicts=verdicts)
        output.note_folders_left_out(logs)
        document = comparison_document(comparison)
        write_report(document)
    if as_json:
        from receiver.report.json_object import comparison_object

        output.print_json(comparison_object(comparison))
    else:
        output.print_report(document)


def _compare(
    logs: list[str],
    query: str | None,
    policies: tuple[str, ...],
    key: str,
    how: ReadOptions,
    *,
    report: str | None,
    verdicts: str | None,
) -> Comparison:
    """Replay the log and write the verdicts. Their file is created before the work begins."""
    from receiver.compare.engine import compare_policies, verdict_batches
    from receiver.logs import read_logs
    from receiver.logs.writer import table_to_begin
    from receiver.simulate.ingest import ingest
    from receiver.simulate.whole import verdict_schema

    with nullcontext() if verdicts is None else table_to_begin(verdicts) as begin_table:
        batches = read_logs(logs, how, query)
        output.check_outputs(batches.paths, report=report, verdicts=verdicts)
        output.note_other_key(batches.manifests, key)
        with output.progress("Reading receipts", batches.size_bytes, in_bytes=True) as batches.on_read:
            receipts = ingest(batches, domain_key(key))
        with output.progress("Comparing policies", len(receipts.domains)) as advance:
            compared = compare_policies(receipts, key, policies, with_verdicts=begin_table is not None, advance=advance)
        comparison = compared.comparison
        if begin_table is not None:
            write = begin_table(verdict_schema([figures.policy for figures in comparison.policies]))
            for batch in verdict_batches(receipts, compared):
                write(batch)
    return comparison
