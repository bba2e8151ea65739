"""A bridge with its store and the same connector without one, each given the same messages."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal, by_turns
from receiver.bridge import Message, sink_of, source_of
from receiver.bridge.opening import open_bridge
from receiver.bridge.options import BridgeOptions
from receiver.closing import Closing
from receiver.errors import MissingProgramError
from receiver.settings import BridgeSettings

TURNS = 5
BATCH = 500
BODY = b'{"order": 4711, "symbol": "ACME", "side": "buy", "quantity": 100, "price": 12.34, "account": "retail"}'
_MESSAGES = 40_000
SOURCES = 50
_GOAL = Goal(0.65, aim=0.9)


class Orders(Closing):
    """Sends orders to a queue or topic, each with an id of its own."""

    def __init__(self, address: str) -> None:
        self._sink = sink_of(address)
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._sink.close()

    def send(self, count: int) -> None:
        for start in range(0, count, BATCH):
            self._sink.send([order(next(self._numbers)) for _ in range(min(BATCH, count - start))])


def order(number: int, **more: Any) -> Message:
    source = f"gateway{number % SOURCES:02d}.example.com:1234:567890"
    ids = {"uniqueMessageId": f"{number}:{source}", "messageSourceId": source}
    return Message(body=BODY, is_text=True, properties=ids, **more)


def speed(name: str, address: str, scale: float, goal: Goal = _GOAL) -> Comparison:
    """How fast a bridge and the connector alone empty a queue by one protocol."""
    count = scaled(_MESSAGES, scale)

    def rate(run: Callable[[], None]) -> float:
        orders.send(count)
        start = time.perf_counter()
        run()
        return count / (time.perf_counter() - start)

    with Orders(address) as orders, new_store() as store:
        return by_turns(
            lambda: rate(lambda: _bridge_all(address, store, count)),
            lambda: rate(lambda: _take_all(address, count)),
            turns=scaled(TURNS, scale, least=1),
            name=name,
            work=f"EXACTLY_ONCE on SQLite, batches of {BATCH}: {count:,} messages of {len(BODY)} bytes to a function",
            unit="messages/s",
            anchor_name="the same connector: take, acknowledge, call",
            goal=goal,
        )


def _bridge_all(address: str, store: str, count: int) -> None:
    seen = 0

    def handle(_message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            under_way.stop()

    under_way = open_bridge(address, handle, store, options())
    under_way.run()
    check(seen, count)


def _take_all(address: str, count: int) -> None:
    seen = 0
    with source_of(address) as source:
        while seen < count:
            deliveries = source.take(BATCH, wait_secs=5)
            source.acknowledge(deliveries)
            seen += sum(delivery.message.body == BODY for delivery in deliveries)
    check(seen, count)


def options() -> BridgeOptions:
    return BridgeOptions(settings=BridgeSettings(max_batch_size=BATCH))


def check(seen: int, count: int) -> None:
    if seen != count:
        raise AssertionError(f"{seen} of {count} messages have come")


@contextmanager
def new_store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="receiver-bridge-") as folder:
        yield f"sqlite:///{folder}/receiver.db"


@contextmanager
def skipped_aloud(name: str) -> Iterator[None]:
    """If a broker or database can't be had, say on standard error that these benchmarks are skipped, and go on."""
    try:
        yield
    except (MissingProgramError, pytest.skip.Exception) as missing:  # pytest's is raised in `tests/`
        print(f"{name}: skipped, {missing}", file=sys.stderr)
