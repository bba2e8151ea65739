"""A receiver in an event loop: transactions joined by each driver, tasks that wait, cancel, or lose their loop."""

import asyncio
import gc
import threading
import time
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from receiver import Receiver
from receiver.durable.metrics import export
from receiver.durable.session import _HOLDS
from receiver.errors import BatchRejectedError, ClosedError, SettingsError, StoreBusyError, StoreError
from tests.durable.async_opened import DRIVERS, engine_for, opened, orders_and_engine
from tests.durable.opened import DUPLICATE, LONG_SECS, MEMORY, NEW, UndoError, remembered
from tests.stores import engine_of, execute, rows_of

pytestmark = pytest.mark.thinned(3)

TABLE = "CREATE TABLE effect (body VARCHAR(100))"
EFFECT = text("INSERT INTO effect VALUES (:body)")
LOCKED_SECS = 1.0
WAYS = pytest.mark.parametrize(
    ("driver", "joins"),
    [("aiosqlite", False), ("psycopg", False), ("aiosqlite", True), ("psycopg", True), ("asyncpg", True)],
)
"""Batches in transactions of their own, on either database, and joined ones by each driver."""


@pytest.fixture(params=DRIVERS)
def driver(request):
    return request.param


@pytest.fixture
def url(request, driver):
    return request.getfixturevalue("sqlite_url" if DRIVERS[driver] == "sqlite" else "fresh_postgres_url")


async def send(receiver, *ids, connection=None):
    async with receiver.batch(connection) as batch:
        return [(await batch.receive(id_, received_at_us=0)).verdict for id_ in ids]


def run(coroutine):
    """As a program does; nothing may be left behind, and nothing be said on standard error."""
    said = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
        return await asyncio.wait_for(coroutine, LONG_SECS)

    result = asyncio.run(watched())
    gc.collect()
    assert said == []
    assert [held for held in _HOLDS if held.domain is not None] == []
    return result


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
    """Beyond what one statement takes, and far enough for rows to be forgotten."""

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine), await opened(url) as other:
            for first in range(0, 12_000, 3_000):
                ids = [(f"{n}", f"s{n % 3}", n) for n in range(first, first + 3_000)]
                async with engine.begin() as connection, orders.batch(connection) as batch:
                    assert {decision.verdict for decision in await batch.receive_many(ids)} == {NEW}
                async with engine.begin() as connection, other.batch(connection) as batch:  # it reads what is new
                    assert {decision.verdict for decision in await batch.receive_many(ids)} == {DUPLICATE}
            async with engine.begin() as connection, other.batch(connection) as batch:
                await batch.receive("much later", received_at_us=10**12)
                await batch.receive_many([(f"x{n}", "s0", 10**12) for n in range(6_000)])
                await batch.receive("later still", received_at_us=10**13)

    run(main())
    assert rows_of(url, "receiver_receipt") < 2 * 6_000 + 3 * 2_000


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


# Waiting


async def ticks(until: asyncio.Event) -> tuple[int, float]:
    """How often the loop came round, and the longest time that it didn't."""
    count, longest_secs, last = 0, 0.0, time.monotonic()
    while not until.is_set():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        count, longest_secs, last = count + 1, max(longest_secs, now - last), now
    return count, longest_secs


@WAYS
def test_the_loop_goes_on_while_another_process_keeps_the_domain(url, driver, joins):
    held, seen = threading.Event(), {}

    def keep() -> None:
        with Receiver.open(url, connection_id="broker", destination="queue://orders") as other, other.batch() as batch:
            batch.receive("kept", received_at_us=0)
            held.set()
            time.sleep(LOCKED_SECS)

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            await asyncio.to_thread(thread.start)
            await asyncio.to_thread(held.wait)
            done = asyncio.Event()
            ticking = asyncio.create_task(ticks(done))
            began = time.monotonic()
            if joins:
                async with engine.begin() as connection:
                    assert await send(orders, "kept", connection=connection) == [DUPLICATE]
            else:
                assert await send(orders, "kept") == [DUPLICATE]
            seen["waited_secs"] = time.monotonic() - began
            done.set()
            seen["ticks"], seen["longest_secs"] = await ticking

    thread = threading.Thread(target=keep)
    run(main())
    thread.join()
    print(seen)
    assert seen["waited_secs"] > LOCKED_SECS / 2  # it did have to wait
    assert seen["longest_secs"] < seen["waited_secs"] / 2  # and the loop didn't
    assert seen["ticks"] > 20


