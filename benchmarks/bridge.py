"""A bridge with its store against the same connector without one, on a real ActiveMQ Artemis of its own."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal, by_turns
from receiver.bridge.connectors import Message, sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.closing import Closing
from receiver.demo.artemis import HOST, Broker, fetch, new_broker
from receiver.settings import BridgeSettings

__all__ = ["bridge"]

_TURNS = 5
_MESSAGES = 40_000
_BATCH = 500
_SOURCES = 50
_BODY = b'{"order": 4711, "symbol": "ACME", "side": "buy", "quantity": 100, "price": 12.34, "account": "retail"}'
_PINGS = 300
_PAUSE_SECS = 0.01
_LOAD_SECS = 600
_FULL = 2
"""The tenth of that at whose end as many ids are remembered as ever will be."""
_SYNCS = 200


def bridge(scale: float) -> Iterator[Comparison]:
    with _running_broker() as broker:
        for protocol in ("stomp", "amqp"):
            yield _speed(broker, protocol, scale)
        yield _latency(broker, scale)
        yield _memory(broker, scale)


@contextmanager
def _running_broker() -> Iterator[Broker]:
    with new_broker(fetch(user_cache_path("reliable-receiver"))) as broker:
        broker.start()
        yield broker


def _address(broker: Broker, protocol: str, queue: str) -> BrokerAddress:
    port = broker.stomp_port if protocol == "stomp" else broker.amqp_port
    return BrokerAddress.parse(f"{protocol}://{HOST}:{port}/queue/{queue}")


class _Orders(Closing):
    """Sends orders to a queue, each with an id of its own."""

    def __init__(self, address: BrokerAddress) -> None:
        self._sink = sink_of(address)
        self._sent = 0

    def close(self) -> None:
        self._sink.close()

    def send(self, count: int) -> None:
        for start in range(0, count, _BATCH):
            self._sink.send([self._next() for _ in range(min(_BATCH, count - start))])

    def _next(self) -> Message:
        self._sent += 1
        source = f"gateway{self._sent % _SOURCES:02d}.example.com:1234:567890"
        ids = {"uniqueMessageId": f"{self._sent}:{source}", "messageSourceId": source}
        return Message(body=_BODY, is_text=True, properties=ids)


def _speed(broker: Broker, protocol: str, scale: float) -> Comparison:
    count, address = scaled(_MESSAGES, scale), _address(broker, protocol, f"{protocol}-orders")

    def rate(run: Callable[[], None]) -> float:
        orders.send(count)
        start = time.perf_counter()
        run()
        return count / (time.perf_counter() - start)

    with _Orders(address) as orders, _store() as store:
        return by_turns(
            lambda: rate(lambda: _bridge_all(address, store, count)),
            lambda: rate(lambda: _take_all(address, count)),
            turns=scaled(_TURNS, scale, least=1),
            name=f"bridge-{protocol}",
            work=f"EXACTLY_ONCE on SQLite, batches of {_BATCH}: {count:,} messages of {len(_BODY)} bytes to a function",
            unit="messages/s",
            anchor_name="the same connector: take, acknowledge, call",
            goal=Goal(0.6, aim=0.9),
        )


def _bridge_all(address: BrokerAddress, store: str, count: int) -> None:
    seen = 0

    def handle(_message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            under_way.stop()

    under_way = open_bridge(str(address), handle, store, _options())
    under_way.run()
    _check(seen, count)


def _options() -> BridgeOptions:
    return BridgeOptions(settings=BridgeSettings(max_batch_size=_BATCH))


def _take_all(address: BrokerAddress, count: int) -> None:
    seen = 0
    with source_of(address) as source:
        while seen < count:
            deliveries = source.take(_BATCH, wait_secs=5)
            source.acknowledge(deliveries)
            seen += sum(delivery.message.body == _BODY for delivery in deliveries)
    _check(seen, count)


def _check(seen: int, count: int) -> None:
    if seen != count:
        raise AssertionError(f"{seen} of {count} messages have come")


def _latency(broker: Broker, scale: float) -> Comparison:
    """What a message waits longer for its way through the store, in syncs of a disk."""
    count, address = scaled(_PINGS, scale, least=3), _address(broker, "amqp", "pings")
    with _store() as store, tempfile.NamedTemporaryFile(dir=Path(store.removeprefix("sqlite:///")).parent) as file:
        return by_turns(
            lambda: _delay_secs(address, store, count) - _delay_secs(address, None, count),
            lambda: _sync_secs(file.fileno()),
            turns=scaled(_TURNS, scale, least=1),
            name="bridge-latency",
            work=f"EXACTLY_ONCE on SQLite: {count:,} messages one at a time, what each waits longer",
            unit="s",
            anchor_name="a sync of the disk",
            goal=Goal(2, aim=1, at_most=True),
        )


def _delay_secs(address: BrokerAddress, store: str | None, count: int) -> float:
    """From a message's sending to its handling, in the middle of all; without a store by the connector alone."""
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
        under_way = open_bridge(str(address), handle, store, _options())
        worker, end = threading.Thread(target=under_way.run), under_way.stop
    worker.start()
    with sink_of(address) as sink:
        for _ in range(count):
            arrived.clear()
            now = time.perf_counter()
            sink.send([Message(body=_BODY, is_text=True, properties={"uniqueMessageId": repr(now), "sent": now})])
            arrived.wait(10)
            time.sleep(_PAUSE_SECS)
    end()
    worker.join()
    _check(len(delays), count)
    return statistics.median(delays)


def _handle_each(address: BrokerAddress, handle: Callable[[Any], None], stop: threading.Event) -> None:
    with source_of(address) as source:
        while not stop.is_set():
            deliveries = source.take(_BATCH, wait_secs=0.1)
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
    """What the process has in memory at the end of ten minutes of load, and after three of them, when all windows are
    full: ids expire after two."""
    address, load_secs = _address(broker, "amqp", "load"), max(1.0, _LOAD_SECS * scale)
    sizes: list[int] = []

    def watch() -> None:
        for _ in range(10):
            time.sleep(load_secs / 10)
            sizes.append(_resident_bytes())
        under_way.stop()

    def load() -> None:
        with _Orders(address) as orders:
            while not under_way.is_stopping:
                orders.send(_BATCH)

    with _store() as store:
        under_way = open_bridge(str(address), _ignore, store, _options())
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
        ours=sizes[-1] / 1e6,
        anchor=sizes[_FULL] / 1e6,
        ratios=(sizes[-1] / sizes[_FULL],),
        goal=Goal(1.1, aim=1.02, at_most=True),
    )


def _ignore(_message: Any) -> None:
    pass


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="receiver-bridge-") as folder:
        yield f"sqlite:///{folder}/receiver.db"
