"""Opens the log of a domain by address and channel. Makes the domain if it is new, and resizes it if asked to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection, Engine, select

from receiver.detector import GONE, TwoTierDetector
from receiver.domains import Channel, DomainKey, destination_name
from receiver.durable.cache import corrupt_if_nonsense, policy_of, receipt_rows
from receiver.errors import SettingsError, StoreError
from receiver.message import ReceiptRow
from receiver.policies.artemis import ArtemisIdCache
from receiver.policies.interface import Clock, Policy
from receiver.policies.names import policy, stated_policy, two_tier
from receiver.settings import ReceiverSettings, StoreSettings, doubt_about
from receiver.store.codec import printable, to_bytes
from receiver.store.connections import get_or_create
from receiver.store.databases import database_of, store_url, translated
from receiver.store.databases.database import LONGEST_NAME_BYTES, not_concurrent_error
from receiver.store.log import KeptLog, MemoryLog, OwnLog
from receiver.store.schema import open_store_engine
from receiver.store.sql_rows import Changes, PolicyStates
from receiver.store.tables import DomainState, domains, new_number

MEMORY = "memory://"
_LOGGER = logging.getLogger("receiver")
_NAMES_SHOWN = 3


class Wanted(NamedTuple):
    """The policy that the caller asks for when it opens a domain."""

    kind: str | None
    """The policy's name in stores; None for the policy that the domain has."""
    sizes: tuple[int, int] | None
    """None for the sizes that the domain has."""
    if_new: Callable[[], Policy]
    """Makes the policy of a new domain; `SettingsError` if its sizes aren't given."""


def policy_wanted(settings: ReceiverSettings | None, policy_text: str | None, *, reject_batches: bool) -> Wanted:
    """The policy that the arguments of `Receiver.open` ask for; a bare name takes the domain's sizes."""
    if policy_text is None:
        stated = _by_settings(settings)
    elif settings is not None:
        raise SettingsError(
            "settings and policy both say how the domain judges",
            hint="write policy='apama:window=...,expiry=...' alone",
        )
    else:
        rule, made = stated_policy(policy_text)
        stated = Wanted(rule.kind, None if made is None else made.sizes, lambda: policy(policy_text))
    if not reject_batches or stated.kind == ArtemisIdCache.kind:
        return stated
    if stated.kind is not None:
        _refuse_rejecting()
    return Wanted(ArtemisIdCache.kind, stated.sizes, _refuse_rejecting)


def _by_settings(settings: ReceiverSettings | None) -> Wanted:
    if settings is None:
        default = two_tier(*ReceiverSettings().sizes)
        return Wanted(None, None, lambda: default)
    if doubt := doubt_about(settings.sizes[1]):
        _LOGGER.warning("%s", doubt)
    new = two_tier(*settings.sizes)
    return Wanted(new.kind, new.sizes, lambda: new)


def _refuse_rejecting() -> NoReturn:
    raise SettingsError(
        "reject_batches is for the policy artemis alone", hint="open with policy='artemis:id_cache_size=...'"
    )


def check_concurrent(address: str) -> None:
    """Raise `SettingsError` if a store at this address can't have concurrent receivers."""
    if address == MEMORY:
        raise not_concurrent_error()
    database_of(store_url(address)).check_concurrent()


def open_log(
    address: str, key: DomainKey, channel: Channel, wanted: Wanted, store_settings: StoreSettings
) -> tuple[KeptLog, DomainState]:
    """The log of a channel's domain, and its state; between transactions."""
    name = key.name(channel)
    if len(to_bytes(name)) > LONGEST_NAME_BYTES:
        raise SettingsError(f"the domain's name has more than {LONGEST_NAME_BYTES:,} bytes: {name!r:.80}")
    if address == MEMORY:
        state = DomainState(domain_id=0, **_new_state(key.kind, name, wanted.if_new()))
        return MemoryLog(state), state
    url = store_url(address)
    engine = open_store_engine(url, store_settings)
    try:
        with translated(url):
            log = OwnLog(engine, _domain_id(engine, key, channel, wanted, store_settings))
            return log, _as_wanted(log, wanted, (key.kind, name))
    except BaseException:
        engine.dispose()
        raise


def _new_state(kind: str, name: str, new_policy: Policy) -> dict[str, Any]:
    """The columns of a new domain, without its number."""
    window, expiry_us = new_policy.sizes
    state: dict[str, Any] = dict.fromkeys(DomainState._fields[1:], 0)
    return state | {
        "store_id": new_number(),
        "domain_key": kind,
        "domain_name": name,
        "policy": new_policy.kind,
        "window_size": window,
        "expiry_us": expiry_us,
        "clock_us": None,
        "needs_by_hour": None,
    }


