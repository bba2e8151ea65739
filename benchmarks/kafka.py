"""Two comparisons on a real Kafka: a bridge from Kafka with its store against a bare consumer; a bridge to Kafka
with transactions against one without."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer

from benchmarks.bridging import BATCH, BODY, TURNS, Orders, check, options, skipped_aloud
from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal, by_turns
from benchmarks.stores import SQLITE, Database, postgres
from receiver.bridge.opening import open_bridge
from tests.brokers import kafka
from tests.brokers.cached import new_broker

_MESSAGES = 100_000
_PARTITIONS = 4
_WAIT_SECS = 10
_LOOK_SECS = 0.01


def kafka_topics(scale: float) -> Iterator[Comparison]:
    with new_broker(kafka) as running:
        broker: Any = running
        broker.start()
        yield _speed(broker, SQLITE, scale)
        yield _transactions(broker, scale)
        with skipped_aloud("bridge-kafka-postgresql"), postgres() as server:
            yield _speed(broker, server, scale)


def _speed(broker: kafka.Broker, database: Database, scale: float) -> Comparison:
    """The rate from the first message to the last. The time before it isn't counted: a group forms equally slowly
    for both."""
    count = scaled(_MESSAGES, scale)
    ours, bare = broker.new_topic(_PARTITIONS), broker.new_topic(_PARTITIONS)
    with (
        database.new_url() as store,
        Orders(broker.address(ours)) as our_orders,
        Orders(broker.address(bare)) as bare_orders,
    ):
        return by_turns(
            lambda: _our_rate(our_orders, broker.address(ours, "bridge"), store, count),
            lambda: _bare_rate(bare_orders, broker.servers, bare, count),
            turns=scaled(TURNS, scale, least=1),
            name=f"bridge-kafka-{database.key}",
            work=f"EXACTLY_ONCE on {database.name}, batches of {BATCH}: {count:,} messages of {len(BODY)} bytes in "
            f"{_PARTITIONS} partitions to a function",
            unit="messages/s",
            anchor_name="confluent-kafka: consume",
            goal=Goal(0.3, aim=0.5, enough=15_000),
        )


def _transactions(broker: kafka.Broker, scale: float) -> Comparison:
    """From topic to topic, in turns of one batch each."""
    count = scaled(_MESSAGES, scale)
    from_, bare_from, to, bare_to = (broker.new_topic(_PARTITIONS) for _ in range(4))
    with (
        SQLITE.new_url() as store,
        Orders(broker.address(from_)) as orders,
        Orders(broker.address(bare_from)) as bare_orders,
    ):
        return by_turns(
            lambda: _rate_to(orders, broker.address(from_, "bridge"), broker.address(to), store, count),
            lambda: _rate_to(
                bare_orders,
                broker.address(bare_from, "bridge"),
                broker.address(bare_to, transactions="no"),
                store,
                count,
            ),
            turns=scaled(TURNS, scale, least=1),
            name="bridge-kafka-once",
            work=f"EXACTLY_ONCE on {SQLITE.name}, turns of {BATCH}: {count:,} messages of {len(BODY)} bytes from topic to "
            "topic",
            unit="messages/s",
            anchor_name="the same bridge without transactions, at least once",
            goal=Goal(0.5, aim=0.7),
        )


def _rate_to(orders: Orders, from_: str, to: str, store: str, count: int) -> float:
    """The rate from the first turn to the last."""
    orders.send(count)
    under_way = open_bridge(from_, to, store, options())
    worker = threading.Thread(target=under_way.run)
    worker.start()
    first, start = 0, 0.0
    while under_way.figures.delivered < count and worker.is_alive():
        if not first:
            first, start = under_way.figures.delivered, time.perf_counter()
        time.sleep(_LOOK_SECS)
    took = time.perf_counter() - start
    under_way.stop()
    worker.join()
    check(under_way.figures.delivered, count)
    return (count - first) / took


def _our_rate(orders: Orders, address: str, store: str, count: int) -> float:
    orders.send(count)
    times: list[float] = []

    def handle(_message: Any) -> None:
        times.append(time.perf_counter())
        if len(times) == count:
            under_way.stop()

    under_way = open_bridge(address, handle, store, options())
    under_way.run()
    check(len(times), count)
    return count / (times[-1] - times[0])


def _bare_rate(orders: Orders, servers: str, topic: str, count: int) -> float:
    orders.send(count)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bare", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    records = consumer.consume(min(BATCH, count), _WAIT_SECS)
    seen, start = 0, time.perf_counter()
    while records:
        seen += sum(record.value() == BODY for record in records)
        records = consumer.consume(min(BATCH, count - seen), _WAIT_SECS) if seen < count else []
    rate = count / (time.perf_counter() - start)
    consumer.close()  # commits
    check(seen, count)
    return rate
