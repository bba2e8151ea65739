"""Forgetting by hand: ended sources, and single ids. Looking up what a store knows about an id."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from sqlalchemy import URL, select

from receiver.detector import TwoTierDetector
from receiver.durable.cache import DomainCache, corrupt_if_nonsense, policy_of, receipt_rows
from receiver.durable.retirement import longer_silent_than
from receiver.errors import IdFormatError, SettingsError, StoreBusyError
from receiver.message import ReceiptRow, Tier
from receiver.policies.interface import Policy
from receiver.settings import ReceiverSettings, StoreSettings
from receiver.store.codec import to_bytes
from receiver.store.databases import database_of, read_only, store_url, translated
from receiver.store.databases.claims import Claims
from receiver.store.databases.database import shown
from receiver.store.log import DomainLog, KeptLog, OwnLog
from receiver.store.schema import open_store_engine
from receiver.store.sql_rows import Changes
from receiver.store.tables import DomainState, domains, new_number
from receiver.store.upkeep import examined_rows

_T = TypeVar("_T")


class RetiredSources(NamedTuple):
    """The sources retired in one domain."""

    domain: str
    sources: int
    """How many were retired."""
    forgotten_ids: int
    """Ids that the domain no longer remembers because of it."""
    sources_left: int


class KnownId(NamedTuple):
    """What a domain knows about an id. Times are microseconds since 1970; None if not known."""

    domain: str
    is_remembered: bool = False
    tier: Tier | None = None
    """The tier that still holds the id; None if none does, or if the policy hasn't two tiers."""
    first_received_at_us: int | None = None
    """When the id first came since it has been remembered without a break."""
    latest_received_at_us: int | None = None
    """When the id last came; if the policy isn't refreshed by duplicates, the latest receipt still on record."""
    message_source_id: str | None = None


def retire_sources(
    address: str,
    *,
    domain: str | None = None,
    sources: Collection[str] = (),
    idle_days: float | None = None,
    on_retired: Callable[[RetiredSources], object] = lambda _: None,
) -> list[RetiredSources]:
    """Retire sources in the domains of a store that follow Apama's rule, or in those named `domain`.

    `sources` are names; the empty text is the anonymous source. `idle_days` adds the sources that haven't sent for longer, by
    the domain's own time. Each domain has a transaction of its own, and its receivers wait for that. `on_retired` is called
    after each: the next domain may fail. `SettingsError` if there is no such domain; `StoreError` as with
    `receiver.durable.audit.look`.
    """

    def retire(log: DomainLog, cache: DomainCache, state: DomainState) -> RetiredSources | None:
        detector = cache.policy
        if not isinstance(detector, TwoTierDetector):
            return None
        known = {source for _, source in detector.sources_by_silence()}
        due = known & {source or None for source in sources}
        if idle_days is not None:
            due |= set(longer_silent_than(detector, idle_days))
        before = detector.remembered_ids
        for source in due:
            detector.retire(source)
        if due:
            after = state._replace(
                last_writer=new_number(), clock_us=detector.clock_us, retired_sources=state.retired_sources + len(due)
            )
            log.record(after, cache.changes(retired=due, deletes_all=True))
        return RetiredSources(state.domain_name, len(due), before - detector.remembered_ids, detector.sources)

    url = store_url(address)
    return _in_each_domain(url, domain, lambda log: _changed(log, retire, on_retired), writes=True)


def look_up(address: str, unique_message_id: str, *, domain: str | None = None) -> list[KnownId]:
    """What the domains of a store, or those named `domain`, know about an id. Changes nothing, and nobody waits.

    `SettingsError` if there is no such domain; `StoreError` as with `receiver.durable.audit.look`.
    """
    url = _checked(address, unique_message_id)
    return _in_each_domain(url, domain, lambda log: _known(log, unique_message_id), writes=False)


