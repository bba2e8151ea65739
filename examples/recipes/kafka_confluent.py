"""Kafka by hand, with confluent-kafka: each partition's position is kept in the transaction of the rows.

A consumer that has lost its partition, and doesn't know it yet, must write nothing: it fails at `UPDATE ... AND next = :expected`.
If retention has deleted a partition's first messages before the first start, that is an error: set the partition's row by hand.
After a kill or a restart, the partitions of the dead consumer wait until the group gives it up: 45 s, or `session.timeout.ms`.
"""

from confluent_kafka import Consumer, KafkaException
from rows import keep, open_orders
from sqlalchemy import create_engine, text

TABLE = text("CREATE TABLE IF NOT EXISTS position (part INTEGER PRIMARY KEY, next BIGINT NOT NULL)")
FIRST = text("INSERT INTO position VALUES (:part, 0) ON CONFLICT DO NOTHING")
READ = text("SELECT next FROM position WHERE part = :part")
MOVE = text("UPDATE position SET next = :next WHERE part = :part AND next = :expected")
engine = create_engine("sqlite:///orders.db")
expected = {}


def seek(consumer, partitions):
    with engine.begin() as connection:
        connection.execute(TABLE)
        for partition in partitions:
            connection.execute(FIRST, {"part": partition.partition})
            partition.offset = connection.scalar(READ, {"part": partition.partition})
            expected[partition.partition] = partition.offset
    consumer.assign(partitions)


def move(messages):
    following = {message.partition(): message.offset() + 1 for message in messages}

    def also(connection):
        for part, following_offset in following.items():
            values = {"part": part, "next": following_offset, "expected": expected[part]}
            if connection.execute(MOVE, values).rowcount != 1:
                raise SystemExit(f"another consumer has partition {part}")

    return following, also


consumer = Consumer(
    {
        "bootstrap.servers": "localhost:9092",
        "group.id": "orders",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",  # messages that retention has deleted are an error, not skipped
    }
)
consumer.subscribe(["orders"], on_assign=seek)
with open_orders("kafka") as orders:
    while True:
        messages = consumer.consume(500, timeout=0.05)
        if failed := next((message for message in messages if message.error()), None):
            raise KafkaException(failed.error())
        if messages:
            following, also = move(messages)
            keep(orders, [(dict(m.headers())["uniqueMessageId"].decode(), m.value().decode()) for m in messages], also)
            expected |= following
