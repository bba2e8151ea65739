"""AT_LEAST_ONCE and EXACTLY_ONCE: messages wait in the inbox until the target has them."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from receiver.bridge.figures import Figures
from receiver.bridge.flow import Taken, admit, tell_refused
from receiver.bridge.received import Received
from receiver.bridge.targets.target import Target
from receiver.bridge.turns import Turns
from receiver.durable.receiver import Receiver
from receiver.senders import SequenceIdMaker
from receiver.store.inbox import Inbox

__all__ = ["InboxFlow"]


class InboxFlow:
    """The ids and the messages to deliver are committed together; then their batch may be acknowledged."""

    def __init__(
        self,
        receiver: Receiver,
        inbox: Inbox,
        target: Target,
        figures: Figures,
        *,
        max_tries: int,
        numbers: SequenceIdMaker | None = None,
    ) -> None:
        self._receiver = receiver
        self._inbox = inbox
        self._figures = figures
        self._numbers = numbers
        """Gives ids to messages without one, where the target needs them."""
        self._turns = Turns(receiver, inbox, target, figures, max_tries=max_tries)

    def prepare(self) -> None:
        self._turns.start()

    def before_acknowledging(self, taken: Taken) -> None:
        with self._receiver.batch() as batch:
            admitted = admit(batch, taken, self._inbox)
            kept = {place: message.at(place) for place, message in admitted.messages.items()}
            kept |= self._numbered(kept, batch.connection)
            self._inbox.add(batch.connection, [message.row(place) for place, message in kept.items()])
        tell_refused(taken, admitted.refused)
        self._figures.parked += len(admitted.refused)
        self._figures.waiting += len(kept)
        self._turns.at_hand = kept

    def deliver_waiting(self, is_enough: Callable[[], bool]) -> None:
        self._turns.deliver_waiting(is_enough)

    def tend(self) -> None:
        self._turns.tend()

    def close(self) -> None:
        self._inbox.close()
        if self._numbers is not None:
            self._numbers.close()

    def _numbered(self, kept: dict[int, Received], connection: Connection) -> dict[int, Received]:
        """Those without an id, where they are to have one."""
        without = [place for place, message in kept.items() if message.unique_message_id is None]
        if self._numbers is None or not without:
            return {}
        ids = self._numbers.next_many(len(without), connection=connection)
        source = self._receiver.domain
        return {
            place: kept[place]._replace(
                unique_message_id=id_, message_source_id=kept[place].message_source_id or source
            )
            for place, id_ in zip(without, ids, strict=True)
        }
