"""Alembic, run on the migrations of the package; loaded only where a store isn't of the current version.

What is lost where a store goes back to an older version is declared by the migrations, in words and as rows to count. A
migration has one or both of these, whose words hold `{}` for how many, and whose rows stand behind
`SELECT count(*) FROM`, or are a SELECT of their number:

- `LOSES`: the command names these losses and needs a yes.
- `KEPT_BY_NEWER_ONLY`: without these the older version would give wrong verdicts or lose messages. So the step is
  refused, by a call of `keep_all` in `downgrade`; only on the way to base are they named like the others.

What counts 0 isn't lost. A migration that declares neither counts as losing all that it added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from alembic import command, context, op
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text

from receiver.errors import SettingsError, StoreError, StoreVersionError
from receiver.store.tables import MIGRATIONS


def check_known(version: str, address: str) -> None:
    if version not in _versions():
        raise StoreVersionError(
            f"{address}: its tables are of version {version}, which this version of the package doesn't know",
            hint="use a version of the package that is at least as new",
        )


def target(revision: str) -> str | None:
    """The version that a name stands for: `head` for the newest, `base`, None, for no store at all."""
    versions = _versions()
    names = {"base": None, **{version: version for version in versions}, "head": versions[-1]}
    if revision not in names:
        raise SettingsError(f"there is no version {revision!r:.80}", hint=f"there are {', '.join(names)}")
    return names[revision]


def run(connection: Connection, before: str | None, after: str | None, address: str) -> None:
    """Migrate within the transaction that the connection is in."""
    if before is not None:
        check_known(before, address)
    config = _config()
    config.attributes["connection"] = connection
    order = [None, *_versions()]
    if order.index(after) < order.index(before):
        command.downgrade(config, after or "base")
    else:
        command.upgrade(config, after or "base")


def losses_between(connection: Connection, before: str | None, after: str | None, address: str) -> list[str]:
    """The losses of going from one version back to another, in words; none on the way to a newer one."""
    if before is None:
        return []
    check_known(before, address)
    order = [None, *_versions()]
    back = _scripts()[order.index(after) : order.index(before)]
    return losses(connection, back[::-1], to_base=after is None)


def _versions() -> list[str]:
    return [script.revision for script in _scripts()]


def _scripts() -> list[Script]:
    """Oldest first."""
    return [*ScriptDirectory.from_config(_config()).walk_revisions()][::-1]


def _config() -> Config:
    config = Config()
    # Its values are those of an ini file, where a % must be doubled.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def losses(connection: Connection, steps: Iterable[Script], *, to_base: bool) -> list[str]:
    """The losses that the command names before these steps back, such as `1,000 parked messages`."""
    return [words for step in steps for words in _counted(connection, _declared(step, to_base=to_base))]


def keep_all(kept_by_newer: Mapping[str, str], newer: str, older: str) -> None:
    """Refuse a step that would lose any of this, with `StoreError`, unless no table is to be left."""
    if context.get_revision_argument() is None:  # on the way to base
        return
    for words in _counted(op.get_bind(), kept_by_newer):
        raise StoreError(f"version {older} can't hold {words}", hint=f"keep version {newer}, or delete them")


def _declared(step: Script, *, to_base: bool) -> dict[str, str]:
    asked, refused = (getattr(step.module, name, None) for name in ("LOSES", "KEPT_BY_NEWER_ONLY"))
    if asked is None and refused is None:
        return {f"what version {step.revision} added to {{}} domains": "receiver_domain"}
    return {**(asked or {}), **(refused or {} if to_base else {})}


def _counted(connection: Connection, rows_by_words: Mapping[str, str]) -> Iterator[str]:
    for words, rows in rows_by_words.items():
        counted = rows if rows.startswith("SELECT ") else f"SELECT count(*) FROM {rows}"  # noqa: S608 - a migration's own words
        count = connection.scalar(text(counted))
        if count:
            yield words.format(f"{count:,}")
