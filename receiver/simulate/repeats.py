"""What a domain's receipts show beside reuse distances: bursts of duplicates, what other systems' memories need, and how
busy its sources are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from receiver.simulate.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.figures import LogFigures
    from receiver.simulate.rows import DomainRows

__all__ = ["FirstReceiptNeeds", "SecondCounts", "burst_gap_us", "bursts", "first_receipt_needs", "second_counts"]

_NOTHING = -1
_SECOND_US = 1_000_000


def burst_gap_us(log: LogFigures) -> int:
    """The longest time between two duplicates of one burst: a second, or the longest redelivery if that took longer."""
    return max(_SECOND_US, log.delivery_us)


def bursts(times_us: npt.NDArray[np.int64], gap_us: int) -> int:
    """How many bursts duplicates came in, at these ascending times."""
    return int(np.count_nonzero(np.diff(times_us) > gap_us)) + (len(times_us) > 0)


class FirstReceiptNeeds(NamedTuple):
    """What a domain's duplicates need of memories that go by an id's first receipt."""

    ring: int
    """New ids since the first receipt of an id, with that one, up to a repeat of it; the most of them."""
    ttl_us: int
    """The longest time from the first receipt of an id to a repeat."""


@compiled()
def _first_receipt_needs(
    earlier: npt.NDArray[np.int32], times: npt.NDArray[np.int64], first: npt.NDArray[np.int32]
) -> tuple[int, int]:
    ring, ttl_us = 0, 0
    new_before = np.zeros(len(earlier), np.int32)  # of the first receipt of an id
    new_ids = 0
    for row in range(len(earlier)):
        if earlier[row] == _NOTHING:
            first[row] = row
            new_before[row] = new_ids
            new_ids += 1
        else:
            began = first[earlier[row]]
            first[row] = began
            ring = max(ring, new_ids - new_before[began])
            ttl_us = max(ttl_us, times[row] - times[began])
    return ring, ttl_us


def first_receipt_needs(rows: DomainRows) -> FirstReceiptNeeds:
    """Over all of a domain."""
    if not rows.duplicates:
        return FirstReceiptNeeds(0, 0)
    first = np.empty(len(rows.earlier), np.int32)
    return FirstReceiptNeeds(*_first_receipt_needs(rows.earlier, rows.received_at_us, first))


class SecondCounts(NamedTuple):
    """How many receipts with an id each source of a domain, or of a part of it, has in one second of the clock: columns by
    source.
    """

    first: npt.NDArray[np.int64]
    """The second of its first receipt; -1 without any."""
    in_first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    in_last: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]
    """In any one second."""


@compiled()
def _second_counts(  # noqa: PLR0917 - compiled functions take no names
    source: npt.NDArray[np.int32],
    times: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    in_first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    in_last: npt.NDArray[np.int64],
    most: npt.NDArray[np.int64],
) -> None:
    second, ends_us = np.int64(0), np.int64(0)
    for row in range(len(source)):
        if times[row] >= ends_us:
            second = times[row] // _SECOND_US
            ends_us = (second + 1) * _SECOND_US
        s = source[row]
        if last[s] != second:
            last[s] = second
            in_last[s] = 0
            if first[s] == _NOTHING:
                first[s] = second
        in_last[s] += 1
        in_first[s] += first[s] == second
        most[s] = max(most[s], in_last[s])


def second_counts(source: npt.NDArray[np.int32], times_us: npt.NDArray[np.int64], sources: int) -> SecondCounts:
    """Of receipts in order, with times that never descend; sources are numbers below `sources`."""
    none, zeros = np.full((2, sources), _NOTHING, np.int64), np.zeros((3, sources), np.int64)
    counts = SecondCounts(none[0], zeros[0], none[1], zeros[1], zeros[2])
    _second_counts(source, times_us, *counts)
    return counts
