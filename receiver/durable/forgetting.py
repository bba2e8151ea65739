"""One id, asked for by hand: where it is remembered, and since when; and forgotten, so that it is new when it comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import URL, Engine

from receiver.detector import TwoTierDetector
from receiver.durable.cache import DomainCache
from receiver.durable.opening import new_number
from receiver.durable.retirement import Retirement
from receiver.durable.retiring_by_hand import domains_named
from receiver.errors import IdFormatError, SettingsError
from receiver.message import ReceiptRow, Tier
from receiver.policies.interface import Policy
from receiver.settings import ReceiverSettings, StoreSettings
from receiver.store.engine import database_of, read_only, store_url, translated
from receiver.store.log import Changes, DomainLog
from receiver.store.schema import open_store_engine
from receiver.store.tables import DomainState

__all__ = ["KnownId", "forget", "forget_in", "look_up"]


class KnownId(NamedTuple):
    """What a domain knows of an id. Times are microseconds since 1970, None where they aren't known."""

    domain: str
    is_remembered: bool = False
    tier: Tier | None = None
    """Which still holds it; None where the policy has no two tiers."""
    first_received_at_us: int | None = None
    """As far as it has been remembered without a break."""
    latest_received_at_us: int | None = None
    """Where duplicates refresh nothing, the latest that is still on record."""
    message_source_id: str | None = None


def look_up(address: str, unique_message_id: str, *, domain: str | None = None) -> list[KnownId]:
    """What each domain of a store knows of an id, or each of one name. Nothing is changed, and nobody waits.

    `SettingsError` if there is no such domain; `StoreError` as with `receiver.durable.audit.look`.
    """
    url = _checked(address, unique_message_id)
    with _logs(url, read_only, domain) as logs:
        known = []
        for log in logs:
            state = log.begin_reading()
            known.append(_known(log, _cache_of(log, state), state, unique_message_id))
            log.rollback()
        return known


def forget(address: str, unique_message_id: str, *, domain: str | None = None) -> list[str]:
    """Forget an id in the domains of a store, or in those of one name; the names of those that remembered it.

    Each domain is done in a transaction of its own, for which its receivers wait.

    Raises:
        SettingsError: There is no such domain, or one goes by a policy that can't forget a single id. Nothing has changed.
        StoreError: As with `receiver.durable.audit.look`.
    """
    url, forgotten = _checked(address, unique_message_id), []
    with _logs(url, lambda url: open_store_engine(url, StoreSettings()), domain) as logs:
        for log in logs:
            state = log.begin()
            if forget_in(log, _cache_of(log, state), state, unique_message_id):
                forgotten.append(state.domain_name)
            log.commit()
            log.give_back_space()
    return forgotten


def forget_in(log: DomainLog, cache: DomainCache, state: DomainState, unique_message_id: str) -> bool:
    """Forget an id in one domain, whose log is locked and followed; whether it was remembered. The caller commits.

    Its receipts stay, under no id: so each other id is forgotten when it would have been. Every process then reads the log
    anew, for its rows have changed.
    """
    policy = cache.policy
    if not _remembers(policy, unique_message_id):
        return False
    if not policy.keeps_ids:
        raise SettingsError(
            f"{state.domain_name!r:.80} goes by {policy}, which keeps no single ids, so it can't forget one",
            hint="name another domain (--domain), or have the message sent with a new id",
        )
    _, gone = cache.take_deletable((), all_of_them=True)
    left = {row.seq for row in _rows_of(log, state, unique_message_id)}.difference(gone)
    after = state._replace(last_writer=new_number(), clock_us=policy.clock_us, generation=state.generation + 1)
    log.record(after, Changes(gone, forgotten=sorted(left)), before=state)
    cache.drop()
    return True


def _checked(address: str, unique_message_id: str) -> URL:
    if not unique_message_id:
        raise SettingsError("the id is empty", hint="messages without an id are delivered each time they come")
    return store_url(address)


@contextmanager
def _logs(url: URL, open_engine: Callable[[URL], Engine], domain: str | None) -> Iterator[Iterator[DomainLog]]:
    """The logs of the domains, one after the other, which share an engine."""
    numbers = domains_named(url, domain)
    engine = open_engine(url)

    def one_by_one() -> Iterator[DomainLog]:
        for number in numbers:
            log = database_of(url).log(engine, StoreSettings(), number)
            try:
                yield log
            finally:
                log.rollback()
                log.close()

    try:
        with translated(url):
            yield one_by_one()
    finally:
        engine.dispose()


def _cache_of(log: DomainLog, state: DomainState) -> DomainCache:
    cache = DomainCache(Retirement(ReceiverSettings()))
    cache.follow(log, state)
    return cache


def _remembers(policy: Policy, unique_message_id: str) -> bool:
    try:
        return unique_message_id in policy
    except IdFormatError:  # no id that it could have judged
        return False


def _rows_of(log: DomainLog, state: DomainState, unique_message_id: str) -> list[ReceiptRow]:
    rows = (zip(*columns, strict=True) for columns in log.rows_after(0, state.last_seq))
    return [row for page in rows for row in map(ReceiptRow._make, page) if row.unique_message_id == unique_message_id]


def _known(log: DomainLog, cache: DomainCache, state: DomainState, unique_message_id: str) -> KnownId:
    policy = cache.policy
    if not _remembers(policy, unique_message_id):
        return KnownId(state.domain_name)
    tier = policy.tier_of(unique_message_id) if isinstance(policy, TwoTierDetector) else None
    rows = _rows_of(log, state, unique_message_id)
    known = KnownId(state.domain_name, is_remembered=True, tier=tier)
    if not rows:  # one number stands for all of a sender's ids
        return known
    newest = rows[-1]
    first_us = newest.received_at_us if newest.first_received_at_us is None else newest.first_received_at_us
    return known._replace(
        first_received_at_us=first_us,
        latest_received_at_us=newest.received_at_us,
        message_source_id=newest.message_source_id,
    )
