"""What a receiver counts while it is open, and the status that it makes of it."""

from __future__ import annotations

import threading
import time

from receiver.durable.cache import DomainCache
from receiver.durable.headroom import SECS_BOUNDS, HeadroomCounter, Histogram
from receiver.durable.status import Status
from receiver.durable.tally import Tally
from receiver.recording import Recorder

__all__ = ["Counters"]


class Counters:
    def __init__(self) -> None:
        self._total = Tally()
        self._headroom = HeadroomCounter()
        self._batch_secs, self._commit_secs = Histogram(SECS_BOUNDS), Histogram(SECS_BOUNDS)
        self._committed = self._rolled_back = self._failed = 0
        self._lock = threading.Lock()  # batches of several threads may fail at once
        self._asked = time.monotonic(), 0  # when the rate was last asked for, and the receipts by then

    def commit(self, tally: Tally) -> None:
        """A batch is known to be committed; called by one thread at a time."""
        self._committed += 1
        self._total.add(tally)
        self._headroom.add(event.headroom for event in tally.events)
        self._batch_secs.add(tally.batch_secs)
        if tally.commit_secs is not None:
            self._commit_secs.add(tally.commit_secs)

    def roll_back(self) -> None:
        with self._lock:
            self._rolled_back += 1

    def fail(self) -> None:
        with self._lock:
            self._failed += 1

    def rate(self) -> float:
        """Receipts per second since this was last asked for."""
        now_secs, receipts = time.monotonic(), self._total.receipts
        then_secs, before = self._asked
        self._asked = now_secs, receipts
        return (receipts - before) / (now_secs - then_secs) if now_secs > then_secs else 0.0

    def status(self, domain: str, cache: DomainCache, recorder: Recorder | None, rate: float) -> Status:
        total = self._total
        window, expiry_us = cache.sizes
        return Status(
            domain=domain,
            policy=str(cache.policy),
            window=window,
            expiry_secs=expiry_us / 1_000_000,
            rx=total.receipts,
            rRate=rate,
            unchecked=total.unchecked,
            rRedel=total.redelivered,
            rMaxDeliverySecs=total.max_delivery_us / 1_000_000,
            rDupsDet=total.duplicates,
            rDupIds=cache.remembered_ids,
            sources=cache.sources,
            silent_sources=cache.silent_sources,
            retired_sources=cache.retired_sources,
            time_tier_dups=total.time_tier_duplicates,
            reused_ids=total.reused_ids,
            clock_clamped=total.clock_clamped,
            headroom=self._headroom.value(),
            batches_committed=self._committed,
            batches_rolled_back=self._rolled_back,
            batches_failed=self._failed,
            recorded=recorder.written if recorder else 0,
            record_dropped=recorder.dropped if recorder else 0,
            batch_secs=self._batch_secs.value(),
            commit_secs=self._commit_secs.value(),
        )
