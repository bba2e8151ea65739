"""What holds of every store, whatever counts as a duplicate: checked value by value, for any of them may be broken.

Each check is of something that no receiver ever writes, and a batch is one transaction. What isn't provable isn't here:
how many rows of forgotten ids wait to be deleted depends on how many receivers there are, so that is a figure only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from receiver.domains import domain_key
from receiver.errors import SettingsError, StoreCorruptError
from receiver.message import ReceiptRow
from receiver.store.findings import DomainName, Findings
from receiver.store.snapshot import Advance, RawRow, Snapshot
from receiver.store.tables import DomainState, domain_rows, domains, receipts, text_of, value_types

__all__ = [
    "audit_domains",
    "audit_tables",
    "audited_rows",
    "audited_state",
    "is_text",
    "readable",
    "shown_columns",
    "shown_values",
]

_STATE_TYPES = value_types(domains, DomainState._fields)
_ROW_TYPES = value_types(receipts, ReceiptRow._fields)
_ESCAPED = re.compile(r"(?:[ -\[\]-~]|\\[\\tnr]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U00(?:0[0-9a-f]|10)[0-9a-f]{4})+")
"""A digest as `unicode_escape` spells it, which is how it is stored."""
_NO_COUNTS = {"domain_id", "domain_key", "domain_name", "policy", "window_size", "expiry_us", "clock_us"}
"""Columns with rules of their own, and the key."""
_NOT_NEGATIVE = tuple(name for name in DomainState._fields if name not in _NO_COUNTS)


def _is_not_negative(name: str, state: DomainState) -> bool:
    number: int = getattr(state, name)
    return number >= 0


class _Rule(NamedTuple):
    kind: str
    columns: tuple[str, ...]
    holds: Callable[[DomainState], bool]


_RULES = (
    *(_Rule("negative", (name,), partial(_is_not_negative, name)) for name in _NOT_NEGATIVE),
    _Rule("name", ("domain_key", "domain_name"), lambda s: _is_made(s.domain_key, s.domain_name)),
    # Receipts with an id are numbered from 1, and the first of them is neither a duplicate nor before another.
    _Rule("counters", ("last_seq", "receipts", "unchecked"), lambda s: s.last_seq == s.receipts - s.unchecked),
    _Rule("counters", ("duplicates", "last_seq"), lambda s: s.duplicates <= max(0, s.last_seq - 1)),
    _Rule("counters", ("clock_clamped", "last_seq"), lambda s: s.clock_clamped <= max(0, s.last_seq - 1)),
    _Rule("counters", ("reused_ids", "duplicates"), lambda s: s.reused_ids <= s.duplicates),
    _Rule("counters", ("redelivered", "receipts"), lambda s: s.redelivered <= s.receipts),
    _Rule("counters", ("max_delivery_us", "redelivered"), lambda s: s.redelivered > 0 or s.max_delivery_us == 0),
    _Rule("clocks", ("latest_us", "last_seq"), lambda s: s.last_seq > 0 or s.latest_us == 0),
    _Rule("clocks", ("clock_us",), lambda s: (s.clock_us or 0) >= 0),
)


def _is_made(key: str, name: str) -> bool:
    if ":" in key:  # stands before it, where there is a name to the key
        return False
    try:
        domain_key(f"name:{name}" if key == "name" else key)
    except SettingsError:
        return False
    return True


def _name_of(raw: RawRow) -> DomainName:
    """Key and name in a domain's own row, whatever is there."""
    try:
        shown = text_of(raw.domain_name)
    except (AttributeError, TypeError, UnicodeDecodeError):
        shown = repr(raw.domain_name)
    return DomainName(str(raw.domain_key), shown)


@contextmanager
def readable(store: Snapshot, findings: Findings, domain: DomainName | None) -> Iterator[None]:
    """What can't be read in this block for damage is a finding, and ends it."""
    try:
        with store.part():
            yield
    except StoreCorruptError as error:
        findings.add("unreadable", domain, error.message)


def audit_tables(store: Snapshot, findings: Findings, advance: Advance) -> None:
    """Check what concerns no single domain: pages, constraints, and rows that belong to none."""
    with readable(store, findings, None):
        for said in store.damage(advance):
            findings.add("damaged", None, said)
    with readable(store, findings, None):
        for said in store.lacking_keys():
            findings.add("keys", None, said)
    with readable(store, findings, None):
        for table, key, owner, count in store.strays():
            findings.add("strays", None, f"in {table}, of {key} {owner!r:.80}", count)


