"""Checks the invariants of every store that hold for all policies, and notes what is broken.

Each check looks for something that no receiver ever writes. A batch writes everything in one transaction, so no crash
leaves half of it. Any value may be broken, so its type is checked before it is used. Nothing is checked that may vary in a
sound store: the number of forgotten rows still to be deleted depends on how many receivers there are, so it is only a figure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Table, select

from receiver.domains import domain_key
from receiver.errors import SettingsError
from receiver.message import ReceiptRow
from receiver.store import tables
from receiver.store.codec import decoded_numbers, fields_of_kind, loaded, text_of, value_types
from receiver.store.databases import NONSENSE
from receiver.store.messages import FIELDS, FlatMessage, flat
from receiver.store.packed import numbers_of, pack, unpack
from receiver.store.snapshot import DomainName, RawRow, Snapshot
from receiver.store.tables import DomainState

_ESCAPED = re.compile(r"(?:[ -\[\]-~]|\\[\\tnr]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U00(?:0[0-9a-f]|10)[0-9a-f]{4})+")
"""A body digest as it is stored: spelled by `unicode_escape`."""
_NOT_COUNTED = {"domain_id", "window_size", "expiry_us"}
"""The key, and numbers with rules of their own."""
_NOT_NEGATIVE = [name for name in fields_of_kind(DomainState, int, is_nullable=False) if name not in _NOT_COUNTED]
_MESSAGE_COLUMNS = (*(name for name in tables.unpacked.c.keys() if name != "body"), "body")  # noqa: SIM118 - these are no dict's
_PACKED_COLUMNS = ("target_id", *tables.PackedRow._fields)
_STATE_TYPES = value_types(tables.domains, DomainState._fields)
_ROW_TYPES = value_types(tables.receipts, ReceiptRow._fields)
_TARGET_TYPES = value_types(tables.targets, tables.targets.c.keys())
_RECORDED_TYPES = value_types(tables.recorded, tables.recorded.c.keys())
_MESSAGE_TYPES = value_types(tables.parked, _MESSAGE_COLUMNS)
_UNPACKED_TYPES = value_types(tables.parked, FIELDS)
_PACKED_TYPES = value_types(tables.waiting, _PACKED_COLUMNS)
_MESSAGE_TEXTS = fields_of_kind(FlatMessage, str)
_MESSAGE_COUNTS = fields_of_kind(FlatMessage, int, is_nullable=False)
_OBJECTS = fields_of_kind(FlatMessage, Mapping)


class Rule(NamedTuple):
    """A rule for a domain's own row."""

    kind: str
    """The kind of damage if it doesn't hold."""
    columns: tuple[str, ...]
    """The columns that show the damage."""
    holds: Callable[[DomainState], bool]


def _is_not_negative(name: str) -> Callable[[DomainState], bool]:
    return lambda state: getattr(state, name) >= 0


_RULES = (
    *(Rule("negative", (name,), _is_not_negative(name)) for name in _NOT_NEGATIVE),
    Rule("name", ("domain_key", "domain_name"), lambda s: _is_made(s.domain_key, s.domain_name)),
    # Receipts with an id are numbered from 1, and the first is neither a duplicate nor clamped to an earlier one's time.
    Rule("counters", ("last_seq", "receipts", "unchecked"), lambda s: s.last_seq == s.receipts - s.unchecked),
    Rule("counters", ("duplicates", "last_seq"), lambda s: s.duplicates <= max(0, s.last_seq - 1)),
    Rule("counters", ("clock_clamped", "last_seq"), lambda s: s.clock_clamped <= max(0, s.last_seq - 1)),
    Rule("counters", ("reused_ids", "duplicates"), lambda s: s.reused_ids <= s.duplicates),
    Rule("counters", ("redelivered", "receipts"), lambda s: s.redelivered <= s.receipts),
    Rule("counters", ("max_delivery_us", "redelivered"), lambda s: s.redelivered > 0 or s.max_delivery_us == 0),
    Rule("clocks", ("latest_us", "last_seq"), lambda s: s.last_seq > 0 or s.latest_us == 0),
    Rule("clocks", ("clock_us",), lambda s: (s.clock_us or 0) >= 0),
)


def _is_made(key: str, name: str) -> bool:
    if ":" in key:  # a colon separates the key from a name, so no key has one
        return False
    try:
        domain_key(f"name:{name}" if key == "name" else key)
    except SettingsError:
        return False
    return True


def audit_tables(store: Snapshot) -> None:
    """Check what concerns no single domain: pages, constraints, and rows without a domain or target."""
    with store.readable():
        for said in store.damage():
            store.note("damaged", None, said)
    with store.readable():
        for said in store.lacking_keys():
            store.note("keys", None, said)
    with store.readable():
        for table, key, owner, count in store.strays():
            store.note("strays", None, f"in {table}, of {key} {owner!r:.80}", count)


