"""Many consumers of one queue: concurrent receivers against an inbox table written by hand, as most people would.

Each consumer is a thread with its own connection. It gives that connection's transaction to the receiver too. Four
processes share the consumers. With "work", each transaction holds 20 ms of the application's own SQL. The inbox by hand
is `INSERT ... ON CONFLICT DO NOTHING`, which never forgets an id. Commits take as long as on a usual disk.

Batches of 20 miss their goal. A batch takes 0.37 ms of a server's core, and 0.26 by hand: a claim is longer than a row
by hand, and one more row holds the receipts. The consumer takes as long as by hand. The rest, about 0.3 ms, is folding
on the same two cores: it appends the receipts to the log and deletes three times. While each receipt had its own row
until it was folded in, all of this took a third longer.

We tried three ways:

- No lock on the domain's row: gains nothing.
- Arrays of ids as bytes: saves a tenth of the driver's time.
- One statement for one receipt and for many: a tenth slower for one.

Two things would help: folding on another process's cores, or claims that are the log.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from sqlalchemy import Connection, NullPool, create_engine, func, select, text

from benchmarks.orders import in_batches, receive, scaled, steady_orders
from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from benchmarks.stores import Database, on_a_disk, postgres
from benchmarks.workload import SOURCES, stream
from receiver import Receiver, ReceiverSettings
from receiver.durable.receiver import ConcurrentReceiver
from receiver.store.tables import claims
from receiver.store.tables import receipts as receipts_table

_PROCESSES = 4
_TURNS = 5
_WORK = text("SELECT pg_sleep(0.02)")
_BY_HAND = text("INSERT INTO by_hand SELECT unnest(CAST(:ids AS text[])) ON CONFLICT DO NOTHING RETURNING id")
_IDS = 12_000
_SETTINGS = ReceiverSettings(dup_detection_per_source_expiry_window_size=_IDS, dup_detection_expiry_time_secs=1)
_FEW = ReceiverSettings(dup_detection_per_source_expiry_window_size=200, dup_detection_expiry_time_secs=12)
"""The settings for 12,000 live ids in all sources together."""
_FOLDED_AT_ONCE = 2_000
_LOOK_SECS = 0.01
_SETTLES_SECS = 1
_all_ready: Barrier
_Take = Callable[[Connection, Sequence[str]], None]


class _Load(NamedTuple):
    url: str
    is_ours: bool
    consumers: int
    """The consumers of each process."""
    ids: Sequence[str]
    at_once: int
    """How many messages a transaction has."""
    works: bool


def concurrent(scale: float) -> Iterator[Comparison]:
    with postgres() as server:
        disk = on_a_disk(server)
        yield _comparison(disk, scale, consumers=16, count=6_000, at_once=1, goal=Goal(0.8, aim=1.0))
        yield _comparison(disk, scale, consumers=16, count=2_000, at_once=1, goal=Goal(0.95, aim=1.0), works=True)
        yield _comparison(disk, scale, consumers=8, count=40_000, at_once=20, goal=Goal(0.7, aim=1.0))
        yield _comparison(disk, scale, consumers=1, count=1_000, at_once=1, goal=Goal(0.9, aim=1.0))
        yield _folding(disk, scale)
        yield _rows_left(server, scale)


def _comparison(
    database: Database, scale: float, *, consumers: int, count: int, at_once: int, goal: Goal, works: bool = False
) -> Comparison:
    count, turns = scaled(count, scale, least=200), scaled(_TURNS, scale, least=1)
    processes = min(_PROCESSES, consumers)
    with database.new_url() as url:
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE by_hand (id text PRIMARY KEY)"))
        numbers = iter(range(4 * turns))

        def rate(*, is_ours: bool) -> float:
            turn = next(numbers)
            ids = [f"order {turn}:{number}" for number in range(count)]
            shares = [ids[process::processes] for process in range(processes)]
            loads = [_Load(url, is_ours, consumers // processes, share, at_once, works) for share in shares]
            return count / _seconds(loads)

        return by_turns(
            lambda: rate(is_ours=True),
            lambda: rate(is_ours=False),
            turns=turns,
            name=f"concurrent-{consumers}-{at_once}{'-work' if works else ''}",
            work=f"{database.name}, {consumers} consumers, {at_once} messages a transaction: {count:,} messages",
            unit="messages/s",
            anchor_name="INSERT ... ON CONFLICT DO NOTHING by hand",
            goal=goal,
        )


def _folding(database: Database, scale: float) -> Comparison:
    """The processor time that folding takes in this process while consumers of other processes are at work."""
    count, turns = scaled(40_000, scale), scaled(_TURNS, scale, least=1)
    with (
        database.new_url() as url,
        database.new_url() as exclusive_url,
        _concurrent(url, _SETTINGS) as folding,
        steady_orders(exclusive_url, _IDS // SOURCES, turns * count) as orders,
    ):
        _wait_until(lambda: folding.is_folding)
        numbers = iter(range(turns))

        def folded() -> float:
            turn, before, began_secs = next(numbers), folding.figures().receipts, time.process_time()
            ids = [f"order {turn}:{number}" for number in range(count)]
            _seconds(
                [
                    _Load(url, is_ours=True, consumers=2, ids=ids[part::_PROCESSES], at_once=20, works=False)
                    for part in range(_PROCESSES)
                ]
            )
            _wait_until(lambda: folding.figures().receipts == before + count)
            return count / (time.process_time() - began_secs)

        def received() -> float:
            rows = orders.take(count)
            return count / seconds(lambda: receive(orders.receiver, rows, _FOLDED_AT_ONCE))

        return by_turns(
            folded,
            received,
            turns=turns,
            name="concurrent-folding",
            work=f"{database.name}, {count:,} receipts of 8 consumers, folded in by one process, of its processor time",
            unit="receipts/s",
            anchor_name=f"an exclusive receiver, batches of {_FOLDED_AT_ONCE:,}",
            goal=Goal(0.8, aim=1.0, enough=50_000),
        )


def _rows_left(database: Database, scale: float) -> Comparison:
    """The rows of the fullest table after many receipts, against the ids that are remembered."""
    count = scaled(10_000_000, scale, least=1_000)
    with database.new_url() as url, _concurrent(url, _FEW) as receiver:
        receipts = stream(count)
        while rows := list(islice(receipts, 1_000)):
            with receiver.batch() as batch:
                batch.receive_many(rows)
        _wait_until(lambda: receiver.figures().receipts == count)
        time.sleep(_SETTLES_SECS)  # until the last claims are released
        live = receiver.status().rDupIds
        with closing(create_engine(url, poolclass=NullPool).connect()) as connection:
            left = max(
                connection.scalar(select(func.count()).select_from(table)) or 0 for table in (claims, receipts_table)
            )
    return Comparison(
        name="concurrent-rows",
        work=f"{database.name}, rows left of {count:,} receipts",
        unit="rows",
        anchor_name="the ids that are remembered",
        our_figures=[left],
        anchor_figures=[live],
        goal=Goal(1.5, aim=1.2, at_most=True),
    )


def _concurrent(url: str, settings: ReceiverSettings) -> closing[ConcurrentReceiver]:
    receiver = Receiver.open(url, connection_id="broker", destination="orders", settings=settings, concurrent=True)
    assert isinstance(receiver, ConcurrentReceiver)  # noqa: S101
    return closing(receiver)


def _wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(_LOOK_SECS)


def _seconds(loads: Sequence[_Load]) -> float:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(loads))
    with ProcessPoolExecutor(len(loads), context, _prepare, (barrier,)) as pool:
        spans = list(pool.map(_consume, loads))
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _prepare(all_ready: Barrier) -> None:
    global _all_ready  # noqa: PLW0603 - a process of the pool has nowhere else to keep it
    _all_ready = all_ready


def _consume(load: _Load) -> tuple[float, float]:
    """When the work began and when it ended, by the clock that all processes share."""
    if not load.is_ours:
        return _by_threads(load, _by_hand)
    with _concurrent(load.url, _SETTINGS) as receiver:

        def claim(connection: Connection, ids: Sequence[str]) -> None:
            with receiver.batch(connection) as batch:
                batch.receive_many([(id_, None, None) for id_ in ids])

        return _by_threads(load, claim)


def _by_hand(connection: Connection, ids: Sequence[str]) -> None:
    connection.execute(_BY_HAND, {"ids": list(ids)}).all()


def _by_threads(load: _Load, take: _Take) -> tuple[float, float]:
    engine = create_engine(load.url, pool_size=load.consumers)

    def work(consumer: int) -> None:
        for ids in in_batches(load.ids[consumer :: load.consumers], load.at_once):
            with engine.begin() as connection:
                take(connection, ids)
                if load.works:
                    connection.execute(_WORK)

    with ThreadPoolExecutor(load.consumers) as pool:
        list(pool.map(lambda _: engine.connect().close(), range(load.consumers)))
        _all_ready.wait()
        start = time.perf_counter()
        list(pool.map(work, range(load.consumers)))
        end = time.perf_counter()
    engine.dispose()
    return start, end
