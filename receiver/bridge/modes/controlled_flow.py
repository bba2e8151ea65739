"""APP_CONTROLLED: handed on inside the transaction of the receipts, and acknowledged once that is committed."""

from __future__ import annotations

from collections import Counter

from receiver.bridge.connectors import Source
from receiver.bridge.modes import Admitted, Figures, Taken, log_failure, log_refused
from receiver.bridge.modes.inbox_flow import Dispatcher
from receiver.bridge.received import Received
from receiver.bridge.targets import Target
from receiver.durable.batch import Batch
from receiver.durable.receiver import Receiver
from receiver.errors import OutputError
from receiver.settings import BridgeSettings
from receiver.store.inbox import Inbox, Lease


class ControlledFlow(Dispatcher):
    """No message goes through the inbox: until its effects and its id are committed together, it is the broker's. Only
    messages that were parked and are to be tried again wait there.

    A message that fails takes its whole batch back, to be tried again; after the last try it is parked.
    """

    def __init__(
        self, receiver: Receiver, inbox: Inbox, target: Target, figures: Figures, settings: BridgeSettings
    ) -> None:
        super().__init__(receiver, inbox, target, figures, settings)
        self._tries: Counter[int] = Counter()
        """How often a message of the batch under way has failed, by its index: its sequence number may change until it is
        tried again."""
        self._given_up: dict[int, str] = {}
        """Why a message of that batch failed that has had all its tries, by index."""

    def attach(self, source: Source) -> None:
        super().attach(source)
        # The batch under way may have gone to another bridge; the next one has other messages by these indexes.
        self._tries.clear()
        self._given_up.clear()

    def before_acknowledging(self, taken: Taken) -> None:
        while True:
            try:
                self._hand_on_batch(taken)
            except _NotReadyError:  # the batch is rolled back, and with it what the target noted in the store
                pass
            else:
                self._tries.clear()
                self._given_up.clear()
                return
            finally:
                self._target.release()
            self._make_ready()

    def _hand_on_batch(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            admitted, parked = self.hand_on_in(batch, taken)
        self.figures.delivered += len(admitted.messages) - parked
        log_refused(taken, admitted.refused)
        self.figures.parked += len(admitted.refused) + parked

    def hand_on_in(self, batch: Batch, taken: Taken) -> tuple[Admitted, int]:
        """Hand on what is new, in the transaction of the batch; how many messages were parked instead."""
        admitted = self.admit(batch, taken)
        with self._inbox.lease(batch.connection) as lease:
            if not self._target.ready(lease):
                raise _NotReadyError
            return admitted, self.deliver(lease, admitted)

    def deliver(self, lease: Lease, admitted: Admitted) -> int:
        """Deliver all messages that can be; how many were parked instead."""
        first, left = admitted.first_sequence, dict(admitted.messages)
        parked = self._park_given_up(lease, first, left)
        while left:
            numbers = list(left)
            outcome = self._target.deliver(list(left.values()), lease)
            self.figures.failed += len(outcome.failed)
            # All of them count, before the first takes the batch back.
            gives_up = [
                self._gives_up(numbers[at] - first, left[numbers[at]], why, is_final=at in outcome.final)
                for at, why in outcome.failed.items()
            ]
            if not all(gives_up):
                raise OutputError(f"{self._target.name}: a message failed", hint="its batch is tried again")
            for index in outcome.delivered:
                del left[numbers[index]]
            parked += self._park_given_up(lease, first, left)
        return parked

    def _gives_up(self, index: int, message: Received, why: str, *, is_final: bool) -> bool:
        """Count a try; whether it was the last."""
        self._tries[index] += 1
        name, tries = self._target.name, self._tries[index]
        is_last = log_failure(name, message, tries, self._max_tries, why, is_final=is_final, then="parked")
        if is_last:
            self._given_up[index] = why
        return is_last

    def _park_given_up(self, lease: Lease, first: int, left: dict[int, Received]) -> int:
        """Park the messages that aren't tried again, though the batch may be; how many there are."""
        given_up = {index: why for index, why in self._given_up.items() if first + index in left}
        for index, why in given_up.items():
            message = left.pop(first + index)
            lease.park(message._replace(sequence=first + index, tries=self._tries[index]), why)
        return len(given_up)


class _NotReadyError(Exception):
    """What the target noted in the store must be committed before it takes messages."""
