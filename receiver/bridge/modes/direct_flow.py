"""BEST_EFFORT: acknowledged on receipt, nothing kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from receiver.bridge.modes import Figures, Taken, judged, tell_failure
from receiver.bridge.received import Received
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.durable.stages import Stage
from receiver.errors import OutputError

__all__ = ["DirectFlow"]

_LOGGER = logging.getLogger("receiver.bridge")


@dataclass(slots=True)
class _Waiting:
    message: Received
    tries: int = 0


class DirectFlow:
    """What is acknowledged waits in memory for the target, and goes with the process."""

    def __init__(self, receiver: Receiver, target: Target, figures: Figures, *, max_tries: int) -> None:
        self._receiver = receiver
        """In memory, and only observing: for the figures, and the log that it records."""
        self._target = target
        self._figures = figures
        self._max_tries = max_tries
        self._waiting: list[_Waiting] = []

    def prepare(self) -> None:
        """Nothing is kept that could be waiting."""

    def before_acknowledging(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            judged(batch, taken.messages, taken.refused)
        self._waiting += map(_Waiting, taken.messages)
        self._figures.waiting = len(self._waiting)

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        del is_enough  # what isn't handed on by the end is lost
        why = ""
        while self._waiting and not why:
            with self._receiver.stage(Stage.ENQUEUING):
                outcome = self._target.deliver([waiting.message for waiting in self._waiting], None)
            self._figures.delivered += len(outcome.delivered)
            self._figures.failed += len(outcome.failed)
            done = set(outcome.delivered)
            for index, problem in outcome.failed.items():
                if self._is_dropped(self._waiting[index], problem):
                    done.add(index)
                else:
                    why = problem
            self._waiting = [waiting for index, waiting in enumerate(self._waiting) if index not in done]
            self._figures.waiting = len(self._waiting)
        if why:
            raise OutputError(f"{self._target.name}: a message failed: {why}", hint="it is tried again")

    def _is_dropped(self, waiting: _Waiting, why: str) -> bool:
        """Count a try; whether it was the last."""
        waiting.tries += 1
        if not tell_failure(self._target.name, waiting.message, waiting.tries, self._max_tries, why, then="dropped"):
            return False
        self._figures.parked += 1
        return True

    def tend(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        if self._waiting:
            _LOGGER.error("%d messages are lost that were acknowledged and not handed on", len(self._waiting))
            self._waiting = []
