"""Short functions for an inbox, and for messages that wait in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from sqlalchemy import Connection

from receiver.durable.receiver import Receiver
from receiver.settings import StoreSettings
from receiver.store.inbox import Inbox, Lease
from receiver.store.messages import Message, StoredMessage
from tests.durable.opened import opened

TARGET = "file:orders.jsonl"
# An import statement can't name a module that begins with a digit.
unpack_all = import_module("migrations.versions.0009_packed_messages").unpack_all


def message(sequence: int, source: str | None = None, body: bytes = b"body", **fields: object) -> StoredMessage:
    """A message that waits. `fields` belong to the message or to its receipt."""
    of_receipt = {name: fields.pop(name) for name in StoredMessage._fields if name in fields}
    row = StoredMessage(
        sequence=sequence,
        tries=0,
        received_at_us=1_777_629_600_000_000 + sequence,
        unique_message_id=f"{sequence}:gateway",
        message_source_id=source,
        destination="queue://orders",
        message=Message(**{"body": body, "message_id": "ID:broker-1"} | fields),
    )
    return row._replace(**of_receipt)


def as_retried(row: StoredMessage) -> StoredMessage:
    """A parked message as `retry_parked` sends it back: a broker may keep the id that it made of number and time."""
    return row._replace(tries=0, received_at_us=row.received_at_us + 1)


def inbox_of(receiver: Receiver, url: str, target: str = TARGET, *, patience_secs: float = 10.0) -> Inbox:
    settings = StoreSettings(lock_timeout_secs=patience_secs)
    return Inbox(url, domain_id=receiver.domain_id, target=target, store_settings=settings)


@contextmanager
def opened_inbox(url: str, target: str = TARGET, **options) -> Iterator[tuple[Receiver, Inbox]]:
    """A receiver and an inbox of its domain, as a bridge has them."""
    with opened(url) as receiver, inbox_of(receiver, url, target, **options) as inbox:
        yield receiver, inbox


def add(inbox: Inbox, connection: Connection, rows: Sequence[StoredMessage]) -> None:
    """Add these messages to the inbox, if there are any."""
    if rows:
        inbox.add(connection, rows)


def receive(receiver: Receiver, inbox: Inbox, *bodies: bytes, source: str | None = None) -> list[StoredMessage]:
    """Receive messages, commit them to the inbox with the receipts of their ids, and return them."""
    with receiver.batch() as batch:
        first = batch.transaction.first_sequence
        rows = [message(first + index, source, body) for index, body in enumerate(bodies)]
        batch.receive_many((row.unique_message_id, source, row.received_at_us) for row in rows)
        add(inbox, batch.connection, rows)
    return rows


def all_of(lease: Lease) -> list[StoredMessage]:
    return lease.messages(lease.sequence_numbers(1_000_000))


def waiting_in(inbox: Inbox) -> list[StoredMessage]:
    with inbox.lease() as lease:
        return all_of(lease)
