"""`receiver generate`: a synthetic log of receipts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from receiver.cli.output import progress
from receiver.errors import SettingsError
from receiver.simulate.scenarios import SCENARIOS, ScenarioPlan

_SCENARIOS_HELP = "\n\n".join(["What goes wrong:", *(f"{name}: {what}." for name, what in SCENARIOS.items())])
_DEFAULTS = ScenarioPlan(scenario="steady", receipts=1)

EPILOG = """Examples:

receiver generate storm.csv --scenario redelivery-storm --receipts 100000 --seed 7

receiver generate large.parquet --scenario mixed --receipts 10000000 --sources 50 --rate 2000

receiver generate quiet.jsonl.zst --scenario quiet-source --receipts 500000 --start 2026-03-01T00:00:00Z
"""


def generate(  # noqa: PLR0917 - options of the command, given by name
    file: Annotated[
        Path,
        typer.Argument(
            help="The log to write. Its ending says the format: .csv, .jsonl, .ndjson (each also .gz, .zst), .parquet."
        ),
    ],
    scenario: Annotated[str, typer.Option(help=_SCENARIOS_HELP)],
    receipts: Annotated[int, typer.Option(help="How many rows to write.")],
    seed: Annotated[int, typer.Option(help="The same seed and options give the same log.")] = _DEFAULTS.seed,
    sources: Annotated[int, typer.Option(help="How many senders.")] = _DEFAULTS.sources,
    rate: Annotated[float, typer.Option(help="Messages per second, over all sources.")] = _DEFAULTS.rate,
    duplicates: Annotated[
        float, typer.Option(help="About this share of the receipts are duplicates: 0 to 0.9.")
    ] = _DEFAULTS.duplicates,
    start: Annotated[str, typer.Option(help="Time of the first receipt, ISO 8601. UTC if it names no zone.")] = (
        _DEFAULTS.start.isoformat().replace("+00:00", "Z")
    ),
) -> None:
    """Write a synthetic log of receipts to try settings on."""
    plan = ScenarioPlan(
        scenario=scenario,
        receipts=receipts,
        seed=seed,
        sources=sources,
        rate=rate,
        duplicates=duplicates,
        start=_time(start),
    )
    from receiver.logs.writer import open_table
    from receiver.simulate.synthetic import SYNTHETIC_SCHEMA, batches

    with open_table(file, SYNTHETIC_SCHEMA) as table, progress("Generating", receipts) as advance:
        for batch in batches(plan):
            table.write(batch)
            advance(batch.num_rows)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--start {text!r} isn't a time", hint="write it as 2026-01-05T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
