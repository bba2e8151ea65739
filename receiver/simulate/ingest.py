"""Turns batches of a log into whole columns of numbers, the form in which a log is replayed.

A receipt takes about twenty bytes here, and each distinct id its text once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from receiver.domains import Channel, DomainKey
from receiver.simulate import numbering
from receiver.simulate.compiled import Flags, Int32s, Int64s, check_numbered

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
    ids: numbering.TextNumbers
    sources: list[str]
    channels: list[Channel]
    domains: list[str]
    domain_of_channel: Int32s
    skipped: int
    max_delivery_us: int
    """The longest time from JMSTimestamp to receipt among redelivered receipts."""
    status_lines: list[StatusLine]
    redelivered: Flags | None = None
    digest_hash: npt.NDArray[np.uint64] | None = None
    """0 where the digest is missing."""


def ingest(batches: LogBatches, key: DomainKey) -> Receipts:
    """Read a log to its end.

    `LogFormatError` for a KEY that needs a column which the whole log lacks, and for more receipts than can be numbered. If
    the files say how many they hold, this is raised before the first receipt is read.
    """
    check_numbered(batches.known_receipts, "receipts")
    ids, sources, channels = numbering.TextNumbers(), numbering.Texts(), numbering.Channels()
    ids.number(pa.array([""], pa.string()))  # so that number 0 is the missing id
    columns: defaultdict[str, list[npt.NDArray[Any]]] = defaultdict(list)
    rows, skipped, max_delivery_us = 0, batches.left_out, 0
    status_lines: list[StatusLine] = []
    with closing(_read_ahead(batches)) as ahead:
        for batch in ahead:
            skipped += batch.skipped
            status_lines += batch.status_lines
            if not len(batch):
                continue
            rows += len(batch)
            check_numbered(rows, "receipts")
            max_delivery_us = max(max_delivery_us, numbering.longest_delivery_us(batch))
            flags, digests = batch.jms_redelivered, batch.body_digest
            columns["received_at_us"].append(batch.received_at_us)
            columns["id_number"].append(ids.number(numbering.plain_text(batch.unique_message_id)))
            columns["source_number"].append(sources.column(batch.message_source_id, len(batch)))
            columns["channel_number"].append(channels.column(batch))
            # A missing column is broadcast, which takes no memory.
            columns["redelivered"].append(np.broadcast_to(np.False_, len(batch)) if flags is None else flags)
            none = np.broadcast_to(np.uint64(0), len(batch))
            columns["digest_hash"].append(none if digests is None else numbering.digest_hashes(digests))
    numbering.check_columns(batches.columns_present, key)
    for column, name in (("jms_redelivered", "redelivered"), ("body_digest", "digest_hash")):
        if column not in batches.columns_present:
            columns.pop(name, None)
    domains: numbering.Names[str] = numbering.Names()
    of_channel = np.array([domains.number(key.name(channel)) for channel in channels.names], np.int32)
    return Receipts(
        # Popped one by one, so that the parts of a column are freed before the next is made.
        **{name: np.concatenate(columns.pop(name)) for name in list(columns)},
        ids=ids,
        sources=sources.names,
        channels=channels.names,
        domains=domains.names,
        domain_of_channel=of_channel,
        skipped=skipped,
        max_delivery_us=max_delivery_us,
        status_lines=status_lines,
    )


def _read_ahead(batches: Iterator[LogBatch]) -> Generator[LogBatch, None, None]:
    """The batches, each read while the one before is worked on: Arrow and Numba both release the GIL."""
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

    # A daemon thread, unlike a pool's: a thread that waits for standard input must not hold up an interrupt.
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
