"""A durable receiver in its steady state: for each receipt that it records, it forgets another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

from benchmarks.detector import EXPIRY_SECS, WINDOW
from benchmarks.workload import SOURCES, stream
from receiver import Receiver, ReceiverSettings, Recording

Rows = list[tuple[str, str, int]]
_Row = TypeVar("_Row")

_WARM_UP_BATCH = 10_000


class Orders(NamedTuple):
    """An open receiver, and the receipts that it hasn't received yet."""

    receiver: Receiver
    receipts: Iterator[tuple[str, str, int]]

    def take(self, count: int) -> Rows:
        return list(islice(self.receipts, count))

    def __str__(self) -> str:
        now = self.receiver.status()
        return f"{now.rDupIds:,} live ids, W={now.window:,}, E={now.expiry_secs:g} s"


def scaled(size: int, scale: float, least: int = 20) -> int:
    return max(least, round(size * scale))


def in_batches(rows: Sequence[_Row], size: int) -> Iterator[Sequence[_Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def receive(receiver: Receiver, rows: Rows, batch_size: int) -> None:
    if batch_size == 1:
        for id_, source, received_at_us in rows:
            with receiver.batch() as batch:
                batch.receive(id_, source, received_at_us=received_at_us)
    else:
        for batch_rows in in_batches(rows, batch_size):
            with receiver.batch() as batch:
                batch.receive_many(batch_rows)


def open_receiver(url: str, window: int, expiry_share: float = 1, record: Recording | None = None) -> Receiver:
    """An open receiver with this window. An expiry of 120 s fits 2,000 ids; it gets `expiry_share` of the expiry
    that fits the window."""
    settings = ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window,
        dup_detection_expiry_time_secs=EXPIRY_SECS * window / WINDOW * expiry_share,
    )
    return Receiver.open(url, connection_id="bridge", destination="orders", settings=settings, record=record)


@contextmanager
def steady_orders(
    url: str, window: int, more: int, expiry_share: float = 1, record: Recording | None = None
) -> Iterator[Orders]:
    """A receiver with full queues, and `more` receipts that it hasn't received yet."""
    enough = window * SOURCES * 3 // 2
    with open_receiver(url, window, expiry_share, record) as receiver:
        orders = Orders(receiver, stream(enough + more))
        for start in range(0, enough, _WARM_UP_BATCH):
            receive(receiver, orders.take(min(_WARM_UP_BATCH, enough - start)), _WARM_UP_BATCH)
        yield orders
