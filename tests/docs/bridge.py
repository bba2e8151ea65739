"""Objects that the documents take as given: a broker that sends unacknowledged messages again, and an application's
table."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from receiver import Receiver

CHANNEL = {"connection_id": "broker-a", "destination": "queue://orders"}


@dataclass(frozen=True)
class Message:
    unique_message_id: str | None
    message_source_id: str | None = "gateway-1"
    cents: int = 100
    body: bytes = b""


class Broker:
    def __init__(self, *ids: str | None) -> None:
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


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"
    number: Mapped[int] = mapped_column(primary_key=True)
    reference: Mapped[str]
    cents: Mapped[int]


class Aside(Base):
    """Messages without an id, and unreadable ones."""

    __tablename__ = "aside"
    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str | None]
    body: Mapped[bytes]


class CrashError(Exception):
    """Raised to end a bridge halfway."""


@contextmanager
def orders_of(url: str, **options: object) -> Iterator[Receiver]:
    with Receiver.open(url, **CHANNEL | options) as orders:
        yield orders


def verdicts(url: str, *ids: str, **options: object) -> list[str]:
    with orders_of(url, **options) as orders, orders.batch() as batch:
        return [batch.receive(id_, "gateway-1").verdict.value for id_ in ids]


def pay(connection, message):
    connection.execute(
        text("INSERT INTO payment (reference, cents) VALUES (:reference, :cents)"),
        {"reference": message.unique_message_id, "cents": message.cents},
    )
    if message.unique_message_id == "bad":
        raise ValueError
    if message.unique_message_id == "worst":
        raise LookupError
