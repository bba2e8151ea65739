"""Messages sent on to a broker in turns: exactly once, because a turn's messages and a note on them are there together, or
not at all.

The note says by sequence numbers which messages are in the turn. The store keeps the note of the last turn that it has
confirmed. Only the last turn can be in doubt, and the two notes tell what happened to it:

- They are the same: nothing of what waits is there.
- The broker's note is of messages that wait: whoever sent them ended before it could confirm them. They are there.
- The broker has no note, or one of other messages: it has forgotten it, or the store was put back from a copy. All that waits
  is sent, for nothing may be lost. A warning says what may come twice.

A store that was put back gives the same numbers to other messages, so the note has a digest too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from hashlib import sha256

from receiver.bridge.connectors import TurnSink
from receiver.bridge.options import IdRule
from receiver.bridge.received import Received
from receiver.bridge.targets import Outcome
from receiver.bridge.targets.broker_target import SinkTarget, name_in_domain
from receiver.errors import BrokerError, MessageRefusedError
from receiver.store.codec import encoded
from receiver.store.databases import NONSENSE
from receiver.store.inbox import Lease
from receiver.store.messages import StoredMessage
from receiver.store.sql_rows import runs_of

_LOGGER = logging.getLogger("receiver.bridge")
_LONGEST_NOTE = 4_000
_FIRST_NOTE = "nothing"
"""Before the first turn. So a broker that has no note has forgotten it, if the store has one."""
_ANY = 1 << 30
_LONGEST_RUN = 1_000
"""More than a lease has are in no turn."""


class TurnTarget(SinkTarget[TurnSink]):
    """Sends messages on by turns, one in a lease. After one that failed the next has half as many messages, so that in the end
    a message that is to blame is alone."""

    def __init__(self, name: str, connect: Callable[[], TurnSink], ids: IdRule) -> None:
        super().__init__(name, connect, ids)
        self._has_begun = False
        self._note = _FIRST_NOTE
        """The note of the last turn that the broker has. It holds while `_has_begun`."""
        self._at_most = _ANY
        """How many messages the next turn may have."""

    def ready(self, lease: Lease) -> bool:
        if self._has_begun and self._note == lease.last_turn:
            return True
        try:
            return self._begin(lease)
        except BrokerError:
            self.close()
            raise

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        assert lease is not None  # noqa: S101 - messages without a store don't go in turns
        messages = messages[: self._at_most]
        while len(note := _note_of(messages)) > _LONGEST_NOTE:
            messages = messages[: len(messages) // 2]
        self.warn_of_expired(messages)
        outcome = Outcome()
        try:
            outgoing = [self.outgoing(message) for message in messages]
            is_sent = self.connect().send_turn(outgoing, note=note, number=messages[-1].sequence or 0)
        except MessageRefusedError as error:
            is_sent = False
            self._shorten(messages)
            if len(messages) == 1:
                outcome.fail(0, error)
        except BrokerError:
            self._shorten(messages)
            self.close()
            raise
        if not is_sent:
            self._has_begun = False
            return outcome
        self._note = note
        self._at_most = max(self._at_most, 2 * len(messages))
        lease.save_turn(note)
        return Outcome.all_of(messages)

    def close(self) -> None:
        self._has_begun = False
        super().close()

    def _begin(self, lease: Lease) -> bool:
        """Have the target alone from now on, and see what is there; False if the store had to note that first."""
        sink = self.connect()
        note = sink.begin(lease.target_key)
        lease.look_again()  # another may have had it meanwhile, and have sent what waited when this lease began
        self._note = note or _FIRST_NOTE
        self._has_begun = sink.send_turn([], note=self._note, number=max(_numbers_in(note), default=0))
        if note is not None and note == lease.last_turn:
            return self._has_begun
        self._settle(lease, note)
        return False

    def _shorten(self, messages: Sequence[Received]) -> None:
        self._at_most = max(1, len(messages) // 2)

    def _settle(self, lease: Lease, note: str | None) -> None:
        """Bring the store to the broker's note, which is another than the store's."""
        numbers = _numbers_in(note)
        there = lease.messages(numbers)
        if there and _note_of(there) == note:
            lease.confirm(numbers)
            _LOGGER.info("%s has the %d messages that were sent and not confirmed", self.name, len(there))
        elif note is None:
            if lease.last_turn is not None and lease.sequence_numbers(1):
                _LOGGER.warning(
                    "%s no longer says what was sent last: what waits is sent, and may come twice", self.name
                )
        elif lease.last_turn is not None or note != _FIRST_NOTE:
            _LOGGER.warning(
                "%s and the store differ on what was sent last, as if the store had been put back from a copy: what was "
                "sent since then may come twice",
                self.name,
            )
        lease.save_turn(self._note)


def _note_of(messages: Sequence[StoredMessage]) -> str:
    """The note on a turn of these, at least one, which have sequence numbers."""
    names = "".join(str(name_in_domain(message)) for message in messages)
    numbers = [message.sequence for message in messages if message.sequence is not None]
    return f"{sha256(names.encode()).hexdigest()} {encoded(runs_of(numbers))}"


def _numbers_in(note: str | None) -> list[int]:
    """The sequence numbers of a note; none where it isn't one of ours."""
    try:
        runs = json.loads((note or "").partition(" ")[2])
        return [number for first, last in runs for number in range(first, min(last, first + _LONGEST_RUN) + 1)]
    except NONSENSE:
        return []
