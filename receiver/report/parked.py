"""Parked messages, for a person and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from receiver.report.terminal import line
from receiver.report.words import count, moment_or_none, second, size, tamed
from receiver.store.upkeep import ParkedRow

__all__ = ["parked_object", "print_parked"]

_LONGEST_TARGET = 200
_LONGEST_ERROR = 500
_UNKNOWN = "(a target that the store doesn't know)"


def print_parked(place: str, rows: Sequence[ParkedRow], console: Console) -> None:
    """The store in one line, then each message: what it is, where it was to go and when, and what went wrong."""
    line(console, f"{place}: {count(len(rows), 'message')} parked")
    for row in rows:
        console.print()
        line(console, f"{row.parked_id}: {_called(row)}", "bold")
        source = f"from {tamed(row.message_source_id)} " if row.message_source_id else ""
        line(console, f"  {source}by {tamed(row.destination)}, for {tamed(row.target or _UNKNOWN, _LONGEST_TARGET)}")
        times = f"received {second(row.received_at_us)}, parked {second(row.parked_at_us)} UTC"
        line(console, f"  {times}, tried {count(row.tries, 'time')}, {size(row.body_bytes)}")
        line(console, f"  {tamed(row.error, _LONGEST_ERROR)}")


def _called(row: ParkedRow) -> str:
    if row.unique_message_id:
        return tamed(row.unique_message_id)
    return f"(no id, JMSMessageID {tamed(row.message_id)})" if row.message_id else "(no id)"


def parked_object(place: str, rows: Sequence[ParkedRow]) -> dict[str, Any]:
    """The result of `receiver parked list --json`."""
    return {"store": place, "parked": [_message(row) for row in rows]}


def _message(row: ParkedRow) -> dict[str, Any]:
    return {
        "number": row.parked_id,
        "domain": row.domain,
        "key": row.domain_key,
        "target": row.target,
        "unique_message_id": row.unique_message_id,
        "message_source_id": row.message_source_id,
        "destination": row.destination,
        "message_id": row.message_id,
        "received_at": moment_or_none(row.received_at_us),
        "parked_at": moment_or_none(row.parked_at_us),
        "tries": row.tries,
        "body_bytes": row.body_bytes,
        "error": row.error,
    }
