"""The figures of a process's receivers for Prometheus; needs the extra 'metrics'.

Figures are read when Prometheus scrapes them, and cost nothing until then. Receivers of one domain are added up. When a
receiver is closed, its counters stay, so that they never fall; its gauges go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from receiver.closing import Mutex
from receiver.durable.status import Buckets, Status
from receiver.errors import MissingExtraError, SettingsError

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("metrics", "exporting metrics") from error

if TYPE_CHECKING:
    from receiver.durable.async_receiver import AsyncReceiver
    from receiver.durable.receiver import Receiver

__all__ = ["collector_in", "export", "label", "meanings_of"]

_C = TypeVar("_C", bound=Collector)


class _Metric(NamedTuple):
    kind: str
    meaning: str
    read: Callable[[Status], float | Buckets | Mapping[str, int] | None]
    """The metric's value, or one for each value of its label."""
    label: str = ""
    """The name of its own label, beside `domain`; empty if it has none."""
    join: Callable[[float, float], float] = operator.add
    """Joins the values of two receivers of a domain."""


def meanings_of(counts: type) -> dict[str, str]:
    """The help texts of the counters among the fields of a class, by name."""
    return {each.name: each.metadata["meaning"] for each in fields(counts) if each.metadata.get("meaning")}


_counter = partial(_Metric, "counter")
_histogram = partial(_Metric, "histogram", label="le")
_gauge = partial(_Metric, "gauge", join=max)

_METRICS = {
    **{
        f"receiver_{name}": _counter(meaning, operator.attrgetter(name))
        for name, meaning in meanings_of(Status).items()
    },
    "receiver_duplicates": _counter(
        "Duplicates detected, by the tier that still knew the id.",
        lambda s: {"source": s.duplicates - s.time_tier_dups, "time": s.time_tier_dups},
        "tier",
    ),
    "receiver_batches": _counter(
        "Batches, by what became of them.",
        lambda s: {"committed": s.batches_committed, "rolled_back": s.batches_rolled_back, "failed": s.batches_failed},
        "outcome",
    ),
    "receiver_headroom_ratio": _histogram(
        "Share of window or expiry that a duplicate had left when it came.", lambda s: s.headroom
    ),
    "receiver_batch_seconds": _histogram(
        "Time of a batch, from asking for the domain to the end of its commit.", lambda s: s.batch_secs
    ),
    "receiver_commit_seconds": _histogram("Time that the database took to commit a batch.", lambda s: s.commit_secs),
    "receiver_remembered_ids": _gauge("Distinct ids remembered, as of the last batch.", lambda s: s.rDupIds),
    "receiver_sources": _gauge("Sources whose newest ids are kept, as of the last batch.", lambda s: s.sources),
    "receiver_silent_sources": _gauge(
        "Sources that have not sent for a day, by the times of receipts.", lambda s: s.silent_sources
    ),
    "receiver_retired_sources": _gauge("Sources retired since the domain was made.", lambda s: s.retired_sources),
    "receiver_window_ids": _gauge("dupDetectionPerSourceExpiryWindowSize.", lambda s: s.window),
    "receiver_expiry_seconds": _gauge("dupDetectionExpiryTimeSecs.", lambda s: s.expiry_secs),
    "receiver_window_need_ids": _gauge(
        "Least window that alone would have caught each duplicate of the last day; above receiver_window_ids it is a lower bound.",
        lambda s: s.window_need,
    ),
    "receiver_expiry_need_seconds": _gauge(
        "Least expiry that alone would have caught each duplicate of the last day.", lambda s: s.expiry_need_secs
    ),
    "receiver_max_delivery_seconds": _gauge(
        "Longest time from JMSTimestamp to a receipt flagged JMSRedelivered.", lambda s: s.rMaxDeliverySecs
    ),
    "receiver_unfolded_receipts": _gauge(
        "Receipts of a concurrent domain that are not folded in yet.", lambda s: s.unfolded_receipts
    ),
    "receiver_unfolded_seconds": _gauge("Age of the oldest of them.", lambda s: s.unfolded_secs),
    "receiver_min_headroom_ratio": _gauge(
        "Least share of window or expiry that one of the last 1,000 duplicates had left.",
        lambda s: s.recent_min_headroom,
        join=min,
    ),
}

