"""Repeats that a KEY hides: receipts of one queue with one id, in different domains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver.domains import destination_name
from receiver.simulate.replays import Crossing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver.domains import Channel
    from receiver.simulate.ingest import Receipts
    from receiver.simulate.replay import Domain

__all__ = ["crossing_of", "parted_queues"]


def parted_queues(channels: Sequence[Channel], domains: Sequence[int]) -> npt.NDArray[np.int32]:
    """Per channel, the number of its queue where the queue's channels fall into several `domains`, else -1.

    Every receiver of a topic gets a copy of its own, so a topic's ids rightly come more than once.
    """
    names = [destination_name(channel.destination) for channel in channels]
    domains_of: dict[str, set[int]] = {}
    for name, domain in zip(names, domains, strict=True):
        if name.startswith("queue://"):
            domains_of.setdefault(name, set()).add(domain)
    parted = {name: number for number, (name, found) in enumerate(domains_of.items()) if len(found) > 1}
    return np.array([parted.get(name, -1) for name in names], np.int32)


def crossing_of(receipts: Receipts, domains: Sequence[Domain]) -> Crossing | None:
    """Receipts that are new in their domain, although their queue brought the id before; None if there are none."""
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
    queue = queue_of_channel[receipts.channel_number[rows]]
    order = np.lexsort((rows, ids[rows], queue))
    rows, queue = rows[order], queue[order]
    again = (queue[1:] == queue[:-1]) & (ids[rows[1:]] == ids[rows[:-1]]) & new[rows[1:]]
    before, after = rows[:-1][again], rows[1:][again]
    return Crossing(len(after), _ways(receipts, before, after)) if len(after) else None


def _ways(receipts: Receipts, before: npt.NDArray[np.intp], after: npt.NDArray[np.intp]) -> dict[tuple[str, str], int]:
    channels = receipts.channels
    pairs = receipts.channel_number[before].astype(np.int64) * len(channels) + receipts.channel_number[after]
    ways: dict[tuple[str, str], int] = {}
    for pair, count in zip(*(column.tolist() for column in np.unique(pairs, return_counts=True)), strict=True):
        source, target = divmod(pair, len(channels))
        way = channels[source].connection_id, channels[target].connection_id
        ways[way] = ways.get(way, 0) + count
    return ways
