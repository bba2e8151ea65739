"""A broker in memory. It shows what a connector must do, and serves tests that need no network.

It delivers at least once, as real brokers do. When a connection ends, messages that it took and didn't acknowledge come
again: before all others, and flagged redelivered. By Artemis' rule the broker drops a message whose duplicate id it has
had before. It takes turns as Kafka does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from receiver.bridge.connectors import DUPLICATE_ID, Delivery, Message
from receiver.closing import Closing
from receiver.errors import BrokerError
from receiver.policies.artemis import ArtemisIdCache


class MemoryBroker:
    """Queues by name, each made when it is first used. Threads may share it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues: dict[str, deque[Message]] = {}
        self.caches: dict[str, ArtemisIdCache] = {}
        self.turns: dict[str, MemoryTurns] = {}
        """The sender of turns that has begun last, by the turns' name."""
        self.notes: dict[str, str] = {}
        """The note of the last turn, by the turns' name."""

    def queue(self, name: str) -> deque[Message]:
        """The messages that wait in a queue, oldest first. The caller holds `changed`."""
        return self.queues.setdefault(name, deque())

    def source(self, name: str) -> MemorySource:
        return MemorySource(self, name)

    def sink(self, name: str) -> MemorySink:
        return MemorySink(self, name)

    def turns_to(self, name: str) -> MemoryTurns:
        return MemoryTurns(self, name)


class MemorySource(Closing):
    """A consumer of one queue."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._taken: list[Delivery] = []
        self._is_open = True

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        broker, until = self._broker, time.monotonic() + wait_secs
        with broker.changed:
            queue = broker.queue(self._name)
            while self._is_open and not queue and (left := until - time.monotonic()) > 0:
                broker.changed.wait(left)
            self._check_open()
            taken = [Delivery(queue.popleft(), None) for _ in range(min(at_most, len(queue)))]
            self._taken += taken
            return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        with self._broker.changed:
            self._check_open()
            if list(deliveries) != self._taken:
                raise BrokerError("what is acknowledged isn't what was taken")
            self._taken = []

    def _check_open(self) -> None:
        if not self._is_open:
            raise BrokerError("the connection is closed", hint="make another")

    def close(self) -> None:
        """Close it. Another thread may do so, just as a broker or a network would cut the connection."""
        broker = self._broker
        with broker.changed:
            self._is_open = False
            again = [replace(delivery.message, redelivered=True) for delivery in self._taken]
            broker.queue(self._name).extendleft(reversed(again))
            self._taken = []
            broker.changed.notify_all()


class MemorySink(Closing):
    """A sender to one queue."""

    drops_known_ids = True

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._is_open = True

    def send(self, messages: Sequence[Message]) -> None:
        broker = self._broker
        with broker.changed:
            if not self._is_open:
                raise BrokerError("the connection is closed", hint="make another")
            cache = broker.caches.setdefault(self._name, ArtemisIdCache())
            for message in messages:
                id_ = message.properties.get(DUPLICATE_ID)
                if id_ is None or cache.receive(str(id_), received_at_us=cache.latest_us).deliver:
                    broker.queue(self._name).append(message)
            broker.changed.notify_all()

    def close(self) -> None:
        self._is_open = False


class MemoryTurns(Closing):
    """A sender of turns to one queue."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self._queue = name
        self._name: str | None = None

    def begin(self, name: str) -> str | None:
        with self._broker.changed:
            self._name = name
            self._broker.turns[name] = self
            return self._broker.notes.get(name)

    def abandon_turn(self) -> None:
        """Do nothing: this broker forgets no turn."""

    def send_turn(self, messages: Sequence[Message], *, note: str, number: int) -> bool:
        del number
        broker = self._broker
        with broker.changed:
            if self._name is None:
                raise BrokerError("the connection is closed", hint="make another")
            if broker.turns[self._name] is not self:
                return False
            broker.queue(self._queue).extend(messages)
            broker.notes[self._name] = note
            broker.changed.notify_all()
            return True

    def close(self) -> None:
        self._name = None
