"""Short words for opening a receiver, sending to it, and asking a store what it remembers."""

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
"""More than any test may take: what is to be refused at once must not wait for it."""


class UndoError(Exception):
    """Leaves a batch, so that it records nothing."""


def sizes(window: int, expiry_us: int, **more) -> ReceiverSettings:
    return ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=expiry_us / 1_000_000, **more
    )


def opened(url: str, *, patience_secs: float = 10.0, **options) -> Receiver:
    """A receiver of one and the same domain, unless the options say otherwise."""
    defaults = {
        "connection_id": "broker",
        "destination": "queue://orders",
        "store_settings": StoreSettings(lock_timeout_secs=patience_secs),
    }
    return Receiver.open(url, **defaults | options)


def send(receiver: Receiver, *ids: str | None, connection: Connection | None = None) -> list[Verdict]:
    """Receive ids in one batch, at the time 0."""
    with receiver.batch(connection) as batch:
        return [batch.receive(id_, received_at_us=0).verdict for id_ in ids]


def undone(receiver: Receiver, *ids: str | None, connection: Connection | None = None) -> list[Verdict]:
    """As `send`, but the batch is left by an exception."""
    with suppress(UndoError), receiver.batch(connection) as batch:
        verdicts = [batch.receive(id_, received_at_us=0).verdict for id_ in ids]
        raise UndoError
    return verdicts


def remembered(url: str, *ids: str, **options) -> list[str]:
    """Which of these ids a receiver opened anew remembers."""
    with opened(url, **options) as receiver:
        # One by one, for they would push each other out.
        return [id_ for id_ in ids if undone(receiver, id_) == [DUPLICATE]]


@contextmanager
def held_elsewhere(receiver: Receiver) -> Iterator[threading.Event]:
    """Another thread has a batch of the receiver under way, with the id `held`, until the event or the end."""
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