def _domain_id(engine: Engine, key: DomainKey, channel: Channel, wanted: Wanted, store_settings: StoreSettings) -> int:
    kind, name = key.kind, key.name(channel)
    the_domain = select(domains.c.domain_id).where(
        domains.c.domain_key == kind, domains.c.domain_name == to_bytes(name)
    )

    def new(connection: Connection) -> dict[str, Any]:
        _warn_of_namesakes(connection, key, channel)
        return _new_state(kind, name, wanted.if_new()) | {"domain_name": to_bytes(name)}

    return get_or_create(engine, the_domain, domains, new, store_settings)


def _warn_of_namesakes(connection: Connection, key: DomainKey, channel: Channel) -> None:
    """Warn of other domains whose queue has the same name: it may be the same queue, of a broker that was renamed."""
    destination = destination_name(channel.destination)
    if key.text != "default" or not destination.startswith("queue://"):  # each subscriber of a topic has all messages
        return
    names = connection.scalars(select(domains.c.domain_name).where(domains.c.domain_key == key.text))
    ending = to_bytes(f":{destination}")
    # A damaged SQLite file may hold a name of another type.
    namesakes = [printable(name) for name in names if isinstance(name, bytes) and name.endswith(ending)]
    if namesakes:
        _LOGGER.warning(
            "%s is a new domain. It knows no id of %s, and hands on nothing that waits there: if both are one queue, under two "
            "names of its broker, keep to one connection id",
            key.name(channel),
            " and ".join(sorted(namesakes)[:_NAMES_SHOWN]),
        )


def _as_wanted(log: KeptLog, wanted: Wanted, key_and_name: tuple[str, str]) -> DomainState:
    """The domain's state, after resizing it if other sizes are wanted; `SettingsError` if it has another policy."""
    try:
        state = log.begin_reading()
        log.rollback()
        _check_domain(state, wanted, key_and_name)
        if wanted.sizes is not None and wanted.sizes != (state.window_size, state.expiry_us):
            state = log.begin()
            _check_domain(state, wanted, key_and_name)  # it may have been dropped while we waited for it
            _resize(log, state, wanted.sizes)
            log.commit()
            window, expiry_us = wanted.sizes
            now = policy_of(state._replace(window_size=window, expiry_us=expiry_us))
            _LOGGER.warning("%s is resized, for all who use it: %s to %s", state.domain_name, policy_of(state), now)
            log.give_back_space()
    except BaseException:
        log.discard()
        raise
    return state


def _check_domain(state: DomainState, wanted: Wanted, key_and_name: tuple[str, str]) -> None:
    if (state.domain_key, state.domain_name) != key_and_name:  # SQLite may give a dropped domain's number to a new one
        raise StoreError("the domain was dropped while it was opened", hint="open it again")
    if wanted.kind not in {None, state.rule}:
        raise SettingsError(
            f"the domain {state.domain_name!r:.80} has the policy {state.rule}, not {wanted.kind}",
            hint="open it as it is, or give the other policy a domain of its own: domain='name:...'",
        )


def _resize(log: KeptLog, state: DomainState, sizes: tuple[int, int]) -> None:
    """Change a domain's sizes. An empty domain with the new sizes receives all remembered entries again, oldest first.

    The caller commits the transaction under way.
    """
    with corrupt_if_nonsense(state):
        rows = list(receipt_rows(log, state))
        before = policy_of(state)
        before.replay(rows, state.clock_us)
    remembered = set(before.entries())
    is_two_tier = isinstance(before, TwoTierDetector)
    if is_two_tier:  # entries of a retired source enter a queue of that source again
        rows = [row._replace(policy_state=None) for row in rows]
    window, expiry_us = sizes
    changed = state._replace(window_size=window, expiry_us=expiry_us, generation=state.generation + 1)
    after = policy_of(changed)
    # A clock that the application moves stands. Any other follows from the rows.
    clock_us = state.clock_us if after.declaration.clock is Clock.CALLER else None
    after.replay((row for row in rows if row.seq in remembered), clock_us)
    kept = set(after.entries())
    # If duplicates refresh nothing, their rows are kept for the bodies: loading the domain shows which still matter.
    keeps_bodies = not after.records_duplicates
    gone = [
        row.seq for row in rows if row.seq not in kept and not (keeps_bodies and row.first_received_at_us is not None)
    ]
    newest: list[ReceiptRow] = []
    if gone and gone[-1] == state.last_seq:
        # The newest row stays, because it has the latest number and time, but marked so that no policy enters it.
        row = rows[-1]
        first_us, policy_state = (None, GONE) if is_two_tier else (row.received_at_us, None)
        newest = [row._replace(first_received_at_us=first_us, body_digests=None, policy_state=policy_state)]
    policy_states = PolicyStates(None, None) if is_two_tier and state.retired_sources else None
    # With a new writer, so that the process that folds a concurrent domain releases the forgotten ids.
    state_after = changed._replace(last_writer=new_number(), clock_us=after.clock_us)
    log.record(state_after, Changes(gone, policy_states, rows=newest))
