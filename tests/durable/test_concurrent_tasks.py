"""Concurrent receivers in an event loop: each task has a batch, in a transaction of its own or in a joined one."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from receiver import AsyncReceiver
from receiver.errors import ClosedError, SettingsError, StoreBusyError, StoreError
from tests.durable import opened as serial
from tests.durable.async_opened import engine_for, opened, run, send
from tests.durable.opened import DUPLICATE, LONG_SECS, MEMORY, NEW, UNCHECKED, UndoError, sizes
from tests.durable.proxy import Cut, proxied
from tests.stores import execute, rows_of

WAYS = pytest.mark.parametrize("way", ["own", "psycopg", "asyncpg"])
"""Ways to batch: in transactions of their own, and in joined ones by each driver."""
TABLE = "CREATE TABLE effect (body VARCHAR(100))"
EFFECT = text("INSERT INTO effect VALUES (:body)")
POOL = 20


class Program:
    """A receiver that tasks share, and the application's pool of connections."""

    def __init__(self, orders, engine, *, joins):
        self.orders = orders
        self.engine = engine
        self._joins = joins

    @asynccontextmanager
    async def batch(self):
        """A batch, in a transaction that is committed at the end."""
        if not self._joins:
            async with self.orders.batch() as batch:
                yield batch
            return
        async with self.engine.begin() as connection, self.orders.batch(connection) as batch:
            yield batch

    async def send(self, *ids):
        async with self.batch() as batch:
            return [(await batch.receive(id_, received_at_us=0)).verdict for id_ in ids]

    async def act(self, id_):
        """Do what a consumer does with a message."""
        async with self.batch() as batch:
            if (await batch.receive(id_, received_at_us=0)).deliver:
                await batch.run_sync(lambda connection: connection.execute(EFFECT, {"body": id_}))


@asynccontextmanager
async def program(url, way, **options):
    driver = "asyncpg" if way == "asyncpg" else "psycopg"
    by_driver = make_url(url).set(drivername=f"postgresql+{driver}")
    engine = create_async_engine(by_driver, pool_size=POOL, max_overflow=0, pool_timeout=LONG_SECS)
    try:
        async with await opened(url, concurrent=True, **options) as orders:
            yield Program(orders, engine, joins=way != "own")
    finally:
        await engine.dispose()


async def until(is_so):
    async with asyncio.timeout(LONG_SECS):
        while not is_so():  # noqa: ASYNC110 - it is the database that is waited for
            await asyncio.sleep(0.02)


def claims(url):
    return rows_of(url, "receiver_claim")


def waiting(url):
    return rows_of(url, "receiver_arrival")


@WAYS
def test_verdicts_and_rows_of_the_application(fresh_postgres_url, way):
    execute(url := fresh_postgres_url, TABLE)

    async def main():
        async with program(url, way, settings=sizes(2, 0)) as consumer:
            assert await consumer.send("a", None, "b", "a", "") == [NEW, UNCHECKED, NEW, DUPLICATE, UNCHECKED]
            async with consumer.batch() as batch:
                decisions = await batch.receive_many([("c", "s", 0), ("b", "s", 0), ("c", "s", 0)])
            assert [decision.verdict for decision in decisions] == [NEW, DUPLICATE, DUPLICATE]
            for fails in (True, False, False):
                with suppress(UndoError):
                    async with consumer.batch() as batch:
                        if (await batch.receive("d", received_at_us=0)).deliver:
                            await batch.run_sync(
                                lambda connection, body: connection.execute(EFFECT, {"body": body}), "d"
                            )
                        if fails:
                            raise UndoError
            await until(lambda: waiting(url) == 0)
            await until(lambda: consumer.orders.figures().rx == 10)  # counted by the folding thread, after its commit
            status = await consumer.orders.status()
            assert (status.rDupsDet, status.unchecked) == (4, 2)

    run(main())
    assert rows_of(url, "effect") == 1


def test_a_session_is_joined(fresh_postgres_url):
    execute(url := fresh_postgres_url, TABLE)

    async def main():
        async with program(url, "asyncpg") as consumer:
            for _ in range(2):
                async with (
                    AsyncSession(consumer.engine) as session,
                    session.begin(),
                    consumer.orders.batch(session) as batch,
                ):
                    if (await batch.receive("a")).deliver:
                        await session.execute(EFFECT, {"body": "a"})

    run(main())
    assert rows_of(url, "effect") == 1


