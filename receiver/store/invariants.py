"""The invariants of every store, whatever counts as a duplicate, and the findings where they are broken.

Each check looks for something that no receiver ever writes. A batch writes all that it writes in one transaction, so no
crash leaves half of it. Any value may be broken, so no value is used before its type is checked. What can't be proven isn't
checked: how many rows of forgotten ids wait to be deleted depends on how many receivers there are, so that is a figure only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

from receiver.domains import domain_key
from receiver.errors import SettingsError, StoreCorruptError
from receiver.message import ReceiptRow
from receiver.store.codec import fields_of_kind, loaded, text_of, value_types
from receiver.store.databases import NONSENSE
from receiver.store.messages import FIELDS, FlatMessage, StoredMessage, flat
from receiver.store.packed import numbers_of, pack, unpack
from receiver.store.recorded import numbers_in_cut
from receiver.store.snapshot import (
    MESSAGE_COLUMNS,
    PACKED_COLUMNS,
    RECORDED_COLUMNS,
    TARGET_COLUMNS,
    OnRows,
    RawRow,
    Snapshot,
)
from receiver.store.tables import (
    OF_ARRIVALS,
    DomainState,
    domain_rows,
    domains,
    message_rows,
    parked,
    positions,
    receipts,
    recorded,
    targets,
    unpacked,
    waiting,
)

PROBLEMS = {
    "damaged": "the database finds damage in itself",
    "unreadable": "what is stored can't be read",
    "keys": "a table has lost a constraint",
    "strays": "rows belong to no domain, or messages to no target",
    "same-domain": "two domains have the same key and name, or the same store id",
    "types": "a value is missing, or of another type than its column's",
    "name": "no receiver makes this key and name",
    "settings": "no receiver can have these settings",
    "negative": "what counts from 0 is negative",
    "counters": "counters contradict each other",
    "clocks": "clocks contradict each other",
    "needs": "the needs of duplicates make no sense",
    "marks": "a batch in its caller's transaction left numbers that it can't have had",
    "numbers": "receipts have numbers that were never given",
    "order": "time runs backwards from one receipt to the next",
    "ids": "ids or sources are empty, no text, or not what the policy goes by",
    "first-times": "ids first came after they came again, or before all time",
    "digests": "body digests are no list of different texts",
    "retired": "rows of a retired source have policy states that no receiver writes",
    "newest": "the newest receipt isn't there, or came at another time than the domain's latest",
    "targets": "a target has no name, or what is noted of its file contradicts itself",
    "positions": "a source's position, or its name, is empty or no text",
    "messages": "waiting or parked messages make no sense, or one is both",
    "claims": "an id that is remembered isn't claimed, or a domain that isn't concurrent has claims",
    "recorded": "what waits for a recording makes no sense",
    "rebuilt": "the receipts that are left contradict the domain's own row",
}
"""What can be broken, by kind."""


class DomainName(NamedTuple):
    """What a domain is known by, as text that can be shown even where it is broken."""

    key: str
    name: str

    @classmethod
    def of(cls, state: DomainState) -> Self:
        return cls(state.domain_key, state.domain_name)


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One kind of damage in one domain, or in the store as a whole."""

    kind: str
    """One of `PROBLEMS`."""
    domain: DomainName | None
    """None: in the store as a whole."""
    count: int
    """How many times."""
    example: str
    """The first of them."""

    @property
    def problem(self) -> str:
        return PROBLEMS[self.kind]


