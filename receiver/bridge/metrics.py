"""A bridge's own figures for Prometheus, beside those of its receiver (`receiver.durable.metrics`)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from receiver.bridge.bridge import Bridge
from receiver.durable import metrics

__all__ = ["export"]

_COUNTED = {
    "delivered": "Messages handed on to the target.",
    "failed": "Tries of single messages that failed.",
    "parked": "Messages given up and parked; in BEST_EFFORT, dropped.",
    "connection_errors": "Connections to brokers or the store that broke or could not be made.",
}


def export(bridge: Bridge, registry: CollectorRegistry = REGISTRY) -> None:
    """Show the figures of a bridge and of its receiver in a registry, with the label `domain`."""
    metrics.export(bridge.receiver, registry)
    registry.register(_BridgeCollector(bridge))


class _BridgeCollector(Collector):
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def collect(self) -> Iterator[Metric]:
        figures = self._bridge.figures
        domain = self._bridge.receiver.domain.encode(errors="backslashreplace").decode()  # no lone surrogates
        for name, meaning in _COUNTED.items():
            counted = CounterMetricFamily(f"receiver_bridge_{name}", meaning, labels=["domain"])
            counted.add_metric([domain], getattr(figures, name))
            yield counted
        waiting = GaugeMetricFamily("receiver_bridge_waiting", "Messages in the inbox.", labels=["domain"])
        waiting.add_metric([domain], figures.waiting)
        yield waiting
