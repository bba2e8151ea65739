"""A receiver's figures: the counters of a batch and of a receiver, and its status, with the names of Apama's status line."""

from __future__ import annotations

import operator
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from receiver.closing import Mutex
from receiver.durable.cache import DomainCache
from receiver.durable.duplicates import Duplicate, Need, over_last_day
from receiver.message import Receipt, Tier
from receiver.quantities import SECOND_US
from receiver.recording import Recorder
from receiver.store.tables import DomainState, RecordedRow

BOUNDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""The upper bounds of the histogram's buckets, close together near 0, where it matters."""
_SECS_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The upper bounds of the buckets of times in seconds: from a fast disk's sync to a long wait for a domain."""
_RECENT = 1_000
LOG_FORMAT = "%(asctime)s %(levelname)-5s [%(process)d:%(threadName)s] - %(message)s"
"""For `logging.basicConfig`: lines as in a correlator's log, so that tools for such logs find the status lines."""


class Buckets(NamedTuple):
    """A histogram as it is at one time."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """`counts[i]`: values above `bounds[i - 1]` and at most `bounds[i]`. The last: values above all bounds."""
    total: float
    """The sum of the values."""


class HistogramCounter:
    """Counts values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def value(self) -> Buckets:
        return Buckets(self._bounds, tuple(self._counts), self._total)


def counter(meaning: str = "", *, title: str = "", join: Callable[[int, int], int] = operator.add) -> Any:
    """A dataclass field that counts from 0. Its metadata has these arguments.

    Args:
        meaning: The help text of its metric, such as `receiver_receipts_total`. Empty: it has no metric of its own.
        title: Its name in the table of `receiver status`, if a domain keeps it. Empty: it isn't in the table.
        join: Joins the values of two batches. 0 must change nothing.
    """
    return field(default=0, metadata={"meaning": meaning, "title": title, "join": join})


@dataclass(slots=True)
class Counts:
    """The counters of receipts. Each is declared here alone, with its names in metrics and tables.

    A domain keeps the counters that are also fields of `receiver.store.tables.DomainState`.
    """

    receipts: int = counter("Receipts.", title="receipts")
    """All receipts."""
    duplicates: int = counter(title="duplicates")
    """Duplicates detected."""
    unchecked: int = counter("Receipts without uniqueMessageId.", title="without id")
    """Receipts without id."""
    reused_ids: int = counter("Duplicates that came with another body than before.", title="with another body")
    """Duplicates that came with another body than before."""
    clock_clamped: int = counter("Receipts from before the latest one of the domain.", title="time ran backwards")
    """Receipts from before the domain's latest one."""
    redelivered: int = counter("Receipts flagged JMSRedelivered.", title="redelivered")
    """Receipts flagged JMSRedelivered."""
    max_delivery_us: int = counter(join=max)
    """The longest time from JMSTimestamp to a receipt flagged JMSRedelivered, in microseconds; 0 without such receipts."""
    time_tier_dups: int = counter()
    """Duplicates that only the time tier still knew."""


_JOINS = {each.name: each.metadata["join"] for each in fields(Counts)}
_KEPT = _JOINS.keys() & DomainState._fields


