"""A sender that crashes in mid-batch now and then: `python -m receiver.demo.sender ADDRESS SOURCE JOURNAL SEED`.

Started again, it sends from its last confirmed message on, so some come twice. That is all a sender without a store of
its own can do: whether the broker got what it had not confirmed isn't known.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from receiver.bridge.connectors import Message, Sink, sink_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.demo.journal import Journal
from receiver.errors import BrokerError

__all__ = ["main", "message_id"]

_MESSAGES_PER_SEC = 400
_BATCH = (20, 100)
_CRASH_PER_BATCH = 0.03
_AGAIN_SECS = 0.5
_STATUS_SECS = 5.0


def message_id(number: int, source: str) -> str:
    """The uniqueMessageId of a source's message, numbered from 1: `seqNo:messageSourceId`, as Apama's senders make it."""
    return f"{number}:{source}"


def main(address: str, source: str, journal: str, seed: str) -> None:
    """Send until standard input ends, at least one batch, and stop when all that was sent is confirmed."""
    logging.disable()  # the libraries tell of each try to connect
    _Sender(BrokerAddress.parse(address), source, Journal(Path(journal)), seed).run()


class _Sender:
    def __init__(self, address: BrokerAddress, source: str, journal: Journal, seed: str) -> None:
        self._address = address
        self._source = source
        self._journal = journal
        before = journal.read()
        self._confirmed, self._tries = before.confirmed, before.tries
        self._draw = random.Random(f"{seed} {source} {before.starts}")
        journal.start()
        self._status_at = time.monotonic() + _STATUS_SECS
        if before.starts:
            _say(f"goes on after message {self._confirmed:,}, the last that is confirmed")

    def run(self) -> None:
        told = False
        while True:
            try:
                with sink_of(self._address) as sink:
                    if told:
                        _say(f"has a broker again, and goes on after message {self._confirmed:,}")
                        told = False
                    while self._send_batch(sink):
                        pass
                    return
            except BrokerError as error:
                if not told:
                    _say(f"{error.message}; will send again after message {self._confirmed:,}")
                    told = True
                time.sleep(_AGAIN_SECS)

    def _send_batch(self, sink: Sink) -> bool:
        """Whether to go on."""
        size = self._draw.randint(*_BATCH)
        batch = [self._message(self._confirmed + 1 + place) for place in range(size)]
        crashes = self._draw.random() < _CRASH_PER_BATCH and not _is_to_stop(wait_secs=0)
        part = self._draw.randint(1, size) if crashes else size
        self._send(sink, batch[:part])
        if crashes:
            _say(f"crashes: has sent {part} of {size} messages, and confirmed none of them")
            os.kill(os.getpid(), signal.SIGKILL)
        self._confirmed += size
        self._journal.confirm(self._confirmed)
        if time.monotonic() > self._status_at:
            self._status_at = time.monotonic() + _STATUS_SECS
            _say(f"{self._confirmed:,} messages confirmed, of {self._tries:,} sent")
        return not _is_to_stop(wait_secs=size / _MESSAGES_PER_SEC)

    def _send(self, sink: Sink, messages: Sequence[Message]) -> None:
        self._journal.send(len(messages))
        self._tries += len(messages)
        sink.send(messages)

    def _message(self, number: int) -> Message:
        ids = {"uniqueMessageId": message_id(number, self._source), "messageSourceId": self._source}
        return Message(body=f"order {number} of {self._source}".encode(), is_text=True, properties=ids)


def _is_to_stop(*, wait_secs: float) -> bool:
    """Whether standard input has ended, waiting so long for that."""
    ended, _, _ = select.select([sys.stdin], [], [], wait_secs)
    return bool(ended)


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - to whoever started it


if __name__ == "__main__":
    main(*sys.argv[1:])
