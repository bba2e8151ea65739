"""What waits for the targets of a store, for a person and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from receiver.report.store import shown_domain
from receiver.report.terminal import line
from receiver.report.words import count, moment_or_none, second, size, tamed
from receiver.store.invariants import DomainName
from receiver.store.upkeep import TargetRow

__all__ = ["inbox_object", "print_inbox", "shown_target", "shown_waiting"]

_LONGEST_TARGET = 200
_UNKNOWN = "(a domain that the store doesn't know)"


def print_inbox(place: str, rows: Sequence[TargetRow], console: Console) -> None:
    """The store in one line, then each target: its domain, and what waits for it."""
    waiting = count(sum(row.waiting for row in rows), "message")
    line(console, f"{place}: {count(len(rows), 'target')}, {waiting} in the inbox")
    for row in rows:
        console.print()
        line(console, f"{row.number}: {shown_target(row.name)}", "bold")
        line(console, f"  of {_domain(row)}")
        line(console, f"  {shown_waiting(row)}")


def _domain(row: TargetRow) -> str:
    if row.domain is None or row.domain_key is None:
        return _UNKNOWN
    return shown_domain(DomainName(row.domain_key, row.domain))


def shown_target(name: str) -> str:
    return tamed(name, _LONGEST_TARGET)


def shown_waiting(row: TargetRow) -> str:
    if row.oldest_us is None:
        return "nothing waits"
    return f"{count(row.waiting, 'message')}, {size(row.body_bytes)}, the oldest received {second(row.oldest_us)} UTC"


def inbox_object(place: str, rows: Sequence[TargetRow]) -> dict[str, Any]:
    """The result of `receiver inbox list --json`."""
    return {"store": place, "targets": [_target(row) for row in rows]}


def _target(row: TargetRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "target": row.name,
        "domain": row.domain,
        "key": row.domain_key,
        "waiting": row.waiting,
        "oldest_received_at": None if row.oldest_us is None else moment_or_none(row.oldest_us),
        "body_bytes": row.body_bytes,
    }
