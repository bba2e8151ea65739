"""Checks whether a database has our tables, and of which version; makes or migrates them if need be.

Nothing is changed before a check has shown that the tables are ours. The check takes no lock; SQLAlchemy's reflection
would take some on PostgreSQL. So opening an up-to-date store waits for nobody. Alembic is loaded only for another version.

Each migration declares what is lost when a store goes back from its version to the one before, as a mapping from words to SQL.
The words have the counted noun in braces, in the singular: `{parked message}`. The SQL is a table with an optional WHERE, whose
rows are counted, or a complete SELECT of the count. A migration has one or both of these mappings:

- `LOSES`: the command names these losses and needs a yes.
- `KEPT_BY_NEWER_ONLY`: without these rows the older version would give wrong verdicts or lose messages. So `downgrade`
  refuses the step, by calling `keep_all`. On the way to base, the command names these losses like the others.

A loss of 0 rows isn't named. A migration that declares neither mapping counts as losing all that it added.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import URL, Connection, Engine, text

from receiver.closing import Mutex
from receiver.errors import SettingsError, StoreBusyError, StoreError, StoreVersionError
from receiver.quantities import count
from receiver.retrying import Backoff, until_done
from receiver.settings import StoreSettings
from receiver.store.databases import database_of, read_only, translated
from receiver.store.databases.database import OTHER_DATABASE, shown
from receiver.store.tables import METADATA, MIGRATIONS, REVISION, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import Script

_LOGGER = logging.getLogger("receiver")
_BACKOFF = Backoff(0.1, 0.1)
_WAY_TO_HIDDEN = "mind the search_path, and grant USAGE ON SCHEMA"
_SQL_VERSIONS = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - our own name
_migrating = Mutex()
"""Alembic keeps the migration under way in module variables, so only one thread at a time may migrate."""


class Migrated(NamedTuple):
    """The versions before and after; None for no store."""

    before: str | None
    after: str | None


def open_store_engine(url: URL, settings: StoreSettings) -> Engine:
    """An engine on an up-to-date store, which is made or upgraded first if need be.

    Raises `StoreError` if the database can't be reached or is damaged, or if its tables aren't ours; `StoreVersionError` if a
    newer version of the package made them. Then nothing has changed.
    """
    if _version_at(url, settings) != REVISION:
        _migrate(url, settings, "head")
    return database_of(url).writable(url, settings)


def examined(url: URL) -> Engine:
    """An engine that only reads, on a store that exists and is up to date; `StoreError` otherwise."""
    version = _version_at(url)
    if version is None:
        hidden = _hidden_at(url)
        there = f"there is one in the schema {hidden}: {_WAY_TO_HIDDEN}"
        hint = there if hidden else "a receiver makes it when it opens, or receiver migrate"
        raise StoreError(f"{shown(url)}: there is no store", hint=hint)
    if version != REVISION:
        raise StoreVersionError(
            f"{shown(url)}: its tables are of version {version}, older than {REVISION}",
            hint="receiver migrate upgrades",
        )
    return read_only(url)


def losses(url: URL, revision: str) -> list[str]:
    """The losses of bringing a store to an older version, each with its count: `1,000 parked messages`.

    Only reads the store. Errors are those of `migrate`.
    """
    after, before = _target(revision), _version_at(url)
    if before is None:
        return []
    with translated(url), read_only(url).connect() as connection:
        return _losses_between(connection, before, after)


def migrate(url: URL, revision: str = "head", *, may_lose: bool = True) -> Migrated:
    """Bring a store to a version, making the store if need be; `base` removes it.

    Raises `SettingsError` if there is no such version, `StoreError` for a loss that isn't allowed, and the errors of
    `open_store_engine`.
    """
    before = _version_at(url)
    if before == _target(revision):
        return Migrated(before, before)
    return _migrate(url, StoreSettings(), revision, may_lose=may_lose)


@contextmanager
def sole_migrator(url: URL, settings: StoreSettings) -> Iterator[Connection]:
    """A connection in a transaction that other migrations wait for; it is committed at the end."""
    _version_at(url, settings)  # so that a file that isn't ours isn't even switched to a write-ahead log
    with translated(url), _migrating, database_of(url).writable(url, settings).begin() as connection:
        database_of(url).keep_migrators_out(connection)
        yield connection


def _migrate(url: URL, settings: StoreSettings, revision: str, *, may_lose: bool = False) -> Migrated:
    return until_done(
        lambda: _migrate_once(url, settings, revision, may_lose=may_lose),
        is_passing=lambda error: isinstance(error, StoreBusyError),
        backoff=_BACKOFF,
        patience_secs=settings.lock_timeout_secs,
    )


def _migrate_once(url: URL, settings: StoreSettings, revision: str, *, may_lose: bool) -> Migrated:
    after = _target(revision)
    with sole_migrator(url, settings) as connection:
        database_of(url).wait_briefly_for_tables(connection)
        # Once more, because others may have migrated it before the lock was ours.
        before = _version(connection)
        lost = [] if may_lose else _losses_between(connection, before, after)
        if lost:
            raise StoreError(
                f"{shown(url)}: going back would lose {', '.join(lost)} by now", hint="ask again; nothing was changed"
            )
        _run(connection, before, after)
        _version(connection)  # raises, and so rolls back, unless the tables are ours now
        if before is None:
            _warn_of_new(connection)
    return Migrated(before, after)


def _warn_of_new(connection: Connection) -> None:
    """Warn if commits to a new store may be lost, or if it may be made by mistake."""
    database, address = database_of(connection), shown(connection.engine.url)
    if why := database.why_unsafe(connection):
        _LOGGER.warning("%s: %s", address, why)
    if schemas := database.hidden_stores(connection):
        _LOGGER.warning(
            "%s: this is a new store. It knows no id of that in the schema %s, and hands on nothing that waits there. If you meant "
            "that one, %s",
            address,
            schemas,
            _WAY_TO_HIDDEN,
        )


def _version_at(url: URL, settings: StoreSettings | None = None) -> str | None:
    """The version of the store at an address; None if there is none."""
    if not database_of(url).is_there(url):
        return None
    with translated(url), read_only(url, settings).connect() as connection:
        return _version(connection)


def _hidden_at(url: URL) -> str:
    """The schemas of stores that the names of tables at an address don't lead to; empty without any."""
    if not database_of(url).is_there(url):
        return ""
    with translated(url), read_only(url).connect() as connection:
        return database_of(url).hidden_stores(connection)


