"""What a bridge drops, kept: duplicates wait for a target of their own, beside the messages of the bridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from receiver.bridge.connectors import Source
from receiver.bridge.modes import Figures, Taken
from receiver.bridge.modes.controlled_flow import ControlledFlow
from receiver.bridge.modes.inbox_flow import Dispatcher, InboxFlow
from receiver.bridge.received import Received, iso
from receiver.bridge.targets import Target
from receiver.durable.batch import Batch
from receiver.durable.events import Duplicate

DUPLICATE_OF = "receiverDuplicateOf"
"""The property that says when the id first came, as far as it has been remembered without a break: ISO 8601, in UTC."""
BODY_DIFFERS = "receiverBodyDiffers"
"""The property that says whether the body is known to be another than each that came with the id before."""


class DuplicatesFlow:
    """The flow of a bridge, beside which what it drops waits for another target.

    The transaction that finds a duplicate puts it into the inbox of that target. So it gets there at least once.
    """

    def __init__(self, flow: InboxFlow | ControlledFlow, figures: Figures, to: Target, duplicates: Dispatcher) -> None:
        """`duplicates` hands on what waits for the target `to`, and counts by itself."""
        self._flow = flow
        self._figures = figures
        self._to = to
        self._duplicates = duplicates
        self._kept = figures.of_duplicates = duplicates.figures
        self._dropped = 0
        """How many duplicates the batch under way has."""
        flow.on_dropped = self._keep
        flow.ours = duplicates.ours = flow.ours | duplicates.ours

    def prepare(self) -> None:
        self._to.connect()
        self._flow.prepare()
        self._duplicates.prepare()

    def attach(self, source: Source) -> None:
        self._flow.attach(source)

    def before_acknowledging(self, taken: Taken) -> None:
        self._dropped = 0
        self._flow.before_acknowledging(taken)
        self._kept.waiting += self._dropped

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        if self._figures.waiting:
            self._flow.deliver_waiting(is_enough)
        if not self._kept.waiting:
            return
        failed, parked = self._kept.failed, self._kept.parked
        try:
            self._duplicates.deliver_waiting(is_enough)
        finally:
            self._figures.failed += self._kept.failed - failed
            self._figures.parked += self._kept.parked - parked

    def tend(self) -> None:
        self._flow.tend()
        self._duplicates.tend()

    def close(self) -> None:
        self._to.close()
        self._flow.close()
        self._duplicates.close()

    def _keep(self, batch: Batch, dropped: dict[int, Received]) -> None:
        events = [event for event in batch.duplicates if not event.delivered]
        messages = [
            each._replace(
                sequence=number, message=replace(each.message, properties={**each.properties, **_said_of(event)})
            )
            for (number, each), event in zip(dropped.items(), events, strict=True)
        ]
        self._duplicates.keep(batch.connection, messages)
        self._dropped = len(dropped)


def _said_of(event: Duplicate) -> dict[str, str | bool]:
    return {DUPLICATE_OF: iso(event.first_received_at_us), BODY_DIFFERS: bool(event.body_differs)}
