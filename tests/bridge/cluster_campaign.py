"""The campaign on a cluster: under load its nodes are killed, cut off from the others, frozen and restarted, one at a
time.

The cluster is the broker. In the last of these campaigns it is the store.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from examples.demo.processes import HOST
from tests import standby
from tests.bridge import effects
from tests.bridge.campaign import Campaign, Plan, Queue, Store
from tests.brokers.cluster import is_open
from tests.patience import until

LONGEST_CALM_SECS = 0.5
NOTICES_SECS = 3.0
"""Long enough for nodes to notice that they had lost each other."""
SESSION_SECS = "1"
LONGEST_DOWN_SECS = 2.0
LONGEST_AWAY_SECS = 12.0
"""Longer and shorter than the others take to notice: so they notice only a part of the absences."""


class ClusterQueue(NamedTuple):
    """A queue or a stream of a cluster, by an address that lists all nodes."""

    broker: Any
    """A cluster of `tests.brokers`."""
    protocol: str
    name: str
    login: str = ""
    """`USER:PASSWORD@`, if the cluster asks for a login."""
    start_options: Mapping[str, Any] = MappingProxyType({})
    is_stream: bool = False
    """Whether bridges take it as a stream, which keeps messages that were taken."""

    def address(self, name: str, kind: str = "queue") -> str:
        hosts = ",".join(f"{HOST}:{self.port(node)}" for node in self.broker.nodes)
        return f"{self.protocol}://{self.login}{hosts}/{kind}/{name}"

    straight = address

    def source(self) -> str:
        return self.address(self.name, "stream" if self.is_stream else "queue")

    def is_empty(self) -> bool:
        return self.is_stream or effects.has_nothing(self.straight(self.name))

    def port(self, node: Any) -> int:
        """A node's port for clients."""
        return getattr(node, f"{self.protocol}_port")


class Topic(NamedTuple):
    """A topic of Kafka, from which a group takes."""

    broker: Any
    """One node of Kafka, or a cluster."""
    name: str
    protocol: str = "kafka"
    start_options: Mapping[str, Any] = MappingProxyType({})

    def address(self, name: str) -> str:
        return self.broker.address(name)

    def source(self) -> str:
        return self.broker.address(self.name, "g", session=SESSION_SECS)

    def is_empty(self) -> bool:
        """Always true: a topic keeps what is taken, so only the bridges know that they have seen its end."""
        return True

    def port(self, node: Any) -> int:
        return node.port


class ClusterCampaign(Campaign):
    """A campaign on a cluster. At most one node is away at a time."""

    stuck_secs = 60.0
    """How long a failover may take on a busy machine."""
    queue: ClusterQueue | Topic

    def _leader(self) -> Any:
        self._pause(self._draw.uniform(0, LONGEST_CALM_SECS))
        self._meanwhile(self.queue.broker.settle)
        return self.queue.broker.leader(self.queue.name)

    def _fail_over(self) -> None:
        node = self._leader()
        self._say(f"kill -9 the leader, {self.queue.port(node)}")
        node.kill()
        self._pause(self._draw.uniform(0, LONGEST_DOWN_SECS))
        self._goes_on()
        self._say("goes on")
        self._come_back(node)

    def _cut_off(self) -> None:
        node, cluster, secs = self._leader(), self.queue.broker, self._draw.uniform(0, LONGEST_AWAY_SECS)
        self._say(f"cut the leader, {self.queue.port(node)}, off for {secs:.1f} s")
        cluster.network.cut_off(node)
        self._pause(secs)
        cluster.network.mend()
        self._pause(NOTICES_SECS)
        self._is_back(node)

    def _freeze(self) -> None:
        node, cluster, secs = self._leader(), self.queue.broker, self._draw.uniform(0, LONGEST_AWAY_SECS)
        self._say(f"freeze the leader, {self.queue.port(node)}, for {secs:.1f} s")
        cluster.freeze(node)
        self._pause(secs)
        cluster.thaw(node)
        self._is_back(node)

    def _roll(self) -> None:
        for node in self.queue.broker.nodes:
            self._say(f"restart {self.queue.port(node)}")
            node.stop()
            self._come_back(node)

    def _come_back(self, node: Any) -> None:
        self._meanwhile(lambda: self.queue.broker.start(node))
        self._say("started")
        self._is_back(node)

    def _is_back(self, node: Any) -> None:
        self._meanwhile(self.queue.broker.settle)
        until(lambda: is_open(self.queue.port(node)))
        self._goes_on()
        self._say("all nodes are back")


class LogCampaign(ClusterCampaign):
    """A campaign from a topic of Kafka or from a stream."""

    stuck_secs = math.inf
    """The broker holds nothing back here, so senders always wait for slow bridges."""


class StoreCampaign(Campaign):
    """A campaign from a single broker, through failovers of the store."""

    stuck_secs = math.inf
    """Senders always wait: while there is no standby, the store commits nothing."""

    def __init__(self, pair: standby.Pair, plan: Plan, queue: Queue, store: Store, seed: int) -> None:
        super().__init__(plan, queue, store, seed)
        self._pair = pair

    def _fail_over(self) -> None:
        self._pause(self._draw.uniform(0, LONGEST_CALM_SECS))
        self._say("kill -9 the primary")
        self._meanwhile(self._pair.fail_over)
        self._say("the standby has taken over")
        self._meanwhile(self._pair.build_standby)
        self._goes_on()
        self._say("it has a standby, and goes on")
