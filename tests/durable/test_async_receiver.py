"""A receiver in an event loop: its own batches, and transactions joined by each driver."""

from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession

from receiver import Receiver
from receiver.durable.metrics import export
from receiver.errors import BatchRejectedError, ClosedError, SettingsError, StoreError
from tests.durable.async_opened import engine_for, opened, orders_and_engine, run, send
from tests.durable.opened import DUPLICATE, MEMORY, NEW, UndoError, remembered
from tests.durable.opened import opened as opened_plainly
from tests.durable.opened import send as send_plainly
from tests.stores import engine_of, execute, rows_of

pytestmark = pytest.mark.thinned(3)

TABLE = "CREATE TABLE effect (body VARCHAR(100))"
EFFECT = text("INSERT INTO effect VALUES (:body)")


def test_own_batches(any_url):
    async def main():
        async with await opened(any_url) as orders:
            async with orders.batch() as batch:
                assert (await batch.receive("a", "s")).verdict is NEW
                decisions = await batch.receive_many((f"{n % 600}", "s", 0) for n in range(1_200))
            assert [decision.verdict for decision in decisions] == [NEW] * 600 + [DUPLICATE] * 600
            with suppress(UndoError):
                async with orders.batch() as batch:
                    await batch.receive("b")
                    raise UndoError
            assert await send(orders, "a", "b") == [DUPLICATE, NEW]
            status = await orders.status()
            assert (status.rx, status.rDupsDet, status.batches_rolled_back) == (1_203, 601, 1)
        assert orders.is_closed
        with pytest.raises(ClosedError):
            await send(orders, "c")
        await orders.close()

    run(main())


def test_rows_of_the_application_go_with_the_ids(url, driver):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            execute(url, TABLE)
            for fails in (True, False, False):
                with suppress(UndoError):
                    async with orders.batch() as batch:
                        if (await batch.receive("own")).deliver:
                            await batch.run_sync(lambda connection: connection.execute(EFFECT, {"body": "own"}))
                        if fails:
                            raise UndoError
                with suppress(UndoError):
                    async with AsyncSession(engine) as session, session.begin():
                        async with orders.batch(session) as batch:
                            if (await batch.receive("joined")).deliver:
                                await session.execute(EFFECT, {"body": "joined"})
                                await batch.run_sync(lambda connection: connection.execute(EFFECT, {"body": "sync"}))
                        if fails:
                            raise UndoError
            assert (await orders.status()).rDupsDet == 2

    run(main())
    assert rows_of(url, "effect") == 3
    assert remembered(url, "own", "joined", "other") == ["own", "joined"]


def test_a_joined_batch_is_recorded_with_the_callers_commit_and_not_without(url, driver):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            async with engine.connect() as connection:
                assert await send(orders, "a", "b", connection=connection) == [NEW, NEW]
                assert await send(orders, "a", connection=connection) == [DUPLICATE]
                await connection.rollback()
                assert await send(orders, "a", connection=connection) == [NEW]
                with suppress(UndoError):
                    async with orders.batch(connection) as batch:
                        await batch.receive("undone")
                        raise UndoError
                async with connection.begin_nested() as savepoint:
                    assert await send(orders, "c", connection=connection) == [NEW]
                    await savepoint.rollback()
                await connection.commit()
            assert await send(orders, "a", "b", "c", "undone") == [DUPLICATE, NEW, NEW, NEW]

    run(main())


def test_many_rows_are_appended_read_and_deleted_by_each_driver(url, driver):
    """More rows than one statement takes, and so many that rows are forgotten."""

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine), await opened(url) as other:
            for first in range(0, 12_000, 3_000):
                ids = [(f"{n}", f"s{n % 3}", n) for n in range(first, first + 3_000)]
                async with engine.begin() as connection, orders.batch(connection) as batch:
                    assert {decision.verdict for decision in await batch.receive_many(ids)} == {NEW}
                async with engine.begin() as connection, other.batch(connection) as batch:  # it reads the new rows
                    assert {decision.verdict for decision in await batch.receive_many(ids)} == {DUPLICATE}
            async with engine.begin() as connection, other.batch(connection) as batch:
                await batch.receive("much later", received_at_us=10**12)
                await batch.receive_many([(f"x{n}", "s0", 10**12) for n in range(6_000)])
                await batch.receive("later still", received_at_us=10**13)

    run(main())
    assert rows_of(url, "receiver_receipt") < 2 * 6_000 + 3 * 2_000