def audited_states(store: Snapshot) -> list[DomainState]:
    """The domains' own rows, each checked by itself; without unreadable ones."""
    states = []
    with store.readable():
        for raw in list(store.rows(tables.domains, DomainState._fields)):
            state = _state_of(raw, store)
            if state is not None:
                states.append(state)
                audit_rules(store, state, _RULES)
    return states


def audit_rules(store: Snapshot, state: DomainState, rules: Iterable[Rule]) -> None:
    """Check rules for a domain's own row."""
    for rule in rules:
        if not rule.holds(state):
            store.note(rule.kind, DomainName.of(state), _shown_columns(state, rule.columns))


def _state_of(raw: RawRow, store: Snapshot) -> DomainState | None:
    name = raw.domain_name
    of_domain = DomainName(str(raw.domain_key), text_of(name) if _is_text(name) else repr(name))
    wrong = [
        f"{tables.domains.c[field].name} is {value!r:.80}"
        for field, value, kind in zip(DomainState._fields, raw, _STATE_TYPES, strict=True)
        if not isinstance(value, kind)
    ]
    if wrong:
        store.note("types", of_domain, wrong[0], len(wrong))
        return None
    try:
        return tables.domain_codec.read(raw)
    except UnicodeDecodeError:
        store.note("name", of_domain, "domain_name isn't UTF-8")
        return None


def _shown_columns(state: DomainState, columns: Iterable[str]) -> str:
    return ", ".join(f"{column} = {getattr(state, column)!r:.80}" for column in columns)


def audit_domains(store: Snapshot, states: Sequence[DomainState]) -> None:
    """Check that domains differ, and check the numbers left by batches in callers' transactions."""
    by_name: dict[tuple[str, str], DomainState] = {}
    by_store_id: dict[int, DomainState] = {}
    for state in states:
        name = DomainName.of(state)
        # The mappings keep the first domain of a name, and of a store id: it is `other` for all later ones.
        for other in (by_name.setdefault(name, state), by_store_id.setdefault(state.store_id, state)):
            if other is not state:
                store.note("same-domain", name, f"domain_id {other.domain_id} and {state.domain_id}")
    for left, state in _of_states(store, states, tables.batch_numbers):
        if not all(isinstance(number, int) for number in left):
            kind = "types"
        elif left.writer < 0 or left.batch < 1 or not 0 <= left.last_seq <= state.last_seq:
            kind = "marks"
        else:
            continue
        example = f"writer {left.writer!r}, batch {left.batch!r}, last_seq {left.last_seq!r}"
        store.note(kind, DomainName.of(state), example)


def _of_states(store: Snapshot, states: Sequence[DomainState], table: Table) -> Iterator[tuple[RawRow, DomainState]]:
    """The rows of a table that belong to these domains. Other rows are strays, or their domain is broken."""
    by_id = {state.domain_id: state for state in states}
    with store.readable():
        for raw in store.rows(table, table.c.keys()):
            if raw.domain_id in by_id:
                yield raw, by_id[raw.domain_id]


def audited_rows(store: Snapshot, state: DomainState) -> int:
    """Check a domain's receipts, one by one and against the domain's own row. Returns their number."""
    name = DomainName.of(state)
    count = repeats = last_seq = last_us = 0
    for raw in store.rows(tables.receipts, ReceiptRow._fields, domain_id=state.domain_id):
        count += 1
        if not all(map(isinstance, raw, _ROW_TYPES)):  # then nothing else can be checked
            store.note("types", name, f"receipt {raw.seq!r:.80}: {_shown_values(raw)}")
            continue
        for kind, said in _wrong_in_row(raw, state, last_seq, last_us):
            store.note(kind, name, f"receipt {raw.seq!r:.80}: {said}")
        last_seq, last_us = raw.seq, raw.received_at_us
        repeats += raw.first_received_at_us is not None
    if (last_seq, last_us) != (state.last_seq, state.latest_us):
        said = _shown_columns(state, ("last_seq", "latest_us"))
        store.note("newest", name, f"{said}; the newest is receipt {last_seq} at {last_us} us")
    # Each resize may have made the newest receipt's row look like a duplicate's.
    if repeats > state.duplicates + state.generation:
        said = _shown_columns(state, ("duplicates",))
        store.note("counters", name, f"{said}, but {repeats} receipts of known ids are there")
    return count


