"""What people would pick instead: Apache Camel into a table, Artemis' own bridge, an inbox table by hand.

All run on a real Artemis and a real PostgreSQL. A rate counts committed effects, from the first to the last, as another
connection sees them. What each peer promises under a kill stands beside its route, in `java/Peers.java` and
`peers_inbox.py`.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`peers-camel-message-16`: our function inserts each message's row by its own statement, one after another, on one
connection. Camel has 16 functions and 16 connections. With `messages` a batch's rows go to the server together, which is
4.6 times Camel's best.

`peers-camel-consumers-16`: 16 consumers take as many messages at once as they handle in half a second, and acknowledge while
they go on. Then one Python process uses 0.9 of a core, the broker 0.7, and the server the rest of two cores. Before there
were batches, each message cost the broker a transaction and the other programs 33 ms: a ratio of 0.56. A ratio of 4 would
need several processes, and so more than two cores.

`peers-queue-*`: the broker's own bridge hands messages on inside Java. Ours takes each message into Python and sends it
back. By AMQP the connector alone, without a store, hands on 4,900 to 5,800 messages a second from queue to queue: 72 to
94 us to take each, 71 to 87 to send it. The bridge overlaps taking and sending, and so is faster although it has a store.
A ratio of 0.5 would need an AMQP client that spends less Python on a message.

`peers-inbox-1`: both sides wait for the same sync of the disk, and ask the server as often. The application writes a row
between lock and commit, so these two can't go in one request.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import psycopg
from platformdirs import user_cache_path
from sqlalchemy import make_url

from benchmarks.bridging import BATCH, new_store, skipped_aloud
from benchmarks.orders import in_batches, scaled
from benchmarks.pairing import Comparison, Goal
from benchmarks.peers_effects import COUNT, TABLES
from benchmarks.peers_inbox import BODY, inbox, resent
from benchmarks.peers_java import Peers, TunedBroker, fetch
from benchmarks.stores import postgres
from examples.demo import artemis
from examples.demo.processes import HOST
from receiver.bridge import Message, sink_of

_MESSAGES = 20_000
_TURNS = 3
_CONSUMERS = (1, 4, 16)
_LOOK_SECS = 0.02
_STALL_SECS = 120
_ROOT = Path(__file__).resolve().parents[1]
_OF_MESSAGE, _OF_BATCH = "python:benchmarks.peers_effects:insert", "python:benchmarks.peers_effects:insert_all"
_WAYS = {
    "message": [_OF_MESSAGE],
    "batch": [_OF_BATCH],
    "consumers": [_OF_MESSAGE, "--consumers", "16"],
}
_OF_EACH = {"message": "message", "batch": "batch", "consumers": "message, 16 consumers"}
_FOR_EVER = {'addressSettings."#".maxDeliveryAttempts': -1}
"""Settings of the broker: a message is no poison, however often a peer takes it and gives it back."""
_queue_numbers = count()

Rates = dict[str, list[float]]
Run = Callable[[], float]


def peers(scale: float) -> Iterator[Comparison]:
    with skipped_aloud("peers"), postgres() as database:
        yield from inbox(database, scale)
        with skipped_aloud("peers on Artemis"), database.new_url() as url, _Field.open(url, scale) as field:
            yield from _into_table(field, scale)
            yield from _to_queue(field, scale)


class _Field:
    """A broker, the peers, and a database with a table of effects."""

    def __init__(self, broker: TunedBroker, java: Peers, url: str, scale: float) -> None:
        self.java = java
        self.url = url
        self._broker = broker
        self._ids = resent(scaled(_MESSAGES, scale))
        dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._database = psycopg.connect(dsn, autocommit=True)
        for table in TABLES:
            self._database.execute(table)

    @classmethod
    @contextmanager
    def open(cls, url: str, scale: float) -> Iterator[_Field]:
        cache = user_cache_path("reliable-receiver")
        artemis.check_programs(cache)
        home, jars = artemis.fetch(cache), fetch(cache)
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="receiver-peers-")))
            broker = TunedBroker(home, folder / "broker")
            opened.callback(broker.close)
            broker.start(properties=_FOR_EVER)
            java = opened.enter_context(Peers(jars, broker, url, folder / "java.log"))
            field = cls(broker, java, url, scale)
            opened.callback(field._database.close)
            yield field

    @property
    def sent(self) -> int:
        return len(self._ids)

    @property
    def once(self) -> int:
        return len(set(self._ids))

    def address(self, queue: str) -> str:
        return f"amqp://{HOST}:{self._broker.amqp_port}/queue/{queue}"

    def filled_queue(self) -> str:
        """A new queue with all messages in it."""
        queue = f"orders{next(_queue_numbers)}"
        with sink_of(self.address(queue)) as sink:
            for ids in in_batches(self._ids, BATCH):
                sink.send(
                    [Message(body=BODY.encode(), is_text=True, properties={"uniqueMessageId": id_}) for id_ in ids]
                )
        return queue

    def rows(self) -> int:
        (number, _) = self._row_counts()
        return number

    def in_queue(self, queue: str) -> int:
        return int(self.java.ask(f"count {queue}"))

    def empty_table(self) -> None:
        self._database.execute("TRUNCATE effect")

    def check_table(self) -> None:
        if self._row_counts() != (self.once, self.once):
            raise AssertionError(f"rows and messages are {self._row_counts()}, not {self.once} each")

    def _row_counts(self) -> tuple[int, int]:
        number, distinct = self._database.execute(COUNT).fetchone() or (0, 0)
        return number, distinct


def _into_table(field: _Field, scale: float) -> Iterator[Comparison]:
    """`receiver bridge` with a function for each message, for each batch, or in consumers, against Camel's consumers."""
    ours: dict[str, Run] = {way: lambda way=way: _our_rows(field, *_WAYS[way]) for way in _WAYS}  # type: ignore[misc]
    theirs: dict[str, Run] = {f"{n}": lambda n=n: _camel(field, n) for n in _CONSUMERS}  # type: ignore[misc]
    _camel(field, _CONSUMERS[-1])  # so that Java is warm
    rates = _taken(scaled(_TURNS, scale, least=1), ours | theirs)
    best = max(theirs, key=lambda consumers: statistics.median(rates[consumers]))
    for way in ours:
        for consumers in theirs:
            yield Comparison(
                name=f"peers-camel-{way}-{consumers}",
                work=f"EXACTLY_ONCE: {field.sent:,} messages of {len(BODY)} bytes from Artemis into PostgreSQL, a function of "
                f"each {_OF_EACH[way]}",
                unit="messages/s",
                anchor_name=f"Camel, id and row in one transaction, {consumers} consumers",
                our_figures=rates[way],
                anchor_figures=rates[consumers],
                goal=Goal(4, aim=6) if consumers == best else None,
            )


