"""Figures of a whole store, and a check of every invariant, for which each domain's state is rebuilt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Table, func, select

from receiver.detector import GONE, RETIRED, TwoTierDetector
from receiver.durable.cache import policy_of
from receiver.durable.duplicates import Need, NeedsByHour, needs_read, over_last_day
from receiver.durable.retirement import longer_silent_than
from receiver.durable.status import status_line
from receiver.errors import IdFormatError, SettingsError
from receiver.message import ReceiptRow
from receiver.policies.apama import ApamaTwoTier
from receiver.policies.interface import Clock, Policy
from receiver.policies.names import POLICIES
from receiver.quantities import HOUR_US, SECOND_US
from receiver.settings import SimulateSettings
from receiver.store import invariants, tables
from receiver.store.codec import printable, to_bytes, value_types
from receiver.store.databases import NONSENSE, store_url
from receiver.store.databases.claims import sound_receipts
from receiver.store.inbox import NodeRow, waiting_by_row
from receiver.store.invariants import Rule
from receiver.store.positions import PositionRow
from receiver.store.snapshot import DomainName, OnRows, Snapshot, StoreFinding, snapshot
from receiver.store.tables import DomainState

_ROWS_AT_ONCE = 10_000
_R = TypeVar("_R", PositionRow, NodeRow)
_CLOCKS = {kind.kind: kind.declaration.clock for kind in POLICIES}


def _needs_of(state: DomainState) -> NeedsByHour | None:
    """What the domain's duplicates needed, by hour; None if that is broken."""
    try:
        return needs_read(state.needs_by_hour)
    except NONSENSE:
        return None


def _receipts_moved_clock(state: DomainState) -> bool:
    """Whether the policy's clock has moved, and by receipts: another kind is set from outside, perhaps before any receipt."""
    return state.clock_us is not None and _CLOCKS.get(state.rule) is Clock.RECEIPTS


_RULES = (
    Rule("clocks", ("clock_us", "policy"), lambda s: s.clock_us is None or _CLOCKS.get(s.rule) is not None),
    Rule(
        "clocks", ("clock_us", "latest_us"), lambda s: not _receipts_moved_clock(s) or (s.clock_us or 0) <= s.latest_us
    ),
    Rule("clocks", ("clock_us", "expiry_us"), lambda s: not _receipts_moved_clock(s) or s.expiry_us > 0),
    Rule("clocks", ("clock_us", "last_seq"), lambda s: not _receipts_moved_clock(s) or s.last_seq > 0),
    Rule("needs", ("needs_by_hour",), lambda s: _needs_of(s) is not None),
    Rule("needs", ("needs_by_hour", "policy"), lambda s: not _needs_of(s) or s.rule == ApamaTwoTier.kind),
    Rule("needs", ("needs_by_hour", "duplicates"), lambda s: not _needs_of(s) or s.duplicates > 0),
    Rule(
        "needs",
        ("needs_by_hour", "latest_us"),
        lambda s: all(hour * HOUR_US <= s.latest_us for hour in _needs_of(s) or ()),
    ),
)
"""What a domain's policy, and what it has received, say about its clock and the needs of its duplicates."""