def _wrong_in_row(raw: RawRow, state: DomainState, last_seq: int, last_us: int) -> Iterator[tuple[str, str]]:
    """What is wrong with a row that follows a row of this number and time: the kind of damage, and the evidence."""
    received_at_us, first_us = raw.received_at_us, raw.first_received_at_us
    if not max(1, last_seq + 1) <= raw.seq <= state.last_seq:
        yield "numbers", f"after receipt {last_seq} of {state.last_seq}"
    if received_at_us < last_us:
        yield "order", f"at {received_at_us} us, after one at {last_us} us"
    id_, source = raw.unique_message_id, raw.message_source_id
    # Forgetting an id by hand empties the id of its rows, and raises the generation.
    is_forgotten = id_ == b"" and state.generation > 0
    if not (is_forgotten or (id_ and _is_text(id_))) or not (source is None or (source and _is_text(source))):
        yield "ids", f"id {id_!r:.80}, source {source!r:.80}"
    if first_us is not None and not 0 <= first_us <= received_at_us:
        yield "first-times", f"first at {first_us} us, now at {received_at_us} us"
    if raw.body_digests is not None and not _are_digests(raw.body_digests):
        yield "digests", repr(raw.body_digests)[:80]


def _shown_values(raw: Sequence[Any]) -> str:
    return ", ".join(f"{value!r:.40}" for value in raw)


def _can_be_read(read: Callable[[Any], object], stored: Any) -> bool:
    try:
        read(stored)
    except NONSENSE:
        return False
    return True


_is_text, _is_object = partial(_can_be_read, text_of), partial(_can_be_read, loaded)


def _are_digests(stored: str) -> bool:
    try:
        digests: Any = json.loads(stored)
    except (ValueError, RecursionError):
        return False
    if not isinstance(digests, list) or not all(isinstance(digest, str) for digest in digests):
        return False
    return 0 < len(digests) == len(set(digests)) and all(map(_ESCAPED.fullmatch, digests))


def audit_texts(store: Snapshot, states: Sequence[DomainState]) -> None:
    """Check the positions of these domains' sources, and the nodes to which their bridges connected."""
    for table, kind in {tables.positions: "positions", tables.nodes: "nodes"}.items():
        types = value_types(table, table.c.keys())
        for raw, state in _of_states(store, states, table):
            if not all(map(isinstance, raw, types)):
                store.note("types", DomainName.of(state), _shown_values(raw))
            elif not all(stored and _is_text(stored) for stored in raw if isinstance(stored, bytes)):
                store.note(kind, DomainName.of(state), _shown_values(raw))


def audit_recorded(store: Snapshot, receipts_in: Callable[[bytes], int] | None) -> None:
    """Check the batches that wait for recordings. `receipts_in` unpacks a batch; without it, batches aren't unpacked."""
    with store.readable():
        for raw in store.rows(tables.recorded, tables.recorded.c.keys(), at_once=100):
            if not all(map(isinstance, raw, _RECORDED_TYPES)):
                store.note("types", None, f"recorded batch {raw.number!r:.80}: {_shown_values(raw[:-1])}")
            elif wrong := _wrong_in_recorded(raw, receipts_in):
                store.note("recorded", None, f"batch {raw.number}: {wrong}")


def _wrong_in_recorded(raw: RawRow, receipts_in: Callable[[bytes], int] | None) -> str | None:
    if min(raw.receipts, raw.size_bytes) < 1 or raw.recorded_at_us < 0:
        return _shown_values(raw[:-1])
    if not all(_is_text(text) for text in (raw.recording, raw.host, raw.file or b"")):
        return "recording, host or file is no text"
    try:
        if raw.file is not None:
            decoded_numbers(raw.packed)
        elif receipts_in is not None and (receipts := receipts_in(raw.packed)) != raw.receipts:
            return f"it has {receipts} receipts, not {raw.receipts}"
    except NONSENSE as error:
        return f"it can't be unpacked: {error}"
    return None


def audit_messages(store: Snapshot, states: Sequence[DomainState]) -> None:
    """Check the targets of these domains, and their waiting and parked messages."""
    of_target: dict[Any, DomainState] = {}
    for raw, state in _of_states(store, states, tables.targets):
        of_target[raw.target_id] = state
        _check_target(store, raw, DomainName.of(state))
    # Read only the beginning of each body. A database may give NULL for the beginning of an empty body.
    beginning = {"body": "coalesce(substr(body, 1, 1), body)"}
    for table in (tables.unpacked, tables.parked):
        with store.readable():
            for raw in store.rows(table, _MESSAGE_COLUMNS, instead=beginning):
                if raw.target_id in of_target:
                    _check_message(store, table, raw, of_target[raw.target_id])
    with store.readable():
        _check_packed(store, of_target)


