"""From an address and a channel to the log of a domain, made if it is new, resized if other settings are asked for."""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable
from typing import Any, NamedTuple

from sqlalchemy import URL, Engine, select
from sqlalchemy.dialects import postgresql, sqlite

from receiver.domains import Channel, DomainKey
from receiver.durable.cache import resize
from receiver.errors import SettingsError
from receiver.settings import ReceiverSettings, StoreSettings
from receiver.store.engine import is_sqlite, read_only, store_url
from receiver.store.failures import translated
from receiver.store.log import DomainLog, DomainState
from receiver.store.memory_log import MemoryLog
from receiver.store.postgres_log import PostgresLog
from receiver.store.schema import open_store_engine
from receiver.store.sqlite_log import SqliteLog
from receiver.store.tables import domains, to_bytes

__all__ = ["Opened", "new_number", "open_log"]

_MEMORY = "memory://"
_LONGEST_NAME_BYTES = 2_000  # what PostgreSQL can index


class Opened(NamedTuple):
    log: DomainLog
    address: str
    lock: Hashable
    """What a transaction on the log locks."""
    incarnation: int
    """The number of the domain that no other has."""


def new_number() -> int:
    """A number that no other of its kind has, in any process and at any time."""
    return secrets.randbits(62)


def open_log(
    address: str, key: DomainKey, channel: Channel, settings: ReceiverSettings | None, store_settings: StoreSettings
) -> Opened:
    name = key.name(channel)
    kind = key.text.partition(":")[0]
    if len(to_bytes(name)) > _LONGEST_NAME_BYTES:
        raise SettingsError(f"the domain's name has more than {_LONGEST_NAME_BYTES:,} bytes: {name!r:.80}")
    if address == _MEMORY:
        new = _new_state(kind, name, settings or ReceiverSettings())
        state = DomainState(domain_id=0, **new)
        return Opened(MemoryLog(state), address, state.incarnation, state.incarnation)
    url = store_url(address)
    engine = open_store_engine(url, store_settings)
    try:
        with translated(url):
            domain_id = _domain_id(url, engine, kind, name, settings)
            log = (SqliteLog if is_sqlite(url) else PostgresLog)(engine, store_settings, domain_id)
            state = _with_settings(log, settings)
    except BaseException:
        engine.dispose()
        raise
    lock = os.path.realpath(url.database or "") if is_sqlite(url) else state.incarnation
    return Opened(log, url.render_as_string(), lock, state.incarnation)


def _new_state(kind: str, name: str, settings: ReceiverSettings) -> dict[str, Any]:
    """The columns of a new domain, but for its number."""
    window, expiry_us = settings.sizes
    state: dict[str, Any] = dict.fromkeys(DomainState._fields[1:], 0)
    return state | {
        "incarnation": new_number(),
        "domain_key": kind,
        "domain_name": name,
        "policy": "apama",
        "window_size": window,
        "expiry_us": expiry_us,
        "clock_us": None,
    }


def _domain_id(url: URL, engine: Engine, kind: str, name: str, settings: ReceiverSettings | None) -> int:
    the_domain = select(domains.c.domain_id).where(
        domains.c.domain_key == kind, domains.c.domain_name == to_bytes(name)
    )
    # Who only reads needn't wait for a batch under way: a second process can stand by.
    with read_only(url).connect() as connection:
        found: int | None = connection.execute(the_domain).scalar()
    if found is None:
        new = _new_state(kind, name, settings or ReceiverSettings()) | {"domain_name": to_bytes(name)}
        dialect = sqlite if engine.dialect.name == "sqlite" else postgresql
        with engine.begin() as connection:
            # Another process may be about to make it too.
            connection.execute(dialect.insert(domains).values(new).on_conflict_do_nothing())
            found = connection.execute(the_domain).scalar_one()
    return found


def _with_settings(log: SqliteLog | PostgresLog, settings: ReceiverSettings | None) -> DomainState:
    """The domain, given these settings if it has others."""
    try:
        state = log.begin_reading()
        log.rollback()
        if settings is not None and (state.window_size, state.expiry_us) != settings.sizes:
            state = log.begin()
            resize(log, state, settings)
            log.commit()
            log.give_back_space()
    except BaseException:
        log.discard()
        raise
    return state
