"""The figures of a process's receivers for Prometheus; needs the extra 'metrics'.

They are read when they are scraped, and cost nothing until then. Receivers of one domain are added up. What a receiver
has counted stays when it is closed, so that counters never fall; its gauges go.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from receiver.durable.status import Buckets, Status
from receiver.errors import MissingExtraError

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("metrics", "exporting metrics") from error

if TYPE_CHECKING:
    from receiver.durable.async_receiver import AsyncReceiver
    from receiver.durable.receiver import Receiver

__all__ = ["collector_in", "export", "label"]

_C = TypeVar("_C", bound=Collector)


class _Sample(NamedTuple):
    family: str
    suffix: str
    label: str = ""
    """Beside `domain`."""
    value: str = ""


_Counts = Counter[_Sample]
_Gauge = tuple[str, Callable[[Status], float | None], Callable[[list[float]], float]]

_COUNTERS: dict[str, tuple[str, str, Callable[[Status], Mapping[str, int]]]] = {
    "receiver_receipts": ("Receipts.", "", lambda s: {"": s.rx}),
    "receiver_unchecked": ("Receipts without uniqueMessageId.", "", lambda s: {"": s.unchecked}),
    "receiver_duplicates": (
        "Duplicates detected, by the tier that still knew the id.",
        "tier",
        lambda s: {"source": s.rDupsDet - s.time_tier_dups, "time": s.time_tier_dups},
    ),
    "receiver_reused_ids": ("Duplicates that came with another body than before.", "", lambda s: {"": s.reused_ids}),
    "receiver_redelivered": ("Receipts flagged JMSRedelivered.", "", lambda s: {"": s.rRedel}),
    "receiver_clock_clamped": (
        "Receipts from before the latest one of the domain.",
        "",
        lambda s: {"": s.clock_clamped},
    ),
    "receiver_batches": (
        "Batches, by what became of them.",
        "outcome",
        lambda s: {"committed": s.batches_committed, "rolled_back": s.batches_rolled_back, "failed": s.batches_failed},
    ),
    "receiver_recorded": ("Receipts written to the log that is recorded.", "", lambda s: {"": s.recorded}),
    "receiver_record_dropped": ("Receipts that could not be written there.", "", lambda s: {"": s.record_dropped}),
}
"""Metrics that add up over receivers: meaning, label beside `domain`, and the count for each value of that label."""
_HISTOGRAMS: dict[str, tuple[str, Callable[[Status], Buckets]]] = {
    "receiver_headroom_ratio": (
        "Share of window or expiry that a duplicate had left when it came.",
        lambda s: s.headroom.shares,
    ),
    "receiver_batch_seconds": (
        "Time of a batch, from asking for the domain to the end of its commit.",
        lambda s: s.batch_secs,
    ),
    "receiver_commit_seconds": ("Time that the database took to commit a batch.", lambda s: s.commit_secs),
}
"""These add up too: meaning and value."""
_ADDING_UP = {name: ("counter", meaning) for name, (meaning, *_) in _COUNTERS.items()} | {
    name: ("histogram", meaning) for name, (meaning, _) in _HISTOGRAMS.items()
}
_GAUGES: dict[str, _Gauge] = {
    "receiver_remembered_ids": ("Distinct ids remembered, as of the last batch.", lambda s: s.rDupIds, max),
    "receiver_sources": ("Sources whose newest ids are kept, as of the last batch.", lambda s: s.sources, max),
    "receiver_silent_sources": (
        "Those of them that have not sent for a day, by the times of receipts.",
        lambda s: s.silent_sources,
        max,
    ),
    "receiver_retired_sources": ("Sources retired since the domain was made.", lambda s: s.retired_sources, max),
    "receiver_window_ids": ("dupDetectionPerSourceExpiryWindowSize.", lambda s: s.window, max),
    "receiver_expiry_seconds": ("dupDetectionExpiryTimeSecs.", lambda s: s.expiry_secs, max),
    "receiver_window_need_ids": (
        "Least window that alone would have caught each duplicate of the last day; above receiver_window_ids it is a lower bound.",
        lambda s: s.window_need,
        max,
    ),
    "receiver_expiry_need_seconds": (
        "Least expiry that alone would have caught each duplicate of the last day.",
        lambda s: s.expiry_need_secs,
        max,
    ),
    "receiver_max_delivery_seconds": (
        "Longest time from JMSTimestamp to a receipt flagged JMSRedelivered.",
        lambda s: s.rMaxDeliverySecs,
        max,
    ),
    "receiver_min_headroom_ratio": (
        "Least share of window or expiry that one of the last 1,000 duplicates had left.",
        lambda s: s.recent_min_headroom,
        min,
    ),
}
"""Metrics that don't: meaning, value, and how the values of several receivers are combined."""

