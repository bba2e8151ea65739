"""The domains of a store, for a person and as one JSON object."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from receiver.durable.audit import DomainFigures, StoreFigures
from receiver.report.store import latest_receipt, print_heading, shown_domain, store_object
from receiver.report.terminal import line
from receiver.report.words import count, second
from receiver.store.invariants import DomainName

__all__ = ["domains_object", "print_domains"]


def print_domains(place: str, figures: StoreFigures, console: Console) -> None:
    """The store in one line, then each domain: what it is, and how much is kept of it."""
    print_heading(place, figures, console)
    for domain in figures.domains:
        state = domain.state
        console.print()
        line(console, f"{state.domain_id}: {shown_domain(DomainName.of(state))}", "bold")
        line(console, f"  {domain.policy}")
        latest = f", the latest {second(state.latest_us)} UTC" if state.last_seq else ""
        line(console, f"  {count(state.receipts, 'receipt')}{latest}")
        waiting, parked = ("?" if number is None else count(number) for number in (domain.inbox, domain.parked))
        line(console, f"  {count(domain.rows, 'row')}, {waiting} in the inbox, {parked} parked")


def domains_object(place: str, figures: StoreFigures) -> dict[str, Any]:
    """The result of `receiver domain list --json`."""
    return {**store_object(place, figures), "domains": [_domain(domain) for domain in figures.domains]}


def _domain(domain: DomainFigures) -> dict[str, Any]:
    state = domain.state
    return {
        "number": state.domain_id,
        "domain": state.domain_name,
        "key": state.domain_key,
        "policy": domain.policy,
        "window": state.window_size,
        "expiry_secs": state.expiry_us / 1_000_000,
        "receipts": state.receipts,
        "latest_received_at": latest_receipt(domain),
        "rows": domain.rows,
        "inbox": domain.inbox,
        "parked": domain.parked,
    }