def forget(
    address: str,
    unique_message_id: str,
    *,
    domain: str | None = None,
    on_forgotten: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Forget an id in the domains of a store, or in those named `domain`. Returns the names of the domains that knew it.

    Each domain has a transaction of its own, and its receivers wait for that. `on_forgotten` is called with the domain's name
    after each: the next domain may fail.

    Raises:
        SettingsError: There is no such domain, or one that remembers the id can't forget it. Nothing has changed.
        StoreError: As with `receiver.durable.audit.look`.
    """

    def check(log: KeptLog) -> None:
        state = log.begin_reading()
        with corrupt_if_nonsense(state):
            keeps_ids = policy_of(state).keeps_ids
        if not keeps_ids:  # such a domain has few rows
            _is_forgettable(state, _cache_of(log, state).policy, unique_message_id)

    def change(log: DomainLog, cache: DomainCache, state: DomainState) -> str | None:
        is_known = was_remembered = forget_in(log, cache, state, unique_message_id)
        if state.is_concurrent:
            claims = _claims_in(log, state)
            is_known |= claims.has(unique_message_id)
            if claims.release([unique_message_id]):  # then nothing is forgotten
                raise StoreBusyError(
                    f"{state.domain_name!r:.80} has receipts of the id that aren't folded in yet, or a transaction that is"
                    " open",
                    hint="try again; while a receiver of the domain is open, it folds them in",
                )
            if not was_remembered:  # the folding process must learn that the claim is gone: it may be made again
                log.record(state._replace(last_writer=new_number()), Changes())
        return state.domain_name if is_known else None

    url = _checked(address, unique_message_id)
    _in_each_domain(url, domain, check, writes=False)  # before anything is changed
    return _in_each_domain(url, domain, lambda log: _changed(log, change, on_forgotten), writes=True)


def forget_in(log: DomainLog, cache: DomainCache, state: DomainState, unique_message_id: str) -> bool:
    """Forget an id in one domain, whose log is locked and read; whether it was remembered. The caller commits.

    The id's receipts stay, without their id, so that other ids are forgotten when they would have been. As rows have changed,
    every process then reads the log anew.
    """
    policy = cache.policy
    if not _is_forgettable(state, policy, unique_message_id):
        return False
    changes = cache.changes(deletes_all=True)
    left = {row.seq for row in _rows_of(log, state, unique_message_id)}.difference(changes.gone)
    after = state._replace(last_writer=new_number(), clock_us=policy.clock_us, generation=state.generation + 1)
    log.record(after, changes._replace(forgotten=sorted(left)))
    cache.drop()
    return True


def _is_forgettable(state: DomainState, policy: Policy, unique_message_id: str) -> bool:
    """Whether a domain remembers an id; `SettingsError` if it does, but its policy can't forget it."""
    if not _remembers(policy, unique_message_id):
        return False
    if not policy.keeps_ids:
        raise SettingsError(
            f"{state.domain_name!r:.80} goes by {policy}, which keeps no single ids, so it can't forget one",
            hint="name another domain (--domain), or have the message sent with a new id",
        )
    return True


def _changed(
    log: KeptLog,
    change: Callable[[DomainLog, DomainCache, DomainState], _T | None],
    on_changed: Callable[[_T], object],
) -> _T | None:
    """Change a domain in a transaction of its own. Returns the result of `change`; unless that is None, `on_changed` gets it first."""
    cache = _cache_of(log, log.begin_reading())  # the long part, while nobody waits
    log.rollback()
    state = log.begin()
    cache.follow(log, state)
    done = change(log, cache, state)
    log.commit()
    log.give_back_space()
    if done is not None:
        on_changed(done)
    return done


def _checked(address: str, unique_message_id: str) -> URL:
    if not unique_message_id:
        raise SettingsError("the id is empty", hint="messages without an id are delivered each time they come")
    return store_url(address)


def _in_each_domain(url: URL, domain: str | None, do: Callable[[KeptLog], _T | None], *, writes: bool) -> list[_T]:
    """Call `do` for each domain, or for those named `domain`, one after the other. Returns its results, without None.

    `SettingsError` if no domain has the name.
    """
    wanted = select(domains.c.domain_id).order_by(domains.c.domain_id)
    if domain is not None:
        wanted = wanted.where(domains.c.domain_name == to_bytes(domain))
    numbers = [number for (number,) in examined_rows(url, wanted)]
    if domain is not None and not numbers:
        raise SettingsError(f"{shown(url)} has no domain {domain!r:.80}", hint="receiver status lists the domains")
    engine = open_store_engine(url, StoreSettings()) if writes else read_only(url)
    done = []
    for number in numbers:
        log = OwnLog(engine, number)
        try:
            with translated(url):
                done.append(do(log))
        finally:
            log.rollback()
            log.close()
    return [each for each in done if each is not None]


def _cache_of(log: DomainLog, state: DomainState) -> DomainCache:
    cache = DomainCache(ReceiverSettings())
    cache.follow(log, state)
    return cache


def _claims_in(log: DomainLog, state: DomainState) -> Claims:
    return database_of(log.connection).claims(log.connection, state.domain_id)


def _remembers(policy: Policy, unique_message_id: str) -> bool:
    try:
        return unique_message_id in policy
    except IdFormatError:  # the policy can't have judged such an id
        return False


def _rows_of(log: DomainLog, state: DomainState, unique_message_id: str) -> list[ReceiptRow]:
    return [row for row in receipt_rows(log, state) if row.unique_message_id == unique_message_id]


def _known(log: KeptLog, unique_message_id: str) -> KnownId:
    state = log.begin_reading()
    known = _of_rows(state, _cache_of(log, state).policy, log, unique_message_id)
    if not state.is_concurrent:
        return known
    claims = _claims_in(log, state)
    # Until the next folding, an id may stay claimed that the policy has forgotten. Its next message is dropped.
    known = known._replace(is_remembered=known.is_remembered or claims.has(unique_message_id))
    waiting = [receipt for receipt in claims.waiting_receipts() if receipt.unique_message_id == unique_message_id]
    if not waiting:
        return known
    return known._replace(
        first_received_at_us=known.first_received_at_us or waiting[0].received_at_us,
        latest_received_at_us=waiting[-1].received_at_us,
        message_source_id=waiting[-1].message_source_id,
    )


def _of_rows(state: DomainState, policy: Policy, log: KeptLog, unique_message_id: str) -> KnownId:
    """What the domain's own log knows about an id, without receipts that aren't folded in yet."""
    if not _remembers(policy, unique_message_id):
        return KnownId(state.domain_name)
    tier = policy.tier_of(unique_message_id) if isinstance(policy, TwoTierDetector) else None
    rows = _rows_of(log, state, unique_message_id)
    known = KnownId(state.domain_name, is_remembered=True, tier=tier)
    if not rows:  # the policy keeps one number for all ids of a sender
        return known
    newest = rows[-1]
    first_us = newest.received_at_us if newest.first_received_at_us is None else newest.first_received_at_us
    return known._replace(
        first_received_at_us=first_us,
        latest_received_at_us=newest.received_at_us,
        message_source_id=newest.message_source_id,
    )
