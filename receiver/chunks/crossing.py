"""Repeats that the domain KEY hides: ids of one queue that are new in several domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from receiver.chunks.columns import in_one, joined, used
from receiver.chunks.repeats import Repeated
from receiver.simulate.crossing import crossing_ways, queues_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ways_among"]


def ways_among(found: Sequence[Repeated], firsts: npt.NDArray[np.intp]) -> dict[tuple[str, str], int]:
    """The `crossing_ways` among all ids of a part that repeat.

    `firsts` are the places, among all of `found`, of the receipts that are new in their domain.
    """
    id_ = joined(np.int32, (some.id for some in found))
    destination, destinations = in_one(used(some.ids.channel[some.at], some.ids.destinations) for some in found)
    connection, connections = in_one(used(some.ids.channel[some.at], some.ids.connections) for some in found)
    queue = queues_of(destinations)[destination]
    new = np.zeros(len(id_), np.bool_)
    new[firsts] = True
    in_several = np.bincount(id_[new]) > 1
    rows = np.flatnonzero(in_several[id_] & (queue >= 0))
    key_us = joined(np.int64, (some.ids.key_us[some.at] for some in found))
    unit = joined(np.int32, (some.ids.unit[some.at] for some in found))
    unit_row = joined(np.int64, (some.ids.unit_row[some.at] for some in found))
    rows = rows[np.lexsort([column[rows] for column in (unit_row, unit, key_us)])]
    return crossing_ways(queue[rows], id_[rows], new[rows], connection[rows], connections)
