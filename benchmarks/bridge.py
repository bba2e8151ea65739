"""A bridge with its store against the same connector without a store, on real brokers, product by product.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`bridge-stomp`, `bridge-amqp`, `bridge-rabbitmq-amqp`: keeping a message costs 7 us of processor time beside the
connector's. The interpreter runs one thread at a time: while one thread keeps messages, the connector's waits. Rows go
into SQLite 50 at a time, since the other thread takes the interpreter between two statements. An interpreter without
that lock would overlap both.

`bridge-latency`: a lone message comes 2 ms sooner than by the connector alone. The connector alone calls the function
only once the broker has the acknowledgement. The bridge has the message in its store, so it calls the function
meanwhile.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from platformdirs import user_cache_path
from sqlalchemy import Connection, text

from benchmarks.bridging import BATCH, BODY, TURNS, Orders, check, new_store, options, skipped_aloud, speed
from benchmarks.kafka import kafka_topics
from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.stores import on_a_disk, postgres
from examples.demo.artemis import Broker, check_programs, fetch, new_broker
from examples.demo.processes import HOST
from receiver.bridge import Message, sink_of, source_of
from receiver.bridge.opening import open_bridge
from receiver.bridge.options import BridgeOptions, Mode
from tests.brokers import cached, classic, qpid, rabbitmq

_CONSUMERS = 16
_SLOW = 400
_WORK = text("SELECT pg_sleep(0.02)")
_PINGS = 300
_PAUSE_SECS = 0.01
_LOAD_SECS = 600
_FULL = 2
"""Which tenth of the load it is, counted from 0, at whose end the windows are full."""
_SYNCS = 200
_ON_ARTEMIS = Goal(0.85, aim=0.9)


class _Product(NamedTuple):
    """A product other than Artemis."""

    module: ModuleType
    protocols: tuple[str, ...]
    kind: str | None = None
    """The kind of its queues, if queues must be made."""


_PRODUCTS = {
    "rabbitmq": _Product(rabbitmq, ("amqp", "stomp"), "quorum"),
    "classic": _Product(classic, ("amqp", "stomp")),
    "qpid": _Product(qpid, ("amqp",)),
}


def bridge(scale: float) -> Iterator[Comparison]:
    with skipped_aloud("bridge on Artemis"):
        yield from _artemis(scale)
    for name, product in _PRODUCTS.items():
        with skipped_aloud(f"bridge-{name}"):
            yield from _product(name, product, scale)
    with skipped_aloud("bridge-kafka"):
        yield from kafka_topics(scale)


def _artemis(scale: float) -> Iterator[Comparison]:
    cache = user_cache_path("reliable-receiver")
    check_programs(cache)
    with new_broker(fetch(cache)) as broker:
        broker.start()
        for protocol in ("stomp", "amqp"):
            yield speed(f"bridge-{protocol}", _address(broker, protocol, f"{protocol}-orders"), scale, _ON_ARTEMIS)
        with skipped_aloud("bridge-consumers"):
            yield _consumers(broker, scale)
        yield _latency(broker, scale)
        yield _memory(broker, scale)


def _product(name: str, product: _Product, scale: float) -> Iterator[Comparison]:
    with cached.new_broker(product.module) as running:
        broker: Any = running
        broker.start()
        for protocol in product.protocols:
            queue = f"{protocol}-orders"
            if product.kind is not None:
                broker.declare(queue, product.kind)
            yield speed(f"bridge-{name}-{protocol}", broker.address(protocol, queue), scale)


def _address(broker: Broker, protocol: str, queue: str) -> str:
    port = broker.stomp_port if protocol == "stomp" else broker.amqp_port
    return f"{protocol}://{HOST}:{port}/queue/{queue}"


def _consumers(broker: Broker, scale: float) -> Comparison:
    """Several consumers against one. Each message keeps the database busy for a while."""
    count, address = scaled(_SLOW, scale, least=_CONSUMERS), _address(broker, "amqp", "slow")
    with postgres() as server, on_a_disk(server).new_url() as store, Orders(address) as orders:

        def rate(consumers: int | None) -> float:
            orders.send(count)
            return count / _secs_of_slow(address, store, count, consumers)

        return by_turns(
            lambda: rate(_CONSUMERS),
            lambda: rate(None),
            turns=scaled(TURNS, scale, least=1),
            name="bridge-consumers",
            work=f"{server.name}, {_CONSUMERS} consumers: {count:,} messages to a function, each with 20 ms of SQL",
            unit="messages/s",
            anchor_name="one, by APP_CONTROLLED",
            goal=Goal(4, aim=10),
        )


def _secs_of_slow(address: str, store: str, count: int, consumers: int | None) -> float:
    """The time from the first message's handling to the end of the last one's."""
    began: list[float] = []

    def handle(_message: Any, connection: Connection) -> None:
        began.append(time.perf_counter())
        connection.execute(_WORK)

    under_way = open_bridge(address, handle, store, BridgeOptions(mode=Mode.APP_CONTROLLED, consumers=consumers))
    worker = threading.Thread(target=under_way.run)
    worker.start()
    while under_way.figures.delivered < count and worker.is_alive():
        time.sleep(_PAUSE_SECS)
    took = time.perf_counter() - began[0]
    under_way.stop()
    worker.join()
    check(under_way.figures.delivered, count)
    return took


def _latency(broker: Broker, scale: float) -> Comparison:
    """How much longer a message takes through the store, in syncs of a disk."""
    count, address = scaled(_PINGS, scale, least=3), _address(broker, "amqp", "pings")
    with new_store() as store, tempfile.NamedTemporaryFile(dir=Path(store.removeprefix("sqlite:///")).parent) as file:
        return by_turns(
            lambda: _delay_secs(address, store, count) - _delay_secs(address, None, count),
            lambda: _sync_secs(file.fileno()),
            turns=scaled(TURNS, scale, least=1),
            name="bridge-latency",
            work=f"EXACTLY_ONCE on SQLite: {count:,} messages one at a time, what each waits longer",
            unit="s",
            anchor_name="a sync of the disk",
            goal=Goal(2, aim=1, at_most=True),
        )


def _delay_secs(address: str, store: str | None, count: int) -> float:
    """The median time from sending a message to handling it; without a store, the connector alone takes it."""
    delays: list[float] = []
    arrived = threading.Event()

    def handle(message: Any) -> None:
        delays.append(time.perf_counter() - float(message.properties["sent"]))
        arrived.set()

    stop = threading.Event()
    if store is None:
        worker = threading.Thread(target=_handle_each, args=(address, handle, stop))
        end: Callable[[], None] = stop.set
    else:
        under_way = open_bridge(address, handle, store, options())
        worker, end = threading.Thread(target=under_way.run), under_way.stop
    worker.start()
    with sink_of(address) as sink:
        for _ in range(count):
            arrived.clear()
            now = time.perf_counter()
            sink.send([Message(body=BODY, is_text=True, properties={"uniqueMessageId": repr(now), "sent": now})])
            arrived.wait(10)
            time.sleep(_PAUSE_SECS)
    end()
    worker.join()
    check(len(delays), count)
    return statistics.median(delays)


def _handle_each(address: str, handle: Callable[[Any], None], stop: threading.Event) -> None:
    with source_of(address) as source:
        while not stop.is_set():
            deliveries = source.take(BATCH, wait_secs=0.1)
            source.acknowledge(deliveries)
            for delivery in deliveries:
                handle(delivery.message)


def _sync_secs(file: int) -> float:
    took = []
    for _ in range(_SYNCS):
        os.pwrite(file, b"x" * 4096, 0)
        start = time.perf_counter()
        os.fsync(file)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def _memory(broker: Broker, scale: float) -> Comparison:
    """The process's memory after ten minutes of load, against its memory after three. By then all windows are full: ids
    expire after two minutes.

    If the first minutes are slower, for example because other work runs beside them, fewer ids are known then, and the
    ratio rises. With ids that expire after 5 s, the process stayed at 219 MB from the first minute on, over 900,000
    messages by AMQP.
    """
    address, load_secs = _address(broker, "amqp", "load"), max(1.0, _LOAD_SECS * scale)
    sizes: list[int] = []

    def watch() -> None:
        for _ in range(10):
            time.sleep(load_secs / 10)
            sizes.append(_resident_bytes())
        under_way.stop()

    def load() -> None:
        with Orders(address) as orders:
            while not under_way.is_stopping:
                orders.send(BATCH)

    with new_store() as store:
        under_way = open_bridge(address, _ignore, store, options())
        threads = [threading.Thread(target=watch), threading.Thread(target=load)]
        for thread in threads:
            thread.start()
        under_way.run()
        for thread in threads:
            thread.join()
    return Comparison(
        name="bridge-memory",
        work=f"EXACTLY_ONCE on SQLite, {under_way.figures.delivered:,} messages in {load_secs:.0f} s, sender included",
        unit="MB",
        anchor_name="after three tenths of that time, once the windows are full",
        our_figures=[sizes[-1] / 1e6],
        anchor_figures=[sizes[_FULL] / 1e6],
        goal=Goal(1.1, aim=1.02, at_most=True),
    )


def _ignore(_message: Any) -> None:
    pass


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
