"""A bridge as a process of its own: it receives a stream in batches, and reports before and after each commit.

The reports show whoever kills it which batches are committed for certain, which never began, and which one may be
either. Processes come from a fork server that has imported everything already, so a new process starts in less than a
second.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError

from receiver import Receiver
from receiver.errors import StoreError
from receiver.policies import policy as policy_named
from tests.durable import journal
from tests.durable.opened import sizes
from tests.durable.stream import stream_of

PATIENCE_SECS = 120
"""When a test gives up. Nothing ever takes nearly as long."""
PAUSE_SECS = 0.02
YIELDS = 0.1
LONGEST_YIELD_SECS = 0.1

# There is one fork server for all folders, and the last module to set its imports decides. It looks for modules from
# the repository's top, so only a module with its full name is imported beforehand.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


@dataclass(frozen=True, kw_only=True)
class Job:
    url: str
    seed: int
    stream: int
    count: int
    """How many receipts the stream has."""
    first: int = 0
    """The first receipt to send: the one behind those known to be committed."""
    batch_size: int
    policy: str
    max_sources: int = 0
    """If there are more sources, a batch retires those silent for longest. Only for the policy apama."""
    joins: bool = False
    """Whether each batch joins a transaction of the application."""
    yields: bool = False
    """Whether it pauses now and then, so that other processes come between its batches: SQLite's lock isn't fair."""
    holds: bool = False
    """Whether it stops in its first batch, with the domain's lock, until it is killed."""


class Report(NamedTuple):
    event: str
    """`opened`, then for each batch `begun`, perhaps `holding` or `failed`, and `committed`; `done` at the end."""
    first: int = 0
    """The number of the batch's first receipt in the stream."""
    said: str = ""
    """A committed batch's verdicts, or a failed batch's error."""


def open_receiver(url: str, policy: str, max_sources: int = 0) -> Receiver:
    options = {"policy": policy}
    if max_sources:
        options = {"settings": sizes(*policy_named(policy).sizes, max_sources=max_sources)}
    return Receiver.open(url, connection_id="broker", destination="queue://orders", **options)


def work(job: Job, start: Barrier | None, reports: Connection) -> None:
    receipts = stream_of(job.seed, job.stream, job.count)
    chosen = random.Random(f"{job.seed} {job.stream}")
    own = create_engine(job.url, poolclass=NullPool) if job.joins else None
    with open_receiver(job.url, job.policy, job.max_sources) as orders:
        reports.send(Report("opened"))
        if start is not None:
            start.wait(PATIENCE_SECS)

        def receive(first: int) -> str:
            received = receipts[first : first + job.batch_size]
            if own is None:
                with orders.batch() as batch:
                    decisions = batch.receive_many(received)
                    journal.write(batch.connection, job.stream, first, received, decisions)
                    if job.holds:
                        reports.send(Report("holding", first))
                        time.sleep(PATIENCE_SECS)
            else:
                with own.begin() as connection:
                    with orders.batch(connection=connection) as batch:
                        decisions = batch.receive_many(received)
                    journal.write(connection, job.stream, first, received, decisions)
            return journal.letters(decisions)

        for first in range(job.first, job.count, job.batch_size):
            if job.yields and chosen.random() < YIELDS:
                time.sleep(chosen.uniform(0, LONGEST_YIELD_SECS))
            reports.send(Report("begun", first))
            give_up = time.monotonic() + PATIENCE_SECS
            while True:
                try:
                    reports.send(Report("committed", first, receive(first)))
                    break
                # The batch isn't proven to be committed, so the broker sends it again. In the application's own
                # transaction, the error may be SQLAlchemy's.
                except (StoreError, OperationalError) as error:
                    reports.send(Report("failed", first, repr(error)))
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(PAUSE_SECS)
    reports.send(Report("done"))


@dataclass
class Reporting:
    """A running process, as its parent sees it."""

    process: PROCESSES.Process
    pipe: Connection
    heard: list[Any] = field(default_factory=list)

    def listen(self, at_most: int | None = None, *, until: str | None = None) -> list[Any]:
        """Its next reports, up to the number `at_most` or the event `until`; fewer if it ends before."""
        new: list[Any] = []
        while at_most is None or len(new) < at_most:
            try:
                assert self.pipe.poll(PATIENCE_SECS), f"the process is stuck after {self.heard[-3:]}"
                new.append(self.pipe.recv())
            except (EOFError, ConnectionError):
                break
            self.heard.append(new[-1])
            if until is not None and new[-1].event == until:
                break
        return new

    def kill(self) -> None:
        """Kill -9 it, then read its last reports."""
        self.process.kill()
        self.process.join()
        self.listen()


@contextmanager
def reporting(work: Callable[..., None], *arguments: object, seen_as: Any = Reporting) -> Iterator[Any]:
    """A process that does `work`, with these arguments and a pipe for reports. It is dead at the end, whatever
    happens."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield seen_as(process, ours)
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


@dataclass(kw_only=True)
class Worker(Reporting):
    """A process at work on a job."""

    job: Job

    @property
    def unconfirmed(self) -> int:
        """The receipt from which a broker would send again: the one behind the last batch reported as committed."""
        confirmed = [report.first + len(report.said) for report in self.heard if report.event == "committed"]
        return confirmed[-1] if confirmed else self.job.first

    @property
    def is_done(self) -> bool:
        return bool(self.heard) and self.heard[-1].event == "done"


def working(job: Job, start: Barrier | None = None) -> AbstractContextManager[Worker]:
    """A process at work on a job. With `start`, it begins at the same time as others."""
    return reporting(work, job, start, seen_as=partial(Worker, job=job))
