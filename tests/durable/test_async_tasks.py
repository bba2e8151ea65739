"""Tasks that share a receiver in an event loop: they wait for each other, are cancelled, or lose their loop."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from asyncpg.transaction import Transaction
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import Receiver
from receiver.errors import ClosedError, StoreBusyError, StoreError
from tests.durable.async_opened import WAYS, engine_for, opened, orders_and_engine, run, send
from tests.durable.opened import DUPLICATE, LONG_SECS, NEW, remembered
from tests.stores import execute

pytestmark = pytest.mark.thinned(3)

LOCKED_SECS = 1.0


# Waiting


class Ticks:
    """How often `tick` was called, and the longest time between two calls."""

    def __init__(self) -> None:
        self.count, self.longest_secs = 0, 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        self.count, self.longest_secs, self._last = self.count + 1, max(self.longest_secs, now - self._last), now


async def ticks(until: threading.Event) -> Ticks:
    """The ticks of the loop."""
    seen = Ticks()
    while not until.is_set():
        await asyncio.sleep(0.001)
        seen.tick()
    return seen


def ticks_of_a_thread(until: threading.Event) -> Ticks:
    """The ticks of a thread beside the loop. They stop only while the machine is busy with other work."""
    seen = Ticks()
    while not until.wait(0.001):
        seen.tick()
    seen.tick()
    return seen


@WAYS
def test_the_loop_goes_on_while_another_process_keeps_the_domain(url, driver, joins):
    held, asked, done, seen = threading.Event(), threading.Event(), threading.Event(), {}

    def keep() -> None:
        with Receiver.open(url, connection_id="broker", destination="queue://orders") as other, other.batch() as batch:
            batch.receive("kept", received_at_us=0)
            held.set()
            asked.wait(LONG_SECS)
            time.sleep(LOCKED_SECS)

    async def main():
        async with orders_and_engine(url, driver) as (orders, engine):
            await asyncio.to_thread(thread.start)
            await asyncio.to_thread(held.wait)
            ticking = asyncio.create_task(ticks(done))
            beside = asyncio.create_task(asyncio.to_thread(ticks_of_a_thread, done))
            await asyncio.sleep(0)
            began = time.monotonic()
            asked.set()
            try:
                if joins:
                    async with engine.begin() as connection:
                        assert await send(orders, "kept", connection=connection) == [DUPLICATE]
                else:
                    assert await send(orders, "kept") == [DUPLICATE]
            finally:
                done.set()
            seen["waited_secs"] = time.monotonic() - began
            seen["loop"], seen["thread"] = await ticking, await beside

    thread = threading.Thread(target=keep)
    run(main())
    thread.join()
    assert seen["waited_secs"] > LOCKED_SECS / 2  # the batch did have to wait
    assert seen["loop"].longest_secs < seen["thread"].longest_secs + LOCKED_SECS / 2  # and the loop didn't
    assert seen["loop"].count > 20


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
                    await send(orders, name, connection=connection)  # while the other task waits
                    await connection.commit()
                return verdict

        async with orders_and_engine(url, driver) as (orders, engine):
            verdicts = await asyncio.gather(take("x"), take("y"), take("z"))
        assert sorted(verdicts) == [DUPLICATE, DUPLICATE, NEW]
        assert [said.split()[1] for said in order] == ["begins", "ends"] * 3

    run(main())


@pytest.mark.parametrize("first", ["undone", "another receiver's"])
def test_a_transaction_goes_on_while_another_task_waits_for_it(url, driver, first):
    async def main():
        async with orders_and_engine(url, driver, patience_secs=5) as (orders, engine), await opened(url) as another:
            async with engine.connect() as connection:
                with suppress(ZeroDivisionError):
                    async with (orders if first == "undone" else another).batch(connection) as batch:
                        await batch.receive("a")
                        if first == "undone":
                            raise ZeroDivisionError
                waiting = asyncio.create_task(send(orders, "b"))
                await asyncio.sleep(0.2)
                began = time.monotonic()
                assert await send(orders, "b", connection=connection) == [NEW]
                assert time.monotonic() - began < 2
                await connection.commit()
            assert await waiting == [DUPLICATE]

    run(main())


def test_transactions_of_many_tasks_with_two_receivers_each_wait_for_no_task_in_vain(url, driver):
    """On SQLite the receivers are of two domains, which one file locks. Whoever waits for the lock has a receiver."""
    other = {"destination": "queue://other"} if driver == "aiosqlite" else {}

    async def main():
        async def work(task):
            for turn in range(10):
                async with engine.begin() as connection:
                    for part, receiver in enumerate((orders, another, orders)):
                        assert await send(receiver, f"{task}-{turn}-{part}", connection=connection) == [NEW]
                assert await send(another, f"{task}-{turn}") == [NEW]

        async with orders_and_engine(url, driver) as (orders, engine), await opened(url, **other) as another:
            await asyncio.gather(*map(work, range(5)))
            assert not orders._tasks.session.turn.locked()

    run(main())


def test_tasks_that_share_a_transaction_do_not_wait_behind_those_that_wait_for_it(url, driver):
    async def main():
        async with orders_and_engine(url, driver) as (orders, engine), engine.connect() as shared:
            tasks = []
            async with orders.batch():
                for id_, connection in [("a", shared), ("b", None), ("c", shared)]:
                    tasks.append(asyncio.create_task(send(orders, id_, connection=connection)))
                    await asyncio.sleep(0.05)
            assert await asyncio.gather(tasks[0], tasks[2]) == [[NEW], [NEW]]
            await shared.commit()
            assert await tasks[1] == [NEW]

    run(main())


@WAYS
def test_who_waits_for_a_transaction_comes_before_later_ones(url, driver, joins):
    async def main():
        async with (
            orders_and_engine(url, driver) as (orders, engine),
            engine.connect() as one,
            engine.connect() as two,
            engine.connect() as later,
        ):
            for id_ in "abcdef":
                await send(orders, "x", connection=one)
                waiting = asyncio.create_task(send(orders, id_, connection=two if joins else None))
                await asyncio.sleep(0.1)
                await one.commit()
                asking_later = asyncio.create_task(send(orders, id_, connection=later))
                assert await waiting == [NEW]
                await two.commit()
                assert await asking_later == [DUPLICATE]
                await later.commit()

    run(main())


def test_who_would_wait_for_itself_is_refused_at_once(url, driver):
    async def main():
        async with orders_and_engine(url, driver, patience_secs=LONG_SECS) as (orders, engine):
            async with orders.batch():
                for waits in (send(orders, "a"), orders.close()):
                    with pytest.raises(StoreBusyError, match="this task"):
                        await waits
                assert orders.figures().batches_failed == 1
            async with engine.connect() as connection, engine.connect() as second:
                await send(orders, "a", connection=connection)
                async with await opened(url, patience_secs=LONG_SECS) as other:
                    for waits in (send(other, "b"), send(orders, "b"), send(orders, "b", connection=second)):
                        with pytest.raises(StoreBusyError, match="this task holds the lock in another transaction"):
                            await waits
                assert await send(orders, "a", "b", connection=connection) == [DUPLICATE, NEW]

    run(main())


@WAYS
def test_waiting_ends_with_the_patience(url, driver, joins):
    async def main():
        async with orders_and_engine(url, driver, patience_secs=0.2) as (orders, engine):
            async with await opened(url) as other, engine.connect() as connection, other.batch() as batch:
                await batch.receive("a")
                with pytest.raises(StoreBusyError):
                    await asyncio.create_task(send(orders, "a", connection=connection if joins else None))
                busy = asyncio.create_task(send(other, "c"))  # it waits for its own receiver, longer
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


def test_two_tasks_close_it(sqlite_url):
    async def main():
        orders = await opened(sqlite_url)
        await asyncio.gather(orders.close(), orders.close())
        await orders.close()
        assert orders.is_closed

    run(main())


# Cancelled and lost tasks


@WAYS
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_cancelled_in_the_body(url, driver, joins, by):
    async def main():
        async def take():
            async with (
                engine.connect() as connection,
                asyncio.timeout(None) as limit,
                orders.batch(connection if joins else None) as batch,
            ):
                await batch.receive("a")
                begun.set()
                if by == "timeout":
                    limit.reschedule(asyncio.get_running_loop().time() + 0.1)
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
                if not joins:  # a waiting thread isn't waited for
                    for task in (second, waiting):
                        with pytest.raises(asyncio.CancelledError):
                            await task
            await asyncio.gather(waiting, second, return_exceptions=True)
            assert await send(orders, "a", "b", "never") == [NEW, DUPLICATE, NEW]

    run(main())


@WAYS
def test_a_task_whose_batch_was_given_up_has_another(url, driver, joins):
    """For example, the task limits how long a batch may take to begin. The next batch waits for the thread that is
    still busy with the first."""

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
    """A batch is cancelled after so many turns of the loop, whatever step it is at. All of it is recorded, or
    nothing."""

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
    """The batch's task never ends. It is only collected as garbage."""
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


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_pool_does_not_give_out_a_lost_connection_again(fresh_postgres_url, driver):
    """SQLAlchemy notices only failures of its own statements, and the batch's statements are the driver's."""

    async def main():
        engine = create_async_engine(make_url(fresh_postgres_url).set(drivername=f"postgresql+{driver}"), pool_size=1)
        async with await opened(fresh_postgres_url) as orders:

            async def receive(*ids):
                async with engine.begin() as connection:
                    return await send(orders, *ids, connection=connection)

            assert await receive("a") == [NEW]
            ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            await asyncio.to_thread(lambda: execute(fresh_postgres_url, ends))
            with pytest.raises((StoreError, DBAPIError)):
                await receive("b")
            assert await receive("a", "b") == [DUPLICATE, NEW]
        await engine.dispose()

    run(main())