@pytest.mark.parametrize("way", ["own", "joined", "psycopg", "asyncpg", "converted"])
def test_ids_are_exact_where_strings_have_escapes(fresh_postgres_url, way):
    """psycopg follows this setting, which is for programs of the past, in text that it sends."""
    url, ids = fresh_postgres_url, [f"{n}" for n in range(20)]  # more than fit one statement
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        name = make_url(url).database
        connection.execute(text(f"ALTER DATABASE {name} SET standard_conforming_strings = off"))

    async def main():
        async with orders_and_engine(url, way) as (orders, engine), engine.begin() as connection:
            assert await send(orders, *ids, connection=connection) == [NEW] * 20

    if way in {"psycopg", "asyncpg"}:
        run(main())
    else:
        with opened_plainly(url) as orders, engine.begin() as connection:
            assert send_plainly(orders, *ids, connection=connection if way == "joined" else None) == [NEW] * 20
    with opened_plainly(url, concurrent=way == "converted") as another:
        assert send_plainly(another, *ids) == [DUPLICATE] * 20


def test_it_judges_like_a_receiver_beside_it(url, driver):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            with Receiver.open(url, connection_id="broker", destination="queue://orders") as plain:
                for n in range(6):
                    with plain.batch() as batch:
                        expected = NEW if n == 0 else DUPLICATE
                        assert batch.receive("shared").verdict is expected
                        assert batch.receive(f"plain {n}").verdict is NEW
                    async with engine.begin() as connection:
                        assert await send(orders, "shared", f"plain {n}", connection=connection) == [DUPLICATE] * 2
                    assert await send(orders, f"plain {n}", f"own {n}") == [DUPLICATE, NEW]

    run(main())


# Refusals


def test_what_is_no_connection_for_it(url, driver):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            closed = await engine.connect()
            await closed.close()
            with engine_of(url).connect() as plain:
                for given in (plain, "x", closed, engine.connect()):
                    with pytest.raises(SettingsError):
                        await send(orders, "a", connection=given)
            async with engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(SettingsError, match="AUTOCOMMIT"):
                    await send(orders, "a", connection=connection)
            assert await send(orders, "a") == [NEW]

    run(main())


def test_a_connection_of_another_database_is_refused(sqlite_url, fresh_postgres_url):
    async def main():
        async with orders_and_engine(sqlite_url, "aiosqlite") as (orders, _):
            engine = engine_for(fresh_postgres_url, "asyncpg")
            async with engine.connect() as connection:
                with pytest.raises(SettingsError, match="postgresql"):
                    await send(orders, "a", connection=connection)
        async with await opened(MEMORY) as orders, engine.connect() as connection:
            with pytest.raises(SettingsError, match="no transactions to join"):
                await send(orders, "a", connection=connection)

    run(main())


def test_what_open_refuses(tmp_path):
    async def main():
        with pytest.raises(SettingsError):
            await opened("redis://x")
        with pytest.raises(StoreError):
            await opened(f"sqlite:///{tmp_path}/no/r.db")

    run(main())


def test_a_rejected_batch_and_events(sqlite_url):
    async def main():
        events = []
        options = {"policy": "artemis", "reject_batches": True, "on_duplicate": events.append}
        async with orders_and_engine(sqlite_url, "aiosqlite", **options) as (orders, engine):
            await send(orders, "a")
            with pytest.raises(BatchRejectedError):
                await send(orders, "a", "b")
            with pytest.raises(BatchRejectedError):
                async with engine.begin() as connection:
                    await send(orders, "b", "a", connection=connection)
            assert await send(orders, "b") == [NEW]
        async with orders_and_engine(sqlite_url, "aiosqlite", domain="name:x", on_duplicate=events.append) as (
            orders,
            engine,
        ):
            async with engine.begin() as connection:
                await send(orders, "a", "a", connection=connection)
            assert [event.unique_message_id for event in events] == []
            await send(orders)
            assert [event.unique_message_id for event in events] == ["a"]

    run(main())


def test_its_figures_are_exported(sqlite_url):
    registry = CollectorRegistry()

    async def main():
        async with await opened(sqlite_url) as orders:
            export(orders, registry)
            await send(orders, "a", "a")
            assert registry.get_sample_value("receiver_receipts_total", {"domain": orders.domain}) == 2

    run(main())
