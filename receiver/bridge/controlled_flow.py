"""APP_CONTROLLED: handed on inside the transaction of the receipts, and acknowledged once that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from receiver.bridge.figures import Figures
from receiver.bridge.flow import Admitted, Taken, admit, tell_failure
from receiver.bridge.targets.target import Target
from receiver.bridge.turns import Turns
from receiver.durable.receiver import Receiver
from receiver.durable.stages import Stage
from receiver.errors import OutputError
from receiver.store.inbox import Inbox, Turn

__all__ = ["ControlledFlow"]


class ControlledFlow:
    """No inbox: until its effects and its id are committed together, a message is the broker's.

    A message that fails takes its whole batch back, to be tried again; after the last try it is parked.
    """

    def __init__(self, receiver: Receiver, inbox: Inbox, target: Target, figures: Figures, *, max_tries: int) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._target = target
        self._figures = figures
        self._max_tries = max_tries
        self._turns = Turns(receiver, inbox, target, figures, max_tries=max_tries)
        """Of messages that were parked and are to be tried again: those wait in the inbox."""
        self._tries: Counter[int] = Counter()
        """Of the batch under way, by index: others may take places before it is tried again."""

    def prepare(self) -> None:
        self._turns.start()

    def before_acknowledging(self, taken: Taken) -> None:
        while True:
            try:
                self._hand_on(taken)
            except _NotReadyError:  # the batch is rolled back, and with it what the target had to say
                pass
            else:
                self._tries.clear()
                return
            finally:
                self._target.release()
            self._turns.make_ready()

    def _hand_on(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            admitted = admit(batch, taken, self._inbox)
            with self._inbox.turn(batch.connection) as turn, self._receiver.stage(Stage.ENQUEUING):
                if not self._target.ready(turn):
                    raise _NotReadyError
                parked = self._deliver(turn, admitted)
        self._figures.delivered += len(admitted.messages) - parked
        self._figures.parked += admitted.parked + parked

    def _deliver(self, turn: Turn, admitted: Admitted) -> int:
        """Deliver all that can be; how many were parked instead."""
        parked = 0
        left = dict(admitted.messages)
        while left:
            places = list(left)
            outcome = self._target.deliver(list(left.values()), turn)
            # All of them count, before the first takes the batch back.
            self._figures.failed += len(outcome.failed)
            self._tries.update(places[index] - admitted.first_place for index in outcome.failed)
            for index, why in outcome.failed.items():
                place = places[index]
                tries = self._tries[place - admitted.first_place]
                if not tell_failure(self._target.name, left[place], tries, self._max_tries, why, then="parked"):
                    raise OutputError(f"{self._target.name}: a message failed: {why}", hint="its batch is tried again")
                turn.park(left[place].row(place)._replace(tries=tries), why)
                parked += 1
            for index in (*outcome.delivered, *outcome.failed):
                del left[places[index]]
        return parked

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        """Nothing of a batch waits, but what was parked and is to be tried again."""
        if self._figures.waiting:
            self._turns.deliver_waiting(is_enough)

    def tend(self) -> None:
        self._turns.tend()

    def close(self) -> None:
        self._inbox.close()


class _NotReadyError(Exception):
    pass
