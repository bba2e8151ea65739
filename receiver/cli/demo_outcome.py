"""What `receiver demo` came to, for a person."""

from __future__ import annotations

import shlex

from rich.table import Table
from rich.text import Text

from receiver.cli.output import console
from receiver.demo.director import DOMAIN, Files, Outcome
from receiver.report.terminal import heading
from receiver.report.words import count

__all__ = ["print_heading", "print_outcome", "print_what_next"]


def print_outcome(outcome: Outcome, files: Files) -> None:
    effects = outcome.effects
    verdict = "each exactly once" if effects.exactly_once else "NOT each exactly once"
    crashes = ", ".join(f"{name} {times}" for name, times in sorted(outcome.crashes.items()))
    rows = (
        ("messages", outcome.messages, "confirmed to their senders"),
        ("sent", outcome.sent, f"{count(outcome.sent - outcome.messages)} of them again, after a crash"),
        ("receipts", outcome.receipts, f"{count(outcome.redelivered)} of them flagged as redelivered"),
        ("duplicates caught", outcome.duplicates, "not handed on"),
        (
            "effects",
            effects.lines,
            f"lines in {files.target.name}: {verdict}, {count(effects.missing)} missing, {count(effects.double)} double",
        ),
        ("crashes", outcome.crashes.total(), crashes),
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, number, remark in rows:
        style = "" if name != "effects" else "bold green" if effects.exactly_once else "bold red"
        table.add_row(Text(f"  {name}"), Text(count(number), style=style), Text(remark, style=style))
    print_heading("What became of the messages")
    console().print(table)


def print_heading(text: str) -> None:
    heading(console(), text)


def print_what_next(files: Files, *, kept: bool) -> None:
    if not kept:
        print("\nTo go on with what the bridges leave, run it with --keep DIR.")
        return
    receipts, store = shlex.quote(str(files.receipts)), shlex.quote(files.store)
    print_heading("To go on")
    print(f"  receiver simulate {receipts} --domain {DOMAIN} --report report.html")
    print(f"  receiver compare {receipts} --domain {DOMAIN}")
    print(f"  receiver status {store}")
    print(f"  receiver check {store}")
