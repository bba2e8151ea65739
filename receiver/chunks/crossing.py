"""Repeats that the domain KEY hides: ids of one queue that are new in several domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from receiver.chunks.repeats import Repeated, joined, numbered
from receiver.domains import destination_name

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["crossing_ways"]

_NO_QUEUE = -1


def crossing_ways(found: Sequence[Repeated], firsts: npt.NDArray[np.intp]) -> dict[tuple[str, str], int]:
    """How many receipts are new in their domain, yet have one of the same queue and id before them in the log, by
    (connection of the newest such receipt, connection of this one).

    `firsts` are the places, among all of `found`, of the receipts that are new in their domain.
    """
    id_ = joined(np.int32, (some.id for some in found))
    queue = _queues(found)
    first = np.zeros(len(id_), np.bool_)
    first[firsts] = True
    in_several = np.bincount(id_[first]) > 1
    rows = np.flatnonzero(in_several[id_] & (queue != _NO_QUEUE))
    key_us = joined(np.int64, (some.ids.key_us[some.at] for some in found))
    unit = joined(np.int32, (some.ids.unit[some.at] for some in found))
    unit_row = joined(np.int64, (some.ids.unit_row[some.at] for some in found))
    rows = rows[np.lexsort([column[rows] for column in (unit_row, unit, key_us, id_, queue)])]
    before, after = rows[:-1], rows[1:]
    crosses = (queue[before] == queue[after]) & (id_[before] == id_[after]) & first[after]
    return _ways(found, before[crosses], after[crosses])


def _queues(found: Sequence[Repeated]) -> npt.NDArray[np.int32]:
    known: dict[str, int] = {}
    destination = joined(
        np.int32, (numbered(known, some.ids.destinations, some.ids.channel[some.at]) for some in found)
    )
    names = [destination_name(text) for text in known]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    # Every receiver of a topic gets a copy of its own, so a topic's ids rightly come more than once.
    queues = [numbers[name] if name.startswith("queue://") else _NO_QUEUE for name in names]
    return np.array(queues, np.int32)[destination]


def _ways(
    found: Sequence[Repeated], before: npt.NDArray[np.intp], after: npt.NDArray[np.intp]
) -> dict[tuple[str, str], int]:
    known: dict[str, int] = {}
    connection = joined(np.int32, (numbered(known, some.ids.connections, some.ids.channel[some.at]) for some in found))
    names = list(known)
    pairs, counts = np.unique(connection[before].astype(np.int64) * len(names) + connection[after], return_counts=True)
    return {
        (names[pair // len(names)], names[pair % len(names)]): count
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }
