"""The consumer of a probe: it takes messages in a process of its own, and ends in one of several ways while it holds messages."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from receiver.bridge.connectors import Delivery, Source, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError, SettingsError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RUN, NUMBER = "receiverProbe", "receiverProbeNumber"
"""Properties of what a probe sends: which run it is of, and its number in it."""
TAKE_SECS = 0.25
_STARTS_SECS = 60.0


class Ending(StrEnum):
    """How a consumer ends that holds messages."""

    CLOSED = "closed"
    """It closes its connection without acknowledging."""
    KILLED = "killed"
    """Its process is killed, and the system ends its connection."""
    ACKNOWLEDGING = "acknowledging"
    """Its process is killed while it acknowledges: the broker may have heard of that or not."""
    FROZEN = "frozen"
    """It says nothing more, and its connection stays open: as if its host had lost the network."""


class ProbeReceipt(NamedTuple):
    """What a probe knows of a message that it received."""

    number: int
    at_us: int
    redelivered: bool


def receipts_of(taken: Sequence[Delivery], run: str) -> list[ProbeReceipt]:
    now_us = time.time_ns() // 1_000
    receipts = []
    for delivery in taken:
        message = delivery.message
        if message.properties.get(RUN) != run:
            raise SettingsError("others send to this queue", hint="name a scratch queue that nobody else uses")
        receipts.append(ProbeReceipt(int(str(message.properties[NUMBER])), now_us, message.redelivered))
    return receipts


class Life(NamedTuple):
    """What a consumer is to do."""

    address: BrokerAddress
    run: str
    ending: Ending
    acknowledged: int
    """How many messages it acknowledges first."""
    held: int
    """How many it takes then."""


class Consumer:
    """A process that has taken messages, and how it ends."""

    def __init__(self, process: Any, pipe: Connection, life: Life) -> None:
        self._process, self._pipe, self._ending = process, pipe, life.ending
        self.receipts: list[ProbeReceipt] = []
        while len(self.receipts) < life.acknowledged + life.held:
            self.receipts += self._heard()

    def _heard(self) -> Any:
        if not self._pipe.poll(_STARTS_SECS):
            raise BrokerError("the consumer got nothing of what was sent", hint="see that nobody else uses the queue")
        said = self._pipe.recv()
        if isinstance(said, Exception):
            raise said
        return said

    def end(self) -> int:
        """Let it end in its way; the time of that, in microseconds since 1970."""
        if self._ending is Ending.FROZEN:
            os.kill(self._process.pid, signal.SIGSTOP)
        elif self._ending is Ending.KILLED:
            self.kill()
        else:
            self._pipe.send("end")
            self._heard()
        ended_us = time.time_ns() // 1_000
        if self._ending is Ending.ACKNOWLEDGING:
            self.kill()
        return ended_us

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def consuming(life: Life) -> Iterator[Consumer]:
    processes = multiprocessing.get_context("spawn")
    ours, its = processes.Pipe()
    process = processes.Process(target=_consume, args=(life, its), name="receiver probe", daemon=True)
    process.start()
    its.close()
    try:
        yield Consumer(process, ours, life)
    finally:
        process.kill()
        process.join()
        ours.close()


def _consume(life: Life, pipe: Connection) -> None:
    """The consumer's process: say what it takes, and end on command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    with suppress(EOFError, OSError):
        try:
            with source_of(life.address) as source:
                _take(source, life.run, life.acknowledged, pipe)
                kept = _take(source, life.run, life.held, pipe, acknowledges=False)
                pipe.recv()
                if life.ending is Ending.ACKNOWLEDGING:
                    pipe.send("acknowledging")
                    source.acknowledge(kept)
                    pipe.recv()
            pipe.send("closed")
        except Exception as error:  # noqa: BLE001 - the parent raises it
            pipe.send(error)


def _take(source: Source, run: str, count: int, pipe: Connection, *, acknowledges: bool = True) -> list[Delivery]:
    taken: list[Delivery] = []
    until = time.monotonic() + _STARTS_SECS
    while len(taken) < count and time.monotonic() < until:
        came = source.take(count - len(taken), wait_secs=TAKE_SECS)
        receipts = receipts_of(came, run)
        if acknowledges:
            source.acknowledge(came)
        taken += came
        pipe.send(receipts)
    return taken
