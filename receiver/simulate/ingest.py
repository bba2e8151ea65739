"""From batches of a log to whole columns of numbers: the form in which a log is replayed.

A receipt takes some twenty bytes here, and each distinct id its text once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from receiver.domains import Channel, DomainKey
from receiver.errors import LogFormatError
from receiver.simulate.interning import TextNumbers, hash_texts, text_buffers

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import Batch, LogBatches, StatusLine

__all__ = ["Receipts", "ingest"]

_DIGEST_SEED = np.uint64(0x5DEECE66D)
_MANY = 1 << 20
_PATIENCE_SECS = 0.5


@dataclass(slots=True)
class Receipts:
    """All receipts of a log, in order. Numbers index `ids`, `sources`, `channels` and `domains`."""

    received_at_us: npt.NDArray[np.int64]
    """As read."""
    id_number: npt.NDArray[np.int32]
    """Of the id's text; the empty text, which means unchecked, is number 0."""
    source_number: npt.NDArray[np.int32]
    channel_number: npt.NDArray[np.int32]
    redelivered: npt.NDArray[np.bool_] | None
    digest_hash: npt.NDArray[np.uint64] | None
    """0 where the digest is missing."""
    ids: TextNumbers
    sources: list[str]
    channels: list[Channel]
    domains: list[str]
    domain_of_channel: npt.NDArray[np.int32]
    skipped: int
    max_delivery_us: int
    """The longest time from JMSTimestamp to receipt among redelivered receipts."""
    status_lines: list[StatusLine]

    @property
    def domain_number(self) -> npt.NDArray[np.int32]:
        """Per receipt; a new array each time."""
        return self.domain_of_channel[self.channel_number]


