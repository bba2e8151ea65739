"""Short functions to open a receiver, to send to it, and to ask a store what it remembers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection

from receiver import Receiver, ReceiverSettings
from receiver.message import Verdict
from receiver.settings import StoreSettings

MEMORY = "memory://"
NEW, DUPLICATE, UNCHECKED = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED

LONG_SECS = 60.0
"""Longer than any test may take. A refusal must come at once rather than after this time."""


class UndoError(Exception):
    """Raised to leave a batch, so that it records nothing."""


def sizes(window: int, expiry_us: int, **more) -> ReceiverSettings:
    return ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=expiry_us / 1_000_000, **more
    )


def opened(url: str, *, patience_secs: float = 10.0, **options) -> Receiver:
    """A receiver, always of the same domain unless the options name another."""
    defaults = {
        "connection_id": "broker",
        "destination": "queue://orders",
        "store_settings": StoreSettings(lock_timeout_secs=patience_secs),
    }
    return Receiver.open(url, **defaults | options)


def send(receiver: Receiver, *ids: str | None, connection: Connection | None = None) -> list[Verdict]:
    """Receive ids in one batch, at time 0."""
    with receiver.batch(connection) as batch:
        return [batch.receive(id_, received_at_us=0).verdict for id_ in ids]


def undone(receiver: Receiver, *ids: str | None, connection: Connection | None = None) -> list[Verdict]:
    """As `send`, but an exception leaves the batch."""
    with suppress(UndoError), receiver.batch(connection) as batch:
        verdicts = [batch.receive(id_, received_at_us=0).verdict for id_ in ids]
        raise UndoError
    return verdicts


def remembered(url: str, *ids: str, **options) -> list[str]:
    """Those of these ids that a newly opened receiver remembers."""
    with opened(url, **options) as receiver:
        # One by one, since they would push each other out.
        return [id_ for id_ in ids if undone(receiver, id_) == [DUPLICATE]]


@contextmanager
def held_elsewhere(receiver: Receiver) -> Iterator[threading.Event]:
    """Have another thread hold a batch of the receiver open, with the id `held`, until the event is set or the block
    ends."""
    began, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with receiver.batch() as batch:
            batch.receive("held", received_at_us=0)
            began.set()
            may_end.wait(LONG_SECS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert began.wait(LONG_SECS)
    try:
        yield may_end
    finally:
        may_end.set()
        thread.join()
