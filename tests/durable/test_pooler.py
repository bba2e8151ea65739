"""A real PgBouncer. Only `pool_mode=session` is promised to work, but no other mode may do harm."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from examples.demo.processes import HOST, Server, free_ports
from receiver.errors import SettingsError, StoreError
from tests.durable.opened import DUPLICATE, NEW, opened, send, sizes
from tests.patience import until
from tests.postgres import shown
from tests.stores import rows_of

pytestmark = pytest.mark.skipif(
    not shutil.which("pgbouncer"), reason="no pgbouncer (Debian, Ubuntu: apt install pgbouncer)"
)

RECEIVERS = 4
BATCHES, BATCH = 25, 4
SERVER_CONNECTIONS = {"session": 50, "transaction": 3, "statement": 3}
"""So few that a client's transactions move between them."""


@contextmanager
def pooler(url: str, mode: str, **limits: int | str) -> Iterator[str]:
    """The address of the database through a new PgBouncer."""
    database, (port,) = make_url(url), free_ports(6432)
    host = database.host or database.query["host"]
    settings = {
        "listen_addr": HOST,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": SERVER_CONNECTIONS[mode],
        **limits,
    }
    if not os.geteuid():  # it refuses root, and the server's socket is for its owner
        settings["user"] = Path(host).owner() if host.startswith("/") else "nobody"
    with tempfile.TemporaryDirectory(prefix="receiver-pooler-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "pgbouncer.ini"
        pooled = f"* = host={host} port={database.port or 5432} user={database.username}\n[pgbouncer]\n"
        lines = (f"{name} = {value}\n" for name, value in settings.items())
        file.write_text("[databases]\n" + pooled + "".join(lines), encoding="utf-8")
        server = Server(Path(folder) / "said.log")
        try:
            server.launch(["pgbouncer", str(file)], lambda said: "process up" in said)
            yield shown(database.set(host=HOST, port=port, query={}))
        finally:
            server.close()


@pytest.mark.parametrize(
    ("mode", "is_concurrent"), [("session", False), ("session", True), ("transaction", False)], ids=str
)
def test_each_message_takes_effect_once(fresh_postgres_url, mode, is_concurrent):
    ids = [f"order {number}" for number in range(BATCHES * BATCH)]
    with (
        pooler(fresh_postgres_url, mode) as url,
        opened(url, concurrent=is_concurrent, settings=sizes(1_000, 0)) as first,
    ):
        with first.batch() as batch:
            batch.connection.execute(text("CREATE TABLE effects (id text)"))

        def receive_all(_: int) -> None:
            with opened(url, concurrent=is_concurrent) as receiver:
                for start in range(0, len(ids), BATCH):
                    batch_ids = ids[start : start + BATCH]
                    with receiver.batch() as batch:
                        decisions = batch.receive_many([(id_, None, 0) for id_ in batch_ids])
                        for id_, decision in zip(batch_ids, decisions, strict=True):
                            if decision.deliver:
                                batch.connection.execute(text("INSERT INTO effects VALUES (:id)"), {"id": id_})
                    receiver.status()

        with ThreadPoolExecutor(RECEIVERS) as pool:
            list(pool.map(receive_all, range(RECEIVERS)))
        with first.batch() as batch:
            effects = batch.connection.scalars(text("SELECT id FROM effects")).all()
    assert sorted(effects) == sorted(ids)


def test_concurrent_receivers_need_sessions(fresh_postgres_url):
    """Otherwise a process that has ended may keep the lock of folding for as long as the pooler keeps its
    connection."""
    with pooler(fresh_postgres_url, "transaction") as url, opened(url) as receiver:
        send(receiver, "a")
        with pytest.raises(SettingsError, match="another process of the server for each transaction"):
            opened(url, concurrent=True)
        assert send(receiver, "a") == [DUPLICATE]  # the domain's kind is as before


@pytest.mark.parametrize("limits", [{"default_pool_size": 1, "query_wait_timeout": 1}, {"max_client_conn": 1}])
def test_a_pooler_whose_connections_are_all_in_use_is_named(fresh_postgres_url, limits):
    """The server is there, and takes others: to wait for it would be in vain."""
    with pooler(fresh_postgres_url, "session", **limits) as url, opened(url) as receiver:
        send(receiver, "a")
        with pytest.raises(StoreError, match="PgBouncer has no connection left"):
            opened(url)


def test_a_database_that_the_pooler_has_disabled_needs_no_creation(fresh_postgres_url):
    with pooler(fresh_postgres_url, "session", admin_users="postgres") as url, opened(url) as receiver:
        admin = make_url(url).set(drivername="postgresql", database="pgbouncer")
        with psycopg.connect(shown(admin), autocommit=True) as connection:
            connection.execute(f"DISABLE {make_url(url).database}")
        with pytest.raises(StoreError, match="PgBouncer has the database disabled"):
            opened(url)
        assert send(receiver, "a") == [NEW]  # who is connected stays so


def test_a_pooler_that_ends_a_long_transaction_can_be_reached(fresh_postgres_url):
    with pooler(fresh_postgres_url, "session", idle_transaction_timeout=1) as url, opened(url) as receiver:

        def receive_late() -> None:
            with receiver.batch() as batch:
                process = batch.connection.scalar(text("SELECT pg_backend_pid()"))
                until(lambda: not rows_of(fresh_postgres_url, f"pg_stat_activity WHERE pid = {process}"))
                batch.receive("a")

        with pytest.raises(StoreError, match="took too long: idle transaction timeout"):
            receive_late()
        assert send(receiver, "a") == [NEW]


def test_a_pooler_that_allows_no_transactions_is_named(fresh_postgres_url):
    with pooler(fresh_postgres_url, "statement") as url, pytest.raises(StoreError) as caught:
        opened(url)
    assert caught.value.hint == "PgBouncer needs pool_mode=session"


def test_a_statement_that_was_prepared_elsewhere_is_an_error_that_says_so(fresh_postgres_url):
    """So it is in a transaction of a caller whose driver prepares statements, as psycopg does by default."""
    with pooler(fresh_postgres_url, "transaction") as url, opened(url) as receiver:
        engine = create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": 0})
        with engine.connect() as caller, engine.connect() as other:

            def receive() -> None:
                with caller.begin():
                    send(receiver, "a", connection=caller)

            receive()
            with other.begin():
                other.execute(text("SELECT 1"))  # it takes the server connection that the caller had
                with pytest.raises(StoreError) as caught:
                    receive()
    assert caught.value.hint == "PgBouncer needs pool_mode=session"
