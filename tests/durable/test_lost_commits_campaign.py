"""Failovers under load, half of them with lost commits. What the new primary knows as done is done once, and nothing
else is.

All workers on the pair go on through each failover: a receiver's own batches, joined batches, tasks, concurrent
receivers, a bridge to rows of the same database, and a sender. One part uses an address that follows the primary, the
other an address with both servers. Brokers send unacknowledged messages again, and all messages once more at the end.
"""

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from receiver import Receiver
from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.targets.python_target import PythonTarget
from receiver.errors import ReceiverError
from receiver.senders import SequenceIdMaker
from receiver.store.schema import migrate
from tests.bridge.bridged import message
from tests.brokers.memory import MemoryBroker
from tests.campaigns import survived
from tests.durable.async_opened import opened as async_opened
from tests.durable.checks import assert_sound
from tests.durable.opened import opened, sizes
from tests.patience import until
from tests.postgres import shown
from tests.standby import primary_and_standby

FAILOVERS = {"quick": 2, "small": 20, "long": 200}
EFFECT = "INSERT INTO effect (kind, id) VALUES (:kind, :id)"
LOST = (ReceiverError, SQLAlchemyError, OSError)
SECS = 900
TURNS = 25
"""So many batches are the first receiver's, then as many the second's."""
THREADS = 3
IDS = 600
"""New ids that a worker may send between two failovers. Then earlier ids come again. So a long run ends, within its
memory."""
ALL = sizes(1_000_000, 0)
"""So large that no id is forgotten before all come again at the end, however long the failovers take."""


