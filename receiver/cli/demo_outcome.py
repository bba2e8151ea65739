"""What `receiver demo` came to, for a person."""

from __future__ import annotations

import shlex

from rich.table import Table
from rich.text import Text

from receiver.cli.output import console
from receiver.demo.plan import DOMAIN, Files, Outcome, Plan
from receiver.report.terminal import heading, paragraph
from receiver.report.words import count

__all__ = ["print_outcome", "print_sizing_heading", "print_what_next"]


def print_outcome(outcome: Outcome, plan: Plan, files: Files) -> None:
    """What was sent, what came, and what it did in the target."""
    effects, crashes = outcome.effects, outcome.crashes
    verdict = "not each exactly once" if effects.missing or effects.double else "each exactly once"
    unknown = effects.lines - effects.double - (outcome.messages - effects.missing)
    known = f"confirmed to their senders; {count(unknown)} more arrived from senders that crashed before they knew"
    style = "bold green" if outcome.holds(plan.mode) else "bold red"
    _heading("What became of the messages")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, number, remark in (
        ("messages", outcome.messages, known if unknown else "confirmed to their senders"),
        ("sent", outcome.sent, f"{count(outcome.sent - outcome.messages)} of them again, after a crash"),
        ("receipts", outcome.receipts, f"{count(outcome.redelivered)} of them flagged as redelivered"),
        (f"duplicates {'caught' if plan.mode.detects else 'counted'}", outcome.duplicates, ""),
        (f"effects in {files.target.name}", effects.lines, verdict),
        ("  missing", effects.missing, ""),
        ("  double", effects.double, ""),
        ("crashes", crashes.total(), ", ".join(f"{count(number)} of {name}" for name, number in crashes.items())),
    ):
        table.add_row(*(Text(text, style=style if text == verdict else "") for text in (name, count(number), remark)))
    console().print(table)


def print_sizing_heading(outcome: Outcome) -> None:
    """What stands before the report of `receiver simulate`."""
    _heading("How large the window has to be, by receiver simulate")
    paragraph(
        console(),
        f"It reads what the bridges have recorded: all of their {count(outcome.receipts)} receipts, though they were killed.",
        first="",
    )


def _heading(text: str) -> None:
    heading(console(), text)


def print_what_next(files: Files, *, kept: bool) -> None:
    if not kept:
        print("\nTo go on with what the bridges leave, run it with --keep DIR.")
        return
    receipts, store = shlex.quote(str(files.receipts)), shlex.quote(files.store)
    _heading("To go on")
    print(f"  receiver simulate {receipts} --domain {DOMAIN} --report report.html")
    print(f"  receiver compare {receipts} --domain {DOMAIN}")
    print(f"  receiver status {store}")
    print(f"  receiver check {store}")