def _to_queue(field: _Field, scale: float) -> Iterator[Comparison]:
    with new_store() as sqlite:
        ours: dict[str, Run] = {
            "sqlite": lambda: _our_queue(field, sqlite),
            "postgresql": lambda: _our_queue(field, field.url),
        }
        rates = _taken(scaled(_TURNS, scale, least=1), ours | {"core": lambda: _core_bridge(field)})
    for store in ours:
        yield Comparison(
            name=f"peers-queue-{store}",
            work=f"EXACTLY_ONCE: {field.sent:,} messages of {len(BODY)} bytes from queue to queue of one Artemis",
            unit="messages/s",
            anchor_name="its core bridge with duplicate detection, which drops none of the messages sent twice",
            our_figures=rates[store],
            anchor_figures=rates["core"],
            goal=Goal(0.5, aim=0.8),
        )


def _taken(turns: int, runs: dict[str, Run]) -> Rates:
    """The rates of each run, by turns. Every second turn goes through the runs in reverse order."""
    rates: Rates = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            rates[name].append(runs[name]())
    return rates


def _our_rows(field: _Field, function: str, *options: str) -> float:
    queue = field.filled_queue()
    field.empty_table()
    with _bridge(field.address(queue), function, field.url, *options):
        rate = _rate(field.rows, field.once)
    field.check_table()
    return rate


def _camel(field: _Field, consumers: int) -> float:
    queue = field.filled_queue()
    field.empty_table()
    field.java.ask(f"camel {queue} {consumers}")
    rate = _rate(field.rows, field.once)
    field.java.ask("end-camel")
    field.check_table()
    return rate


def _our_queue(field: _Field, store: str) -> float:
    queue = field.filled_queue()
    field.java.ask(f"queue {queue}-out")
    with _bridge(field.address(queue), field.address(f"{queue}-out"), store):
        rate = _rate(lambda: field.in_queue(f"{queue}-out"), field.once)
    if field.in_queue(f"{queue}-out") != field.once:
        raise AssertionError("a message has gone over twice")
    return rate


def _core_bridge(field: _Field) -> float:
    queue = field.filled_queue()
    field.java.ask(f"queue {queue}-out")
    field.java.ask(f"bridge {queue} {queue}-out")
    rate = _rate(lambda: field.in_queue(f"{queue}-out"), field.sent)
    field.java.ask(f"end-bridge {queue}")
    return rate


@contextmanager
def _bridge(from_: str, to: str, store: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "receiver", "bridge", from_, to, "--store", store, "--max-batch-size", f"{BATCH}"]
    command += options
    with subprocess.Popen(
        command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)}, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _rate(effects: Callable[[], int], expected: int) -> float:
    """Effects per second: from the last look that saw none to the first look that saw all."""
    start = last = time.perf_counter()
    seen = 0
    while True:
        before, now = seen, time.perf_counter()
        seen = effects()
        if seen == 0:
            start = now
        if seen >= expected:
            return seen / (time.perf_counter() - start)
        if seen > before:
            last = now
        if now - last > _STALL_SECS:
            raise AssertionError(f"{seen} of {expected} effects, and no more in {_STALL_SECS} s")
        time.sleep(_LOOK_SECS)
