"""Alembic, run on the migrations of the package; loaded only where a store isn't of the current version."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection

from receiver.errors import SettingsError, StoreVersionError
from receiver.store.losses import losses
from receiver.store.tables import MIGRATIONS

__all__ = ["check_known", "losses_between", "run", "target"]


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
    """What it loses to go from one version back to another, in words; on the way to a newer one that is nothing."""
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
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
