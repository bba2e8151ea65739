"""How Alembic reaches a store: over the connection that the package passes to it, otherwise by an address.

`alembic -x url=URL upgrade head`, or the address in the environment variable RECEIVER_URL.
"""

from __future__ import annotations

import os
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from receiver.errors import ReceiverError
from receiver.settings import StoreSettings
from receiver.store.databases import store_url
from receiver.store.schema import sole_migrator
from receiver.store.tables import METADATA, VERSION_TABLE


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Whether Alembic manages an object: it leaves alone the application's own tables in the same database."""
    return kind != "table" or (name is not None and name.startswith("receiver_"))


OPTIONS: dict[str, Any] = {"target_metadata": METADATA, "version_table": VERSION_TABLE, "include_name": is_ours}


def address() -> str:
    given = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("RECEIVER_URL")
    if not given:
        raise CommandError("which store? Say alembic -x url=URL, or set RECEIVER_URL")
    return str(given)


def run(connection: Connection) -> None:
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def run_by_address() -> None:
    try:
        url = store_url(address())
        if context.is_offline_mode():
            context.configure(url=url, literal_binds=True, **OPTIONS)
            if context.get_context().opts["fn"].__name__ == "downgrade":  # only the rows show what it would lose
                raise CommandError("a script can't go back: say receiver migrate URL --revision REV")
            with context.begin_transaction():
                context.run_migrations()
            return
        with sole_migrator(url, StoreSettings()) as connection:
            run(connection)
    except ReceiverError as error:
        raise CommandError(str(error)) from error


handed_over = context.config.attributes.get("connection")
if handed_over is None:
    run_by_address()
else:
    run(handed_over)
