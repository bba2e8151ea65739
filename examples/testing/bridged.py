"""A function of your own as the target of a bridge, and a source by which the bridge takes from a `FlakyBroker`."""

from collections.abc import Sequence
from typing import Any

from consumer import PAY
from sqlalchemy import Connection

from receiver.bridge import Delivery, Message, Origin, Received, open_bridge
from receiver.testing import FlakyBroker


def pay(message: Received, connection: Connection) -> None:
    """As `python:bridged:pay` it is the target of `receiver bridge`."""
    connection.execute(PAY, {"reference": message.unique_message_id})


class FlakySource:
    """What the bridge asks of a broker's client."""

    def __init__(self, broker: FlakyBroker) -> None:
        self._broker = broker

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        del wait_secs  # there is nothing to wait for
        return [Delivery(_as_it_comes(message), message) for message in self._broker.receive(at_most)]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._broker.acknowledge([delivery.token for delivery in deliveries])

    def close(self) -> None:
        self._broker.recover()


def _as_it_comes(message: Any) -> Message:
    ids = {"uniqueMessageId": message.unique_message_id, "messageSourceId": message.message_source_id}
    return Message(body=message.body, properties=ids, redelivered=message.redelivered)


def consume(broker: FlakyBroker, url: str) -> None:
    origin = Origin(lambda: FlakySource(broker), "shop", "queue://payments")
    open_bridge(origin, pay, url).run(stop_when_idle_secs=0)