def audit_domains(states: Sequence[DomainState], batches: Iterable[RawRow], findings: Findings) -> None:
    """Check that domains differ, and the numbers left by batches in transactions of their callers'."""
    by_name: dict[tuple[str, str], DomainState] = {}
    by_store_id: dict[int, DomainState] = {}
    for state in states:
        name = DomainName.of(state)
        for other in (by_name.setdefault(name, state), by_store_id.setdefault(state.store_id, state)):
            if other is not state:
                findings.add("same-domain", name, f"domain_id {other.domain_id} and {state.domain_id}")
    by_id = {state.domain_id: state for state in states}
    for left in batches:
        if left.domain_id not in by_id:  # a stray
            continue
        state = by_id[left.domain_id]
        if not all(isinstance(number, int) for number in left):
            kind = "types"
        elif left.writer < 0 or left.batch < 1 or not 0 <= left.last_seq <= state.last_seq:
            kind = "marks"
        else:
            continue
        example = f"writer {left.writer!r}, batch {left.batch!r}, last_seq {left.last_seq!r}"
        findings.add(kind, DomainName.of(state), example)


def audited_state(raw: RawRow, findings: Findings) -> DomainState | None:
    """A domain's own row, checked; None where it can't even be read."""
    name = _name_of(raw)
    wrong = [
        f"{domains.c[field].name} is {value!r:.80}"
        for field, value, kind in zip(DomainState._fields, raw, _STATE_TYPES, strict=True)
        if not isinstance(value, kind)
    ]
    if wrong:
        findings.add("types", name, wrong[0], len(wrong))
        return None
    try:
        state = domain_rows.read(raw)
    except UnicodeDecodeError:
        findings.add("name", name, "domain_name is no UTF-8")
        return None
    for rule in _RULES:
        if not rule.holds(state):
            findings.add(rule.kind, name, shown_columns(state, rule.columns))
    return state


def shown_columns(state: DomainState, columns: Iterable[str]) -> str:
    return ", ".join(f"{column} = {getattr(state, column)!r:.80}" for column in columns)


def audited_rows(store: Snapshot, state: DomainState, findings: Findings, advance: Advance) -> int:
    """Check a domain's rows, one by one and against its own row; how many there are."""
    rows = _RowCheck(state, findings)
    for raws in store.rows(state.domain_id):
        for raw in raws:
            rows.check(raw)
        advance(len(raws))
    rows.check_end()
    return rows.count


class _RowCheck:
    """Checks the rows of one domain in their order."""

    def __init__(self, state: DomainState, findings: Findings) -> None:
        self.count = 0
        self._state = state
        self._findings = findings
        self._name = DomainName.of(state)
        self._last = 0, 0
        """Number and time of the latest row."""
        self._repeats = 0

    def check(self, raw: RawRow) -> None:
        self.count += 1
        seq, received_at_us, first_us = raw.seq, raw.received_at_us, raw.first_received_at_us
        if not all(map(isinstance, raw, _ROW_TYPES)):
            self._add("types", seq, shown_values(raw))
            return
        last_seq, last_us = self._last
        self._last = seq, received_at_us
        if not max(1, last_seq + 1) <= seq <= self._state.last_seq:
            self._add("numbers", seq, f"after receipt {last_seq} of {self._state.last_seq}")
        if received_at_us < last_us:
            self._add("order", seq, f"at {received_at_us} us, after one at {last_us} us")
        id_, source = raw.unique_message_id, raw.message_source_id
        if not all(text is None or (text and is_text(text)) for text in (id_, source)):
            self._add("ids", seq, f"id {id_!r:.80}, source {source!r:.80}")
        if first_us is not None:
            self._repeats += 1
            if not 0 <= first_us <= received_at_us:
                self._add("first-times", seq, f"first at {first_us} us, now at {received_at_us} us")
        if raw.body_digests is not None and not _are_digests(raw.body_digests):
            self._add("digests", seq, repr(raw.body_digests)[:80])

    def check_end(self) -> None:
        """Check the rows as a whole against the domain's own row."""
        state = self._state
        if self._last != (state.last_seq, state.latest_us):
            seq, us = self._last
            said = shown_columns(state, ("last_seq", "latest_us"))
            self._findings.add("newest", self._name, f"{said}; the newest is receipt {seq} at {us} us")
        # Each resize may have made the newest receipt's row look like a duplicate's.
        if self._repeats > state.duplicates + state.generation:
            said = shown_columns(state, ("duplicates",))
            self._findings.add("counters", self._name, f"{said}, but {self._repeats} receipts of known ids are there")

    def _add(self, kind: str, seq: object, said: str) -> None:
        self._findings.add(kind, self._name, f"receipt {seq!r:.80}: {said}")


def shown_values(raw: Sequence[Any]) -> str:
    return ", ".join(f"{value!r:.40}" for value in raw)


def is_text(stored: bytes) -> bool:
    try:
        text_of(stored)
    except UnicodeDecodeError:
        return False
    return True


def _are_digests(stored: str) -> bool:
    try:
        digests: Any = json.loads(stored)
    except (ValueError, RecursionError):
        return False
    if not isinstance(digests, list) or not all(isinstance(digest, str) for digest in digests):
        return False
    return 0 < len(digests) == len(set(digests)) and all(map(_ESCAPED.fullmatch, digests))
