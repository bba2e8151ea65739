"""Makes synthetic logs: a stream of first receipts in blocks, a function for each scenario, and the rows as columns.

Every scenario is a function from a block of first receipts to the block as it was received, with the receipts that come again.
These are merged in by time. No function here loops over rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.logs import columns
from receiver.quantities import HOUR_US
from receiver.simulate.scenarios import ScenarioPlan

BLOCK_ROWS = 1 << 20
"""About how many rows are made at a time. It bounds memory, however long the log."""
QUIET_SHARE = 0.001
"""The share of the messages that the last source sends, the quiet one."""
_LEAST_BLOCKS = 8
"""The least number of blocks in a log, so that even a short log has every part of `mixed`."""
_BURST_GAP_US = 10
"""The time between the resends of a run."""
_CONNECTIONS = pa.array(["bridge-1", "bridge-2"])
_DESTINATIONS = pa.array(["queue://orders", "queue://payments"])
_RECEIVERS = pa.array(["orders-1", "orders-2", "payments-1", "payments-2"])
_DIGEST_LETTERS = 8


@dataclass(frozen=True, slots=True)
class MadeReceipts:
    """Receipts in columns of numbers, all of the same length."""

    received_at_us: npt.NDArray[np.int64]
    source: npt.NDArray[np.int32]
    seq_no: npt.NDArray[np.int64]
    """Contiguous per source, from 1; with the source it makes the id."""
    connection: npt.NDArray[np.int8]
    redelivered: npt.NDArray[np.bool_]
    sent_at_us: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.received_at_us)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> MadeReceipts:
        return MadeReceipts(*(getattr(self, column.name)[rows] for column in fields(self)))

    @staticmethod
    def joined(parts: Sequence[MadeReceipts]) -> MadeReceipts:
        columns = (column.name for column in fields(MadeReceipts))
        return MadeReceipts(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def queue_of(source: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """For each source the queue to which it sends: 0 for orders, 1 for payments, which every fifth source uses."""
    return source.astype(np.int64) % 5 // 4


@dataclass(frozen=True, slots=True)
class TrafficBlock:
    """A block of first receipts, in order of time, for a scenario to work on."""

    number: int
    plan: ScenarioPlan
    rng: np.random.Generator
    firsts: MadeReceipts

    @property
    def resends(self) -> float:
        """About how many resends to make in all."""
        return len(self.firsts) * self.plan.duplicates / (1 - self.plan.duplicates)

    def delay_us(self, secs: float) -> float:
        """A delay in microseconds, shortened if the block is short: resends that wait for later blocks take memory."""
        times = self.firsts.received_at_us
        return min(secs * 1e6, float(times[-1] - times[0]) / 4)


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """A block after its scenario."""

    firsts: MadeReceipts
    """The block's rows in their order, a few of them received later or over another connection."""
    resends: MadeReceipts
    """Resends in any order; those received after the block are kept until their time has come."""
    silence_us: tuple[int, int] | None = None
    """The time from which everything comes later, and how much later."""


