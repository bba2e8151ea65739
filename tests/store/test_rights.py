"""What a PostgreSQL user with few rights can do, by the statements in `docs/operations.md`, and what not."""

import uuid
from contextlib import contextmanager

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError

from receiver import Receiver
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.durable.audit import audit
from receiver.errors import StoreError
from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.store.databases import store_url
from receiver.store.schema import migrate
from receiver.store.tables import METADATA
from tests.bridge.bridged import message
from tests.brokers.memory import MemoryBroker
from tests.docs.markdown import blocks
from tests.stores import execute, rows_of

GRANTS = [line for line in blocks("docs/operations.md", "sql", "The database")[0].splitlines() if line]
DOMAIN = {"connection_id": "broker", "destination": "orders"}


def receive(url, _folder, **how):
    with Receiver.open(url, **DOMAIN, **how) as receiver, receiver.batch() as batch:
        batch.receive("1")


def record(url, folder):
    receive(url, folder, record=folder / "log.parquet")


def claim(url, folder):
    receive(url, folder, concurrent=True)


def number(url, _folder):
    with SequenceIdMaker.open(url, message_source_id="desk") as maker:
        maker.next()


def key(url, _folder):
    with DedupKeyMaker.open(url, sender="desk") as maker:
        maker.key_for("order 1")


def bridge(url, _folder):
    broker = MemoryBroker()
    with broker.sink("orders") as sink:
        sink.send([message("1")])
    origin = Origin(lambda: broker.source("orders"), connection_id="broker", destination="orders")
    open_bridge(origin, print, url, BridgeOptions()).run(stop_when_idle_secs=0.1)


NEEDS = {
    "receiver_domain": (receive, record, claim, bridge),
    "receiver_recorded": (record,),
    "receiver_sequence": (number, key),
    "receiver_target": (bridge,),
    "receiver_claim": (claim,),
    "SEQUENCE": (claim,),
    "receiver_alembic_version": (receive, record, claim, number, key, bridge),
}
"""By a word of each statement: the uses that fail without it."""


@contextmanager
def role(url):
    """Gives the store's address for a user without rights in our tables, and a function that grants rights to that
    user."""
    migrate(store_url(url))
    name = f"bridge_{uuid.uuid4().hex}"
    admin = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'few'"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))

        def grant(line):
            connection.execute(text(line.partition(";")[0].replace(" TO bridge", f" TO {name}")))

        try:
            yield make_url(url).set(username=name, password="few").render_as_string(hide_password=False), grant  # noqa: S106
        finally:
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))


@pytest.mark.slow
def test_each_right_is_needed_and_no_other(fresh_postgres_url, tmp_path):
    assert len(GRANTS) == len(NEEDS)
    everything = {use for uses in NEEDS.values() for use in uses}
    for line in GRANTS:
        (word,) = (word for word in NEEDS if word in line.split(" TO ")[0].replace(",", " ").split())
        with role(fresh_postgres_url) as (url, grant):
            for other in GRANTS:
                if other != line:
                    grant(other)
            for use in sorted(everything, key=lambda use: use.__name__):
                if use in NEEDS[word]:
                    with pytest.raises(StoreError, match="the user may not do this") as caught:
                        use(url, tmp_path)
                    assert line.partition("receiver_")[0] in caught.value.hint, (line, use)
            grant(line)
            for use in sorted(everything, key=lambda use: use.__name__):
                use(url, tmp_path)
            assert audit(url).findings == ()


def test_what_it_can_not_do(fresh_postgres_url):
    with role(fresh_postgres_url) as (url, grant):
        for line in GRANTS:
            grant(line)
        receive(url, None)
        with pytest.raises(StoreError, match="the user may not do this") as caught:
            migrate(store_url(url), "base")
        assert "as the user who owns the tables" in caught.value.hint
        for table in METADATA.sorted_tables:
            with pytest.raises(ProgrammingError, match="must be owner"):
                execute(url, f"DROP TABLE {table.name}")
        assert rows_of(fresh_postgres_url, "receiver_receipt") == 1


def test_an_upgrade_leaves_it_its_rights(fresh_postgres_url):
    with role(fresh_postgres_url) as (url, grant):
        migrate(store_url(fresh_postgres_url), "0013")
        for line in GRANTS:
            grant(line)
        migrate(store_url(fresh_postgres_url))
        claim(url, None)