_collectors: WeakKeyDictionary[CollectorRegistry, dict[Callable[[], Any], Any]] = WeakKeyDictionary()
_lock = threading.Lock()


def export(receiver: Receiver | AsyncReceiver, registry: CollectorRegistry = REGISTRY) -> None:
    """Show a receiver's figures in a registry. A second call changes nothing, and closing the receiver needs none.

    Each metric has the label `domain`.
    """
    collector_in(registry, _ReceiverCollector).add(receiver)


def collector_in(registry: CollectorRegistry, kind: Callable[[], _C]) -> _C:
    """The registry's one collector of a kind, made and registered if there is none."""
    with _lock:
        known = _collectors.setdefault(registry, {})
        if kind not in known:
            made = kind()
            registry.register(made)  # which refuses names that the application has used
            known[kind] = made
        collector: _C = known[kind]
        return collector


def label(domain: str) -> str:
    """A domain's name without the lone surrogates that it may have."""
    return domain.encode(errors="backslashreplace").decode()


class _ReceiverCollector(Collector):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receivers: list[Receiver | AsyncReceiver] = []
        self._closed: dict[str, _Counts] = {}

    def add(self, receiver: Receiver | AsyncReceiver) -> None:
        with self._lock:
            if receiver not in self._receivers:
                self._receivers.append(receiver)

    def collect(self) -> Iterator[Metric]:
        counts, statuses = self._read()
        for name, (kind, meaning) in _ADDING_UP.items():
            metric = Metric(name, meaning, kind)
            for domain, of in counts.items():
                for sample, value in of.items():
                    if sample.family == name:
                        labels = {"domain": domain} | ({sample.label: sample.value} if sample.label else {})
                        metric.add_sample(name + sample.suffix, labels, value)
            yield metric
        for name, (meaning, read, join) in _GAUGES.items():
            metric = Metric(name, meaning, "gauge")
            for domain, of_open in statuses.items():
                values = [value for value in map(read, of_open) if value is not None]
                if values:
                    metric.add_sample(name, {"domain": domain}, join(values))
            yield metric

    def _read(self) -> tuple[dict[str, _Counts], dict[str, list[Status]]]:
        """By domain: all that was ever counted, and the status of each receiver that is open."""
        with self._lock:
            receivers, self._receivers = self._receivers, []
            statuses: dict[str, list[Status]] = {}
            for receiver in receivers:
                is_closed = receiver.is_closed  # asked first, for then its figures are the last
                status = receiver.figures()
                domain = label(status.domain)
                if is_closed:
                    self._closed.setdefault(domain, Counter()).update(_counts(status))
                else:
                    self._receivers.append(receiver)
                    statuses.setdefault(domain, []).append(status)
            counts = {domain: _Counts(of) for domain, of in self._closed.items()}
        for domain, of_open in statuses.items():
            for status in of_open:
                counts.setdefault(domain, Counter()).update(_counts(status))
        return counts, statuses


def _counts(status: Status) -> _Counts:
    counts: dict[_Sample, float] = {}
    for name, (_, label, read) in _COUNTERS.items():
        for value, count in read(status).items():
            counts[_Sample(name, "_total", label, value)] = count
    for name, (_, buckets_of) in _HISTOGRAMS.items():
        buckets = buckets_of(status)
        for bound, count in zip((*buckets.bounds, "+Inf"), accumulate(buckets.counts), strict=True):
            counts[_Sample(name, "_bucket", "le", str(bound))] = count
        counts[_Sample(name, "_count")] = sum(buckets.counts)
        counts[_Sample(name, "_sum")] = buckets.total
    return Counter(counts)
