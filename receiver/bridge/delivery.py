"""Delivering what waits in the inbox: one turn after another, each a transaction that has the target to itself."""

from __future__ import annotations

import time
from collections.abc import Sequence

from receiver.bridge.figures import Figures
from receiver.bridge.received import Received
from receiver.bridge.targets.target import Target
from receiver.durable.receiver import Receiver
from receiver.durable.stages import Stage
from receiver.store.inbox import Inbox, Turn

__all__ = ["Delivery"]

_AT_ONCE = 1_000
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.5, 30.0
_GIVE_BACK_BYTES = 64 << 20


class Delivery:
    """Hands on all that waits for the target, in the order of receipt: also what another bridge put there and didn't
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
        self.at_hand: dict[int, Received] = {}
        """Messages by place that needn't be read back."""

    def deliver_waiting(self) -> None:
        with self._receiver.stage(Stage.ENQUEUING):
            while self._take_turn():
                pass
        if self._confirmed_bytes > _GIVE_BACK_BYTES:
            self._give_back_space()

    def rest(self) -> None:
        """Nothing comes: count what others have left, and tidy up."""
        self._figures.waiting = self._inbox.waiting()
        if self._confirmed_bytes:
            self._give_back_space()

    def _give_back_space(self) -> None:
        self._confirmed_bytes = 0
        self._inbox.give_back_space()

    def _take_turn(self) -> bool:
        """Whether another may find more."""
        now = time.monotonic()
        self._due_secs = {source: due for source, due in self._due_secs.items() if due > now}
        with self._inbox.turn() as turn:
            if not self._target.ready(turn):
                return True
            places = turn.places(_AT_ONCE, but_of=self._due_secs)
            if not places:
                return False
            messages = self._messages(turn, places)
            outcome = self._target.deliver(messages, turn)
            turn.confirm([places[index] for index in outcome.delivered])
            failed = outcome.failed.items()
            parked = sum(self._failed(turn, places[index], messages[index], why) for index, why in failed)
        figures = self._figures
        figures.delivered += len(outcome.delivered)
        figures.failed += len(failed)
        figures.parked += parked
        figures.waiting = max(0, figures.waiting - len(outcome.delivered) - parked)
        self._confirmed_bytes += sum(len(messages[index].body) for index in outcome.delivered)
        for place in places:
            self.at_hand.pop(place, None)
        return len(places) == _AT_ONCE or bool(failed)

    def _messages(self, turn: Turn, places: Sequence[int]) -> list[Received]:
        missing = [place for place in places if place not in self.at_hand]
        read = {row.place: Received.of_row(row) for row in (turn.rows(missing) if missing else ())}
        return [self.at_hand[place] if place in self.at_hand else read[place] for place in places]

    def _failed(self, turn: Turn, place: int, message: Received, why: str) -> bool:
        """Count a try; whether it was the last, and the message is parked."""
        tries = turn.try_failed(place)
        if tries >= self._max_tries:
            turn.park(message.row(place)._replace(tries=tries), why)
            return True
        pause = min(_FIRST_PAUSE_SECS * 2 ** (tries - 1), _LONGEST_PAUSE_SECS)
        self._due_secs[message.message_source_id] = time.monotonic() + pause
        return False
