"""A source of a list that forgets nothing: the store of the bridge keeps how far it has come."""

from collections.abc import Sequence

from receiver.bridge import Advance, Delivery, Message

EVENTS = [Message(body=str(number).encode()) for number in range(10)]


class EventSource:
    positions_of = "events"

    def start(self, positions) -> None:
        self.kept = positions.read().get("next")
        self.next = int(self.kept or 0)

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        taken = EVENTS[self.next : self.next + at_most]
        self.next += len(taken)
        return [Delivery(message, None) for message in taken]

    def advances(self, deliveries: Sequence[Delivery]) -> list[Advance]:
        return [Advance("next", self.kept, str(self.next))]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.kept = str(self.next)

    def close(self) -> None:
        pass
