"""The scenarios: what goes wrong in a block of first receipts, and which of them come again.

Every scenario is a function from a block to the block as it was received. Nothing here loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from receiver.simulate.scenarios.traffic import QUIET_SHARE, Block, Receipts, Told, queue_of

__all__ = ["mixed", "outage", "quiet_source", "redelivery_storm", "sender_crash", "steady", "two_bridges"]

_BURST_GAP_US = 10
"""Between the receipts of a run that comes again."""
_HOUR_US = 3_600_000_000


def steady(block: Block) -> Told:
    """Single receipts are redelivered by the broker, soon after."""
    firsts = block.firsts
    picked = block.rng.random(len(firsts)) < block.resends / len(firsts)
    delays = 10_000 + block.rng.exponential(block.delay_us(0.5), int(picked.sum()))
    return Told(firsts, _redelivered(firsts.take(picked), firsts.received_at_us[picked] + delays.astype(np.int64)))


def sender_crash(block: Block) -> Told:
    """A source crashes, comes back and sends everything since its last checkpoint again, to the broker new messages."""
    firsts = block.firsts
    breaks = _breaks(block, firsts.source.astype(np.int64), mean_run=25, secs=(1, 5))
    again = firsts.take(breaks.again)
    latency_us = again.received_at_us - again.sent_at_us
    resends = replace(again, received_at_us=breaks.again_at_us, sent_at_us=breaks.again_at_us - latency_us)
    # What it would have sent meanwhile, it sends once it is back.
    moved_us = breaks.carried_on_at_us - firsts.received_at_us
    return Told(
        replace(firsts, received_at_us=breaks.carried_on_at_us, sent_at_us=firsts.sent_at_us + moved_us), resends
    )


def redelivery_storm(block: Block) -> Told:
    """The consumers of a queue die before they acknowledge; the broker delivers the whole run again to the next ones."""
    firsts = block.firsts
    breaks = _breaks(block, queue_of(firsts.source), mean_run=200, secs=(0.5, 3))
    resends = _redelivered(firsts.take(breaks.again), breaks.again_at_us)
    # Messages sent meanwhile wait in the queue.
    return Told(replace(firsts, received_at_us=breaks.carried_on_at_us), resends)


def outage(block: Block) -> Told:
    """Hours without a receipt; then the broker delivers again whatever hadn't been acknowledged."""
    firsts, rng = block.firsts, block.rng
    first_after = int(rng.integers(len(firsts) // 4, len(firsts) * 3 // 4 + 1))
    silence_us = int(rng.integers(2 * _HOUR_US, 8 * _HOUR_US))
    moved_us = np.where(np.arange(len(firsts)) >= first_after, silence_us, 0)
    unacknowledged = firsts.take(slice(max(0, first_after - round(block.resends)), first_after))
    stopped_us = int(firsts.received_at_us[max(0, first_after - 1)])
    at_us = stopped_us + silence_us + _BURST_GAP_US * np.arange(len(unacknowledged))
    return Told(
        replace(firsts, received_at_us=firsts.received_at_us + moved_us, sent_at_us=firsts.sent_at_us + moved_us),
        _redelivered(unacknowledged, at_us),
        silence_us=(stopped_us, silence_us),
    )


def two_bridges(block: Block) -> Told:
    """Two bridges compete for the orders. What a dying one hadn't confirmed upstream comes again, mostly over the other.

    A bridge sends the message anew, so the flag JMSRedelivered is not set.
    """
    orders = queue_of(block.firsts.source) == 0
    connection = np.where(orders, block.rng.integers(0, 2, len(orders)), 0).astype(np.int8)
    firsts = replace(block.firsts, connection=connection)
    breaks = _breaks(block, 2 * queue_of(firsts.source) + connection, mean_run=50, secs=(0.05, 1))
    again = firsts.take(breaks.again)
    crossing = orders[breaks.again] & (block.rng.random(len(again)) < 0.75)  # noqa: PLR2004 - "mostly"
    resends = replace(again, received_at_us=breaks.again_at_us, connection=again.connection ^ crossing)
    # The other bridge carries on alone meanwhile.
    meanwhile = orders & (breaks.carried_on_at_us > firsts.received_at_us)
    return Told(replace(firsts, connection=connection ^ meanwhile), resends)


def quiet_source(block: Block) -> Told:
    """Beside steady traffic, the quiet source sends single old ids again: as late as the log's length allows, or hours."""
    told, firsts, plan = steady(block), block.firsts, block.plan
    quiet = np.flatnonzero(firsts.source == plan.sources - 1)
    again = firsts.take(np.repeat(quiet, block.rng.poisson(min(0.5, plan.duplicates / QUIET_SHARE), len(quiet))))
    latest_us = min(plan.receipts / plan.rate * 1e6 * 0.6, 6.0 * _HOUR_US)
    delays = block.rng.uniform(latest_us / 3, latest_us, len(again)).astype(np.int64)
    late = replace(again, received_at_us=again.received_at_us + delays, sent_at_us=again.sent_at_us + delays)
    return Told(firsts, Receipts.joined([told.resends, late]))


def mixed(block: Block) -> Told:
    """All the others in turn, a block each."""
    others = (steady, sender_crash, redelivery_storm, outage, two_bridges, quiet_source)
    return others[block.number % len(others)](block)


def _redelivered(receipts: Receipts, at_us: npt.NDArray[np.int64]) -> Receipts:
    """The same messages, delivered again by the broker, which keeps the time they were sent."""
    return replace(receipts, received_at_us=at_us, redelivered=np.ones(len(receipts), np.bool_))


@dataclass(frozen=True, slots=True)
class _Breaks:
    """Groups that break off, each with the rows that come again once it is back."""

    again: npt.NDArray[np.intp]
    """Rows of the block, the last ones of a group before it broke off; a row may be there twice."""
    again_at_us: npt.NDArray[np.int64]
    carried_on_at_us: npt.NDArray[np.int64]
    """When each row of the block is received if its group holds back, while broken, what comes meanwhile."""


def _breaks(block: Block, group: npt.NDArray[np.int64], *, mean_run: int, secs: tuple[float, float]) -> _Breaks:
    """Breaks at random rows, each followed by up to `2 * mean_run` rows of its group again after `secs` seconds."""
    times, rng = block.firsts.received_at_us, block.rng
    rows = len(times)
    mean_run = max(1, min(mean_run, int(block.resends / 4)))  # short blocks have several breaks too
    count = round(block.resends / mean_run)
    by_group = np.argsort(group, kind="stable")
    group = group[by_group]
    last = np.unique(rng.integers(0, rows, count))  # where in `by_group` the groups break off
    run = np.minimum(rng.integers(1, 2 * mean_run + 1, len(last)), last - np.searchsorted(group, group[last]) + 1)

    delays = rng.uniform(block.delay_us(secs[0]), block.delay_us(secs[1]), len(last)).astype(np.int64)
    back_at = np.minimum(times[by_group[last]] + delays, times[-1])

    # A group that is still broken can't break again.
    held = _held_back(times, by_group, group, last, back_at)
    whole = held[by_group[last]] == times[by_group[last]]
    last, run, back_at = last[whole], run[whole], back_at[whole]

    ends = np.cumsum(run)
    to_go = np.repeat(ends, run) - np.arange(run.sum())  # run, ..., 2, 1 for each break
    again_at = np.maximum(np.repeat(back_at, run) - to_go * _BURST_GAP_US, np.repeat(times[by_group[last]], run))

    return _Breaks(
        again=by_group[np.repeat(last, run) - to_go + 1],
        again_at_us=again_at,
        carried_on_at_us=_held_back(times, by_group, group, last, back_at),
    )


def _held_back(
    times: npt.NDArray[np.int64],
    by_group: npt.NDArray[np.intp],
    group: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    back_at: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The rows' times where each group, after its row at `last`, receives nothing until `back_at`."""
    after = np.minimum(last + 1, len(times) - 1)
    goes_on = (after > last) & (group[after] == group[last])
    # A row of the block may not come before the first row that comes once its group is back. The running maximum
    # hands that bound on to the group's later rows; steps larger than any row keep the groups apart.
    base = group * (len(times) + 1)
    bound = base.copy()
    bound[after[goes_on]] += np.searchsorted(times, back_at[goes_on])
    bound = np.maximum.accumulate(bound) - base
    held = times.copy()
    held[by_group] = times[np.maximum(by_group, bound)]
    return held