class _Names:
    """Numbers for few-valued text columns."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[Any, int] = {}

    def number(self, name: Any) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def column(self, texts: pa.Array | None, rows: int) -> npt.NDArray[np.int32]:
        if texts is None:
            return np.full(rows, self.number(""), np.int32)
        if not pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_encode()
        numbers = np.array([self.number(name) for name in texts.dictionary.to_pylist()] or [0], np.int32)
        rows_in_dictionary: npt.NDArray[np.int32] = texts.indices.to_numpy(zero_copy_only=False)
        return numbers[rows_in_dictionary]


def _plain(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string()) if pa.types.is_dictionary(texts.type) else texts


@dataclass(slots=True)
class _Collector:
    ids: TextNumbers = field(default_factory=TextNumbers)
    sources: _Names = field(default_factory=_Names)
    parts: tuple[_Names, _Names, _Names] = field(default_factory=lambda: (_Names(), _Names(), _Names()))
    channels: _Names = field(default_factory=_Names)
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    has_redelivered: bool = False
    has_digest: bool = False
    skipped: int = 0
    max_delivery_us: int = 0
    status_lines: list[StatusLine] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        self.skipped += batch.skipped
        self.status_lines += batch.status_lines
        if not len(batch):
            return
        redelivered = np.zeros(len(batch), np.bool_)
        if batch.jms_redelivered is not None:
            self.has_redelivered = True
            redelivered = batch.jms_redelivered
            self._note_delivery(batch)
        for name, values in (
            ("received_at_us", batch.received_at_us),
            ("id_number", self.ids.number(_plain(batch.unique_message_id))),
            ("source_number", self.sources.column(batch.message_source_id, len(batch))),
            ("channel_number", self._channels(batch)),
            ("redelivered", redelivered),
            ("digest_hash", self._digests(batch)),
        ):
            self.columns.setdefault(name, []).append(values)

    def _channels(self, batch: Batch) -> npt.NDArray[np.int32]:
        """Numbers of the distinct (connection, destination, receiver) triples."""
        columns = (batch.connection_id, batch.destination, batch.receiver_id)
        parts = [names.column(texts, len(batch)) for names, texts in zip(self.parts, columns, strict=True)]
        if all((part == part[0]).all() for part in parts):
            triple = Channel(*(names.names[part[0]] for names, part in zip(self.parts, parts, strict=True)))
            return np.full(len(batch), self.channels.number(triple), np.int32)
        sizes = [len(names.names) for names in self.parts]
        triples = (parts[0].astype(np.int64) * sizes[1] + parts[1]) * sizes[2] + parts[2]
        if sizes[0] * sizes[1] * sizes[2] <= _MANY:
            found = np.flatnonzero(np.bincount(triples))
            place = np.zeros(int(found[-1]) + 1, np.int32)
            place[found] = np.arange(len(found))
            inverse = place[triples]
        else:
            found, inverse = np.unique(triples, return_inverse=True)
        numbers = [
            self.channels.number(
                Channel(
                    self.parts[0].names[triple // (sizes[1] * sizes[2])],
                    self.parts[1].names[triple // sizes[2] % sizes[1]],
                    self.parts[2].names[triple % sizes[2]],
                )
            )
            for triple in found.tolist()
        ]
        channel: npt.NDArray[np.int32] = np.array(numbers, np.int32)[inverse]
        return channel

    def _digests(self, batch: Batch) -> npt.NDArray[np.uint64]:
        hashes = np.zeros(len(batch), np.uint64)
        if batch.body_digest is not None:
            self.has_digest = True
            digests = _plain(batch.body_digest)
            offsets, data = text_buffers(digests)
            hash_texts(offsets, data, _DIGEST_SEED, hashes)
            hashes[np.diff(offsets) == 0] = 0
        return hashes

    def _note_delivery(self, batch: Batch) -> None:
        if batch.jms_timestamp_ms is not None and batch.jms_redelivered is not None:
            told = batch.jms_redelivered & (batch.jms_timestamp_ms > 0)
            if told.any():
                took = batch.received_at_us[told] - batch.jms_timestamp_ms[told] * 1000
                self.max_delivery_us = max(self.max_delivery_us, int(took.max()))


def ingest(batches: LogBatches, key: DomainKey, *, advance: Callable[[int], None] | None = None) -> Receipts:
    """Read a log to its end. A KEY that needs a column which the whole log lacks is a `LogFormatError`."""
    collector = _Collector()
    collector.ids.number(pa.array([""], pa.string()))  # so that number 0 is the missing id
    with closing(_read_ahead(batches)) as ahead:
        for batch in ahead:
            collector.add(batch)
            if advance:
                advance(len(batch))
    _check_columns(batches, key)
    domains = _Names()
    channels: list[Any] = collector.channels.names
    of_channel = np.array([domains.number(key.name(channel)) for channel in channels], np.int32)
    columns = {name: np.concatenate(parts) for name, parts in collector.columns.items()}
    return Receipts(
        received_at_us=columns["received_at_us"],
        id_number=columns["id_number"],
        source_number=columns["source_number"],
        channel_number=columns["channel_number"],
        redelivered=columns["redelivered"] if collector.has_redelivered else None,
        digest_hash=columns["digest_hash"] if collector.has_digest else None,
        ids=collector.ids,
        sources=collector.sources.names,
        channels=channels,
        domains=domains.names,
        domain_of_channel=of_channel,
        skipped=collector.skipped,
        max_delivery_us=collector.max_delivery_us,
        status_lines=collector.status_lines,
    )


def _read_ahead(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    """The same batches, each being read while the one before is worked on; Arrow and numba both let go of the lock."""
    coming: SimpleQueue[Batch | BaseException | None] = SimpleQueue()
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


def _check_columns(batches: LogBatches, key: DomainKey) -> None:
    lacking = [column for column in key.needs if column not in batches.columns_present]
    if lacking:
        raise LogFormatError(
            "the log",
            f"has no column {lacking[0]}, which the domain key '{key.text}' needs",
            hint="--map COLUMN=FIELD reads it from another field; --domain name:TEXT takes the log as one domain",
        )