@pytest.mark.costly
@WAYS
def test_200_tasks_on_a_pool_of_20(fresh_postgres_url, way):
    """Each id comes to four tasks at about the same time. Two batches of one task share no id."""
    execute(url := fresh_postgres_url, TABLE)

    async def main():
        async with program(url, way, patience_secs=LONG_SECS) as consumer:
            under_way = most = 0

            async def work(number):
                nonlocal under_way, most
                for turn in range(2):
                    async with consumer.batch() as batch:
                        under_way += 1
                        most = max(most, under_way)
                        if (await batch.receive(id_ := f"{turn}-{number % 50}")).deliver:
                            await batch.run_sync(
                                lambda connection, body: connection.execute(EFFECT, {"body": body}), id_
                            )
                        under_way -= 1

            await asyncio.gather(*map(work, range(200)))
            assert 5 < most <= POOL
            await until(lambda: waiting(url) == 0)
            # The folding thread counts after its commit, so it may not have counted yet.
            await until(lambda: consumer.orders.figures().rDupIds == 100)

    run(main())
    assert rows_of(url, "effect") == 100


@WAYS
def test_who_meets_an_id_waits_for_it_and_the_loop_goes_on(fresh_postgres_url, way):
    async def main():
        async with program(fresh_postgres_url, way) as consumer:
            for ends_well, verdict in ((True, DUPLICATE), (False, NEW)):
                id_ = f"{ends_well}"
                with suppress(UndoError):
                    async with consumer.batch() as batch:
                        await batch.receive(id_)
                        waiter = asyncio.create_task(consumer.send(id_))
                        assert await consumer.send(f"other {id_}") == [NEW]  # while the task waits
                        await asyncio.sleep(0.1)
                        assert not waiter.done()
                        if not ends_well:
                            raise UndoError
                assert await waiter == [verdict]

    run(main())


@WAYS
def test_waiting_for_an_id_ends_with_the_patience(fresh_postgres_url, way):
    async def main():
        async with program(fresh_postgres_url, way, patience_secs=0.3) as consumer:
            async with consumer.batch() as batch:
                await batch.receive("a")
                with pytest.raises(StoreBusyError):
                    await consumer.send("b", "a")
            assert await consumer.send("b", "a") == [NEW, DUPLICATE]

    run(main())


def test_waiting_for_a_connection_ends_with_the_patience(fresh_postgres_url):
    async def main():
        async with program(fresh_postgres_url, "own", patience_secs=0.5) as consumer:
            may_end = asyncio.Event()

            async def keep(number):
                async with consumer.batch() as batch:
                    await batch.receive(f"{number}")
                    await may_end.wait()

            keeping = [asyncio.create_task(keep(number)) for number in range(POOL)]
            await asyncio.sleep(0.3)
            with pytest.raises(StoreBusyError, match="all connections"):
                await consumer.send("a")
            may_end.set()
            await asyncio.gather(*keeping)
            assert await consumer.send("a") == [NEW]

    run(main())


# Cancelled


@WAYS
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_cancelled_in_the_body(fresh_postgres_url, way, by):
    async def main():
        async with program(fresh_postgres_url, way) as consumer:
            begun = asyncio.Event()

            async def take():
                async with asyncio.timeout(None) as limit, consumer.batch() as batch:
                    await batch.receive("a")
                    if by == "timeout":
                        limit.reschedule(asyncio.get_running_loop().time())
                    begun.set()
                    await asyncio.sleep(LONG_SECS)

            task = asyncio.create_task(take())
            await begun.wait()
            if by == "cancel":
                task.cancel()
            with pytest.raises(asyncio.CancelledError if by == "cancel" else TimeoutError):
                await task
            assert await consumer.send("a") == [NEW]

    run(main())


@WAYS
def test_cancelled_while_it_waits_for_an_id(fresh_postgres_url, way):
    async def main():
        async with program(fresh_postgres_url, way, patience_secs=LONG_SECS) as consumer:
            async with consumer.batch() as batch:
                await batch.receive("a")
                waiters = [asyncio.create_task(consumer.send("b", "a")) for _ in range(3)]
                await asyncio.sleep(0.2)
                for waiter in waiters:
                    waiter.cancel()
                began = time.monotonic()
                assert all(
                    isinstance(gone, asyncio.CancelledError)
                    for gone in await asyncio.gather(*waiters, return_exceptions=True)
                )
                assert time.monotonic() - began < LONG_SECS / 4
            assert await consumer.send("a", "b") == [DUPLICATE, NEW]

    run(main())


