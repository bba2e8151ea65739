"""The figures of a store and what is broken in it, for a person and as one JSON object."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.durable.audit import DomainFigures, StoreFigures
from receiver.report.terminal import line
from receiver.report.words import count, duration, moment_or_none, second, size, tamed
from receiver.store.invariants import PROBLEMS, DomainName, Finding

__all__ = [
    "check_object",
    "latest_receipt",
    "print_check",
    "print_heading",
    "print_status",
    "shown_domain",
    "status_object",
    "store_object",
]

_NONE = "-"


def print_status(place: str, figures: StoreFigures, console: Console) -> None:
    """The store in one line, then each domain: its status line, and a table of what that lacks."""
    print_heading(place, figures, console)
    for domain in figures.domains:
        console.print()
        line(console, shown_domain(DomainName.of(domain.state)), "bold")
        line(console, f"  {domain.policy}")
        line(console, f"  {domain.line()}")
        console.print(_table(domain))


def print_check(place: str, figures: StoreFigures, console: Console) -> None:
    """What was looked at, and the list of what is broken."""
    print_heading(place, figures, console)
    for domain in figures.domains:
        line(console, f"  {shown_domain(DomainName.of(domain.state))}: {_rows(domain)}")
    if not figures.findings:
        line(console, f"Sound: {count(len(PROBLEMS), 'kind')} of damage looked for, none found.", "bold green")
        return
    line(console, f"Broken: {count(len(figures.findings), 'finding')}.", "bold red")
    for finding in figures.findings:
        line(console, f"- {_sentence(finding)}")


def status_object(place: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver status --json`. Figures that weren't asked for or can't be had are null."""
    return {**store_object(place, figures), "domains": [_status_of(domain) for domain in figures.domains]}


def check_object(place: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver check --json`."""
    return {
        **store_object(place, figures),
        "sound": not figures.findings,
        "domains": [{**_identity(domain), **_rows_of(domain)} for domain in figures.domains],
        "findings": [
            {
                "kind": finding.kind,
                "problem": finding.problem,
                "domain": finding.domain and finding.domain.name,
                "key": finding.domain and finding.domain.key,
                "count": finding.count,
                "example": finding.example,
            }
            for finding in figures.findings
        ],
    }


def print_heading(place: str, figures: StoreFigures, console: Console) -> None:
    domains = count(len(figures.domains), "domain")
    line(console, f"{place}: version {figures.version}, {domains}, {size(figures.size_bytes)}")


def shown_domain(domain: DomainName) -> str:
    return f"{tamed(domain.name) or '(no name)'} (key {tamed(domain.key)})"


def _rows(domain: DomainFigures) -> str:
    rows = count(domain.rows, "row")
    if domain.remembered_ids is None:
        return rows
    return f"{rows}, {count(domain.remembered_ids, 'id')} remembered, {count(domain.waiting_rows or 0, 'row')} to be deleted"


def _table(domain: DomainFigures) -> Table:
    state = domain.state
    figures = [
        ("times resized", count(state.generation)),
        ("receipts", count(state.receipts)),
        ("duplicates", count(state.duplicates)),
        ("without id", count(state.unchecked)),
        ("with another body", count(state.reused_ids)),
        ("time ran backwards", count(state.clock_clamped)),
        ("redelivered", count(state.redelivered)),
        ("longest delivery", duration(state.max_delivery_us)),
        ("latest receipt, UTC", second(state.latest_us) if state.last_seq else _NONE),
        ("ids remembered", _count_or_none(domain.remembered_ids)),
        ("sources", _sources(domain)),
        ("sources retired", count(state.retired_sources)),
        ("rows", count(domain.rows)),
        ("rows to be deleted", _count_or_none(domain.waiting_rows)),
    ]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    if domain.inbox != 0 or domain.parked != 0:  # it has a bridge
        figures.insert(len(figures) // 2, ("in the inbox", _count_or_none(domain.inbox)))
        figures.append(("parked", _count_or_none(domain.parked)))
    half = len(figures) // 2
    for left, right in zip(figures[:half], figures[half:], strict=True):
        table.add_row(*map(Text, (f"  {left[0]}", f"{left[1]}   ", *right)))
    return table


def _sources(domain: DomainFigures) -> str:
    if domain.sources is None or not domain.silent_sources:
        return _count_or_none(domain.sources)
    return f"{count(domain.sources)}, {count(domain.silent_sources)} silent for a day"


def _count_or_none(number: int | None) -> str:
    return _NONE if number is None else count(number)


def latest_receipt(domain: DomainFigures) -> str | None:
    """None where there was no receipt, or so late a time that no calendar has it."""
    return moment_or_none(domain.state.latest_us) if domain.state.last_seq else None


def _sentence(finding: Finding) -> str:
    place = f"{shown_domain(finding.domain)}: " if finding.domain else ""
    times = f" ({count(finding.count)} times, the first: " if finding.count > 1 else " ("
    return f"{place}{finding.problem}{times}{finding.example})"


def store_object(place: str, figures: StoreFigures) -> dict[str, Any]:
    return {"store": place, "version": figures.version, "size_bytes": figures.size_bytes}


def _identity(domain: DomainFigures) -> dict[str, Any]:
    return {"domain": domain.state.domain_name, "key": domain.state.domain_key}


def _rows_of(domain: DomainFigures) -> dict[str, Any]:
    return {"rows": domain.rows, "remembered_ids": domain.remembered_ids, "rows_to_be_deleted": domain.waiting_rows}


def _status_of(domain: DomainFigures) -> dict[str, Any]:
    state = domain.state
    return {
        **_identity(domain),
        "policy": domain.policy,
        "window": state.window_size,
        "expiry_secs": state.expiry_us / 1_000_000,
        "resizes": state.generation,
        "receipts": state.receipts,
        "duplicates": state.duplicates,
        "unchecked": state.unchecked,
        "reused_ids": state.reused_ids,
        "clock_clamped": state.clock_clamped,
        "redelivered": state.redelivered,
        "max_delivery_secs": state.max_delivery_us / 1_000_000,
        "latest_received_at": latest_receipt(domain),
        "sources": domain.sources,
        "silent_sources": domain.silent_sources,
        "retired_sources": state.retired_sources,
        **_rows_of(domain),
        "inbox": domain.inbox,
        "parked": domain.parked,
        "line": domain.line(),
    }
