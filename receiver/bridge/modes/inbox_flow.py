"""AT_LEAST_ONCE and EXACTLY_ONCE: messages wait in the inbox until the target has them, which is given them in turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from receiver.bridge.modes import Figures, Taken, admit, tell_failure, tell_refused
from receiver.bridge.received import Received
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.durable.stages import Stage
from receiver.errors import StoreBusyError
from receiver.retrying import Backoff
from receiver.senders import SequenceIdMaker
from receiver.store.inbox import Inbox, Turn

__all__ = ["InboxFlow", "Turns"]

_LOGGER = logging.getLogger("receiver.bridge")
_AT_ONCE = 1_000
_BACKOFF = Backoff(0.5, 30.0)
_LONGEST_BREATH_SECS = 0.2
_GIVE_BACK_BYTES = 64 << 20
_COUNT_SECS = 30.0
"""How often what waits is counted, for which all of it is read, while the figures say that something does."""


class InboxFlow:
    """The ids and the messages to deliver are committed together; then their batch may be acknowledged."""

    def __init__(
        self,
        receiver: Receiver,
        inbox: Inbox,
        target: Target,
        figures: Figures,
        *,
        max_tries: int,
        numbers: SequenceIdMaker | None = None,
    ) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._figures = figures
        self._numbers = numbers
        """Gives ids to messages without one, where the target needs them."""
        self._turns = Turns(receiver, inbox, target, figures, max_tries=max_tries)

    def prepare(self) -> None:
        self._turns.start()

    def before_acknowledging(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            admitted = admit(batch, taken, self._inbox)
            kept = {place: message.at(place) for place, message in admitted.messages.items()}
            kept |= self._numbered(kept, batch.connection)
            self._inbox.add(batch.connection, [message.row(place) for place, message in kept.items()])
        tell_refused(taken, admitted.refused)
        self._figures.parked += len(admitted.refused)
        self._figures.waiting += len(kept)
        self._turns.at_hand = kept

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        self._turns.deliver_waiting(is_enough)

    def tend(self) -> None:
        self._turns.tend()

    def close(self) -> None:
        self._inbox.close()
        if self._numbers is not None:
            self._numbers.close()

    def _numbered(self, kept: dict[int, Received], connection: Connection) -> dict[int, Received]:
        """Those without an id, where they are to have one."""
        without = [place for place, message in kept.items() if message.unique_message_id is None]
        if self._numbers is None or not without:
            return {}
        ids = self._numbers.next_many(len(without), connection=connection)
        source = self._receiver.domain
        return {
            place: kept[place]._replace(
                unique_message_id=id_, message_source_id=kept[place].message_source_id or source
            )
            for place, id_ in zip(without, ids, strict=True)
        }


@dataclass(slots=True)
class _Done:
    """What a turn has done."""

    more: bool = False
    """Whether another may find more."""
    delivered: int = 0
    failed: int = 0
    parked: int = 0
    bytes: int = 0
    places: Sequence[int] = ()


class Turns:
    """Hands on what waits for the target, in the order of receipt: also what another bridge put there and didn't
    live to deliver.

    Where a message fails its source waits, and others go on; after the last try it is parked.
    """

    def __init__(self, receiver: Receiver, inbox: Inbox, target: Target, figures: Figures, *, max_tries: int) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._target = target
        self._figures = figures
        self._max_tries = max_tries
        self._due_secs: dict[str | None, float] = {}
        """When a source whose message failed is tried again."""
        self._confirmed_bytes = 0
        self._delivered_before = 0
        """When it was last looked after."""
        self._count_due_secs = 0.0
        self.at_hand: dict[int, Received] = {}
        """Messages by place that needn't be read back."""

    def start(self) -> None:
        """Begin to deliver what others have left; what waits for another target is only told of."""
        for target, count in self._inbox.elsewhere().items():
            _LOGGER.warning(
                "%d messages wait for %s: run a bridge to it, or move them with receiver inbox move", count, target
            )
        self.tend()
        with suppress(StoreBusyError):  # another bridge is delivering
            self.deliver_waiting(lambda: True)

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        """Take turns until nothing is left that is due, or it is said to be enough."""
        leaves_some = True
        with self._receiver.stage(Stage.ENQUEUING):
            while leaves_some:
                began = time.monotonic()
                leaves_some = self._take_turn()
                if leaves_some:
                    # Who waits for a file of SQLite looks ten times a second whether it is free.
                    time.sleep(min(_LONGEST_BREATH_SECS, (time.monotonic() - began) / 5))
                    if is_enough():
                        return
        if not self._due_secs:  # nor does anything that another bridge was to deliver, or has delivered of ours
            self._figures.waiting = 0
        if self._confirmed_bytes > _GIVE_BACK_BYTES:
            self._give_back_space()

    def tend(self) -> None:
        """See whether others have left something, and tidy up once nothing comes."""
        self._figures.waiting = self._waiting()
        is_idle, self._delivered_before = self._delivered_before == self._figures.delivered, self._figures.delivered
        if self._confirmed_bytes and is_idle:
            self._give_back_space()

    def _waiting(self) -> int:
        if not self._inbox.has_waiting():
            return 0
        now = time.monotonic()
        if self._figures.waiting and now < self._count_due_secs:
            return self._figures.waiting
        self._count_due_secs = now + _COUNT_SECS
        return self._inbox.waiting()

    def _give_back_space(self) -> None:
        if not self._inbox.give_back_space():  # else the rest is for the next time
            self._confirmed_bytes = 0

    def make_ready(self) -> None:
        """Have the target stand as the store says, before there is anything to hand on."""
        with self._turn() as turn:
            self._target.ready(turn)

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        try:
            with self._inbox.turn() as turn:
                yield turn
        finally:
            self._target.release()

    def _take_turn(self) -> bool:
        """Whether another may find more."""
        now = time.monotonic()
        self._due_secs = {source: due for source, due in self._due_secs.items() if due > now}
        done = _Done()
        with self._turn() as turn:
            done.more = not self._target.ready(turn)
            if not done.more and (places := turn.places(_AT_ONCE, but_of=self._due_secs)):
                self._hand_on(turn, places, done)
        self._count(done)
        return done.more

    def _hand_on(self, turn: Turn, places: Sequence[int], done: _Done) -> None:
        messages = self._messages(turn, places)
        outcome = self._target.deliver(messages, turn)
        turn.confirm([places[index] for index in outcome.delivered])
        for index, why in outcome.failed.items():
            done.parked += self._failed(turn, places[index], messages[index], why)
        done.delivered = len(outcome.delivered)
        done.failed = len(outcome.failed)
        done.bytes = sum(len(messages[index].body) for index in outcome.delivered)
        done.places = [places[index] for index in outcome.delivered]
        done.more = turn.leaves_some or done.delivered < len(places)

    def _count(self, done: _Done) -> None:
        """What is committed."""
        figures = self._figures
        figures.delivered += done.delivered
        figures.failed += done.failed
        figures.parked += done.parked
        figures.waiting = max(0, figures.waiting - done.delivered - done.parked)
        self._confirmed_bytes += done.bytes
        for place in done.places:
            self.at_hand.pop(place, None)

    def _messages(self, turn: Turn, places: Sequence[int]) -> list[Received]:
        missing = [place for place in places if place not in self.at_hand]
        read = {row.place: Received.of_row(row) for row in (turn.rows(missing) if missing else ())}
        return [self.at_hand[place] if place in self.at_hand else read[place] for place in places]

    def _failed(self, turn: Turn, place: int, message: Received, why: str) -> bool:
        """Count a try; whether it was the last, and the message is parked."""
        tries = turn.try_failed(place)
        if tell_failure(self._target.name, message, tries, self._max_tries, why, then="parked"):
            turn.park(message.row(place)._replace(tries=tries), why)
            return True
        self._due_secs[message.message_source_id] = time.monotonic() + _BACKOFF.pause_secs(tries)
        return False