def test_a_pool_gives_out_no_connection_whose_begin_was_cancelled(fresh_postgres_url, monkeypatch):
    """asyncpg would take the next transaction for a savepoint, and its commit would keep nothing."""

    async def main():
        engine = create_async_engine(make_url(fresh_postgres_url).set(drivername="postgresql+asyncpg"), pool_size=1)
        start = Transaction.start

        async def cancelled(transaction):
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
            await start(transaction)

        async with await opened(fresh_postgres_url) as orders:

            async def receive(id_):
                async with engine.begin() as connection:
                    return await send(orders, id_, connection=connection)

            await receive("a")
            with monkeypatch.context() as patched:
                patched.setattr(Transaction, "start", cancelled)
                task = asyncio.create_task(receive("b"))
                await asyncio.wait([task])
            assert task.cancelled()
            assert await receive("c") == [NEW]
        await engine.dispose()

    run(main())
    assert remembered(fresh_postgres_url, "a", "b", "c") == ["a", "c"]


@pytest.mark.parametrize("joins", [False, True])
def test_a_task_that_waits_for_a_file_keeps_no_domain_from_who_has_written_there(sqlite_url, joins):
    """The transaction has the file's lock before its batch asks for the domain."""

    async def from_the_other_task(orders, engine):
        async with engine.begin() as connection:
            return await send(orders, "a", connection=connection if joins else None)

    async def main():
        async with orders_and_engine(sqlite_url, "aiosqlite") as (orders, engine):
            async with engine.begin() as connection:
                await connection.execute(text("CREATE TABLE effects (message TEXT)"))
                await connection.execute(text("INSERT INTO effects VALUES ('a')"))
                waiting = asyncio.create_task(from_the_other_task(orders, engine))
                await asyncio.sleep(LOCKED_SECS / 5)
                began = time.monotonic()
                assert await send(orders, "a", connection=connection) == [NEW]
                assert time.monotonic() - began < 2
            assert await waiting == [DUPLICATE]

    run(main())