@WAYS
def test_of_two_tasks_the_second_waits(url, driver, joins):
    async def main():
        order = []

        async def take(name):
            async with engine.connect() as connection:
                async with orders.batch(connection if joins else None) as batch:
                    order.append(f"{name} begins")
                    verdict = (await batch.receive("a")).verdict
                    await asyncio.sleep(0.05)
                    order.append(f"{name} ends")
                if joins:
                    await send(orders, name, connection=connection)  # while the other waits
                    await connection.commit()
                return verdict

        async with orders_and_engine(url, driver) as (orders, engine):
            verdicts = await asyncio.gather(take("x"), take("y"), take("z"))
        assert sorted(verdicts) == [DUPLICATE, DUPLICATE, NEW]
        assert [said.split()[1] for said in order] == ["begins", "ends"] * 3

    run(main())


def test_who_would_wait_for_itself_is_refused_at_once(url, driver):
    async def main():
        async with orders_and_engine(url, driver, patience_secs=LONG_SECS) as (orders, engine):
            async with orders.batch():
                for waits in (send(orders, "a"), orders.close()):
                    with pytest.raises(StoreBusyError, match="this task"):
                        await waits
                assert orders.figures().batches_failed == 1
            async with engine.connect() as connection:
                await send(orders, "a", connection=connection)
                async with await opened(url, patience_secs=LONG_SECS) as other:
                    with pytest.raises(StoreBusyError, match="this task holds the lock in another transaction"):
                        await send(other, "b")

    run(main())


@WAYS
def test_waiting_ends_with_the_patience(url, driver, joins):
    async def main():
        async with orders_and_engine(url, driver, patience_secs=0.2) as (orders, engine):
            async with await opened(url) as other, engine.connect() as connection, other.batch() as batch:
                await batch.receive("a")
                with pytest.raises(StoreBusyError):
                    await asyncio.create_task(send(orders, "a", connection=connection if joins else None))
                busy = asyncio.create_task(send(other, "c"))  # waits for its own receiver, with more patience
                await asyncio.sleep(0.05)
            await busy
            assert await send(orders, "a") == [DUPLICATE]
            assert (await orders.status()).batches_failed == 1

    run(main())


def test_status_and_close_wait_for_no_transaction_of_the_callers(url, driver, caplog):
    async def main():
        engine = engine_for(url, driver)
        orders = await opened(url, patience_secs=LONG_SECS)
        async with engine.connect() as connection:
            await send(orders, "a", connection=connection)
            assert (await orders.status()).rx == 0
            async with orders.batch(connection) as batch:
                await batch.receive("b")
                assert (await orders.status()).rx == 0
            await orders.close()
            await connection.commit()
        assert "closed before the caller's transaction has ended" in caplog.text

    run(main())
    assert remembered(url, "a", "b", "c") == ["a", "b"]


# Cancelled, and lost


@WAYS
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_cancelled_in_the_body(url, driver, joins, by):
    async def main():
        async def take():
            async with (
                engine.connect() as connection,
                asyncio.timeout(0.1 if by == "timeout" else None),
                orders.batch(connection if joins else None) as batch,
            ):
                await batch.receive("a")
                begun.set()
                await asyncio.sleep(LONG_SECS)

        async with orders_and_engine(url, driver) as (orders, engine):
            begun = asyncio.Event()
            task = asyncio.create_task(take())
            await begun.wait()
            if by == "cancel":
                task.cancel()
            with pytest.raises(asyncio.CancelledError if by == "cancel" else TimeoutError):
                await task
            assert await send(orders, "a") == [NEW]
            async with engine.begin() as connection:
                assert await send(orders, "a", connection=connection) == [DUPLICATE]

    run(main())