class Findings:
    """The findings so far: for each kind and domain, how many there are, and the first as an example."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, DomainName | None]] = Counter()
        self._examples: dict[tuple[str, DomainName | None], str] = {}

    def add(self, kind: str, domain: DomainName | None, example: str, count: int = 1) -> None:
        self._counts[kind, domain] += count
        self._examples.setdefault((kind, domain), example)

    def any_in(self, domain: DomainName) -> bool:
        """Whether anything is broken in this domain."""
        return any(known == domain for _, known in self._counts)

    def all(self) -> tuple[StoreFinding, ...]:
        return tuple(StoreFinding(*key, count, self._examples[key]) for key, count in self._counts.items())


_STATE_TYPES = value_types(domains, DomainState._fields)
_ROW_TYPES = value_types(receipts, ReceiptRow._fields)
_ESCAPED = re.compile(r"(?:[ -\[\]-~]|\\[\\tnr]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U00(?:0[0-9a-f]|10)[0-9a-f]{4})+")
"""A digest as `unicode_escape` spells it, which is how it is stored."""
_NO_COUNTS = {
    "domain_id",
    "domain_key",
    "domain_name",
    "policy",
    "window_size",
    "expiry_us",
    "clock_us",
    "needs_by_hour",
}
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
    # By `partial`, for a lambda here would look `name` up when it is called, and find the last one.
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
    if ":" in key:  # a colon ends the key where a name follows it, so no key has one
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
    """Within it, what damage makes unreadable is a finding, and ends the block."""
    try:
        with store.part():
            yield
    except StoreCorruptError as error:
        findings.add("unreadable", domain, error.message)


def audit_tables(store: Snapshot, findings: Findings, on_rows: OnRows) -> None:
    """Check what concerns no single domain: pages, constraints, and rows that belong to none."""
    with readable(store, findings, None):
        for said in store.damage(on_rows):
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
        # The first of a name, and of a store id, stays in the mapping: it is `other` to all later ones.
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
        findings.add("name", name, "domain_name isn't UTF-8")
        return None
    for rule in _RULES:
        if not rule.holds(state):
            findings.add(rule.kind, name, shown_columns(state, rule.columns))
    return state


def shown_columns(state: DomainState, columns: Iterable[str]) -> str:
    return ", ".join(f"{column} = {getattr(state, column)!r:.80}" for column in columns)


def audited_rows(store: Snapshot, state: DomainState, findings: Findings, on_rows: OnRows) -> int:
    """Check a domain's rows, one by one and against its own row; how many there are."""
    rows = _RowCheck(state, findings)
    for raws in store.rows(state.domain_id):
        for raw in raws:
            rows.check(raw)
        on_rows(len(raws))
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
        if not all(map(isinstance, raw, _ROW_TYPES)):  # then nothing below can compare it with anything
            self._add("types", seq, _shown_values(raw))
            return
        last_seq, last_us = self._last
        self._last = seq, received_at_us
        if not max(1, last_seq + 1) <= seq <= self._state.last_seq:
            self._add("numbers", seq, f"after receipt {last_seq} of {self._state.last_seq}")
        if received_at_us < last_us:
            self._add("order", seq, f"at {received_at_us} us, after one at {last_us} us")
        id_, source = raw.unique_message_id, raw.message_source_id
        # Forgetting an id by hand leaves its rows without one, and counts as a new generation.
        is_forgotten = id_ == b"" and self._state.generation > 0
        if not (is_forgotten or (id_ and is_text(id_))) or not (source is None or (source and is_text(source))):
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


def _shown_values(raw: Sequence[Any]) -> str:
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


def audit_positions(store: Snapshot, states: Sequence[DomainState], findings: Findings) -> None:
    """Check the positions of these domains' sources."""
    by_id = {state.domain_id: state for state in states}
    with readable(store, findings, None):
        for raw in store.positions():
            if raw.domain_id not in by_id:  # a stray, or its domain is broken
                continue
            kind = "types" if not all(map(isinstance, raw, _POSITION_TYPES)) else "positions"
            if kind == "types" or not all(stored and is_text(stored) for stored in tuple(raw)[1:]):
                findings.add(kind, DomainName.of(by_id[raw.domain_id]), _shown_values(raw))


