"""What holds of targets and of the messages that wait for them or are parked: checked value by value."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from receiver.store.as_json import loaded
from receiver.store.audit import is_text, readable, shown_values
from receiver.store.failures import NONSENSE
from receiver.store.findings import DomainName, Findings
from receiver.store.log import DomainState
from receiver.store.snapshot import MESSAGE_COLUMNS, TARGET_COLUMNS, Advance, RawRow, Snapshot
from receiver.store.tables import inbox, parked

__all__ = ["audit_messages"]

_TEXT, _MAYBE_TEXT, _MAYBE_NUMBER = bytes, (bytes, NoneType), (int, NoneType)
_OTHER_TYPES: dict[str, Any] = {
    "target": _TEXT,
    "confirmed_bytes": _MAYBE_NUMBER,
    "tail_digest": _MAYBE_TEXT,
    "jms_timestamp_ms": _MAYBE_NUMBER,
    "unique_message_id": _MAYBE_TEXT,
    "message_source_id": _MAYBE_TEXT,
    "destination": _TEXT,
    "message_id": _MAYBE_TEXT,
    "headers": str,
    "properties": str,
}
"""Of columns that aren't whole numbers; truth values are, to SQLite and to Python."""
_TARGET_TYPES = tuple(_OTHER_TYPES.get(name, int) for name in TARGET_COLUMNS)
_MESSAGE_TYPES = (*(_OTHER_TYPES.get(name, int) for name in MESSAGE_COLUMNS), bytes)
_MESSAGE_TEXTS = ("unique_message_id", "message_source_id", "destination", "message_id")
_OBJECTS = ("headers", "properties")
_NOT_NEGATIVE = ("place", "received_at_us", "tries")


def audit_messages(store: Snapshot, states: Sequence[DomainState], findings: Findings, advance: Advance) -> None:
    """Check the targets of these domains, and what waits for them or is parked."""
    by_id = {state.domain_id: state for state in states}
    of_target: dict[Any, DomainState] = {}
    with readable(store, findings, None):
        for raw in store.targets():
            state = by_id.get(raw[TARGET_COLUMNS.index("domain_id")])
            if state is not None:  # else it is a stray, or its domain is broken
                of_target[raw[0]] = state
                _check_target(raw, DomainName.of(state), findings)
    for table in (inbox.name, parked.name):
        with readable(store, findings, None):
            for some in store.messages(table):
                for raw in some:
                    state = of_target.get(raw[MESSAGE_COLUMNS.index("target_id")])
                    if state is not None:
                        _check_message(table, raw, state, findings)
                advance(len(some))
    with readable(store, findings, None):
        for target_id, place in store.waiting_and_parked():
            if target_id in of_target:
                said = f"the one at {place!r:.80} of target_id {target_id} waits and is parked"
                findings.add("messages", DomainName.of(of_target[target_id]), said)


def _check_target(raw: RawRow, domain: DomainName, findings: Findings) -> None:
    target_id, _, name, confirmed_bytes, tail_digest = raw
    if not all(map(isinstance, raw, _TARGET_TYPES)):
        findings.add("types", domain, f"target_id {target_id!r:.80}: {shown_values(raw)}")
        return
    has_length, has_digest = confirmed_bytes is not None, tail_digest is not None
    if not name or not is_text(name) or has_length != has_digest or (confirmed_bytes or 0) < 0:
        findings.add("targets", domain, f"target_id {target_id}: {shown_values(raw[2:])}")


def _check_message(table: str, raw: RawRow, state: DomainState, findings: Findings) -> None:
    domain = DomainName.of(state)
    message = dict(zip(MESSAGE_COLUMNS, raw, strict=False))
    place = f"in {table} at {message['place']!r:.80} of target_id {message['target_id']}"
    if not all(map(isinstance, raw, _MESSAGE_TYPES)):
        findings.add("types", domain, f"{place}: {shown_values(raw)}")
        return
    wrong = [name for name in _NOT_NEGATIVE if message[name] < 0]
    wrong += [name for name in _MESSAGE_TEXTS if message[name] is not None and not is_text(message[name])]
    if message["place"] >= state.receipts:  # which was never given
        wrong.append("place")
    wrong += [name for name in _OBJECTS if not _is_object(message[name])]
    if wrong:
        said = ", ".join(f"{name} = {message[name]!r:.80}" for name in wrong)
        findings.add("messages", domain, f"{place}: {said}")


def _is_object(stored: str) -> bool:
    try:
        loaded(stored)
    except NONSENSE:
        return False
    return True
