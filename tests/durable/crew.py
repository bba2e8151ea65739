"""A process of concurrent consumers: threads that share one receiver. Each message's effect is in its receipt's
transaction.

After a kill, the next process gets the messages again that weren't reported as committed. After an error, a thread
sends them again itself.
"""

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from sqlalchemy import Boolean, Column, MetaData, NullPool, Table, Text, create_engine, insert
from sqlalchemy.exc import DBAPIError

from receiver.errors import StoreError
from receiver.retrying import Backoff, may_pass, until_done
from tests.durable.opened import DUPLICATE, UndoError, opened, sizes
from tests.durable.worker import PATIENCE_SECS, PAUSE_SECS, PROCESSES

METADATA = MetaData()
outcomes = Table(
    "outcomes",
    METADATA,
    Column("unique_message_id", Text, nullable=False),
    Column("is_dropped", Boolean, nullable=False),
)
WINDOW = 200
AGAIN, SHARED, UNDONE, LINGERS = 0.2, 0.3, 0.1, 0.1
NEARBY = 50
BATCH = 5
SHARED_SECS = 0.1
"""How long all consumers get the same shared message."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """A process's job."""

    url: str
    number: int
    """The number of the process."""
    life: int
    """How many processes had this number before it."""
    seed: int
    begin: Mapping[int, int]
    """For each thread, its first message that isn't known to be committed."""
    stop: Path
    """The process ends once this file exists."""


def crew_receiver(url: str):
    return opened(url, concurrent=True, settings=sizes(WINDOW, 0))


def work(crew: Crew, reports: Connection) -> None:
    lock = threading.Lock()
    failed = []

    def report(*said: object) -> None:
        with lock:
            reports.send(said)

    # Patiently, since the server may be down at the moment.
    patiently = partial(until_done, is_passing=may_pass, backoff=Backoff(PAUSE_SECS, 0.2), patience_secs=PATIENCE_SECS)
    with patiently(lambda: crew_receiver(crew.url)) as orders:

        def consume(thread: int) -> None:
            try:
                Consumer(crew, thread, orders).run(report)
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=consume, args=[thread]) for thread in crew.begin]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report("failed" if failed else "ended", repr(failed))


class Consumer:
    """A consumer, which runs in one thread."""

    def __init__(self, crew: Crew, thread: int, orders) -> None:
        self._name = f"{crew.number}:{thread}"
        self._thread = thread
        self._crew = crew
        self._orders = orders
        self._chosen = random.Random(f"{crew.seed} {self._name} {crew.life}")
        self._engine = create_engine(crew.url, poolclass=NullPool) if thread % 2 else None

    def run(self, report) -> None:
        position = self._crew.begin[self._thread]
        while not self._crew.stop.exists():
            end = position + self._chosen.randint(1, BATCH)
            received = self._received(position, end)
            give_up = time.monotonic() + PATIENCE_SECS
            while True:
                try:
                    with suppress(UndoError):
                        self._receive(received)
                        position = end
                        report(self._thread, position)
                    break
                except (StoreError, DBAPIError):
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(PAUSE_SECS)

    def _received(self, position: int, end: int) -> list[tuple[str, str, None]]:
        """New messages; now and then also an earlier message, or one that all consumers get."""
        chosen = self._chosen
        ids = [f"{self._name}:{n}" for n in range(position, end)]
        if position and chosen.random() < AGAIN:
            ids.append(f"{self._name}:{max(0, position - chosen.randint(1, NEARBY))}")
        received = [(id_, self._name, None) for id_ in ids]
        if chosen.random() < SHARED:
            received.append((f"shared:{time.time() // SHARED_SECS:.0f}", "shared", None))
        chosen.shuffle(received)
        return received

    def _receive(self, received: list[tuple[str, str, None]]) -> None:
        transaction = nullcontext() if self._engine is None else self._engine.begin()
        with transaction as connection, self._orders.batch(connection) as batch:
            decisions = batch.receive_many(received)
            rows = [
                {"unique_message_id": id_, "is_dropped": decision.verdict is DUPLICATE}
                for (id_, _, _), decision in zip(received, decisions, strict=True)
            ]
            batch.connection.execute(insert(outcomes), rows)
            if self._chosen.random() < LINGERS:
                time.sleep(self._chosen.uniform(0, 0.05))
            if self._chosen.random() < UNDONE:
                raise UndoError


class Running:
    """A running process, as its parent sees it."""

    def __init__(self, crew: Crew) -> None:
        self._reports, theirs = PROCESSES.Pipe(duplex=False)
        self.crew = crew
        self.process = PROCESSES.Process(target=work, args=(crew, theirs))
        self.process.start()
        theirs.close()
        self.confirmed = dict(crew.begin)
        self.said: list[object] = []
        self._listener = threading.Thread(target=self._listen)  # a full pipe would hold the process up
        self._listener.start()

    def _listen(self) -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                said, what = self._reports.recv()
                if isinstance(said, int):
                    self.confirmed[said] = what
                else:
                    self.said = [said, what]

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.join(PATIENCE_SECS)
        assert self.process.exitcode is not None, f"process {self.crew.number} is stuck"
        self._listener.join()
        self._reports.close()


@contextmanager
def running(crews: list[Crew]) -> Iterator[list[Running]]:
    """Running processes, in a list. If you replace a process, put the new one into the list: all of them are killed
    at the end."""
    processes = [Running(crew) for crew in crews]
    try:
        yield processes
    finally:
        for running in processes:
            running.process.kill()
            running.end()
