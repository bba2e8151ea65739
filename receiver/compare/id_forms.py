"""Ids that say more than which message it is, as columns of numbers: a column has a number for each id of a log.

Whole columns are read at once. Where an id has another form, the policy's own parser says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver.errors import IdFormatError
from receiver.logs.columns import bytes_of
from receiver.policies.sequence import MOST_DIGITS, parse_sequence
from receiver.policies.solace import RGMID_FORM, ReplicationGroupMessageId
from receiver.simulate.numbering import TextNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts

_RGMID_BYTES = 41
_HEX_DIGITS = np.array([at for at in range(len("rmid1:"), _RGMID_BYTES) if at not in {11, 23, 32}])
"""Where the digits of a replication group message id stand."""


class Sequences(NamedTuple):
    """Ids `seqNo:messageSourceId`."""

    numbers: npt.NDArray[np.int64]
    """In the order of their sequence numbers, and equal where those are."""
    producers: npt.NDArray[np.int32]
    producer_count: int


class Rgmids(NamedTuple):
    """Replication group message ids."""

    origins: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint64]


def sequences_of(receipts: Receipts) -> Sequences:
    """All ids of a log as sequence numbers; IdFormatError for the first that isn't one."""
    numbers: npt.NDArray[Any] = np.zeros(receipts.ids.count, np.int64)
    producers, names = np.zeros(receipts.ids.count, np.int32), TextNumbers()
    for ids, texts in _texts(receipts.ids):
        fit = pc.match_substring_regex(texts, "^[0-9]+:")
        digits, sources = (pc.list_element(pc.split_pattern(texts.filter(fit), ":", max_splits=1), i) for i in (0, 1))
        if len(digits) < len(texts) or pc.max(pc.binary_length(digits)).as_py() > MOST_DIGITS:
            raise _refusal(parse_sequence, receipts, ids, texts)
        try:
            numbers[ids] = digits.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:  # more digits than 64 bits hold
            numbers = numbers.astype(object)
            numbers[ids] = [int(text) for text in digits.to_pylist()]
        producers[ids] = names.number(sources)
    if numbers.dtype == object:
        numbers = np.unique(numbers, return_inverse=True)[1]
    return Sequences(numbers, producers, names.count)


def rgmids_of(receipts: Receipts) -> Rgmids:
    """All ids of a log as replication group message ids; IdFormatError for the first that isn't one."""
    rgmids = np.zeros((receipts.ids.count, 2), np.uint64)
    for ids, texts in _texts(receipts.ids):
        if not pc.all(pc.match_substring_regex(texts, rf"\A{RGMID_FORM}\z")).as_py():
            raise _refusal(ReplicationGroupMessageId.parse, receipts, ids, texts)
        letters = bytes_of(texts).reshape(-1, _RGMID_BYTES)[:, _HEX_DIGITS]
        digits = (letters & 15) + np.uint8(9) * (letters > ord("9"))  # "A" and "a" have 1 in their lower half
        rgmids[ids] = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8")
    return Rgmids(*np.ascontiguousarray(rgmids.T))


def _texts(ids: TextNumbers) -> Iterator[tuple[slice, pa.Array]]:
    """All ids but the missing one, whose number is 0, in turn: some numbers, and their texts."""
    numbers = np.arange(1, ids.count, dtype=np.int32)
    for rows in ids.stretches(numbers):
        yield slice(rows.start + 1, rows.stop + 1), ids.texts(numbers[rows])


def _refusal(parse: Callable[[str], object], receipts: Receipts, ids: slice, texts: pa.Array) -> IdFormatError:
    for number, text in enumerate(texts.to_pylist(), ids.start):
        try:
            parse(text)
        except IdFormatError as error:
            row = int(np.argmax(receipts.id_number == number))
            return IdFormatError(f"in row {row}, {error.message}", hint=error.hint)
    raise AssertionError(f"{parse} takes ids that whole columns of them don't")
