"""Repeats that a KEY hides: receipts of one queue with one id, in different domains."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import destination_name
from receiver.simulate.replays import Crossing

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    import numpy.typing as npt

    from receiver.domains import Channel
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.replay import Domain

__all__ = ["crossing_of", "crossing_ways", "parted_queues", "queues_of"]


def queues_of(destinations: Iterable[str]) -> npt.NDArray[np.int32]:
    """Per destination, the number of its queue, or -1.

    Every receiver of a topic gets a copy of its own, so a topic's ids rightly come more than once.
    """
    numbers: dict[str, int] = {}
    names = [destination_name(destination) for destination in destinations]
    return np.array(
        [numbers.setdefault(name, len(numbers)) if name.startswith("queue://") else -1 for name in names], np.int32
    )


def parted_queues(channels: Collection[Channel], domains: Collection[Hashable]) -> npt.NDArray[np.int32]:
    """Per channel, the number of its queue where the queue's channels fall into several `domains`, else -1."""
    queue = queues_of(channel.destination for channel in channels)
    domains_of = Counter(number for number, _ in set(zip(queue.tolist(), domains, strict=True)))
    is_parted = np.array([domains_of[number] > 1 for number in queue.tolist()], np.bool_)
    return np.where(is_parted, queue, np.int32(-1))


def crossing_ways(
    queue: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int32],
    new: npt.NDArray[np.bool_],
    connection: npt.NDArray[np.int32],
    names: Sequence[str],
) -> dict[tuple[str, str], int]:
    """How many receipts are new in their domain, although their queue brought the id before: by (connection of the newest
    such receipt, connection of this one).

    The columns are of receipts in order; those of ids that are new in one domain only may be left out. `connection` is
    told by its place in `names`, which may repeat.
    """
    order = np.lexsort((ids, queue))
    before, after = order[:-1], order[1:]
    again = (queue[before] == queue[after]) & (ids[before] == ids[after]) & new[after]
    pairs = connection[before[again]].astype(np.int64) * len(names) + connection[after[again]]
    ways: Counter[tuple[str, str]] = Counter()
    for pair, count in zip(*(column.tolist() for column in np.unique(pairs, return_counts=True)), strict=True):
        source, target = divmod(pair, len(names))
        ways[names[source], names[target]] += count
    return dict(ways)


def crossing_of(receipts: Receipts, domains: Sequence[Domain]) -> Crossing | None:
    """The crossing of a log that is held whole; None without any."""
    queue_of_channel = parted_queues(receipts.channels, receipts.domain_of_channel.tolist())
    if (queue_of_channel < 0).all():
        return None
    ids = receipts.id_number
    new = np.zeros(len(ids), np.bool_)
    for domain in domains:
        new[domain.log_rows[domain.rows.earlier < 0]] = True
    shared = np.bincount(ids[new], minlength=receipts.ids.count) > 1
    rows = np.flatnonzero(shared[ids])
    rows = rows[queue_of_channel[receipts.channel_number[rows]] >= 0]
    channel = receipts.channel_number[rows]
    names = [channel.connection_id for channel in receipts.channels]
    ways = crossing_ways(queue_of_channel[channel], ids[rows], new[rows], channel, names)
    return Crossing(sum(ways.values()), ways) if ways else None
