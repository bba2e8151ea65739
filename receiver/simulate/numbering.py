"""What is made of a batch's columns as it comes, whoever replays them: numbers for names, hashes for digests, checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa

from receiver.domains import Channel, DomainKey
from receiver.errors import LogFormatError
from receiver.simulate.interning import hash_texts, text_buffers
from receiver.simulate.limits import check_numbered

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.logs import Batch

__all__ = [
    "Channels",
    "Names",
    "Texts",
    "check_columns",
    "digest_hashes",
    "distinct",
    "lacking_parts",
    "longest_delivery_us",
    "plain_text",
]

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

    def column(self, texts: pa.Array | None, rows: int) -> npt.NDArray[np.int32]:
        """The number of each row; a column that isn't there is empty text throughout."""
        if texts is None:
            return np.full(rows, self.number(""), np.int32)
        if not pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_encode()
        numbers = np.array([self.number(name) for name in texts.dictionary.to_pylist()] or [0], np.int32)
        rows_in_dictionary: npt.NDArray[np.int32] = texts.indices.to_numpy(zero_copy_only=False)
        return numbers[rows_in_dictionary]


class Channels(Names[Channel]):
    """The ways that receipts came in."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = (Texts(), Texts(), Texts())

    def column(self, batch: Batch) -> npt.NDArray[np.int32]:
        """The number of each receipt's channel."""
        columns = (batch.connection_id, batch.destination, batch.receiver_id)
        parts = [names.column(texts, len(batch)) for names, texts in zip(self._parts, columns, strict=True)]
        if len(batch) and all((part == part[0]).all() for part in parts):
            triple = Channel(*(names.names[part[0]] for names, part in zip(self._parts, parts, strict=True)))
            return np.full(len(batch), self.number(triple), np.int32)
        sizes = [len(names.names) for names in self._parts]
        check_numbered(
            prod(sizes) >> 32, "possible channels"
        )  # their numbers below have 64 bits: 2**31 of check_numbered, times 2**32
        found, place = distinct((parts[0].astype(np.int64) * sizes[1] + parts[1]) * sizes[2] + parts[2])
        numbers = [
            self.number(
                Channel(
                    self._parts[0].names[triple // (sizes[1] * sizes[2])],
                    self._parts[1].names[triple // sizes[2] % sizes[1]],
                    self._parts[2].names[triple % sizes[2]],
                )
            )
            for triple in found.tolist()
        ]
        return np.array(numbers, np.int32)[place]


def distinct(
    numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The different numbers (from 0 up) in ascending order, and the place of each row's among them."""
    if int(numbers.max(initial=0)) > _MANY:
        found, inverse = np.unique(numbers, return_inverse=True)
        return found.astype(np.int64), inverse.astype(np.int32)
    found = np.flatnonzero(np.bincount(numbers))
    place = np.zeros(int(found[-1]) + 1 if len(found) else 0, np.int32)
    place[found] = np.arange(len(found))
    return found, place[numbers]


def plain_text(texts: pa.Array) -> pa.Array:
    """A text column as `string`."""
    return texts.cast(pa.string()) if pa.types.is_dictionary(texts.type) else texts


def digest_hashes(digests: pa.Array) -> npt.NDArray[np.uint64]:
    """Equal for equal digests, wherever they are read; 0 where the digest is missing."""
    hashes = np.zeros(len(digests), np.uint64)
    offsets, data = text_buffers(plain_text(digests))
    hash_texts(offsets, data, _DIGEST_SEED, hashes)
    hashes[np.diff(offsets) == 0] = 0
    return hashes


def longest_delivery_us(batch: Batch) -> int:
    """The longest time from JMSTimestamp to receipt among redelivered receipts; 0 without any."""
    if batch.jms_timestamp_ms is None or batch.jms_redelivered is None:
        return 0
    told = batch.jms_redelivered & (batch.jms_timestamp_ms > 0)
    took = batch.received_at_us[told] - batch.jms_timestamp_ms[told] * 1000
    return int(took.max(initial=0))


def lacking_parts(channels: Iterable[Channel], receipts: Iterable[int]) -> dict[str, int]:
    """By part of a channel, how many receipts lack it; `receipts` are those of each channel."""
    counted = list(zip(channels, receipts, strict=True))
    return {part: sum(count for channel, count in counted if channel.lacks(part)) for part in Channel._fields}


def check_columns(columns_present: Collection[str], key: DomainKey) -> None:
    """`LogFormatError` for a KEY that needs a column which the whole log lacks."""
    lacking = [column for column in key.needs if column not in columns_present]
    if lacking:
        raise LogFormatError(
            "the log",
            f"has no column {lacking[0]}, which the domain key '{key.text}' needs",
            hint="--map COLUMN=FIELD reads it from another field; --domain name:TEXT takes the log as one domain",
        )