@dataclass(slots=True)
class StoredDomain:
    """A domain as it is stored. A figure is None if it wasn't asked for, or if its rows are broken."""

    state: DomainState
    rows: int = 0
    remembered_ids: int | None = None
    waiting_rows: int | None = None
    """Rows of forgotten entries that are still to be deleted."""
    inbox: int | None = None
    """Messages that wait for their targets."""
    parked: int | None = None
    """Messages that their targets refused too often, that had no id that could be judged, or that came back in a ring."""
    sources: int | None = None
    """Sources whose newest ids are kept; None too where the policy keeps none by source."""
    silent_sources: int | None = None
    """Sources without a receipt in the domain's last 24 hours."""
    secs_to_memory_limit: float | None = None
    """How long until its ids fill `memory_limit_ids` at the rate of its last hour; None too if they never will."""
    unfolded_receipts: int | None = None
    """Receipts that wait to be folded in; 0 unless the domain's receivers are concurrent."""
    unfolded_secs: float | None = None
    """The age of the oldest of these receipts."""
    positions: tuple[PositionRow, ...] = ()
    """How far bridges have read from brokers that keep every message; empty if the table can't be read."""
    nodes: tuple[NodeRow, ...] = ()
    """The cluster nodes to which its bridges connected last; empty if the table can't be read."""

    @property
    def policy(self) -> str:
        """The policy's canonical text, or its kind alone if its sizes are broken."""
        try:
            return str(policy_of(self.state))
        except SettingsError:
            return self.state.rule

    @property
    def need(self) -> Need | None:
        """The largest needs of its duplicates over the last day; None without any, or if they are broken."""
        return over_last_day(_needs_of(self.state) or {}, self.state.latest_us)

    def line(self) -> str:
        """The status line of the whole domain since it was made, without a rate."""
        return status_line(self.state, self.remembered_ids)


@dataclass(frozen=True, slots=True)
class StoreFigures:
    version: str
    size_bytes: int
    domains: tuple[StoredDomain, ...]
    findings: tuple[StoreFinding, ...]
    """What is broken, as far as it was checked."""


def audit(address: str, *, advance: OnRows = lambda _rows: None) -> StoreFigures:
    """Check every invariant of a store in one snapshot, while receivers may go on. Changes nothing.

    `StoreError` if there is no store or it can't be opened. `advance` is called with the number of rows read since its
    last call; most rows are read twice. Memory use grows with the ids that the largest domain remembers.
    """
    with snapshot(store_url(address), advance) as store:
        invariants.audit_tables(store)
        domains = _domains(store, with_ids=True)
        states = [domain.state for domain in domains]
        invariants.audit_messages(store, states)
        invariants.audit_texts(store, states)
        invariants.audit_recorded(store, _receipts_unpacked())
        return StoreFigures(tables.REVISION, store.size_bytes, domains, store.findings())


def _receipts_unpacked() -> Callable[[bytes], int] | None:
    """A function that unpacks a recorded batch and counts its receipts; None without the extra 'simulate'."""
    try:
        from receiver.logs.packing import unpacked
    except ImportError:
        return None
    return lambda packed: unpacked(packed).receipts


def look(address: str, *, with_ids: bool = True, advance: OnRows = lambda _rows: None) -> StoreFigures:
    """The figures of a store. `with_ids`: also count the ids remembered now, which reads all rows.

    `StoreError` as with `audit`. A domain whose own row can't be read has no figures, only a finding.
    """
    with snapshot(store_url(address), advance) as store:
        domains = _domains(store, with_ids=with_ids)
        return StoreFigures(tables.REVISION, store.size_bytes, domains, store.findings())


def _domains(store: Snapshot, *, with_ids: bool) -> tuple[StoredDomain, ...]:
    states = invariants.audited_states(store)
    for state in states:
        invariants.audit_rules(store, state, _RULES)
        try:
            policy_of(state)
        except SettingsError as error:
            store.note("settings", DomainName.of(state), error.message)
    invariants.audit_domains(store, states)
    return tuple(_figures(store, state, with_ids=with_ids) for state in states)


