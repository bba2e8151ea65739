"""Ids that say more than which message it is, judged where their bytes stand: no id's text is copied but for producers'.

Ids are given as their numbers in `TextNumbers`, of which 0 is the missing id; `starts` and `stored` are its buffers.
Sequence numbers are compared digit by digit, so they may have as many as the policy takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver.policies.sequence import MOST_DIGITS
from receiver.simulate.compiled import compiled
from receiver.simulate.numbering import TextNumbers
from receiver.simulate.verdict_rows import stretches

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["first_not_rgmid", "first_not_sequence", "judge_by_last", "judge_by_sequence", "number_producers"]

_NOTHING = -1
_ZERO, _NINE, _COLON, _DASH = ord("0"), ord("9"), ord(":"), ord("-")
_RGMID_PREFIX = np.frombuffer(b"rmid1:", np.uint8)
_RGMID_BYTES = 41
_NO_DIGIT = np.uint64(16)


@compiled(forceinline=True)
def _colon(stored: npt.NDArray[np.uint8], start: int, end: int) -> int:
    """Where the sequence number of an id ends, or _NOTHING for an id of another form."""
    at = start
    while at < end and _ZERO <= stored[at] <= _NINE and at - start <= MOST_DIGITS:
        at += 1
    return at if start < at < end and at - start <= MOST_DIGITS and stored[at] == _COLON else _NOTHING


@compiled()
def first_not_sequence(starts: npt.NDArray[np.int64], stored: npt.NDArray[np.uint8]) -> int:
    """The first id that isn't of the form `seqNo:messageSourceId`, or -1."""
    for number in range(1, len(starts) - 1):
        if _colon(stored, starts[number], starts[number + 1]) == _NOTHING:
            return number
    return _NOTHING


@compiled()
def _copy_producers(
    starts: npt.NDArray[np.int64],
    stored: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int32],
    data: npt.NDArray[np.uint8],
) -> None:
    for i in range(len(starts) - 1):
        end = starts[i + 1]
        colon = _colon(stored, starts[i], end)
        at = offsets[i]
        if colon != _NOTHING:
            for index in range(colon + 1, end):
                data[at] = stored[index]
                at += 1
        offsets[i + 1] = at


def number_producers(ids: TextNumbers) -> tuple[npt.NDArray[np.int32], int]:
    """The number of each id's producer, and how many producers there are; all ids are `seqNo:messageSourceId`."""
    starts, stored = ids.buffers()
    producers = TextNumbers()
    of_id = np.empty(ids.count, np.int32)
    for numbers in stretches(ids.count, lambda numbers: np.diff(starts[numbers.start : numbers.stop + 1])):
        edges = starts[numbers.start : numbers.stop + 1]
        offsets = np.zeros(len(edges), np.int32)
        data = np.empty(edges[-1] - edges[0], np.uint8)
        _copy_producers(edges, stored, offsets, data)
        of_id[numbers] = producers.number(
            pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
        )
    return of_id, producers.count


@compiled(forceinline=True)
def _first_significant(stored: npt.NDArray[np.uint8], start: int) -> int:
    while stored[start] == _ZERO:
        start += 1
    return start


@compiled()
def _is_above(starts: npt.NDArray[np.int64], stored: npt.NDArray[np.uint8], one: int, other: int) -> bool:
    """Whether one id's sequence number is above the other's."""
    first, second = _first_significant(stored, starts[one]), _first_significant(stored, starts[other])
    digits = _colon(stored, starts[one], starts[one + 1]) - first
    other_digits = _colon(stored, starts[other], starts[other + 1]) - second
    if digits != other_digits:
        return digits > other_digits
    for i in range(digits):
        if stored[first + i] != stored[second + i]:
            return bool(stored[first + i] > stored[second + i])
    return False


@compiled()
def judge_by_sequence(  # noqa: PLR0917 - compiled functions take no names
    ids: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    stored: npt.NDArray[np.uint8],
    producers: npt.NDArray[np.int32],
    highest: npt.NDArray[np.int32],
    is_duplicate: npt.NDArray[np.bool_],
) -> int:
    """Judge receipts by the highest sequence number of their producer. -> how many producers there are.

    `producers` are those of all ids; `highest`, an id for each of them, is all -1 and is left so.
    """
    count = 0
    for row in range(len(ids)):
        producer = producers[ids[row]]
        if highest[producer] == _NOTHING:
            count += 1
        elif not _is_above(starts, stored, ids[row], highest[producer]):
            is_duplicate[row] = True
            continue
        highest[producer] = ids[row]
    for row in range(len(ids)):
        highest[producers[ids[row]]] = _NOTHING
    return count


@compiled(forceinline=True)
def _hex_digit(byte: int) -> np.uint64:
    if _ZERO <= byte <= _NINE:
        return np.uint64(byte - _ZERO)
    letter = byte | 0x20  # in lower case
    return np.uint64(letter - ord("a") + 10) if ord("a") <= letter <= ord("f") else _NO_DIGIT


@compiled(forceinline=True)
def _is_dash_at(index: int) -> bool:
    return index in {11, 23, 32}


@compiled()
def first_not_rgmid(starts: npt.NDArray[np.int64], stored: npt.NDArray[np.uint8]) -> int:
    """The first id that isn't a replication group message id, or -1."""
    for number in range(1, len(starts) - 1):
        start = starts[number]
        if starts[number + 1] - start != _RGMID_BYTES:
            return number
        for index in range(_RGMID_BYTES):
            byte = stored[start + index]
            if index < len(_RGMID_PREFIX):
                fits = byte == _RGMID_PREFIX[index]
            elif _is_dash_at(index):
                fits = byte == _DASH
            else:
                fits = _hex_digit(byte) != _NO_DIGIT
            if not fits:
                return number
    return _NOTHING


@compiled()
def _hex_number(stored: npt.NDArray[np.uint8], start: int, end: int) -> np.uint64:
    number = np.uint64(0)
    for at in range(start, end):
        if stored[at] != _DASH:
            number = (number << np.uint64(4)) | _hex_digit(stored[at])
    return number


@compiled()
def judge_by_last(
    ids: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    stored: npt.NDArray[np.uint8],
    is_duplicate: npt.NDArray[np.bool_],
) -> None:
    """Judge receipts, whose ids are all replication group message ids, by the last one that was new."""
    last_origin = last_number = np.uint64(0)
    for row in range(len(ids)):
        start = starts[ids[row]]
        origin = _hex_number(stored, start + len(_RGMID_PREFIX), start + 23)
        number = _hex_number(stored, start + 24, start + _RGMID_BYTES)
        if row and origin == last_origin and number <= last_number:
            is_duplicate[row] = True
        else:
            last_origin, last_number = origin, number
