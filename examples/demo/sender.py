"""A sender that crashes in mid-batch now and then: `python -m examples.demo.sender ADDRESS SOURCE JOURNAL SEED`.

Started again, it sends from its last confirmed message on, so messages come twice. That is all a sender without a store of
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
from pathlib import Path
from typing import NamedTuple

from receiver.bridge import Message, Sink, sink_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.errors import BrokerError

_MESSAGES_PER_SEC = 400
_BATCH = (20, 100)
_CRASH_PER_BATCH = 0.03
_AGAIN_SECS = 0.5
_STATUS_SECS = 5.0


def message_id(number: int, source: str) -> str:
    """The uniqueMessageId of a source's message, numbered from 1: `seqNo:messageSourceId`, as Apama's senders make it."""
    return f"{number}:{source}"


class Sent(NamedTuple):
    """How far a sender has come, by its journal."""

    starts: int
    confirmed: int
    """The number of the last message that the broker has confirmed; so it has all before that."""
    tries: int
    """Messages sent, each counted as often as it was."""


def note(journal: Path, event: str) -> None:
    """Append what is about to be done, or has been confirmed. It goes to the system at once, so it outlives a kill."""
    with journal.open("a", encoding="ascii") as file:
        file.write(f"{event}\n")


def sent_by(journal: Path) -> Sent:
    """What the journal of a sender says; zeros where the sender was never started."""
    starts = confirmed = tries = 0
    for line in journal.read_text(encoding="ascii").splitlines() if journal.exists() else ():
        match line.split():
            case ["start"]:
                starts += 1
            case ["send", messages]:
                tries += int(messages)
            case ["confirmed", number]:
                confirmed = int(number)
    return Sent(starts, confirmed, tries)


def main(address: str, source: str, journal: str, seed: str) -> None:
    """Send until standard input ends, at least one batch, and stop when all that was sent is confirmed."""
    logging.disable()  # the libraries log each try to connect
    _Sender(BrokerAddress.parse(address), source, Path(journal), seed).run()


class _Sender:
    def __init__(self, address: BrokerAddress, source: str, journal: Path, seed: str) -> None:
        self._address = address
        self._source = source
        self._journal = journal
        before = sent_by(journal)
        self._confirmed, self._tries = before.confirmed, before.tries
        self._draw = random.Random(f"{seed} {source} {before.starts}")
        note(journal, "start")
        self._status_at = time.monotonic() + _STATUS_SECS
        if before.starts:
            _say(f"goes on after message {self._confirmed:,}, the last that is confirmed")

    def run(self) -> None:
        is_reported = False
        while True:
            try:
                with sink_of(self._address) as sink:
                    if is_reported:
                        _say(f"has a broker again, and goes on after message {self._confirmed:,}")
                        is_reported = False
                    while self._send_batch(sink):
                        pass
                    return
            except BrokerError as error:
                if not is_reported:
                    _say(f"{error.message}; will send again after message {self._confirmed:,}")
                    is_reported = True
                time.sleep(_AGAIN_SECS)

    def _send_batch(self, sink: Sink) -> bool:
        """Send one batch; return whether to go on."""
        size = self._draw.randint(*_BATCH)
        batch = [self._message(self._confirmed + number) for number in range(1, size + 1)]
        crashes = self._draw.random() < _CRASH_PER_BATCH and not _is_to_stop(wait_secs=0)
        part = self._draw.randint(1, size) if crashes else size
        note(self._journal, f"send {part}")
        self._tries += part
        sink.send(batch[:part])
        if crashes:
            _say(f"crashes: has sent {part} of {size} messages, and confirmed none of them")
            os.kill(os.getpid(), signal.SIGKILL)
        self._confirmed += size
        note(self._journal, f"confirmed {self._confirmed}")
        if time.monotonic() > self._status_at:
            self._status_at = time.monotonic() + _STATUS_SECS
            _say(f"{self._confirmed:,} messages confirmed, of {self._tries:,} sent")
        return not _is_to_stop(wait_secs=size / _MESSAGES_PER_SEC)

    def _message(self, number: int) -> Message:
        ids = {"uniqueMessageId": message_id(number, self._source), "messageSourceId": self._source}
        return Message(body=f"order {number} of {self._source}".encode(), is_text=True, properties=ids)


def _is_to_stop(*, wait_secs: float) -> bool:
    """Whether standard input has ended, waiting so long for that."""
    ended, _, _ = select.select([sys.stdin], [], [], wait_secs)
    return bool(ended)


def _say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