@dataclass(slots=True, kw_only=True)
class Status(Counts):
    """A receiver's figures, over the batches known to be committed since it was opened, unless a field says otherwise.

    The figures of Apama's status line also have Apama's names, such as `rx`.
    """

    domain: str
    policy: str
    """The policy's canonical text, such as `apama:window=2000,expiry=120`."""
    window: int
    """The policy's size in ids, such as W of `apama`; 0 if it has none."""
    expiry_secs: float
    """The policy's size in seconds, such as E of `apama`; 0 if it has none."""
    rRate: float  # noqa: N815 - Apama's names, here and below
    """Receipts per second since `status()` was last called, or since the receiver was opened."""
    rDupIds: int  # noqa: N815
    """Distinct ids remembered, as of this receiver's last batch."""
    sources: int
    """Sources whose newest ids are kept, as of this receiver's last batch; 0 if the policy keeps no ids by source."""
    silent_sources: int
    """Sources without a receipt in the domain's last 24 hours."""
    retired_sources: int
    """Sources retired since the domain was made, as of this receiver's last batch."""
    min_headroom: float | None
    """The least share of its window or expiry that a duplicate had left, from 0 to 1; None before any."""
    recent_min_headroom: float | None
    """The least share that one of the last 1,000 duplicates had left; None before any."""
    headroom: Buckets
    """The shares that all duplicates had left."""
    need: Need | None
    """The largest needs of the domain's duplicates, over all its receivers and the last day (by the times of receipts), as
    of this receiver's last batch; None without any, or if the policy hasn't two tiers."""
    batches_committed: int
    """Batches that were committed. Of a concurrent receiver, a batch in a caller's transaction counts when its block ends."""
    batches_rolled_back: int
    """Batches left by an exception, or rolled back by the caller whose transaction they had joined."""
    batches_failed: int
    """Batches not begun or not committed: the domain was busy, or the store failed."""
    recorded: int = counter("Receipts written to the log that is recorded.")
    """Receipts in the log of `record`, or in the store, waiting to be written there."""
    record_dropped: int = counter("Receipts that could not be written there.")
    """Receipts that couldn't be recorded."""
    batch_secs: Buckets
    """How long batches took, from asking for the domain to the end of the commit."""
    commit_secs: Buckets
    """How long the database took to commit batches, without those in callers' transactions."""

    unfolded_receipts: int = 0
    """Receipts of a concurrent domain that aren't folded in yet, as this process last counted them."""
    unfolded_secs: float = 0.0
    """The age of the oldest of these receipts."""

    @property
    def rx(self) -> int:
        """Receipts."""
        return self.receipts

    @property
    def rRedel(self) -> int:  # noqa: N802
        """Receipts flagged JMSRedelivered."""
        return self.redelivered

    @property
    def rMaxDeliverySecs(self) -> float:  # noqa: N802
        """The longest time from JMSTimestamp to receipt of the redelivered ones, in seconds; 0.0 if there is none."""
        return self.max_delivery_us / SECOND_US

    @property
    def rDupsDet(self) -> int:  # noqa: N802
        """Duplicates detected."""
        return self.duplicates

    @property
    def window_need(self) -> int | None:
        """The least W that alone would have caught each duplicate of the last day.

        It is exact up to W. If only the time tier still knew an id, the need is more than W, by an unknown amount. Then it
        is W + 1, and `window_need_is_lower_bound` is true.

        The last day is that of the receipts, in whole hours: the hour of the latest receipt and the 24 before it. A domain
        that receives nothing keeps its figures. None: no duplicate was caught in that day, or the domain follows another
        system's rule.
        """
        return None if self.need is None else self.need.window

    @property
    def window_need_is_lower_bound(self) -> bool | None:
        """Whether the window need may be larger, because only the time tier still knew an id."""
        return None if self.need is None else self.need.is_lower_bound

    @property
    def expiry_need_secs(self) -> float | None:
        """The least E that alone would have caught each duplicate of the last day, in seconds.

        It counts up to the receipt just before the duplicate, so silence adds nothing. None as for `window_need`.
        """
        return None if self.need is None else self.need.expiry_us / SECOND_US

    def line(self) -> str:
        """Apama's JMS status line, without the figures of senders and connections."""
        return status_line(self, self.rDupIds, self.rRate)


def status_line(counts: Counts | DomainState, remembered_ids: int | None, rate: float | None = None) -> str:
    """Apama's status line of one receiver. Arguments that are None are left out of it."""
    rates = "" if rate is None else f" rRate={rate:,.0f}"
    ids = "" if remembered_ids is None else f" rDupIds={remembered_ids:,}"
    return (
        f"JMS Status: r=1 rx={counts.receipts:,}{rates} rRedel={counts.redelivered:,}"
        f" rMaxDeliverySecs={counts.max_delivery_us / SECOND_US:,.1f} rDupsDet={counts.duplicates:,}{ids}"
    )