def _version(connection: Connection) -> str | None:
    """The version of the store in a database, None without a store; `StoreError` if tables of our names are newer, or not ours."""
    database, address = database_of(connection), shown(connection.engine.url)
    columns_of: dict[str, dict[str, str]] = {}
    for table, column, kind, survives_crashes in connection.exec_driver_sql(database.sql_columns):
        if not survives_crashes:
            raise StoreError(
                f"{address}: the table {table} is UNLOGGED, so a crash of the server empties it",
                hint=f"ALTER TABLE {table} SET LOGGED",
            )
        columns_of.setdefault(table, {})[column] = kind
    stamp = columns_of.pop(VERSION_TABLE, None)
    if stamp is not None and set(stamp) != {"version_num"}:
        raise StoreError(f"{address}: {VERSION_TABLE} there has other columns than version_num", hint=OTHER_DATABASE)
    versions = [] if stamp is None else connection.scalars(text(_SQL_VERSIONS)).all()
    # The tables of another version differ from those declared here. Only the migrations know them.
    if len(versions) == 1 and versions[0] != REVISION:
        return _known(str(versions[0]), address)
    _check_tables(columns_of, _declared_columns(database.name), address, complete=bool(versions))
    if len(versions) > 1 or (columns_of and not versions):
        raise StoreError(
            f"{address}: {VERSION_TABLE} should hold one version beside {', '.join(sorted(columns_of))}, not {len(versions)}",
            hint="restore a copy, or use another database",
        )
    return REVISION if versions else None


@cache
def _declared_columns(kind: str) -> dict[str, dict[str, str]]:
    """The columns of each table, and their types as this kind of database spells them."""
    dialect = URL.create(kind).get_dialect()()
    return {
        table.name: {column.name: column.type.compile(dialect) for column in table.columns}
        for table in METADATA.tables.values()
    }


def _check_tables(
    columns_of: dict[str, dict[str, str]], declared: dict[str, dict[str, str]], address: str, *, complete: bool
) -> None:
    """Raise `StoreError` unless the tables are as declared. Unless they must be `complete`, some may be absent."""
    for table, wanted in declared.items():
        if table in columns_of:
            if differing := _differences(columns_of[table], wanted):
                problem = f"the table {table} is another's: it {'; '.join(differing)}"
                raise StoreError(f"{address}: {problem}", hint=OTHER_DATABASE)
        elif complete:
            raise StoreError(f"{address}: the table {table} is gone", hint="restore a copy")


