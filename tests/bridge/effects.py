"""The effects of messages in a target: one entry for each time that a message took effect."""

import base64
import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from sqlalchemy import text

from receiver.bridge.connectors import source_of
from receiver.bridge.connectors.address import BrokerAddress
from tests.bridge import booking
from tests.bridge.resending import body_of
from tests.stores import engine_of

EMPTY_SECS = 0.5
READ_SECS = 120


class Effect(NamedTuple):
    id: str | None
    body: bytes


def in_file(path: Path) -> list[Effect]:
    with path.open("rb") as file:
        lines = [json.loads(line) for line in file]
    return [
        Effect(
            line["unique_message_id"],
            line["body"].encode() if "body" in line else base64.b64decode(line["body_base64"]),
        )
        for line in lines
    ]


def in_queue(address: str) -> list[Effect]:
    """The messages of a queue, which are taken out of it."""
    effects = []
    with source_of(BrokerAddress.parse(address)) as source:
        while taken := source.take(1_000, wait_secs=EMPTY_SECS):
            source.acknowledge(taken)
            effects += [Effect(str(each.message.properties["uniqueMessageId"]), each.message.body) for each in taken]
    return effects


def in_topic(servers: str, topic: str) -> list[Effect]:
    """The messages of a topic that readers of committed transactions see."""
    found = ((dict(record.headers() or ()), record.value()) for record in records(servers, topic))
    return [Effect(headers["uniqueMessageId"].decode(), body) for headers, body in found]


def records(servers: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """All records of a topic, each partition in order. If a transaction is open, it waits for the end of that."""
    config = {"group.id": "readers", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, **config})
    partitions = consumer.list_topics(topic, timeout=READ_SECS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, ended, until = [], set(), time.monotonic() + READ_SECS
    while len(ended) < len(partitions):
        assert time.monotonic() < until
        for record in consumer.consume(1_000, 0.2):
            if record.error() is None:
                found.append(record)
            else:
                assert record.error().code() == KafkaError._PARTITION_EOF
                ended.add(record.partition())
    consumer.close()
    return found


def has_nothing(address: str) -> bool:
    """Whether the queue is empty. Messages stay in it."""
    with source_of(BrokerAddress.parse(address)) as source:
        return not source.take(1, wait_secs=EMPTY_SECS)


def in_table(url: str) -> list[Effect]:
    with engine_of(url).connect() as connection:
        return [Effect(id_, body.encode()) for id_, body in connection.execute(text(booking.BOOKED))]


def check(effects: Sequence[Effect], ids: Collection[str]) -> int:
    """Check that each message is there, whole, and nothing else. Returns how many effects there are beyond one for
    each."""
    times = Counter(effect.id for effect in effects)
    missing, strange = ids - times.keys(), times.keys() - ids
    double = {id_: count for id_, count in times.items() if count > 1}
    assert not missing, f"missing {_some(missing)}"
    assert not strange, f"sent by nobody: {_some([effect for effect in effects if effect.id in strange])}"
    damaged = [effect.id for effect in effects if effect.body != body_of(effect.id)]
    assert not damaged, f"with another body: {_some(damaged)}"
    print(f"more than once: {_some(double)}")
    return len(effects) - len(times)


def check_order(effects: Sequence[Effect]) -> None:
    """Check that the first effects of each source come in the order in which it sent."""
    numbers = defaultdict(list)
    for id_ in dict.fromkeys(effect.id for effect in effects):
        number, _, source = id_.partition(":")
        numbers[source].append(int(number))
    for source, seen in numbers.items():
        wrong = [(before, after) for before, after in pairwise(seen) if after != before + 1]
        assert not wrong, f"{source}: {_some(wrong)}"


def _some(what: Collection[object]) -> str:
    return f"{len(what)}: {list(what.items() if isinstance(what, dict) else what)[:5]}"
