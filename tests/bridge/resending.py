"""Senders that crash and send again. So there are real duplicates, with their messages' ids."""

import random
import threading
import time
from collections.abc import Iterator

from receiver.bridge.connectors import Message, Sink, sink_factory
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError

BATCH = (1, 40)
CRASH_PER_BATCH = 0.03
LONG_EVERY = 97
LONG_BYTES = 100_000
AGAIN_SECS = 0.1
HOLD_SECS = 0.02


def message_id(source: str, number: int) -> str:
    return f"{number}:{source}"


def body_of(id_: str) -> bytes:
    """A body that follows from the id alone, so that anybody who has a message can check that it is whole."""
    number = int(id_.partition(":")[0])
    return (f"order {id_} ".encode() * LONG_BYTES)[: LONG_BYTES if number % LONG_EVERY == 0 else number % 200]


def message(source: str, number: int) -> Message:
    id_ = message_id(source, number)
    return Message(
        body=body_of(id_),
        is_text=number % 2 == 0,
        properties={"uniqueMessageId": id_, "messageSourceId": source},
        default_source=source,
    )


class Sender(threading.Thread):
    """One source, whose messages are numbered from 1. After a crash it goes on behind the last batch that it knows
    to be safe."""

    def __init__(self, address: str, source: str, seed: int) -> None:
        super().__init__(name=source, daemon=True)
        self.source = source
        self.confirmed = 0
        """The number of the last message that the broker is known to have."""
        self.tried = 0
        """The number of the last message that the broker may have."""
        self.sends = 0
        """How many messages were given to a sink, repeats included."""
        self.crashes = 0
        self.failures = 0
        """How many sends and connections failed."""
        self.error: BaseException | None = None
        self.held = threading.Event()
        """Set while it must wait, because the queue is long enough."""
        self.ending = threading.Event()
        self._connect = sink_factory(BrokerAddress.parse(address))
        self._draw = random.Random(f"{seed} {source}")

    def ids(self) -> Iterator[str]:
        return (message_id(self.source, number) for number in range(1, self.confirmed + 1))

    @property
    def is_done(self) -> bool:
        """Whether it has been asked to end, and the broker is known to have all that it may have."""
        return self.ending.is_set() and self.confirmed >= self.tried

    def run(self) -> None:
        try:
            while not self.is_done:
                self._live()
        except BaseException as error:  # so that the test's own thread can raise it
            self.error = error
            raise

    def _live(self) -> None:
        """Send until it crashes, it must end, or the broker can't be reached."""
        try:
            with self._connect() as sink:
                while not self.is_done and self._send_batch(sink):
                    while self.held.is_set() and not self.ending.is_set():
                        time.sleep(HOLD_SECS)
        except BrokerError:
            self.failures += 1
            time.sleep(AGAIN_SECS)

    def _send_batch(self, sink: Sink) -> bool:
        """Send a batch. False if it crashed: after a part of the batch, and before it noted that this part was sent."""
        size = self._draw.randint(*BATCH)
        crashes = self._draw.random() < CRASH_PER_BATCH
        sent = self._draw.randint(1, size) if crashes else size
        self.sends += sent
        self.tried = max(self.tried, self.confirmed + sent)
        sink.send([message(self.source, self.confirmed + 1 + index) for index in range(sent)])
        if crashes:
            self.crashes += 1
            return False
        self.confirmed += size
        return True