def audit_recorded(
    store: Snapshot, findings: Findings, on_rows: OnRows, receipts_in: Callable[[bytes], int] | None
) -> None:
    """Check what waits for recordings. `receipts_in` unpacks a batch; without it, batches aren't unpacked."""
    with readable(store, findings, None):
        for raws in store.recorded():
            for raw in raws:
                if not all(map(isinstance, raw, _RECORDED_TYPES)):
                    findings.add("types", None, f"recorded batch {raw.number!r:.80}: {_shown_values(raw[:-1])}")
                elif wrong := _wrong_in_recorded(raw, receipts_in):
                    findings.add("recorded", None, f"batch {raw.number}: {wrong}")
            on_rows(len(raws))


def _wrong_in_recorded(raw: RawRow, receipts_in: Callable[[bytes], int] | None) -> str | None:
    if min(raw.receipts, raw.size_bytes) < 1 or raw.recorded_at_us < 0:
        return _shown_values(raw[:-1])
    if not all(is_text(text) for text in (raw.recording, raw.host, raw.file or b"")):
        return "recording, host or file is no text"
    try:
        if raw.file is not None:
            numbers_in_cut(raw.packed)
        elif receipts_in is not None and (receipts := receipts_in(raw.packed)) != raw.receipts:
            return f"it has {receipts} receipts, not {raw.receipts}"
    except NONSENSE as error:
        return f"it can't be unpacked: {error}"
    return None


_POSITION_TYPES = value_types(positions, positions.c.keys())
_TARGET_TYPES = value_types(targets, TARGET_COLUMNS)
_MESSAGE_TYPES = value_types(parked, (*MESSAGE_COLUMNS, "body"))
_UNPACKED_TYPES = value_types(parked, FIELDS)
_PACKED_TYPES = value_types(waiting, PACKED_COLUMNS)
_MESSAGE_TEXTS = fields_of_kind(FlatMessage, str)
_OBJECTS = fields_of_kind(FlatMessage, Mapping)
_MESSAGE_COUNTS = fields_of_kind(FlatMessage, int, is_nullable=False)
_RECORDED_TYPES = value_types(recorded, RECORDED_COLUMNS)


def audit_messages(store: Snapshot, states: Sequence[DomainState], findings: Findings, on_rows: OnRows) -> None:
    """Check the targets of these domains, and what waits for them or is parked."""
    by_id = {state.domain_id: state for state in states}
    of_target: dict[Any, DomainState] = {}
    with readable(store, findings, None):
        for raw in store.targets():
            state = by_id.get(raw.domain_id)
            if state is not None:  # else it is a stray, or its domain is broken
                of_target[raw.target_id] = state
                _check_target(raw, DomainName.of(state), findings)
    for table in (unpacked.name, parked.name):
        with readable(store, findings, None):
            for raws in store.messages(table):
                for raw in raws:
                    state = of_target.get(raw.target_id)
                    if state is not None:
                        _check_message(table, raw, state, findings)
                on_rows(len(raws))
    with readable(store, findings, None):
        packed = _PackedCheck(store, of_target, findings)
        for raws in store.packed_messages():
            for raw in raws:
                packed.check(raw)
            on_rows(len(raws))


def _check_target(raw: RawRow, domain: DomainName, findings: Findings) -> None:
    if not all(map(isinstance, raw, _TARGET_TYPES)):
        findings.add("types", domain, f"target_id {raw.target_id!r:.80}: {_shown_values(raw)}")
        return
    has_length, has_digest = raw.confirmed_bytes is not None, raw.tail_digest is not None
    if not raw.target or not is_text(raw.target) or has_length != has_digest or (raw.confirmed_bytes or 0) < 0:
        said = _shown_values((raw.target, raw.confirmed_bytes, raw.tail_digest))
        findings.add("targets", domain, f"target_id {raw.target_id}: {said}")


