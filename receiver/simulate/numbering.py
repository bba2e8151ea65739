"""Numbers the ids, sources and channels of a log, and checks its columns as they are read.

Numbers for ids are exact: equal texts get equal numbers, different texts get different ones. A 64-bit hash gives the slot in
the hash table, but the bytes are compared, so equal hashes do no harm. Every process has its own seed for the hash, so that
nobody can make a log that collides.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.domains import Channel, DomainKey
from receiver.errors import LogFormatError
from receiver.logs.options import MAP_IN_PYTHON, map_options
from receiver.simulate.compiled import Int32s, Int64s, check_numbered, compiled, prefetch

if TYPE_CHECKING:
    from receiver.logs import LogBatch

# An entry of the table: the upper half of a text's hash, and its number plus 1. The hash's uppermost bits are the slot where
# the search begins, so that entries can be moved to a longer table without their texts.
_HASH_BITS = np.uint64(0xFFFFFFFF_00000000)
_NUMBER_BITS = np.uint64(0x00000000_FFFFFFFF)
_FREE = np.uint64(0)
_LEAST_BITS = 12
# How many rows ahead a row's slot is prefetched. It mostly isn't in the processor's cache, and takes as long to come as
# numbering these rows.
_AHEAD = 32
_MANY_BYTES = 1 << 30
_SLICE = 1 << 17
_SLICE_BYTES = 1 << 25

_Words = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]


@compiled(inline="always")
def _mixed(hash_: np.uint64, word: np.uint64) -> np.uint64:
    hash_ = (hash_ ^ word) * np.uint64(0x9E3779B97F4A7C15)
    return hash_ ^ (hash_ >> np.uint64(29))


@compiled(inline="always")
def word_at(data: _Bytes, at: int, size_bytes: int) -> np.uint64:
    """Up to 8 bytes as a little-endian number."""
    word = np.uint64(0)
    for i in range(size_bytes):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@compiled()
def _hash(data: _Bytes, start: int, end: int, seed: np.uint64) -> np.uint64:
    hash_ = _mixed(seed, np.uint64(end - start))
    at = start
    while at + 8 <= end:
        hash_ = _mixed(hash_, word_at(data, at, 8))
        at += 8
    hash_ = _mixed(hash_, word_at(data, at, end - at))
    return _mixed(hash_, hash_ >> np.uint64(32))


@compiled()
def hash_texts(offsets: Int32s, data: _Bytes, seed: np.uint64) -> _Words:
    """A 64-bit hash per text."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        hashes[i] = _hash(data, offsets[i], offsets[i + 1], seed)
    return hashes


@compiled()
def _same(  # noqa: PLR0917 - compiled functions take no names
    data: _Bytes, start: int, end: int, stored: _Bytes, at: int, stored_end: int
) -> bool:
    if end - start != stored_end - at:
        return False
    for i in range(end - start):  # noqa: SIM110
        if data[start + i] != stored[at + i]:
            return False
    return True


@compiled()
def _rebuild(entries: _Words, slots: _Words, shift: np.uint64) -> None:
    """Copy all entries of a table into a longer one. Both are in order of the hashes, so both are passed through in order."""
    last = np.uint64(len(slots) - 1)
    for entry in entries:
        if entry != _FREE:
            slot = entry >> shift
            while slots[slot] != _FREE:
                slot = (slot + np.uint64(1)) & last
            slots[slot] = entry


@compiled()
def _number_texts(  # noqa: PLR0917 - compiled functions take no names
    offsets: Int32s,
    data: _Bytes,
    hashes: _Words,
    numbers: Int32s,
    slots: _Words,
    shift: np.uint64,
    ends: Int64s,
    stored: _Bytes,
    count: int,
) -> int:
    last = np.uint64(len(slots) - 1)
    for row in range(len(numbers)):
        if row + _AHEAD < len(hashes):
            prefetch(slots, hashes[row + _AHEAD] >> shift)
        start, end = offsets[row], offsets[row + 1]
        hash_ = hashes[row]
        slot = hash_ >> shift
        while True:
            entry = slots[slot]
            if entry == _FREE:
                number = count
                count += 1
                slots[slot] = hash_ & _HASH_BITS | np.uint64(count)
                at = ends[number]
                for i in range(end - start):
                    stored[at + i] = data[start + i]
                ends[count] = at + end - start
                break
            number = int(entry & _NUMBER_BITS) - 1
            if (entry ^ hash_) & _HASH_BITS == 0 and _same(data, start, end, stored, ends[number], ends[number + 1]):
                break
            slot = (slot + np.uint64(1)) & last
        numbers[row] = number
    return count