@pytest.mark.costly
@WAYS
def test_cancelled_at_any_step(fresh_postgres_url, way):
    """A batch is cancelled after so many turns of the loop, whatever step it is at. All of it is recorded, or
    nothing."""
    execute(url := fresh_postgres_url, TABLE)

    async def main():
        async with program(url, way) as consumer:
            outcomes, taken = set(), 0
            for turns in range(60):

                async def take(turns=turns):
                    for id_ in (f"{turns}-1", f"{turns}-2"):
                        async with consumer.batch() as batch:
                            assert (await batch.receive(id_)).verdict is NEW
                            await batch.run_sync(lambda connection: connection.execute(EFFECT, {"body": f"{turns}"}))

                task = asyncio.create_task(take())
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns % 4 == 3:
                    await asyncio.sleep(turns / 5_000)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                verdicts = await consumer.send(f"{turns}-1", f"{turns}-2")
                taken += verdicts.count(DUPLICATE)
                outcomes.add(tuple(verdicts))
                assert rows_of(url, f"effect WHERE body = '{turns}'") == verdicts.count(DUPLICATE)
            assert (NEW, NEW) in outcomes
            assert consumer.engine.pool.checkedout() == 0
        return taken

    assert run(main()) == rows_of(url, "effect")


@pytest.mark.parametrize("way", ["psycopg", "asyncpg"])
def test_a_batch_that_was_cancelled_leaves_nothing_in_a_transaction_that_goes_on(fresh_postgres_url, way):
    """The application limits each batch's time, and commits its other work."""

    async def main():
        async with program(fresh_postgres_url, way) as consumer:
            outcomes = []
            for turn in range(40):
                is_had = False
                with suppress(PendingRollbackError, DBAPIError):
                    async with consumer.engine.begin() as connection:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(turn / 4_000), consumer.orders.batch(connection) as batch:
                                await batch.receive_many([(f"{turn}", None, 0)])
                                await asyncio.sleep(0.001)
                                is_had = True
                        if not is_had:
                            with suppress(StoreError, SettingsError):
                                async with consumer.orders.batch(connection) as batch:
                                    await batch.receive(f"after {turn}")
                expected = DUPLICATE if is_had else NEW
                assert await consumer.send(f"{turn}") == [expected]
                outcomes.append(is_had)
            assert {False} <= set(outcomes)

    run(main())


@WAYS
def test_a_statement_that_was_interrupted_commits_nothing(fresh_postgres_url, way):
    """It commits nothing even if the program goes on with the block."""

    async def main():
        async with program(fresh_postgres_url, way, patience_secs=LONG_SECS) as consumer:
            async with consumer.batch() as held:
                await held.receive("a")

                async def take():
                    async with consumer.batch() as batch:
                        await batch.receive("b")
                        with suppress(TimeoutError):
                            async with asyncio.timeout(0.1):
                                await batch.receive("a")

                with pytest.raises((StoreError, PendingRollbackError)):
                    await take()
            assert await consumer.send("a", "b") == [DUPLICATE, NEW]

    run(main())


# Lost


@WAYS
def test_a_loop_that_is_closed_in_mid_batch(fresh_postgres_url, way, recwarn):
    """The batch's task never ends. It is only collected as garbage."""
    loop = asyncio.new_event_loop()
    kept = {}

    async def begin():
        kept["orders"] = orders = await opened(fresh_postgres_url, concurrent=True)
        engine = engine_for(fresh_postgres_url, "psycopg" if way == "own" else way)
        kept["connection"] = connection = await engine.connect()
        async with orders.batch(None if way == "own" else connection) as batch:
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
        async with await opened(fresh_postgres_url, concurrent=True) as again:
            assert await send(again, "a") == [NEW]

    run(main())
    recwarn.clear()


