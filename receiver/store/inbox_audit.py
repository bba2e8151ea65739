"""What holds of targets and of the messages that wait for them or are parked: checked value by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from receiver.store.audit import is_text, readable, shown_values
from receiver.store.failures import NONSENSE
from receiver.store.findings import DomainName, Findings
from receiver.store.snapshot import MESSAGE_COLUMNS, TARGET_COLUMNS, Advance, RawRow, Snapshot
from receiver.store.tables import DomainState, inbox, loaded, parked, targets, value_types

__all__ = ["audit_messages"]

_TARGET_TYPES = value_types(targets, TARGET_COLUMNS)
_MESSAGE_TYPES = value_types(inbox, (*MESSAGE_COLUMNS, "body"))
_MESSAGE_TEXTS = ("unique_message_id", "message_source_id", "destination", "message_id")
_OBJECTS = ("headers", "properties")
_NOT_NEGATIVE = ("sequence", "received_at_us", "tries")


def audit_messages(store: Snapshot, states: Sequence[DomainState], findings: Findings, advance: Advance) -> None:
    """Check the targets of these domains, and what waits for them or is parked."""
    by_id = {state.domain_id: state for state in states}
    of_target: dict[Any, DomainState] = {}
    with readable(store, findings, None):
        for raw in store.targets():
            state = by_id.get(raw.domain_id)
            if state is not None:  # else it is a stray, or its domain is broken
                of_target[raw.target_id] = state
                _check_target(raw, DomainName.of(state), findings)
    for table in (inbox.name, parked.name):
        with readable(store, findings, None):
            for raws in store.messages(table):
                for raw in raws:
                    state = of_target.get(raw.target_id)
                    if state is not None:
                        _check_message(table, raw, state, findings)
                advance(len(raws))
    with readable(store, findings, None):
        for both in store.waiting_and_parked():
            if both.target_id in of_target:
                said = f"the one at {both.sequence!r:.80} of target_id {both.target_id} waits and is parked"
                findings.add("messages", DomainName.of(of_target[both.target_id]), said)


def _check_target(raw: RawRow, domain: DomainName, findings: Findings) -> None:
    if not all(map(isinstance, raw, _TARGET_TYPES)):
        findings.add("types", domain, f"target_id {raw.target_id!r:.80}: {shown_values(raw)}")
        return
    has_length, has_digest = raw.confirmed_bytes is not None, raw.tail_digest is not None
    if not raw.target or not is_text(raw.target) or has_length != has_digest or (raw.confirmed_bytes or 0) < 0:
        said = shown_values((raw.target, raw.confirmed_bytes, raw.tail_digest))
        findings.add("targets", domain, f"target_id {raw.target_id}: {said}")


def _check_message(table: str, raw: RawRow, state: DomainState, findings: Findings) -> None:
    domain = DomainName.of(state)
    message = {name: getattr(raw, name) for name in MESSAGE_COLUMNS}
    which = f"in {table} at {raw.sequence!r:.80} of target_id {raw.target_id}"
    if not all(map(isinstance, raw, _MESSAGE_TYPES)):
        findings.add("types", domain, f"{which}: {shown_values(raw)}")
        return
    wrong = [name for name in _NOT_NEGATIVE if message[name] < 0]
    wrong += [name for name in _MESSAGE_TEXTS if message[name] is not None and not is_text(message[name])]
    if raw.sequence >= state.receipts:  # which was never given
        wrong.append("sequence")
    wrong += [name for name in _OBJECTS if not _is_object(message[name])]
    if wrong:
        said = ", ".join(f"{inbox.c[name].name} = {message[name]!r:.80}" for name in wrong)
        findings.add("messages", domain, f"{which}: {said}")


def _is_object(stored: str) -> bool:
    try:
        loaded(stored)
    except NONSENSE:
        return False
    return True