def text_buffers(texts: pa.Array) -> tuple[Int32s, _Bytes]:
    """Offsets and bytes of a `string` array without nulls, without a copy."""
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int32, count=len(texts) + 1, offset=4 * texts.offset)
    return starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)


class TextNumbers:
    """Numbers texts from 0 in the order of their first coming, and keeps their bytes."""

    def __init__(self) -> None:
        self.count = 0
        self._seed = np.uint64(secrets.randbits(64))
        self._slots = np.zeros(1 << _LEAST_BITS, np.uint64)
        self._ends = np.zeros(1, np.int64)
        self._stored = np.empty(0, np.uint8)

    def number(self, texts: pa.Array) -> Int32s:
        """The numbers of a `string` array without nulls; `LogFormatError` if there may be too many."""
        check_numbered(self.count + len(texts) - 1, "ids")  # the missing id has a number of its own
        offsets, data = text_buffers(texts)
        self._make_room(len(texts), int(offsets[-1] - offsets[0]))
        hashes = hash_texts(offsets, data, self._seed)
        numbers = np.empty(len(texts), np.int32)
        self.count = _number_texts(
            offsets, data, hashes, numbers, self._slots, _shift(self._slots), self._ends, self._stored, self.count
        )
        return numbers

    def slices(self, numbers: Int32s) -> Iterator[slice]:
        """Slices that cover these numbers in turn. Each is bounded in length and, unless it has one number, in bytes of text."""
        for start in range(0, len(numbers), _SLICE):
            few = numbers[start : start + _SLICE]
            ends = np.cumsum(self._ends[few + 1] - self._ends[few])
            at = 0
            while at < len(ends):
                room = _SLICE_BYTES + (ends[at - 1] if at else 0)
                following = max(at + 1, int(np.searchsorted(ends, room, side="right")))
                yield slice(start + at, start + following)
                at = following

    def texts(self, numbers: Int32s) -> pa.Array:
        """The texts of these numbers, as a `string` array."""
        stored = pa.LargeStringArray.from_buffers(
            self.count, pa.py_buffer(self._ends[: self.count + 1]), pa.py_buffer(self._stored)
        )
        return stored.take(pa.array(numbers)).cast(pa.string())

    def _make_room(self, rows: int, size_bytes: int) -> None:
        self._ends = _grown(self._ends, self.count + rows + 1)
        self._stored = _grown(self._stored, int(self._ends[self.count]) + size_bytes)
        if 3 * (self.count + rows) > 2 * len(self._slots):
            entries = self._slots
            self._slots = np.zeros(1 << (3 * (self.count + rows) // 2).bit_length(), np.uint64)
            _rebuild(entries, self._slots, _shift(self._slots))


def _shift(slots: _Words) -> np.uint64:
    """How far to shift a hash to get its slot in a table, whose length is a power of 2."""
    return np.uint64(65 - len(slots).bit_length())


def _grown(column: npt.NDArray[Any], least: int) -> npt.NDArray[Any]:
    if len(column) >= least:
        return column
    # Memory is only used once it is written to, and copying costs time: so grow by more while small.
    times = 4 if column.nbytes < _MANY_BYTES else 2
    longer = np.empty(max(least, times * len(column)), column.dtype)
    longer[: len(column)] = column
    return longer


_DIGEST_SEED = np.uint64(0x5DEECE66D)
_MANY = 1 << 20

_Name = TypeVar("_Name")


class Names(Generic[_Name]):
    """Numbers from 0 in the order of first coming."""

    def __init__(self) -> None:
        self.names: list[_Name] = []
        self._numbers: dict[_Name, int] = {}

    def number(self, name: _Name) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            check_numbered(number + 1, "names")
            self.names.append(name)
        return number


class Texts(Names[str]):
    """Names that stand in a text column."""

    def column(self, texts: pa.Array | None, rows: int) -> Int32s:
        """The number of each row's text; a missing column counts as empty texts."""
        if texts is None:
            return np.full(rows, self.number(""), np.int32)
        if not pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_encode()
        numbers = np.array([self.number(name) for name in texts.dictionary.to_pylist()] or [0], np.int32)
        rows_in_dictionary: Int32s = texts.indices.to_numpy(zero_copy_only=False)
        return numbers[rows_in_dictionary]


class Channels(Names[Channel]):
    """The channels that receipts came in by."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = [Texts() for _ in Channel._fields]

    def column(self, batch: LogBatch) -> Int32s:
        columns = [getattr(batch, part) for part in Channel._fields]
        parts = [texts.column(column, len(batch)) for texts, column in zip(self._parts, columns, strict=True)]
        sizes = [len(texts.names) for texts in self._parts]
        # Tuples of parts are numbered in 63 bits below: 32, and the 31 that `check_numbered` allows.
        check_numbered(prod(sizes) >> 32, "possible channels")
        tuples = parts[0].astype(np.int64)
        for part, size in zip(parts[1:], sizes[1:], strict=True):
            tuples *= size
            tuples += part
        different, index = distinct(tuples)
        row = np.empty(len(different), np.int64)
        row[index] = np.arange(len(batch))  # any one of the rows with the tuple
        named = [[texts.names[number] for number in part[row]] for texts, part in zip(self._parts, parts, strict=True)]
        return np.array([self.number(Channel(*names)) for names in zip(*named, strict=True)], np.int32)[index]


def distinct(numbers: Int32s | Int64s) -> tuple[Int64s, Int32s]:
    """The different numbers (from 0 up) in ascending order, and for each row the index of its number among them."""
    if int(numbers.max(initial=0)) > _MANY:
        ascending, inverse = np.unique(numbers, return_inverse=True)
        return ascending.astype(np.int64), inverse.astype(np.int32)
    ascending = np.flatnonzero(np.bincount(numbers))
    index = np.zeros(int(ascending[-1]) + 1 if len(ascending) else 0, np.int32)
    index[ascending] = np.arange(len(ascending))
    return ascending, index[numbers]


def plain_text(texts: pa.Array) -> pa.Array:
    """A text column as a `string` array."""
    return texts.cast(pa.string()) if pa.types.is_dictionary(texts.type) else texts


def digest_hashes(digests: pa.Array) -> _Words:
    """A hash of each digest, equal in every process; 0 for a missing digest."""
    offsets, data = text_buffers(plain_text(digests))
    hashes = hash_texts(offsets, data, _DIGEST_SEED)
    hashes[np.diff(offsets) == 0] = 0
    return hashes


def longest_delivery_us(batch: LogBatch) -> int:
    """The longest time from JMSTimestamp to receipt among redelivered receipts; 0 without any."""
    if batch.jms_timestamp_ms is None or batch.jms_redelivered is None:
        return 0
    redelivered = batch.jms_redelivered & (batch.jms_timestamp_ms > 0)
    took = batch.received_at_us[redelivered] - batch.jms_timestamp_ms[redelivered] * 1000
    return int(took.max(initial=0))


def lacking_parts(channels: Iterable[Channel], receipts: Iterable[int]) -> dict[str, int]:
    """How many receipts lack each part of a channel; `receipts` has the count of each channel."""
    counted = list(zip(channels, receipts, strict=True))
    return {part: sum(count for channel, count in counted if channel.lacks(part)) for part in Channel._fields}


def check_columns(columns_present: Collection[str], key: DomainKey) -> None:
    """`LogFormatError` for a KEY that needs a column which the whole log lacks."""
    lacking = [column for column in key.needs if column not in columns_present]
    if lacking:
        only_destination = lacking == ["connection_id"] and "destination" in columns_present
        queues = "--domain destination needs no connection; " if only_destination else ""
        raise LogFormatError(
            "the log",
            f"has no column {' or '.join(lacking)}, which the domain key '{key.text}' needs",
            hint=f"{map_options(dict.fromkeys(lacking, 'FIELD'))} {MAP_IN_PYTHON}; {queues}--domain name:TEXT takes the log"
            " as one domain",
        )
