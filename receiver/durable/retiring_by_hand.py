"""Sources retired by hand: those named, or those that haven't sent for long."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import URL, Engine, select

from receiver.detector import TwoTierDetector
from receiver.durable.cache import DomainCache
from receiver.durable.opening import new_number
from receiver.durable.retirement import Retirement, as_retired, longer_silent_than
from receiver.errors import SettingsError
from receiver.settings import ReceiverSettings, StoreSettings
from receiver.store.databases.database import shown
from receiver.store.engine import database_of, store_url, translated
from receiver.store.log import Changes, DomainLog
from receiver.store.schema import open_store_engine
from receiver.store.tables import domains
from receiver.store.upkeep import examined_rows
from receiver.store.values import to_bytes

__all__ = ["RetiredSources", "domains_named", "retire_sources"]


class RetiredSources(NamedTuple):
    """What was done in one domain."""

    domain: str
    sources: int
    """How many were retired."""
    forgotten_ids: int
    """Ids that are no longer remembered for it."""
    sources_left: int


def retire_sources(
    address: str, *, domain: str | None = None, sources: Collection[str] = (), idle_days: float | None = None
) -> list[RetiredSources]:
    """Retire sources in the domains of a store that go by Apama's rule, or in those of one name.

    `sources` are names, the empty text being the anonymous source; `idle_days` adds those that haven't sent for longer, by
    the domain's own time. Each domain is done in a transaction of its own, for which its receivers wait. `SettingsError`
    if there is no such domain; `StoreError` as with `receiver.durable.audit.look`.
    """
    url = store_url(address)
    numbers = domains_named(url, domain)
    engine = open_store_engine(url, StoreSettings())
    try:
        with translated(url):
            done = [_retire(url, engine, number, sources, idle_days) for number in numbers]
    finally:
        engine.dispose()
    return [retired for retired in done if retired is not None]


def domains_named(url: URL, name: str | None) -> list[int]:
    """The numbers of all domains, or of those of one name; `SettingsError` if there is none of it."""
    wanted = select(domains.c.domain_id).order_by(domains.c.domain_id)
    if name is not None:
        wanted = wanted.where(domains.c.domain_name == to_bytes(name))
    numbers = [number for (number,) in examined_rows(url, wanted)]
    if name is not None and not numbers:
        raise SettingsError(f"{shown(url)} has no domain {name!r:.80}", hint="receiver status lists the domains")
    return numbers


def _retire(
    url: URL, engine: Engine, domain_id: int, sources: Collection[str], idle_days: float | None
) -> RetiredSources | None:
    log = database_of(url).log(engine, StoreSettings(), domain_id)
    cache = DomainCache(Retirement(ReceiverSettings()))
    try:
        cache.follow(log, log.begin_reading())  # all that takes long, while nobody waits
        log.rollback()
        retired = _retire_locked(log, cache, sources, idle_days)
        log.commit()
        log.give_back_space()
    finally:
        log.rollback()
        log.close()
    return retired


def _retire_locked(
    log: DomainLog, cache: DomainCache, sources: Collection[str], idle_days: float | None
) -> RetiredSources | None:
    state = log.begin()
    cache.follow(log, state)
    detector = cache.policy
    if not isinstance(detector, TwoTierDetector):
        return None
    known = {source for _, source in detector.sources_by_silence()}
    due = known & {source or None for source in sources}
    if idle_days is not None:
        due |= set(longer_silent_than(detector, idle_days))
    before = detector.remembered_ids
    cache.retire(due)
    if due:
        _, gone = cache.take_deletable((), all_of_them=True)
        _, policy_states = as_retired((), list(due))
        after = state._replace(
            last_writer=new_number(), clock_us=cache.policy.clock_us, retired_sources=state.retired_sources + len(due)
        )
        log.record(after, Changes(gone, policy_states), before=state)
    return RetiredSources(state.domain_name, len(due), before - detector.remembered_ids, detector.sources)
