"""From batches of a log to whole columns of numbers: the form in which a log is replayed.

A receipt takes about twenty bytes here, and each distinct id its text once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from receiver.domains import Channel, DomainKey
from receiver.simulate.compiled import Flags, Int32s, Int64s, check_numbered
from receiver.simulate.numbering import (
    Channels,
    Names,
    TextNumbers,
    Texts,
    check_columns,
    digest_hashes,
    longest_delivery_us,
    plain_text,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import LogBatch, LogBatches, StatusLine

_PATIENCE_SECS = 0.5


@dataclass(slots=True)
class Receipts:
    """All receipts of a log, in order. Numbers index `ids`, `sources`, `channels` and `domains`."""

    received_at_us: Int64s
    """As read, not clamped."""
    id_number: Int32s
    """The number of the id's text; the empty text, which means unchecked, is number 0."""
    source_number: Int32s
    channel_number: Int32s
    redelivered: Flags | None
    digest_hash: npt.NDArray[np.uint64] | None
    """0 where the digest is missing."""
    ids: TextNumbers
    sources: list[str]
    channels: list[Channel]
    domains: list[str]
    domain_of_channel: Int32s
    skipped: int
    max_delivery_us: int
    """The longest time from JMSTimestamp to receipt among redelivered receipts."""
    status_lines: list[StatusLine]


@dataclass(slots=True)
class _Collector:
    ids: TextNumbers = field(default_factory=TextNumbers)
    sources: Texts = field(default_factory=Texts)
    channels: Channels = field(default_factory=Channels)
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    has_redelivered: bool = False
    has_digest: bool = False
    receipts: int = 0
    skipped: int = 0
    max_delivery_us: int = 0
    status_lines: list[StatusLine] = field(default_factory=list)

    def add(self, batch: LogBatch) -> None:
        self.skipped += batch.skipped
        self.status_lines += batch.status_lines
        if not len(batch):
            return
        self.receipts += len(batch)
        check_numbered(self.receipts, "receipts")
        # For batches without the column. Broadcasting takes no memory.
        redelivered: Flags = np.broadcast_to(np.bool_(False), len(batch))  # noqa: FBT003
        digests: npt.NDArray[np.uint64] = np.broadcast_to(np.uint64(0), len(batch))
        if batch.jms_redelivered is not None:
            self.has_redelivered = True
            redelivered = batch.jms_redelivered
            self.max_delivery_us = max(self.max_delivery_us, longest_delivery_us(batch))
        if batch.body_digest is not None:
            self.has_digest = True
            digests = digest_hashes(batch.body_digest)
        for name, values in (
            ("received_at_us", batch.received_at_us),
            ("id_number", self.ids.number(plain_text(batch.unique_message_id))),
            ("source_number", self.sources.column(batch.message_source_id, len(batch))),
            ("channel_number", self.channels.column(batch)),
            ("redelivered", redelivered),
            ("digest_hash", digests),
        ):
            self.columns.setdefault(name, []).append(values)

    def taken(self, name: str) -> npt.NDArray[Any]:
        """A whole column; its parts are not kept beside it."""
        return np.concatenate(self.columns.pop(name))


def ingest(batches: LogBatches, key: DomainKey) -> Receipts:
    """Read a log to its end.

    `LogFormatError` for a KEY that needs a column which the whole log lacks, and for more receipts than can be numbered:
    before the first is read, where the files say how many they hold.
    """
    check_numbered(batches.known_receipts, "receipts")
    collector = _Collector()
    collector.ids.number(pa.array([""], pa.string()))  # so that number 0 is the missing id
    with closing(_read_ahead(batches)) as ahead:
        for batch in ahead:
            collector.add(batch)
    check_columns(batches.columns_present, key)
    domains: Names[str] = Names()
    channels = collector.channels.names
    of_channel = np.array([domains.number(key.name(channel)) for channel in channels], np.int32)
    return Receipts(
        received_at_us=collector.taken("received_at_us"),
        id_number=collector.taken("id_number"),
        source_number=collector.taken("source_number"),
        channel_number=collector.taken("channel_number"),
        redelivered=collector.taken("redelivered") if collector.has_redelivered else None,
        digest_hash=collector.taken("digest_hash") if collector.has_digest else None,
        ids=collector.ids,
        sources=collector.sources.names,
        channels=channels,
        domains=domains.names,
        domain_of_channel=of_channel,
        skipped=collector.skipped,
        max_delivery_us=collector.max_delivery_us,
        status_lines=collector.status_lines,
    )


def _read_ahead(batches: Iterator[LogBatch]) -> Generator[LogBatch, None, None]:
    """Batches, each read while the one before is worked on: Arrow and Numba both release Python's lock."""
    coming: SimpleQueue[LogBatch | BaseException | None] = SimpleQueue()
    wanted, stopped = Semaphore(), Event()

    def read() -> None:
        while wanted.acquire() and not stopped.is_set():
            try:
                batch = next(batches, None)
            except BaseException as error:  # noqa: BLE001 - raised where the batch is awaited
                coming.put(error)
                return
            coming.put(batch)
            if batch is None:
                return

    # A daemon, as a pool's threads are not: one that waits for standard input must not hold up an interrupt.
    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        while (batch := coming.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            wanted.release()
            yield batch
    finally:
        stopped.set()
        wanted.release()
        reader.join(_PATIENCE_SECS)
