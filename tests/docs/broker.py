"""The broker that the documents speak of: it sends again what isn't acknowledged."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    unique_message_id: str
    message_source_id: str | None = "gateway-1"
    cents: int = 100


class Broker:
    def __init__(self, *ids: str) -> None:
        self.waiting = [Message(id_) for id_ in ids]
        self.sent: list[Message] = []
        self.acknowledged: list[Message] = []

    def receive(self, most: int) -> list[Message]:
        new, self.waiting = self.waiting[:most], self.waiting[most:]
        self.sent += new
        return new

    def acknowledge(self, messages: list[Message]) -> None:
        for message in messages:
            self.sent.remove(message)
        self.acknowledged += messages

    def recover(self) -> None:
        self.waiting, self.sent = self.sent + self.waiting, []