def _check_target(store: Snapshot, raw: RawRow, domain: DomainName) -> None:
    if not all(map(isinstance, raw, _TARGET_TYPES)):
        store.note("types", domain, f"target_id {raw.target_id!r:.80}: {_shown_values(raw)}")
        return
    has_length, has_digest = raw.confirmed_bytes is not None, raw.tail_digest is not None
    if not raw.target or not _is_text(raw.target) or has_length != has_digest or (raw.confirmed_bytes or 0) < 0:
        said = _shown_values((raw.target, raw.confirmed_bytes, raw.tail_digest))
        store.note("targets", domain, f"target_id {raw.target_id}: {said}")


def _check_message(store: Snapshot, table: Table, raw: RawRow, state: DomainState) -> None:
    domain = DomainName.of(state)
    which = f"in {table.name} at {raw.sequence!r:.80} of target_id {raw.target_id}"
    if not all(map(isinstance, raw, _MESSAGE_TYPES)):
        store.note("types", domain, f"{which}: {_shown_values(raw)}")
        return
    message = dict(zip(_MESSAGE_COLUMNS, raw, strict=True))
    wrong = [name for name in _MESSAGE_COUNTS if message[name] < 0 and message[name] not in tables.ARRIVAL_SEQUENCES]
    wrong += [name for name in _MESSAGE_TEXTS if message[name] is not None and not _is_text(message[name])]
    if raw.sequence >= state.receipts:  # a number that was never given
        wrong.append("sequence")
    wrong += [name for name in _OBJECTS if not _is_object(message[name])]
    if wrong:
        said = ", ".join(f"{tables.parked.c[name].name} = {message[name]!r:.80}" for name in wrong)
        store.note("messages", domain, f"{which}: {said}")


def _check_packed(store: Snapshot, of_target: Mapping[Any, DomainState]) -> None:
    target_id: object = None
    seen: set[int] = set()  # the numbers of the target's messages that a further row may have too
    for raw in store.rows(tables.waiting, _PACKED_COLUMNS, at_once=16):
        state = of_target.get(raw.target_id)
        if state is None:
            continue
        if raw.target_id != target_id:
            target_id, seen = raw.target_id, set()
        which = f"in {tables.waiting.name} at {raw.first_sequence!r:.80} of target_id {raw.target_id}"
        if not all(map(isinstance, raw, _PACKED_TYPES)):
            store.note("types", DomainName.of(state), f"{which}: {_shown_but_packed(raw)}")
        elif wrong := _wrong_in_packed(store, raw, state, seen):
            store.note("messages", DomainName.of(state), f"{which}: {wrong}")


def _wrong_in_packed(store: Snapshot, raw: RawRow, state: DomainState, seen: set[int]) -> str | None:
    """How a row contradicts its messages, or which of its messages is in another row too; None if all is well.

    Adds the row's numbers to `seen`. As rows come in order, removes the numbers that no later row can have.
    """
    if wrong := _contradicting_messages(raw, state):
        return wrong
    numbers = numbers_of(raw.runs)
    if twice := seen.intersection(numbers):
        return f"the one at {min(twice)} is in another row too"
    seen.difference_update([number for number in seen if number <= numbers[0]])
    seen.update(numbers)
    for table in (tables.unpacked, tables.parked):
        between = table.c.sequence.between(numbers[0], numbers[-1])
        there = select(table.c.sequence).where(table.c.target_id == raw.target_id, between)
        if both := set(numbers).intersection(store.connection.scalars(there)):
            return f"the one at {min(both)} is in {table.name} too"
    return None


def _contradicting_messages(raw: RawRow, state: DomainState) -> str | None:
    """How a row contradicts the messages that are packed into it; None if it doesn't."""
    try:
        messages = unpack(raw.runs, raw.packed, raw.tries)
        as_stored = (tables.message_codec.stored(flat(each)) for each in messages)
        if not all(all(map(isinstance, values, _UNPACKED_TYPES)) for values in as_stored):
            return "a value in it is of another type"
        numbers = numbers_of(raw.runs)
        said = pack(messages)._replace(packed=raw.packed)
    except NONSENSE as error:
        return f"it can't be unpacked: {error}"
    if raw.sources is None:  # an earlier version has packed it
        said = said._replace(sources=None)
    given = tables.ARRIVAL_SEQUENCES if numbers[0] in tables.ARRIVAL_SEQUENCES else range(state.receipts)
    is_given = numbers[0] in given and numbers[-1] in given and list(numbers) == sorted(set(numbers))
    is_tried = raw.tries == 0 or (raw.tries > 0 and len(numbers) == 1)
    if tuple(raw[1:]) == said and is_given and is_tried:
        return None
    return f"{_shown_but_packed(raw)} isn't what its messages say"


def _shown_but_packed(raw: RawRow) -> str:
    return _shown_values([value for name, value in zip(_PACKED_COLUMNS, raw, strict=True) if name != "packed"])
