"""BEST_EFFORT: acknowledged on receipt, nothing kept."""

from __future__ import annotations

import logging
from collections.abc import Callable

from receiver.bridge.figures import Figures
from receiver.bridge.flow import Taken, judged
from receiver.bridge.received import Received
from receiver.bridge.targets.target import Target
from receiver.durable.receiver import Receiver
from receiver.durable.stages import Stage
from receiver.errors import OutputError

__all__ = ["DirectFlow"]

_LOGGER = logging.getLogger("receiver.bridge")


class DirectFlow:
    """What is acknowledged waits in memory for the target, and goes with the process."""

    def __init__(self, receiver: Receiver, target: Target, figures: Figures, *, max_tries: int) -> None:
        self._receiver = receiver
        """In memory, and only observing: for the figures, and the log that it records."""
        self._target = target
        self._figures = figures
        self._max_tries = max_tries
        self._waiting: list[Received] = []
        self._tries = 0

    def prepare(self) -> None:
        """Nothing is kept that could be waiting."""

    def before_acknowledging(self, taken: Taken) -> None:
        """Nothing is kept."""

    def acknowledged(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            judged(batch, taken)
        self._waiting = [*self._waiting, *taken.messages]
        self._figures.waiting = len(self._waiting)

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        del is_enough  # what isn't handed on by the end is lost
        while self._waiting:
            with self._receiver.stage(Stage.ENQUEUING):
                outcome = self._target.deliver(self._waiting, None)
            self._figures.delivered += len(outcome.delivered)
            self._figures.failed += len(outcome.failed)
            self._tries = self._tries + 1 if outcome.failed else 0
            gives_up = self._tries >= self._max_tries
            if gives_up:
                self._drop(outcome.failed)
            done = {*outcome.delivered, *(outcome.failed if gives_up else ())}
            self._waiting = [message for index, message in enumerate(self._waiting) if index not in done]
            self._figures.waiting = len(self._waiting)
            if outcome.failed and not gives_up:
                why = next(iter(outcome.failed.values()))
                raise OutputError(f"{self._target.name}: a message failed: {why}", hint="it is tried again")

    def _drop(self, failed: dict[int, str]) -> None:
        for index, why in failed.items():
            _LOGGER.error("dropped after %d tries: %r: %s", self._tries, self._waiting[index].unique_message_id, why)
        self._figures.parked += len(failed)
        self._tries = 0

    def tend(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        if self._waiting:
            _LOGGER.error("%d messages are lost that were acknowledged and not handed on", len(self._waiting))
