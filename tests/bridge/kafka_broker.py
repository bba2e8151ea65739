"""A real Kafka with topics of their own for each test, made, deleted and made anew."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from receiver.demo.server import HOST
from tests.brokers.cached import new_broker as new_real_broker
from tests.brokers.kafka import ANSWERS_SECS, Broker

__all__ = ["HOST", "KafkaBroker", "new_broker"]


class KafkaBroker(Broker):
    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """The name of a topic of its own."""
        name = f"orders-{uuid.uuid4().hex}"
        self.make(name, partitions, **config)
        return name

    def make(self, name: str, partitions: int = 1, **config: str) -> None:
        self.declare(name, partitions, **config)
        time.sleep(0.1)  # until all that asks has heard of it

    def delete(self, name: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([name]).values()
        deleted.result(ANSWERS_SECS)
        time.sleep(0.5)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers})

    def address(self, topic: str, group: str | None = None, **options: str) -> str:
        given = {"group": group, **options} if group else options
        more = "&".join(f"{name}={value}" for name, value in given.items())
        return f"kafka://{self.servers}/{topic}" + (f"?{more}" if more else "")


@contextmanager
def new_broker(jars: Path) -> Iterator[KafkaBroker]:
    """One that runs."""
    with new_real_broker(lambda folder: KafkaBroker(jars, folder)) as broker:
        broker.start()
        yield broker