@WAYS
def test_a_server_that_ends_all_connections(fresh_postgres_url, way):
    """It does so while connections are idle, and during a batch."""
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def main():
        async with program(fresh_postgres_url, way) as consumer:
            await asyncio.gather(*(consumer.send(f"{number}") for number in range(POOL)))
            await asyncio.to_thread(lambda: execute(fresh_postgres_url, end_all))
            if way == "own":  # the application must look after its own pool
                ids = [f"{number}" for number in range(POOL)]
                assert set(map(tuple, await asyncio.gather(*map(consumer.send, ids)))) == {(DUPLICATE,)}
            else:
                with pytest.raises((StoreError, DBAPIError)):
                    await consumer.send("a")

            async def lose():
                async with consumer.batch() as batch:
                    await batch.receive("b")
                    await asyncio.to_thread(lambda: execute(fresh_postgres_url, end_all))
                    await batch.receive("c")

            with pytest.raises((StoreError, DBAPIError)):
                await lose()
            for _ in range(POOL):
                with suppress(StoreError, DBAPIError):
                    await consumer.send("warm")
            assert await consumer.send("b", "c", "2") == [NEW, NEW, DUPLICATE]

    run(main())


@pytest.mark.parametrize("cut", Cut)
def test_a_link_that_is_cut_around_a_commit(fresh_postgres_url, cut):
    """The outcome of the batch isn't known. When its message is sent again, the store decides."""

    async def main():
        # This receiver folds, through a link of its own. Otherwise a COMMIT of folding could take the cut.
        with serial.opened(fresh_postgres_url, concurrent=True) as folds:
            await until(lambda: folds.is_folding)
            await cut_consumer()

    async def cut_consumer():
        async with program(proxy.url, "own") as consumer:
            await consumer.send("a")
            async with consumer.batch() as batch:
                await batch.receive("b")

            async def take():
                async with consumer.batch() as batch:
                    await batch.receive("c")
                    proxy.arm(cut)

            with pytest.raises(StoreError):
                await take()
            await asyncio.sleep(0.5)  # as a broker takes to send it again
            assert await consumer.send("c") == [NEW if cut is Cut.BEFORE_COMMIT else DUPLICATE]

    with proxied(fresh_postgres_url) as proxy:
        run(main())


# Opened and closed


def test_close_lets_batches_end(fresh_postgres_url):
    async def main():
        async with program(fresh_postgres_url, "own") as consumer:
            async with consumer.batch() as batch:
                await batch.receive("a")
                await asyncio.gather(consumer.orders.close(), consumer.orders.close())
                assert consumer.orders.is_closed
                await batch.receive("b")
            with pytest.raises(ClosedError):
                await consumer.send("c")
            assert (await consumer.orders.status()).rx == 0
        async with program(fresh_postgres_url, "own") as again:
            assert await again.send("a", "b", "c") == [DUPLICATE, DUPLICATE, NEW]

    run(main())


def test_duplicates_are_reported_in_a_thread(fresh_postgres_url):
    reported = []

    def note(duplicate):
        reported.append((duplicate.unique_message_id, threading.current_thread() is threading.main_thread()))

    async def main():
        async with program(fresh_postgres_url, "own", on_duplicate=note) as consumer:
            for _ in range(5):
                await consumer.send("a")
            await until(lambda: len(reported) == 4)

    run(main())
    assert set(reported) == {("a", False)}


def test_what_is_refused(fresh_postgres_url, sqlite_url):
    async def main():
        for url, options in (
            (sqlite_url, {"concurrent": True}),
            (MEMORY, {"concurrent": True}),
            (fresh_postgres_url, {"concurrent": 1}),
            (fresh_postgres_url, {"concurrent": True, "policy": "artemis:id_cache_size=3", "domain": "name:x"}),
        ):
            with pytest.raises(SettingsError):
                await opened(url, **options)
        async with program(fresh_postgres_url, "psycopg") as consumer:
            for given in ("x", consumer.engine.connect(), consumer.engine.sync_engine):
                with pytest.raises(SettingsError):
                    await send(consumer.orders, "a", connection=given)
            async with consumer.engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                with pytest.raises(SettingsError, match="AUTOCOMMIT"):
                    await send(consumer.orders, "a", connection=connection)

    run(main())


def test_a_store_with_a_password(fresh_postgres_url):
    """Its connections use the address as given, not as it is shown."""
    url = make_url(fresh_postgres_url).set(password="secret")  # noqa: S106 - of nobody

    async def main():
        async with await AsyncReceiver.open(
            url.render_as_string(hide_password=False), connection_id="c", destination="q", concurrent=True
        ) as orders:
            for engine in (orders._receiver._engine, orders._tasks.awaited_engine):
                assert engine.url.password == "secret"  # noqa: S105

    run(main())