def _figures(store: Snapshot, state: DomainState, *, with_ids: bool) -> StoredDomain:
    figures = StoredDomain(state)

    def of_domain(table: Table, *what: ColumnElement[Any]) -> Any:
        return store.connection.execute(select(*what).where(table.c.domain_id == state.domain_id)).one()

    of_targets = select(tables.targets.c.target_id).where(tables.targets.c.domain_id == state.domain_id)
    with store.readable():
        rows = waiting_by_row()
        wait = select(func.sum(rows.c.messages)).where(rows.c.target_id.in_(of_targets))
        figures.inbox = int(store.connection.scalar(wait) or 0)
        are_parked = select(func.count()).select_from(tables.parked).where(tables.parked.c.target_id.in_(of_targets))
        figures.parked = store.connection.scalar(are_parked)
    with store.readable():
        arrived = tables.arrivals.c
        unfolded, oldest_us = of_domain(tables.arrivals, func.sum(arrived.receipts), func.min(arrived.received_at_us))
        figures.unfolded_receipts = int(unfolded or 0)
        figures.unfolded_secs = None if oldest_us is None else max(0.0, time.time() - oldest_us / SECOND_US)
    with store.readable():
        figures.positions = _records(store, state, tables.positions, PositionRow)
    with store.readable():
        figures.nodes = _records(store, state, tables.nodes, NodeRow)
    with store.readable(DomainName.of(state)):
        if with_ids:
            _read_rows(store, figures)
        else:
            (figures.rows,) = of_domain(tables.receipts, func.count())
    return figures


def _records(store: Snapshot, state: DomainState, table: Table, record: type[_R]) -> tuple[_R, ...]:
    """A domain's rows of a table as records, with bytes decoded to text; without rows that hold a value of another type."""
    types = value_types(table, record._fields)
    stored = store.rows(table, record._fields, domain_id=state.domain_id)
    return tuple(
        record._make(printable(value) if isinstance(value, bytes) else value for value in raw)
        for raw in stored
        if all(map(isinstance, raw, types))
    )


def _read_rows(store: Snapshot, figures: StoredDomain) -> None:
    """Check a domain's rows. If all is well, rebuild the domain from them, and note its figures."""
    state, name = figures.state, DomainName.of(figures.state)
    figures.rows = invariants.audited_rows(store, state)
    if store.is_broken(name):
        return
    try:
        rebuilt = _rebuilt(store, state)
    except IdFormatError as error:
        store.note("ids", name, error.message)
        return
    _check_rebuilt(store, state, figures.rows, rebuilt)
    policy = rebuilt.policy
    _check_claims(store, state, policy)
    figures.remembered_ids = policy.remembered_ids
    figures.waiting_rows = figures.rows - len(policy.entries())
    if isinstance(policy, TwoTierDetector):
        figures.sources = policy.sources
        figures.silent_sources = len(longer_silent_than(policy, 1))
        figures.secs_to_memory_limit = _secs_to_memory_limit(state, policy, rebuilt)


def _check_claims(store: Snapshot, state: DomainState, policy: Policy) -> None:
    """Check that every id that is remembered, or waits to be folded in, is claimed. Others may be claimed until released."""
    ids = select(func.coalesce(tables.claims.c.long_id, tables.claims.c.unique_message_id))
    of_domain = store.connection.scalars(ids.where(tables.claims.c.domain_id == state.domain_id))
    claimed, name = set(map(bytes, of_domain)), DomainName.of(state)
    if not state.is_concurrent:
        for id_ in sorted(claimed):
            store.note("claims", name, f"{printable(id_)!r:.80} is claimed")
    elif isinstance(policy, TwoTierDetector):
        for unique_message_id in policy.remembered():
            if to_bytes(unique_message_id) not in claimed:
                store.note("claims", name, f"{unique_message_id!r:.80} is remembered, and not claimed")
        for row in store.rows(tables.arrivals, tables.ArrivalRow._fields, domain_id=state.domain_id):
            arrived = tables.ArrivalRow._make(row)
            receipts = sound_receipts(arrived)
            if receipts is None:
                store.note("claims", name, f"the receipts with the number {arrived.arrival} make no sense")
            for receipt in receipts or ():
                if receipt.unique_message_id and to_bytes(receipt.unique_message_id) not in claimed:
                    store.note("claims", name, f"{receipt.unique_message_id!r:.80} is to be folded in, and not claimed")


