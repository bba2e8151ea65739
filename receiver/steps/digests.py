"""Digests of ids: SipHash-2-4 with 128 bits, under a random key of each run, so that nobody can make two ids collide.

The probability that two of n ids have one digest is about n^2 / 2^129: for 10^12 ids, less than one run in 10^14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver.simulate.compiled import Int32s, Int64s, compiled
from receiver.simulate.numbering import text_buffers, word_at

if TYPE_CHECKING:
    import numpy.typing as npt


@compiled(inline="always")
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@compiled(inline="always")
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@compiled()
def _digest(
    offsets: Int32s, data: npt.NDArray[np.uint8], key_high: np.uint64, key_low: np.uint64
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    high, low = np.empty(len(offsets) - 1, np.uint64), np.empty(len(offsets) - 1, np.uint64)
    for row in range(len(high)):
        at, end = offsets[row], offsets[row + 1]
        last = np.uint64(end - at) << np.uint64(56)
        if at == end:
            high[row], low[row] = 0, 0
            continue
        v0 = key_low ^ np.uint64(0x736F6D6570736575)
        v1 = key_high ^ np.uint64(0x646F72616E646F6D ^ 0xEE)
        v2 = key_low ^ np.uint64(0x6C7967656E657261)
        v3 = key_high ^ np.uint64(0x7465646279746573)
        while at + 8 <= end:
            word = word_at(data, at, 8)
            v3 ^= word
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0 ^= word
            at += 8
        last |= word_at(data, at, end - at)
        v3 ^= last
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= last
        v2 ^= np.uint64(0xEE)
        for _ in range(4):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        low[row] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= np.uint64(0xDD)
        for _ in range(4):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        high[row] = v0 ^ v1 ^ v2 ^ v3
    return high, low


def digests_of(texts: pa.Array, key: bytes) -> tuple[Int64s, Int64s]:
    """The two halves of each text's digest, for a `string` array without nulls; 0 and 0 for the empty text.

    `key` has 16 bytes.
    """
    key_low, key_high = np.frombuffer(key, "<u8")
    high, low = _digest(*text_buffers(texts), key_high, key_low)
    return high.view(np.int64), low.view(np.int64)


def numbered(high: Int64s, low: Int64s) -> tuple[Int32s, int]:
    """Numbers from 0 for digests, in order of first occurrence; and how many different ones there are."""
    halves = pa.py_buffer(np.stack([high, low], axis=1))
    digests = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(high), [None, halves]).dictionary_encode()
    return digests.indices.to_numpy(), len(digests.dictionary)
