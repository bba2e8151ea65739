"""BEST_EFFORT: nothing is kept. Acknowledged messages wait for the target in memory."""

from __future__ import annotations

import logging

from receiver.bridge.modes import Figures, Flow, log_failure
from receiver.bridge.received import Received, Taken
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.errors import IdFormatError, OutputError
from receiver.settings import BridgeSettings

_LOGGER = logging.getLogger("receiver.bridge")


class DirectFlow(Flow):
    """Acknowledged messages wait for the target in memory, and are lost with the process."""

    def __init__(self, receiver: Receiver, target: Target, figures: Figures, settings: BridgeSettings) -> None:
        """`receiver`: one of `memory://` that only observes, for figures and the log that it records."""
        super().__init__(receiver, target, figures)
        self._max_tries = settings.max_tries
        self._waiting: list[Received] = []

    def before_acknowledging(self, taken: Taken) -> None:
        with self.receiver.batch() as batch:
            for receipt in taken.receipts:
                try:
                    batch.decide(*receipt)
                except IdFormatError:  # it counts as a message without id
                    batch.decide(None, *receipt[1:])
        self._waiting += taken.messages
        self.figures.waiting = len(self._waiting)

    def deliver_waiting(self) -> bool:
        """Hand on all messages, because those left at the end are lost."""
        why = ""
        while self._waiting and not why:
            messages = self._waiting
            outcome = self.target.deliver(messages, None)
            done = set(outcome.delivered)
            for index, problem in outcome.failed.items():
                message = messages[index] = messages[index]._replace(tries=messages[index].tries + 1)
                is_final = index in outcome.final
                if log_failure(self.target.name, message, self._max_tries, problem, is_final=is_final, then="dropped"):
                    self.figures.parked += 1
                    done.add(index)
                else:
                    why = problem
            self._waiting = [message for index, message in enumerate(messages) if index not in done]
            self.figures.delivered += len(outcome.delivered)
            self.figures.failed += len(outcome.failed)
            self.figures.waiting = len(self._waiting)
            if outcome.error is not None:
                raise outcome.error
            outcome.raise_held()
        if why:
            raise OutputError(f"{self.target.name}: a message failed: {why}", hint="it is tried again")
        return False

    def close(self) -> None:
        if self._waiting:
            _LOGGER.error("%d messages are lost: they were acknowledged, but not handed on", len(self._waiting))
            self._waiting = []
