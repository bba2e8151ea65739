"""What is lost where a store goes back to an older version: as the migrations declare it, in words and as rows to count.

A migration has one or both of these, whose words hold `{}` for how many, and whose rows stand behind `SELECT count(*) FROM`:

- `LOSES`: the command names these losses and needs a yes.
- `NO_PLACE`: the older version would give wrong verdicts or lose messages without it. So the step is refused, by a call of
  `keep_all` in `downgrade`; only on the way to base is it named like the others.

What counts 0 isn't lost. A migration that declares neither counts as losing all that it added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from alembic import context, op
from alembic.script import Script
from sqlalchemy import Connection, text

from receiver.errors import StoreError

__all__ = ["keep_all", "losses"]


def losses(connection: Connection, steps: Iterable[Script], *, to_base: bool) -> list[str]:
    """What is told before these steps back, such as `1,000 parked messages`."""
    return [words for step in steps for words in _counted(connection, _declared(step, to_base=to_base))]


def keep_all(no_place: Mapping[str, str], newer: str, older: str) -> None:
    """Refuse a step that would lose some of this, with `StoreError`, unless no table is to be left."""
    if context.get_revision_argument() is None:
        return
    for words in _counted(op.get_bind(), no_place):
        raise StoreError(f"version {older} has no place for {words}", hint=f"keep version {newer}, or delete them")


def _declared(step: Script, *, to_base: bool) -> dict[str, str]:
    asked, refused = (getattr(step.module, name, None) for name in ("LOSES", "NO_PLACE"))
    if asked is None and refused is None:
        return {f"what version {step.revision} added to {{}} domains": "receiver_domain"}
    return {**(asked or {}), **(refused or {} if to_base else {})}


def _counted(connection: Connection, rows_by_words: Mapping[str, str]) -> Iterator[str]:
    for words, rows in rows_by_words.items():
        count = connection.scalar(text(f"SELECT count(*) FROM {rows}"))  # noqa: S608 - a migration's own words
        if count:
            yield words.format(f"{count:,}")