@dataclass(slots=True)
class Tally(Counts):
    """The counters, times and duplicates of one batch; also the sum over a receiver's batches."""

    batch_secs: float = 0.0
    """Time from asking for the domain to the end of the commit or, in a caller's transaction, of recording."""
    commit_secs: float | None = None
    """How long the database took to commit; None if the caller commits."""
    events: list[Duplicate] = field(default_factory=list)
    full_receipts: list[tuple[int, Receipt]] = field(default_factory=list)
    """For a recorder: receipts that say more than their row or have no row, each behind its index in the batch."""
    recorded: RecordedRow | None = None
    """The row that the batch leaves in the store for a recording."""

    def note_redelivered(self, received_at_us: int, jms_timestamp_ms: int | None) -> None:
        """Count a receipt flagged JMSRedelivered."""
        self.redelivered += 1
        if jms_timestamp_ms:
            self.max_delivery_us = max(self.max_delivery_us, received_at_us - jms_timestamp_ms * 1000)

    def note_duplicate(self, event: Duplicate) -> None:
        self.duplicates += 1
        if event.tier is Tier.TIME:
            self.time_tier_dups += 1
        if event.body_differs:
            self.reused_ids += 1
        self.events.append(event)

    def added_to(self, state: DomainState, **changes: Any) -> DomainState:
        """The state with the batch counted, and other fields changed as given."""
        for name in _KEPT:
            if number := getattr(self, name):  # most are 0 in most batches
                changes[name] = _JOINS[name](getattr(state, name), number)
        return state._replace(**changes)

    def add(self, other: Counts) -> None:
        """Add the counters of a committed batch."""
        for name, join in _JOINS.items():
            if number := getattr(other, name):
                setattr(self, name, join(getattr(self, name), number))


class Rate:
    """How fast a count grows. Any thread may ask."""

    def __init__(self) -> None:
        self._asked = time.monotonic(), 0
        """When the rate was last asked for, and the count then."""
        self._lock = Mutex()

    def of(self, count: int) -> float:
        """Growth per second since the rate was last asked for."""
        with self._lock:
            now_secs, (then_secs, before) = time.monotonic(), self._asked
            count = max(count, before)  # another thread may have asked with a newer count
            self._asked = now_secs, count
        return (count - before) / (now_secs - then_secs) if now_secs > then_secs else 0.0


class Counters:
    """The figures that one receiver has counted since it was opened."""

    def __init__(self) -> None:
        self._total = Tally()
        self._least_headroom = 1.0
        self._recent_headroom: deque[float] = deque(maxlen=_RECENT)
        self._headroom = HistogramCounter(BOUNDS)
        self._batch_secs, self._commit_secs = HistogramCounter(_SECS_BOUNDS), HistogramCounter(_SECS_BOUNDS)
        self._committed = self._rolled_back = self._failed = 0
        self._lock = Mutex()  # batches of several threads may end at once
        self._rate = Rate()

    def commit(self, tally: Tally, *, is_batch: bool = True) -> None:
        """Add a batch that is known to be committed, or a folding. Only one thread at a time may call this."""
        self._total.add(tally)
        for duplicate in tally.events:
            if duplicate.headroom is not None:
                self._least_headroom = min(self._least_headroom, duplicate.headroom)
                self._recent_headroom.append(duplicate.headroom)
                self._headroom.add(duplicate.headroom)
        if is_batch:
            self.time_commit(tally.batch_secs, tally.commit_secs)

    def time_commit(self, batch_secs: float, commit_secs: float | None) -> None:
        """Count a batch as committed, with its times as in a `Tally`."""
        with self._lock:
            self._committed += 1
            self._batch_secs.add(batch_secs)
            if commit_secs is not None:
                self._commit_secs.add(commit_secs)

    def roll_back(self) -> None:
        with self._lock:
            self._rolled_back += 1

    def fail(self) -> None:
        with self._lock:
            self._failed += 1

    def rate(self) -> float:
        """Receipts per second since the rate was last asked for."""
        return self._rate.of(self._total.receipts)

    def status(self, domain: str, cache: DomainCache, recorder: Recorder | None, rate: float) -> Status:
        state = cache.state
        recent = self._recent_headroom.copy()  # another thread may change it
        return Status(
            **{name: getattr(self._total, name) for name in _JOINS},
            domain=domain,
            policy=str(cache.policy),
            window=state.window_size,
            expiry_secs=state.expiry_us / SECOND_US,
            rRate=rate,
            rDupIds=cache.remembered_ids,
            sources=cache.sources,
            silent_sources=cache.silent_sources,
            retired_sources=state.retired_sources,
            min_headroom=self._least_headroom if recent else None,
            recent_min_headroom=min(recent, default=None),
            headroom=self._headroom.value(),
            need=over_last_day(cache.needs, state.latest_us),
            batches_committed=self._committed,
            batches_rolled_back=self._rolled_back,
            batches_failed=self._failed,
            recorded=recorder.written if recorder else 0,
            record_dropped=recorder.dropped if recorder else 0,
            batch_secs=self._batch_secs.value(),
            commit_secs=self._commit_secs.value(),
        )
