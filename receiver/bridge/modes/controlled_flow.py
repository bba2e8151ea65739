"""APP_CONTROLLED: handed on inside the transaction of the receipts, and acknowledged once that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from receiver.bridge.modes import Admitted, Figures, Taken, admit, tell_failure, tell_refused
from receiver.bridge.modes.inbox_flow import Turns
from receiver.bridge.received import Received
from receiver.bridge.targets import Target
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
        self._given_up: dict[int, str] = {}
        """Likewise, why those failed that have had all their tries."""

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
                self._given_up.clear()
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
        tell_refused(taken, admitted.refused)
        self._figures.parked += len(admitted.refused) + parked

    def _deliver(self, turn: Turn, admitted: Admitted) -> int:
        """Deliver all that can be; how many were parked instead."""
        first, left = admitted.first_place, dict(admitted.messages)
        parked = self._park_given_up(turn, first, left)
        while left:
            places = list(left)
            outcome = self._target.deliver(list(left.values()), turn)
            self._figures.failed += len(outcome.failed)
            # All of them count, before the first takes the batch back.
            gives_up = [self._gives_up(places[at] - first, left[places[at]], why) for at, why in outcome.failed.items()]
            if not all(gives_up):
                raise OutputError(f"{self._target.name}: a message failed", hint="its batch is tried again")
            for index in outcome.delivered:
                del left[places[index]]
            parked += self._park_given_up(turn, first, left)
        return parked

    def _gives_up(self, index: int, message: Received, why: str) -> bool:
        """Count a try; whether it was the last."""
        self._tries[index] += 1
        is_last = tell_failure(self._target.name, message, self._tries[index], self._max_tries, why, then="parked")
        if is_last:
            self._given_up[index] = why
        return is_last

    def _park_given_up(self, turn: Turn, first_place: int, left: dict[int, Received]) -> int:
        """They aren't tried again, though the batch may be; how many."""
        given_up = {first_place + index: why for index, why in self._given_up.items() if first_place + index in left}
        for place, why in given_up.items():
            turn.park(left.pop(place).row(place)._replace(tries=self._tries[place - first_place]), why)
        return len(given_up)

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        """Nothing of a batch waits, but what was parked and is to be tried again."""
        self._turns.deliver_waiting(is_enough)

    def tend(self) -> None:
        self._turns.tend()

    def close(self) -> None:
        self._inbox.close()


class _NotReadyError(Exception):
    pass