_Values = dict[tuple[str, str, str, str], float]
"""Keyed by metric, domain, suffix of the sample's name, and value of the metric's own label."""

_collectors: WeakKeyDictionary[CollectorRegistry, dict[Callable[[], Any], Any]] = WeakKeyDictionary()
_lock = Mutex()


def export(receiver: Receiver | AsyncReceiver, registry: CollectorRegistry = REGISTRY) -> None:
    """Show a receiver's figures in a registry. A second call changes nothing, and closing the receiver needs none.

    Each metric has the label `domain`.

    Raises:
        SettingsError: The first argument is no receiver, or the second no registry.
    """
    if not callable(getattr(receiver, "figures", None)):  # otherwise every scrape of the whole registry would fail
        raise SettingsError(f"export takes a receiver, not {receiver!r:.80}", hint="give what Receiver.open returned")
    if not isinstance(registry, CollectorRegistry):
        raise SettingsError(f"export takes a registry of prometheus_client, not {registry!r:.80}")
    collector_in(registry, _ReceiverCollector).add(receiver)


def collector_in(registry: CollectorRegistry, kind: Callable[[], _C]) -> _C:
    """The registry's one collector of a kind, made and registered if there is none."""
    with _lock:
        known = _collectors.setdefault(registry, {})
        if kind not in known:
            made = kind()
            registry.register(made)  # refuses names that the application uses already
            known[kind] = made
        collector: _C = known[kind]
        return collector


def label(domain: str) -> str:
    """A domain's name for a label: lone surrogates are escaped."""
    return domain.encode(errors="backslashreplace").decode()


class _ReceiverCollector(Collector):
    def __init__(self) -> None:
        self._lock = Mutex()
        self._receivers: list[Receiver | AsyncReceiver] = []
        self._closed: _Values = {}

    def add(self, receiver: Receiver | AsyncReceiver) -> None:
        with self._lock:
            if receiver not in self._receivers:
                self._receivers.append(receiver)

    def collect(self) -> Iterator[Metric]:
        families = {name: Metric(name, metric.meaning, metric.kind) for name, metric in _METRICS.items()}
        for (name, domain, end, by), value in self._read().items():
            labels = {"domain": domain} | ({_METRICS[name].label: by} if by else {})
            families[name].add_sample(name + end, labels, value)
        return iter(families.values())

    def _read(self) -> _Values:
        """The figures of open receivers, and the counters of closed ones."""
        values: _Values = {}
        with self._lock:
            for receiver in self._receivers.copy():
                is_closed = receiver.is_closed  # asked first: if it is closed, its figures don't change any more
                _join(self._closed if is_closed else values, receiver.figures(), with_gauges=not is_closed)
                if is_closed:
                    self._receivers.remove(receiver)
            for key, value in self._closed.items():
                values[key] = values.get(key, 0) + value
        return values


def _join(values: _Values, status: Status, *, with_gauges: bool) -> None:
    domain = label(status.domain)
    for name, metric in _METRICS.items():
        if with_gauges or metric.kind != "gauge":
            for end, by, value in _samples(metric, status):
                key = name, domain, end, by
                values[key] = metric.join(values[key], value) if key in values else value


def _samples(metric: _Metric, status: Status) -> Iterator[tuple[str, str, float]]:
    """The samples of a metric: the suffix of each name, the value of the metric's own label, and the sample's value."""
    value = metric.read(status)
    end = "_total" if metric.kind == "counter" else ""
    if isinstance(value, Buckets):
        for bound, count in zip((*value.bounds, "+Inf"), accumulate(value.counts), strict=True):
            yield "_bucket", str(bound), count
        yield "_count", "", sum(value.counts)
        yield "_sum", "", value.total
    elif isinstance(value, Mapping):
        for by, number in value.items():
            yield end, by, number
    elif value is not None:
        yield end, "", value