class _Rebuilt(NamedTuple):
    policy: Policy
    """The policy as a receiver rebuilds it on opening."""
    forgotten: int
    """Rows whose id is forgotten."""
    new_in_last_hour: int
    """Rows of ids that were new in the domain's last hour."""
    oldest_us: int
    """When the oldest row was received."""


def _rebuilt(store: Snapshot, state: DomainState) -> _Rebuilt:
    """Rebuild a domain's memory from its rows, which are known to be sound."""
    policy, forgotten, new, oldest_us = policy_of(state), 0, 0, state.latest_us
    hour_ago_us = state.latest_us - HOUR_US
    raws = store.rows(tables.receipts, ReceiptRow._fields, domain_id=state.domain_id)
    while part := list(islice(raws, _ROWS_AT_ONCE)):
        rows = list(map(ReceiptRow._make, zip(*tables.receipt_codec.read_columns(part), strict=True)))
        if isinstance(policy, TwoTierDetector):
            _check_retired(store, state, rows, policy)
        policy.replay(rows, None)
        forgotten += sum(not row.unique_message_id for row in rows)
        new += sum(row.first_received_at_us is None and row.received_at_us > hour_ago_us for row in rows)
        oldest_us = min(oldest_us, rows[0].received_at_us)
    policy.replay((), state.clock_us)
    return _Rebuilt(policy, forgotten, new, oldest_us)


def memory_limit_ids() -> int:
    """How many ids fit the memory that the settings allow for a domain. Nothing is forgotten because of it."""
    settings = SimulateSettings()
    return settings.budget_bytes // settings.memory_bytes_per_id


def _secs_to_memory_limit(state: DomainState, policy: TwoTierDetector, rebuilt: _Rebuilt) -> float | None:
    span_us = min(HOUR_US, state.latest_us - rebuilt.oldest_us)
    if not (span_us and rebuilt.new_in_last_hour):
        return None
    per_us, limit = rebuilt.new_in_last_hour / span_us, memory_limit_ids()
    # The ids that both tiers hold once as many leave as come.
    if policy.sources * state.window_size + per_us * state.expiry_us <= limit:
        return None
    return max(0, limit - policy.remembered_ids) / per_us / SECOND_US


def _check_retired(store: Snapshot, state: DomainState, rows: Sequence[ReceiptRow], before: TwoTierDetector) -> None:
    """Check what these rows say about retired sources; `before` has replayed all earlier rows."""
    active = {source for _, source in before.sources_by_silence()}
    for row in rows:
        policy_state = row.policy_state
        if policy_state is None:
            active.add(row.message_source_id)
        elif policy_state not in {RETIRED, GONE} or (policy_state == RETIRED and row.message_source_id in active):
            # All rows that a source has when it is retired say so.
            store.note("retired", DomainName.of(state), f"receipt {row.seq}: policy_mark = {policy_state}")


def _check_rebuilt(store: Snapshot, state: DomainState, rows: int, rebuilt: _Rebuilt) -> None:
    policy = rebuilt.policy
    name = DomainName.of(state)
    clock_us, rebuilt_us = state.clock_us, policy.clock_us
    if rebuilt_us != clock_us:  # where rows are gone, the others alone give the same or an older one
        store.note("rebuilt", name, f"clock_us = {clock_us}, though the receipts moved it to {rebuilt_us}")
    # Unless a resize began the time queue anew, nothing is forgotten before something has entered it.
    has_time_queue = policy.declaration.clock is Clock.RECEIPTS and state.expiry_us
    if has_time_queue and clock_us is None and state.generation == 0 and rows < state.last_seq:
        gone = state.last_seq - rows
        store.note("rebuilt", name, f"{gone} receipts are gone, though the time queue never had any to make it forget")
    first_receipts = state.last_seq - state.duplicates
    if policy.remembered_ids - rebuilt.forgotten > first_receipts:
        said = f"{policy.remembered_ids} ids are remembered, but only {first_receipts} receipts were no duplicates"
        store.note("rebuilt", name, said)