class Worker:
    """Takes messages from a broker of its own, and turns each into a row, in a thread of its own.

    It has two receivers of one domain, which work by turns. The receiver that rested still knows what was lost.
    """

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.acknowledged: list[str] = []
        self.sent = 0
        """How many ids were sent. A few were sent more than once."""
        self.may_send = IDS
        self.waiting: list[str] = []
        self.is_over, self.is_idle, self.again = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=kind, daemon=True)
        self._failure: BaseException | None = None
        self._turn = 0

    def start(self) -> None:
        self._thread.start()

    def come_to_rest(self) -> None:
        """Send no new messages, and wait until none waits."""
        self.is_over.set()
        self._wait(self.is_idle.is_set)

    def redeliver(self) -> None:
        """Deliver all messages once more, to the same receivers."""
        self.again.set()
        self._wait(lambda: not self._thread.is_alive())

    def _wait(self, is_done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + SECS
        while not is_done() and self._failure is None:
            assert time.monotonic() < give_up, f"{self.kind} hangs"
            time.sleep(0.02)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised where the test waits for it
            self._failure = error

    def ids(self) -> list[str]:
        return [f"{number}" for number in range(self.sent)]

    def goes_on(self) -> bool:
        """Whether there is work left. Once all is done, all messages come again."""
        if self.is_over.is_set() and not self.waiting and not self.is_idle.is_set():
            self.is_idle.set()
            self.again.wait(SECS)
            self.waiting = self.ids()
        return not self.is_over.is_set() or bool(self.waiting)

    def take(self) -> list[str]:
        """The waiting messages, and a few new ones."""
        if not self.is_over.is_set():
            self.waiting += [f"{self._next()}" for _ in range(3)]
        return self.waiting[:9]

    def _next(self) -> int:
        if self.sent == self.may_send:
            return random.randrange(self.sent)
        self.sent += 1
        return self.sent - 1

    def acknowledge(self, ids: Sequence[str]) -> None:
        self.waiting = self.waiting[len(ids) :]
        self.acknowledged += ids

    def one_of(self, receivers: Sequence[Any]) -> Any:
        self._turn += 1
        return receivers[self._turn // TURNS % 2]

    def go_on(self, handle: Callable[[list[str]], None]) -> None:
        """Handle messages to the end. Lost ones come again."""
        while self.goes_on():
            ids = self.take()
            try:
                handle(ids)
            except LOST:
                time.sleep(0.02)
            else:
                self.acknowledge(ids)

    def receiver(self, **options: Any) -> Receiver:
        return opened(self.url, destination=self.kind, patience_secs=5, settings=ALL, **options)

    def work(self) -> None:
        raise NotImplementedError


class OfItsOwn(Worker):
    def work(self):
        with self.receiver() as one, self.receiver() as other:
            self.go_on(lambda ids: self._handle(self.one_of([one, other]), ids))

    def _handle(self, orders, ids):
        with orders.batch() as batch:
            for id_ in ids:
                if batch.receive(id_).deliver:
                    batch.connection.execute(text(EFFECT), {"kind": self.kind, "id": id_})


class InThreads(OfItsOwn):
    """Threads that share a concurrent receiver. Each has its own batch."""

    def work(self):
        with (
            self.receiver(concurrent=True) as one,
            self.receiver(concurrent=True) as other,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            self.go_on(lambda ids: self._share(threads, self.one_of([one, other]), ids))

    def _share(self, threads, orders, ids):
        for done in [threads.submit(self._handle, orders, ids[first::THREADS]) for first in range(THREADS)]:
            done.result()


class Joined(Worker):
    def work(self):
        engine = create_engine(self.url)
        with self.receiver() as one, self.receiver() as other:
            self.go_on(lambda ids: self._handle(self.one_of([one, other]), engine, ids))
        engine.dispose()

    def _handle(self, orders, engine, ids):
        with engine.begin() as connection, orders.batch(connection) as batch:
            for id_ in ids:
                if batch.receive(id_).deliver:
                    connection.execute(text(EFFECT), {"kind": self.kind, "id": id_})


class InTasks(Worker):
    is_concurrent = False

    def work(self):
        asyncio.run(self._work())

    async def _work(self):
        engine = create_async_engine(make_url(self.url).set(drivername="postgresql+asyncpg"))
        how = {"destination": self.kind, "patience_secs": 5, "settings": ALL, "concurrent": self.is_concurrent}
        async with await async_opened(self.url, **how) as one, await async_opened(self.url, **how) as other:
            while self.goes_on():
                ids = self.take()
                try:
                    async with asyncio.timeout(20):
                        await self._handle(self.one_of([one, other]), engine, ids)
                except (*LOST, TimeoutError):
                    await asyncio.sleep(0.02)
                else:
                    self.acknowledge(ids)
        await engine.dispose()

    async def _handle(self, orders, engine, ids):
        async with engine.begin() as connection, orders.batch(connection) as batch:
            for id_ in ids:
                if (await batch.receive(id_)).deliver:
                    await connection.execute(text(EFFECT), {"kind": self.kind, "id": id_})


class InTasksAtOnce(InTasks):
    """Tasks that share a concurrent receiver. Each has its own batch."""

    is_concurrent = True

    async def _handle(self, orders, engine, ids):
        parts = [ids[first::THREADS] for first in range(THREADS)]
        await asyncio.gather(*[super(InTasksAtOnce, self)._handle(orders, engine, part) for part in parts])


class Bridged(Worker):
    """A bridge, which tries again by itself. Its broker is in memory."""

    def work(self):
        broker = MemoryBroker()
        origin = Origin(lambda: broker.source("orders"), "broker", f"queue://{self.kind}")
        bridge = open_bridge(
            origin, PythonTarget("python:campaign:book", self._book), self.url, BridgeOptions(windows=ALL)
        )
        feeding = threading.Thread(target=self._feed, args=(broker, bridge), daemon=True)
        feeding.start()
        bridge.run(waits_at_start=True)

    def _feed(self, broker, bridge):
        while self.goes_on():
            ids = self.take()
            with broker.sink("orders") as sink:
                sink.send([message(id_) for id_ in ids])
            self.acknowledge(ids)
            time.sleep(0.02)
            while self.is_over.is_set() and not self.waiting and (broker.queue("orders") or self._is_at_work(bridge)):
                time.sleep(0.05)
        bridge.stop()

    def _is_at_work(self, bridge):
        """Whether the bridge still has work. Messages that it has taken and not kept are in no queue, but meanwhile
        it takes no others."""
        taken = bridge.receiver.status()
        return bridge.figures.any_waits or taken.rx < len(self.acknowledged)

    def _book(self, received, connection):
        connection.execute(text(EFFECT), {"kind": self.kind, "id": received.text})


class Sender(Worker):
    """A sender. It keeps all numbers that it was given and that are committed."""

    def __init__(self, kind, url):
        super().__init__(kind, url)
        self.numbers: list[str] = []

    def work(self):
        with SequenceIdMaker.open(self.url, message_source_id="gateway") as maker:
            while not self.is_over.is_set():
                try:
                    self.numbers += maker.next_many(3)
                except LOST:
                    time.sleep(0.02)
        self.is_idle.set()


def wait_for(workers: Sequence[Worker]) -> None:
    """Wait until each is at work, because a server that can't be reached at the start is an error."""
    until(lambda: all(len(worker.acknowledged) + len(getattr(worker, "numbers", ())) > 9 for worker in workers))


def rows(url: str, kind: str) -> Counter[str]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT id FROM effect WHERE kind = :kind"), {"kind": kind}))


def as_text(record: logging.LogRecord) -> bool:
    """Turn a log record into text. pytest keeps records until the test ends, and an error in one would keep a whole
    domain in memory."""
    record.msg, record.args, record.exc_info = record.getMessage(), None, None
    return True


@pytest.fixture(params=[False, True], ids=["asynchronous", "synchronous"])
def is_synchronous(request):
    return request.param


@pytest.mark.costly
@pytest.mark.scaled
def test_what_the_new_primary_knows_is_done_once_and_all_else_is_done_again(
    request, seed, is_synchronous, caplog, monkeypatch
):
    monkeypatch.setattr(caplog.handler, "filters", [as_text])
    chosen = random.Random(seed)
    failovers = FAILOVERS[request.config.getoption("--campaign")] // (4 if is_synchronous else 1) or 1
    with primary_and_standby(is_synchronous=is_synchronous) as pair:
        pair.primary.ask("CREATE DATABASE campaign")
        url, hosts_url = (shown(make_url(each).set(database="campaign")) for each in (pair.url, pair.hosts_url))
        migrate(make_url(url))
        with create_engine(url, poolclass=NullPool).begin() as connection:
            connection.execute(text("CREATE TABLE effect (kind TEXT, id TEXT)"))
        kinds = [OfItsOwn, InThreads, Joined, InTasks, InTasksAtOnce, Bridged, Sender]
        workers = [kind(kind.__name__, chosen.choice([url, hosts_url])) for kind in kinds]
        for worker in workers:
            worker.start()
        wait_for(workers)
        lossy = 0
        for number in range(failovers):
            for worker in workers:
                worker.may_send += IDS
            time.sleep(chosen.uniform(0.2, 0.8))
            if not is_synchronous and number % 2:
                lossy += 1
                pair.detach()
                time.sleep(chosen.uniform(0.1, 0.5))
            pair.fail_over()
            pair.build_standby()
        for worker in workers:
            worker.come_to_rest()
        if is_synchronous:
            for worker in workers[:-1]:
                assert rows(url, worker.kind) == Counter(worker.ids()), f"{worker.kind}: something acknowledged is lost"
        lost = {worker.kind: worker.sent - rows(url, worker.kind).total() for worker in workers[:-1]}
        for worker in workers:
            worker.redeliver()
        for worker in workers[:-1]:
            assert rows(url, worker.kind) == Counter(worker.ids()), f"{worker.kind}, seed {seed}"
        numbers = workers[-1].numbers
        assert len(set(numbers)) == len(numbers) > 0
        assert_sound(url)
    sent = {worker.kind: worker.sent for worker in workers[:-1]}
    survived({"failovers": failovers - lossy, "failovers with lost commits": lossy}, sum(sent.values()))
    print(f"{failovers} failovers, {lossy} with lost commits; sent {sent}, lost with a primary and sent again {lost}")
