"""Consumers that work at once: each has a transaction for a batch of its own, in which it claims ids and serves the target."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from receiver.bridge.connectors import PositionedSource, Source
from receiver.bridge.modes import Admitted, Figures, Taken
from receiver.bridge.modes.controlled_flow import ControlledFlow
from receiver.bridge.targets import Target
from receiver.durable.batch import Batch
from receiver.durable.concurrent import ConcurrentBatch
from receiver.durable.receiver import Receiver
from receiver.errors import SettingsError
from receiver.settings import BridgeSettings
from receiver.store.engine import translated
from receiver.store.inbox import Inbox, Lease
from receiver.store.messages import StoredMessage
from receiver.store.tables import OF_ARRIVALS


class ConsumerFlow(ControlledFlow):
    """One of several consumers, which share a receiver and the target's inbox, but no lease.

    The inbox has only what was parked and is to be tried again, or was left there by a bridge without consumers. One of
    them serves it.
    """

    def __init__(
        self,
        receiver: Receiver,
        inbox: Inbox,
        target: Target,
        figures: Figures,
        settings: BridgeSettings,
        *,
        address: str,
        serves_inbox: bool,
    ) -> None:
        """`address` is the store's."""
        super().__init__(receiver, inbox, target, figures, settings)
        self._address = address
        self._serves_inbox = serves_inbox

    def prepare(self) -> None:
        if self._serves_inbox:
            super().prepare()

    def attach(self, source: Source) -> None:
        if isinstance(source, PositionedSource):
            raise SettingsError(
                f"{source.positions_of} is read by positions, which several consumers can't move at once",
                hint="leave out --consumers",
            )
        super().attach(source)

    def tend(self) -> None:
        if self._serves_inbox:
            super().tend()

    def hand_on_in(self, batch: Batch, taken: Taken) -> tuple[Admitted, int]:
        assert isinstance(batch, ConcurrentBatch)  # noqa: S101 - the receiver is a concurrent one
        refused = {**taken.refused, **taken.returned}
        receipts = [received.receipt() for received in taken.messages]
        for index in refused:
            receipts[index] = receipts[index]._replace(unique_message_id=None)
        decisions = batch.receive_many(receipts)
        messages = {
            index: message
            for index, (message, decision) in enumerate(zip(taken.messages, decisions, strict=True))
            if decision.deliver and index not in refused
        }
        turn = _Turn(self._inbox, batch.connection, batch.arrivals)
        with translated(self._address):
            for index, why in refused.items():
                turn.park(taken.messages[index].numbered(index), why)
            admitted = Admitted(0, messages, {}, refused)
            return admitted, self.deliver(turn, admitted)


class _Turn(Lease):
    """What stands for a lease where nobody has the target to itself. A message's number is its index in its batch."""

    def __init__(self, inbox: Inbox, connection: Connection, arrivals: Sequence[int]) -> None:
        self.connection = connection
        self._inbox = inbox
        self._arrivals = arrivals

    def park(self, message: StoredMessage, error: str) -> None:
        assert message.sequence is not None  # noqa: S101 - it has its index in the batch
        sequence = OF_ARRIVALS.start + self._arrivals[message.sequence]
        self._inbox.park(self.connection, message._replace(sequence=sequence), error)
