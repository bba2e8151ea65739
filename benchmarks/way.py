"""What the bridge adds to the cost of a message, beside its connector: processor time, on the broker in memory.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`bridge-way-500`: of 18 us, 6.5 judge and record ids, as `Receiver` does. About 3 more hash the body and record its
digest, which shows that an id was reused. The rest puts messages into the inbox, takes them out and counts them. To skip
the inbox when a turn follows at once isn't safe: if a message were delivered before the ids commit, another message could
get its number after a crash. Batches of 50 pay one commit for fewer messages.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.bridging import BATCH, BODY, TURNS, check, new_store, order
from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal, by_turns, seconds
from receiver.bridge import Message
from receiver.bridge.opening import Origin, open_bridge
from receiver.bridge.options import BridgeOptions
from receiver.durable.receiver import Receiver
from receiver.settings import BridgeSettings
from tests.brokers.memory import MemoryBroker

_MESSAGES = 40_000
_SENT_MS = 1_777_629_600_000
_FEW = 50
"""As many as Qpid delivers at a time."""


def way(scale: float) -> Iterator[Comparison]:
    for batch, count in ((BATCH, _MESSAGES), (_FEW, _MESSAGES // 4)):
        numbers = range(scaled(count, scale, least=2))
        messages = [order(number, message_id=f"ID:{number}", jms_timestamp_ms=_SENT_MS) for number in numbers]
        yield by_turns(
            lambda messages=messages, batch=batch: _bridge_us(messages, batch) - _connector_us(messages, batch),  # type: ignore[misc]
            lambda messages=messages, batch=batch: _receiver_us(messages, batch),  # type: ignore[misc]
            turns=scaled(TURNS, scale, least=1),
            name=f"bridge-way-{batch}",
            work=f"EXACTLY_ONCE on SQLite, batches of {batch}: {len(messages):,} messages of {len(BODY)} bytes to a function",
            unit="us of processor time a message, beside the connector",
            anchor_name="Receiver: their ids alone, in the same batches",
            goal=Goal(1.8, aim=1.5, at_most=True),
        )


def _broker(messages: list[Message]) -> MemoryBroker:
    broker = MemoryBroker()
    with broker.changed:
        broker.queue("orders").extend(messages)
    return broker


def _bridge_us(messages: list[Message], batch: int) -> float:
    """The time per message, measured over the second half of the messages: so opening isn't counted."""
    broker, half, seen = _broker(messages), len(messages) // 2, 0
    at: dict[int, float] = {}

    def handle(_message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen in {half, len(messages)}:
            gc.freeze()  # so that the garbage collector skips the messages that are still to come
            at[seen] = time.process_time()
        if seen == len(messages):
            under_way.stop()

    with new_store() as store:
        origin = Origin(lambda: broker.source("orders"), "broker", "queue://orders")
        under_way = open_bridge(origin, handle, store, BridgeOptions(settings=BridgeSettings(max_batch_size=batch)))
        under_way.run()
    gc.unfreeze()
    check(seen, len(messages))
    return (at[len(messages)] - at[half]) / (len(messages) - half) * 1e6


def _connector_us(messages: list[Message], batch: int) -> float:
    broker, seen = _broker(messages), 0

    def take() -> None:
        nonlocal seen
        with broker.source("orders") as source:
            while deliveries := source.take(batch, wait_secs=0):
                source.acknowledge(deliveries)
                seen += len(deliveries)

    took_secs = seconds(take)
    check(seen, len(messages))
    return took_secs / len(messages) * 1e6


def _receiver_us(messages: list[Message], batch: int) -> float:
    ids = [(message.properties["uniqueMessageId"], message.properties["messageSourceId"]) for message in messages]
    half = len(ids) // 2

    def receive(of: Any) -> None:
        for start in range(0, len(of), batch):
            with receiver.batch() as under_way:
                now_us = time.time_ns() // 1_000
                under_way.receive_many([(id_, source, now_us) for id_, source in of[start : start + batch]])

    with new_store() as store, Receiver.open(store, connection_id="broker", destination="queue://orders") as receiver:
        receive(ids[:half])
        return seconds(lambda: receive(ids[half:])) / (len(ids) - half) * 1e6