def _differences(columns: dict[str, str], wanted: dict[str, str]) -> list[str]:
    lacking = [name for name in wanted if name not in columns]
    extra = [name for name in columns if name not in wanted]
    return [
        *([f"lacks {', '.join(lacking)}"] if lacking else []),
        *([f"has {', '.join(extra)}"] if extra else []),
        *(
            f"has {name} of type {columns[name]}, not {kind}"
            for name, kind in wanted.items()
            if name in columns and columns[name] != kind
        ),
    ]


def _versions() -> list[str | None]:
    """The versions, oldest first: None is no store."""
    return [None, *(script.revision for script in _scripts(MIGRATIONS))]


@cache
def _scripts(folder: Path) -> list[Script]:
    """The migrations, oldest first. They are read once per process."""
    from alembic.script import ScriptDirectory

    return [*ScriptDirectory.from_config(_config(folder)).walk_revisions()][::-1]


def _config(folder: Path) -> Config:
    from alembic.config import Config

    config = Config()
    # Alembic reads its options as those of an ini file, where a % must be doubled.
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _known(version: str, address: str) -> str:
    if version not in _versions():
        raise StoreVersionError(
            f"{address}: its tables are of version {version}, which this version of the package doesn't know",
            hint="use a version of the package that is at least as new, or have that one take the tables back:"
            f" receiver migrate URL --revision {REVISION}",
        )
    return version


def _target(revision: str) -> str | None:
    """The version that a name stands for: the newest for `head`; None, which is no store, for `base`."""
    versions = _versions()
    names = {version or "base": version for version in versions} | {"head": versions[-1]}
    if revision not in names:
        raise SettingsError(f"there is no version {revision!r:.80}", hint=f"there are {', '.join(names)}")
    return names[revision]


def _run(connection: Connection, before: str | None, after: str | None) -> None:
    """Migrate within the connection's transaction."""
    from alembic import command

    config = _config(MIGRATIONS)
    config.attributes["connection"] = connection
    order = _versions()
    is_back = order.index(after) < order.index(before)
    (command.downgrade if is_back else command.upgrade)(config, after or "base")


def _losses_between(connection: Connection, before: str | None, after: str | None) -> list[str]:
    """The losses of going from one version back to another, in words; none on the way to a newer one."""
    order = _versions()
    back = _scripts(MIGRATIONS)[order.index(after) : order.index(before)]
    declared: dict[str, str] = {}
    for step in back[::-1]:
        for words, rows in _declared(step, to_base=after is None).items():
            declared.setdefault(words, rows)  # if two steps name the same loss, the newer one knows how to count it
    return list(_counted(connection, declared))


def _declared(step: Script, *, to_base: bool) -> dict[str, str]:
    asked, refused = (getattr(step.module, name, None) for name in ("LOSES", "KEPT_BY_NEWER_ONLY"))
    if asked is None and refused is None:
        return {f"what version {step.revision} added to {{domain}}": "receiver_domain"}
    return {**(asked or {}), **(refused or {} if to_base else {})}


def _counted(connection: Connection, rows_by_words: Mapping[str, str]) -> Iterator[str]:
    for words, rows in rows_by_words.items():
        counted = rows if rows.startswith("SELECT ") else f"SELECT count(*) FROM {rows}"  # noqa: S608 - a migration's own words
        number = connection.scalar(text(counted))
        if number:
            before, noun, after = re.split("[{}]", words)
            yield f"{before}{count(number, noun)}{after}"


def keep_all(kept_by_newer: Mapping[str, str], newer: str, older: str) -> None:
    """Refuse a step that would lose any of these rows, by `StoreError`, unless all tables are to be removed."""
    from alembic import context, op

    if context.get_revision_argument() is None:  # on the way to base
        return
    connection = op.get_bind()
    tables = sorted(set(re.findall(r"\breceiver_\w+", " ".join(kept_by_newer.values()))))
    database_of(connection).lock_tables(connection, tables)  # an open transaction may add some
    for words in _counted(connection, kept_by_newer):
        raise StoreError(
            f"version {older} can't hold {words}",
            hint=f"keep version {newer}; or first let messages be delivered, and open concurrent domains without"
            " concurrent=True",
        )