def _check_message(table: str, raw: RawRow, state: DomainState, findings: Findings) -> None:
    domain = DomainName.of(state)
    message = {name: getattr(raw, name) for name in MESSAGE_COLUMNS}
    which = f"in {table} at {raw.sequence!r:.80} of target_id {raw.target_id}"
    if not all(map(isinstance, raw, _MESSAGE_TYPES)):
        findings.add("types", domain, f"{which}: {_shown_values(raw)}")
        return
    wrong = [name for name in _MESSAGE_COUNTS if message[name] < 0 and message[name] not in OF_ARRIVALS]
    wrong += [name for name in _MESSAGE_TEXTS if message[name] is not None and not is_text(message[name])]
    if raw.sequence >= state.receipts:  # which was never given
        wrong.append(parked.c.sequence.key)
    wrong += [name for name in _OBJECTS if not _is_object(message[name])]
    if wrong:
        said = ", ".join(f"{parked.c[name].name} = {message[name]!r:.80}" for name in wrong)
        findings.add("messages", domain, f"{which}: {said}")


class _PackedCheck:
    """Checks rows of messages that wait, in the order of their targets and numbers."""

    def __init__(self, store: Snapshot, of_target: Mapping[Any, DomainState], findings: Findings) -> None:
        self._store = store
        self._of_target = of_target
        self._findings = findings
        self._target_id: object = None
        self._seen: set[int] = set()
        """The numbers of the target's messages that a further row may have too."""

    def check(self, raw: RawRow) -> None:
        state = self._of_target.get(raw.target_id)
        if state is None:
            return
        which = f"in {waiting.name} at {raw.first_sequence!r:.80} of target_id {raw.target_id}"
        if not all(map(isinstance, raw, _PACKED_TYPES)):
            self._findings.add("types", DomainName.of(state), f"{which}: {_shown_but_packed(raw)}")
        elif wrong := self._wrong(raw, state):
            self._findings.add("messages", DomainName.of(state), f"{which}: {wrong}")

    def _wrong(self, raw: RawRow, state: DomainState) -> str | None:
        """What of a row isn't as its messages say, or which of them is elsewhere too; None if all is well."""
        try:
            messages = unpack(raw.runs, raw.packed, raw.tries)
            if not all(isinstance(value, types) for each in messages for value, types in _typed(each)):
                return "a value in it is of another type"
            numbers = numbers_of(raw.runs)
            said = pack(messages)._replace(packed=raw.packed)
        except NONSENSE as error:
            return f"it can't be unpacked: {error}"
        if raw.sources is None:  # an earlier version has packed it
            said = said._replace(sources=None)
        is_given = 0 <= numbers[0] <= numbers[-1] < state.receipts and list(numbers) == sorted(set(numbers))
        is_tried = raw.tries == 0 or (raw.tries > 0 and len(numbers) == 1)
        if tuple(raw[1:]) != said or not is_given or not is_tried:
            return f"{_shown_but_packed(raw)} isn't what its messages say"
        if self._target_id != raw.target_id:
            self._target_id, self._seen = raw.target_id, set()
        twice = self._seen.intersection(numbers)
        if twice:
            return f"the one at {min(twice)} is in another row too"
        self._seen = {number for number in self._seen if number > numbers[0]}.union(numbers)
        for table in (unpacked.name, parked.name):
            both = set(numbers).intersection(self._store.numbers_between(table, raw.target_id, numbers[0], numbers[-1]))
            if both:
                return f"the one at {min(both)} is in {table} too"
        return None


def _shown_but_packed(raw: RawRow) -> str:
    return _shown_values([value for name, value in zip(PACKED_COLUMNS, raw, strict=True) if name != "packed"])


def _typed(message: StoredMessage) -> Iterator[tuple[object, tuple[type, ...]]]:
    """The values of a message as a driver would take them, each with the types that it may be of."""
    return zip(message_rows.stored(flat(message)), _UNPACKED_TYPES, strict=True)


def _is_object(stored: str) -> bool:
    try:
        loaded(stored)
    except NONSENSE:
        return False
    return True