def _traffic(plan: ScenarioPlan, block_rows: int) -> Iterator[MadeReceipts]:
    """The plan's receipts in order of time, a block at a time."""
    scenario = SCENARIO_FUNCTIONS[plan.scenario]
    rows = min(block_rows, max(1, plan.receipts // _LEAST_BLOCKS))
    senders = _Senders(plan)
    clock_us = round(plan.start.timestamp() * 1_000_000)
    waiting: list[MadeReceipts] = []
    left = plan.receipts
    for number in itertools.count():
        # Each block has its own stream of random numbers, whatever earlier blocks have drawn.
        rng = np.random.Generator(np.random.PCG64([plan.seed, number]))
        firsts = senders.firsts(rng, max(1, round(rows * (1 - plan.duplicates))), clock_us)
        outcome = scenario(TrafficBlock(number, plan, rng, firsts))
        if outcome.silence_us:
            waiting = [_later(part, *outcome.silence_us) for part in waiting]
        merged = MadeReceipts.joined([*waiting, outcome.firsts, outcome.resends])
        merged = merged.take(np.argsort(merged.received_at_us, kind="stable"))
        clock_us = int(outcome.firsts.received_at_us.max())
        due = int(np.searchsorted(merged.received_at_us, clock_us, side="right"))
        yield merged.take(slice(0, min(due, left)))
        left -= due
        if left <= 0:
            return
        waiting = [merged.take(slice(due, None))]


def _later(receipts: MadeReceipts, start_us: int, by_us: int) -> MadeReceipts:
    received = receipts.received_at_us
    return replace(receipts, received_at_us=np.where(received >= start_us, received + by_us, received))


class _Senders:
    """The upstream sources: which sends next, and with which sequence number."""

    def __init__(self, plan: ScenarioPlan) -> None:
        self._mean_gap_us = 1e6 / plan.rate
        # A few sources send most messages, as in real logs; one hardly sends at all.
        shares = 1 / np.arange(1.0, plan.sources + 1)
        shares[-1] = QUIET_SHARE * shares.sum()
        self._ends = np.cumsum(shares) / shares.sum()
        self._sent = np.zeros(plan.sources, np.int64)

    def firsts(self, rng: np.random.Generator, count: int, clock_us: int) -> MadeReceipts:
        """The next `count` messages after `clock_us`, each at its first receipt."""
        received = clock_us + np.cumsum(rng.exponential(self._mean_gap_us, count)).astype(np.int64)
        picked = np.searchsorted(self._ends, rng.random(count), side="right")
        source = np.minimum(picked, len(self._sent) - 1).astype(np.int32)
        # One latency per source keeps its messages in the order of their sending.
        latency_us = 1_000 + source.astype(np.int64) * 7_919 % 8_000
        return MadeReceipts(
            received_at_us=received,
            source=source,
            seq_no=self._next_numbers(source),
            connection=np.zeros(count, np.int8),
            redelivered=np.zeros(count, np.bool_),
            sent_at_us=received - latency_us,
        )

    def _next_numbers(self, source: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        by_source = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=len(self._sent))
        before = np.cumsum(counts) - counts
        numbers = np.empty(len(source), np.int64)
        numbers[by_source] = np.arange(1, len(source) + 1) + np.repeat(self._sent - before, counts)
        self._sent += counts
        return numbers


def steady(block: TrafficBlock) -> BlockOutcome:
    """Single receipts are redelivered by the broker, soon after."""
    firsts = block.firsts
    picked = block.rng.random(len(firsts)) < block.resends / len(firsts)
    delays = 10_000 + block.rng.exponential(block.delay_us(0.5), int(picked.sum()))
    return BlockOutcome(
        firsts, _redelivered(firsts.take(picked), firsts.received_at_us[picked] + delays.astype(np.int64))
    )


def sender_crash(block: TrafficBlock) -> BlockOutcome:
    """A source crashes, comes back and resends everything since its last checkpoint; to the broker these are new messages."""
    firsts = block.firsts
    breaks = _breaks(block, firsts.source.astype(np.int64), mean_run=25, secs=(1, 5))
    again = firsts.take(breaks.again)
    latency_us = again.received_at_us - again.sent_at_us
    resends = replace(again, received_at_us=breaks.again_at_us, sent_at_us=breaks.again_at_us - latency_us)
    # Messages that it would have sent meanwhile, it sends once it is back.
    moved_us = breaks.carried_on_at_us - firsts.received_at_us
    return BlockOutcome(
        replace(firsts, received_at_us=breaks.carried_on_at_us, sent_at_us=firsts.sent_at_us + moved_us), resends
    )


def redelivery_storm(block: TrafficBlock) -> BlockOutcome:
    """The consumers of a queue die before they acknowledge; the broker delivers the whole run again to the next ones."""
    firsts = block.firsts
    breaks = _breaks(block, queue_of(firsts.source), mean_run=200, secs=(0.5, 3))
    resends = _redelivered(firsts.take(breaks.again), breaks.again_at_us)
    # Messages sent meanwhile wait in the queue.
    return BlockOutcome(replace(firsts, received_at_us=breaks.carried_on_at_us), resends)


def outage(block: TrafficBlock) -> BlockOutcome:
    """Hours without a receipt; then the broker delivers again whatever hadn't been acknowledged."""
    firsts, rng = block.firsts, block.rng
    first_after = int(rng.integers(len(firsts) // 4, len(firsts) * 3 // 4 + 1))
    silence_us = int(rng.integers(2 * HOUR_US, 8 * HOUR_US))
    moved_us = np.where(np.arange(len(firsts)) >= first_after, silence_us, 0)
    unacknowledged = firsts.take(slice(max(0, first_after - round(block.resends)), first_after))
    stopped_us = int(firsts.received_at_us[max(0, first_after - 1)])
    at_us = stopped_us + silence_us + _BURST_GAP_US * np.arange(len(unacknowledged))
    return BlockOutcome(
        replace(firsts, received_at_us=firsts.received_at_us + moved_us, sent_at_us=firsts.sent_at_us + moved_us),
        _redelivered(unacknowledged, at_us),
        silence_us=(stopped_us, silence_us),
    )


def two_bridges(block: TrafficBlock) -> BlockOutcome:
    """Two bridges compete for the orders. Unconfirmed messages of a dying bridge come again, mostly over the other bridge.

    A bridge sends the message anew, so the flag JMSRedelivered is not set.
    """
    orders = queue_of(block.firsts.source) == 0
    connection = np.where(orders, block.rng.integers(0, 2, len(orders)), 0).astype(np.int8)
    firsts = replace(block.firsts, connection=connection)
    breaks = _breaks(block, 2 * queue_of(firsts.source) + connection, mean_run=50, secs=(0.05, 1))
    again = firsts.take(breaks.again)
    over_the_other = orders[breaks.again] & (block.rng.random(len(again)) < 0.75)  # noqa: PLR2004 - "mostly"
    resends = replace(again, received_at_us=breaks.again_at_us, connection=again.connection ^ over_the_other)
    # The other bridge carries on alone meanwhile.
    meanwhile = orders & (breaks.carried_on_at_us > firsts.received_at_us)
    return BlockOutcome(replace(firsts, connection=connection ^ meanwhile), resends)


def quiet_source(block: TrafficBlock) -> BlockOutcome:
    """Beside steady traffic, the quiet source resends single old ids: hours later, or as late as the log's length allows."""
    outcome, firsts, plan = steady(block), block.firsts, block.plan
    quiet = np.flatnonzero(firsts.source == plan.sources - 1)
    again = firsts.take(np.repeat(quiet, block.rng.poisson(min(0.5, plan.duplicates / QUIET_SHARE), len(quiet))))
    latest_us = min(plan.receipts / plan.rate * 1e6 * 0.6, 6.0 * HOUR_US)
    delays = block.rng.uniform(latest_us / 3, latest_us, len(again)).astype(np.int64)
    late = replace(again, received_at_us=again.received_at_us + delays, sent_at_us=again.sent_at_us + delays)
    return BlockOutcome(firsts, MadeReceipts.joined([outcome.resends, late]))


def mixed(block: TrafficBlock) -> BlockOutcome:
    """All other scenarios in turn, a block each."""
    others = (steady, sender_crash, redelivery_storm, outage, two_bridges, quiet_source)
    return others[block.number % len(others)](block)


def _redelivered(receipts: MadeReceipts, at_us: npt.NDArray[np.int64]) -> MadeReceipts:
    """Messages that the broker delivers again, with the time at which they were sent."""
    return replace(receipts, received_at_us=at_us, redelivered=np.ones(len(receipts), np.bool_))


@dataclass(frozen=True, slots=True)
class _Breaks:
    """Groups that break off, each with the rows that come again once it is back."""

    again: npt.NDArray[np.intp]
    """Rows of the block that come again: the last ones of a group before it broke off. A row may occur twice."""
    again_at_us: npt.NDArray[np.int64]
    carried_on_at_us: npt.NDArray[np.int64]
    """When each row of the block is received if a broken group delivers nothing until it is back."""


def _breaks(block: TrafficBlock, group: npt.NDArray[np.int64], *, mean_run: int, secs: tuple[float, float]) -> _Breaks:
    """Breaks at random rows, each followed by up to `2 * mean_run` rows of its group again after `secs` seconds."""
    times, rng = block.firsts.received_at_us, block.rng
    rows = len(times)
    mean_run = max(1, min(mean_run, int(block.resends / 4)))  # short blocks have several breaks too
    count = round(block.resends / mean_run)
    by_group = np.argsort(group, kind="stable")
    group = group[by_group]
    last = np.unique(rng.integers(0, rows, count))  # where in `by_group` the groups break off
    # No run reaches back beyond the first row of its group, which `searchsorted` finds in the sorted groups.
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
    first_back = np.searchsorted(times, back_at)  # the block's first row from `back_at` on
    # `by_group` is ordered by group, then row. So a search for both shows where a group's rows before `first_back` end.
    ends = np.searchsorted(group * len(times) + by_group, group[last] * len(times) + first_back)
    held = times.copy()
    for begin, end, until_us in zip(last + 1, ends, times[first_back], strict=True):
        broken = by_group[begin:end]
        held[broken] = np.maximum(held[broken], until_us)  # breaks of a group may overlap
    return held


SCENARIO_FUNCTIONS: dict[str, Callable[[TrafficBlock], BlockOutcome]] = {
    "steady": steady,
    "sender-crash": sender_crash,
    "redelivery-storm": redelivery_storm,
    "outage": outage,
    "two-bridges": two_bridges,
    "quiet-source": quiet_source,
    "mixed": mixed,
}
"""The functions, by the names of `scenarios.SCENARIOS`."""


def batches(plan: ScenarioPlan, block_rows: int = BLOCK_ROWS) -> Iterator[pa.RecordBatch]:
    """The plan's log in order, in batches of `SYNTHETIC_SCHEMA`. Only about `block_rows` rows are in memory at a time."""
    is_payments = queue_of(np.arange(plan.sources, dtype=np.int32))
    sources = pa.array([_source_name(index, bool(pays)) for index, pays in enumerate(is_payments)])
    return (_batch(receipts, sources) for receipts in _traffic(plan, block_rows))


def _batch(receipts: MadeReceipts, sources: pa.Array) -> pa.RecordBatch:
    source = pa.DictionaryArray.from_arrays(receipts.source, sources)
    return pa.record_batch([values(receipts, source) for values in _COLUMNS.values()], schema=SYNTHETIC_SCHEMA)


def _source_name(index: int, pays: bool) -> str:  # noqa: FBT001 - private
    host, port = (f"pay-{index // 5 + 1}", 51_001) if pays else (f"order-gw-{index + 1:02}", 48_213)
    return f"{host}.eu:{port + index % 1_000}:S{index:02}"


def _words(index: npt.NDArray[np.integer], words: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(index.astype(np.int32), words)


def _digests(receipts: MadeReceipts) -> pa.Array:
    """Eight hexadecimal digits for each row, which depend only on its id: the same message has the same body."""
    # The finishing steps of splitmix64, which spread neighbouring numbers over all digits.
    mixed = receipts.seq_no.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ receipts.source.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    digits = (mixed >> np.uint64(32)).astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, _DIGEST_LETTERS, dtype=np.int32)
    return pa.StringArray.from_buffers(len(receipts), pa.py_buffer(offsets), pa.py_buffer(digits))


_COLUMNS: dict[str, Callable[[MadeReceipts, pa.DictionaryArray], pa.Array]] = {
    "received_at": lambda receipts, _source: pa.array(receipts.received_at_us, pa.timestamp("us", "UTC")),
    # The default id of Apama's senders: seqNo:messageSourceId.
    "unique_message_id": lambda receipts, source: pc.binary_join_element_wise(
        pa.array(receipts.seq_no).cast(pa.string()), source.dictionary_decode(), ":"
    ),
    "message_source_id": lambda _receipts, source: source,
    "connection_id": lambda receipts, _source: _words(receipts.connection, _CONNECTIONS),
    "destination": lambda receipts, _source: _words(queue_of(receipts.source), _DESTINATIONS),
    "receiver_id": lambda receipts, _source: _words(2 * queue_of(receipts.source) + receipts.connection, _RECEIVERS),
    "jms_redelivered": lambda receipts, _source: pa.array(receipts.redelivered),
    "jms_timestamp": lambda receipts, _source: pa.array(receipts.sent_at_us // 1_000),
    "body_digest": lambda receipts, _source: _digests(receipts),
}
"""Functions that make each column of receipts and their sources' names. A log has no other column."""
SYNTHETIC_SCHEMA = pa.schema([columns.SCHEMA.field(name) for name in _COLUMNS])
