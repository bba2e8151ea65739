"""A bridge's own figures for Prometheus, besides those of its receiver (`receiver.durable.metrics`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from receiver.bridge.bridge import Bridge
from receiver.bridge.modes import Figures
from receiver.durable import metrics


def export(bridge: Bridge, registry: CollectorRegistry = REGISTRY) -> None:
    """Show the figures of a bridge and its receiver in a registry, with the label `domain`. Bridges of a domain are added up."""
    metrics.export(bridge.receiver, registry)
    metrics.collector_in(registry, _BridgeCollector).add(bridge.receiver.domain, bridge.figures)


class _BridgeCollector(Collector):
    """Also keeps the figures of bridges that have ended, so that no counter falls."""

    def __init__(self) -> None:
        self._figures: defaultdict[str, list[Figures]] = defaultdict(list)

    def add(self, domain: str, figures: Figures) -> None:
        known = self._figures[metrics.label(domain)]
        if all(figures is not each for each in known):
            known.append(figures)

    def collect(self) -> Iterator[Metric]:
        by_domain = {domain: list(known) for domain, known in self._figures.copy().items()}
        for name, meaning in metrics.meanings_of(Figures).items():
            counted = CounterMetricFamily(f"receiver_bridge_{name}", meaning, labels=["domain"])
            for domain, known in by_domain.items():
                counted.add_metric([domain], sum(getattr(figures, name) for figures in known))
            yield counted
        waiting = GaugeMetricFamily("receiver_bridge_waiting", "Messages in the inbox.", labels=["domain"])
        for domain, known in by_domain.items():
            # The count of an ended bridge lacks messages that others have delivered since.
            looking = [figures for figures in known if not figures.has_ended] or known[-1:]
            waiting.add_metric([domain], max(figures.waiting for figures in looking))
        yield waiting
        yield from _nodes(by_domain)


def _nodes(by_domain: Mapping[str, Sequence[Figures]]) -> Iterator[Metric]:
    """The brokers to which each domain's bridges are connected, and how often they changed."""
    labels = ["domain", "role"]
    at = GaugeMetricFamily("receiver_bridge_node", "1 for the broker that is connected to.", labels=[*labels, "node"])
    changes = CounterMetricFamily(
        "receiver_bridge_node_changes", "How often it was another node of a cluster than before.", labels=labels
    )
    for domain, known in by_domain.items():
        changed: Counter[str] = Counter()
        connected: dict[tuple[str, str], None] = {}
        for figures in known:
            for role, nodes in figures.nodes.items():
                changed[role] += nodes.changes
                if nodes.at is not None and not figures.has_ended:
                    connected[role, str(nodes.at)] = None
        for role, count in changed.items():
            changes.add_metric([domain, role], count)
        for role, node in connected:
            at.add_metric([domain, role, node], 1)
    yield at
    yield changes