@WAYS
def test_cancelled_while_it_waits_for_the_domain(url, driver, joins):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine), await opened(url) as other:
            async with other.batch() as batch:
                await batch.receive("b")

                async def take():
                    async with engine.connect() as connection:
                        await send(orders, "a", connection=connection if joins else None)

                waiting = asyncio.create_task(take())
                second = asyncio.create_task(send(orders, "never"))
                await asyncio.sleep(0.2)
                for task in (second, waiting):
                    task.cancel()
                if not joins:  # a thread that waits isn't waited for
                    for task in (second, waiting):
                        with pytest.raises(asyncio.CancelledError):
                            await task
            await asyncio.gather(waiting, second, return_exceptions=True)
            assert await send(orders, "a", "b", "never") == [NEW, DUPLICATE, NEW]

    run(main())


@WAYS
def test_a_task_whose_batch_was_given_up_has_another(url, driver, joins):
    """As one that gives each batch a time to begin in: it waits for the thread that is still about the first."""

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine), await opened(url) as other:
            has_begun, may_end = asyncio.Event(), asyncio.Event()

            async def keep():
                async with other.batch() as batch:
                    await batch.receive("b")
                    has_begun.set()
                    await may_end.wait()

            keeping = asyncio.create_task(keep())
            await has_begun.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), orders.batch():
                    pass
            asyncio.get_running_loop().call_later(0.1, may_end.set)
            async with engine.connect() as connection:
                given = connection if joins else None
                assert await send(orders, "a", "b", connection=given) == [NEW, DUPLICATE]
            await keeping

    run(main())


@WAYS
def test_cancelled_at_any_step(url, driver, joins):
    """Cancelled after so many turns of the loop, whatever it was about: what is recorded is all of the batch or nothing."""

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            outcomes = set()
            for turns in range(40):
                ids = [f"{turns}-{n}" for n in range(8)]

                async def take(ids=ids):
                    async with engine.connect() as connection:
                        await send(orders, *ids, connection=connection if joins else None)
                        await connection.commit()

                task = asyncio.create_task(take())
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns % 4 == 3:
                    await asyncio.sleep(turns / 10_000)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                (verdict,) = set(await send(orders, *ids))
                outcomes.add(verdict)
                if not task.cancelled():
                    assert verdict is DUPLICATE
            assert NEW in outcomes

    run(main())


@WAYS
def test_a_loop_that_is_closed_in_mid_batch(url, driver, joins, recwarn):
    """Its task is never ended, only collected."""
    loop = asyncio.new_event_loop()
    kept = {}

    async def begin():
        kept["orders"] = orders = await opened(url)
        kept["connection"] = connection = await engine_for(url, driver).connect()
        async with orders.batch(connection if joins else None) as batch:
            await batch.receive("a")
            kept["begun"].set_result(None)
            await asyncio.sleep(LONG_SECS)

    kept["begun"] = loop.create_future()
    loop.set_exception_handler(lambda _loop, _context: None)  # it says that a task was destroyed
    task = loop.create_task(begin())
    loop.run_until_complete(kept["begun"])
    task.get_coro().close()
    loop.run_until_complete(kept["connection"].close())
    loop.close()
    orders = kept["orders"]

    async def main():
        with pytest.raises(ClosedError, match="another event loop"):
            await send(orders, "a")
        await orders.close()
        async with await opened(url) as again:
            assert await send(again, "a") == [NEW]

    run(main())
    recwarn.clear()


def test_opening_that_is_cancelled_leaves_nothing_open(sqlite_url):
    async def main():
        before = threading.active_count()
        task = asyncio.create_task(opened(sqlite_url))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while threading.active_count() > before:
            time.sleep(0.01)  # noqa: ASYNC251 - what is left needs no loop
        async with await opened(sqlite_url) as orders:
            assert await send(orders, "a") == [NEW]

    run(main())


def test_a_lost_connection_of_the_callers(fresh_postgres_url):
    end = text("SELECT pg_terminate_backend(pg_backend_pid())")

    async def main():
        for driver in ("psycopg", "asyncpg"):
            async with orders_and_engine(fresh_postgres_url, driver) as (orders, engine):

                async def lose(name=driver, orders=orders, engine=engine):
                    async with engine.connect() as connection, orders.batch(connection) as batch:
                        await batch.receive(name)
                        with suppress(Exception):
                            await connection.execute(end)

                with pytest.raises(StoreError):
                    await lose()
                assert await send(orders, driver) == [NEW]

    run(main())


# Refused


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
