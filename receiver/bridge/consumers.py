"""A bridge of several consumers: each is a bridge in a thread of its own. They share source and function."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import fields

from receiver.bridge.bridge import Bridge, Health
from receiver.bridge.modes import Figures

_LOGGER = logging.getLogger("receiver.bridge")
_LOOK_SECS = 0.1
_COUNTED = [field.name for field in fields(Figures) if field.type == "int"]


class Consumers(Bridge):
    """Several bridges as one. They share the receiver. If one of them fails, all end."""

    def __init__(self, consumers: Sequence[Bridge], target: str) -> None:
        """`target`: the name of their common target."""
        self.receiver = consumers[0].receiver
        self.figures = Figures(nodes=consumers[0].figures.nodes)
        self.health = _HealthOfAll([each.health for each in consumers])
        self.is_stopping = self.has_started = False
        self._each = consumers
        self._target_name = target
        self._failures: list[BaseException] = []

    def stop(self) -> None:
        """End `run` once the batches under way are committed and acknowledged."""
        self.is_stopping = True
        self._stop_each()

    def run(self, *, stop_when_idle_secs: float | None = None, waits_at_start: bool = False) -> None:
        """As `Bridge.run`. Signals are handled meanwhile."""
        threads = [
            threading.Thread(target=self._consume, args=[each, waits_at_start], name=f"Consumer-{number}", daemon=True)
            for number, each in enumerate(self._each, 1)
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                self._look(stop_when_idle_secs)
                time.sleep(_LOOK_SECS)
        finally:
            self._stop_each()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            self._add_up()
            self.close()
        if self._failures:
            raise self._failures[0]

    def close(self) -> None:
        """Close all connections. `run` does so at its end. Closing again does nothing."""
        self.figures.has_ended = True
        for each in self._each:
            each.close()

    def _consume(self, consumer: Bridge, waits: bool) -> None:  # noqa: FBT001 - the arguments of a thread
        try:
            if consumer.begin(waits=waits):
                consumer.work()
        except BaseException as error:  # noqa: BLE001 - the thread that runs all of them raises it
            self._failures.append(error)
        finally:
            self._stop_each()

    def _look(self, stop_when_idle_secs: float | None) -> None:
        """Add up figures, note the start, and stop all consumers once they are idle."""
        self._add_up()
        if not self.has_started and all(each.has_started for each in self._each):
            self.has_started = True
            policy, domain, count = self.receiver.figures().policy, self.receiver.domain, len(self._each)
            _LOGGER.info("taking messages for %s, domain %s, %s, %d at once", self._target_name, domain, policy, count)
        idle_since = max(each.idle_since for each in self._each)
        if stop_when_idle_secs is not None and idle_since <= time.monotonic() - stop_when_idle_secs:
            self._stop_each()

    def _add_up(self) -> None:
        for name in _COUNTED:
            setattr(self.figures, name, sum(getattr(each.figures, name) for each in self._each))

    def _stop_each(self) -> None:
        for each in self._each:
            each.stop()


class _HealthOfAll(Health):
    """The health of all consumers: ready if each is ready, live if each is live."""

    def __init__(self, each: Sequence[Health]) -> None:
        self._each = each

    def why_unready(self) -> str | None:
        return next((why for one in self._each if (why := one.why_unready())), None)

    def why_dead(self) -> str | None:
        return next((why for one in self._each if (why := one.why_dead())), None)
