"""Two real Artemis brokers, a primary and its backup, by replication. They fail over and back."""

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from examples.demo.artemis import PASSWORD, USER, Broker
from examples.demo.processes import HOST
from tests.brokers.cluster import Nodes, is_open, subfolder
from tests.patience import until

# The broker that holds the lock is active. Without locks, both are active while they don't hear each other.
LOCKS = """<manager>
<class-name>org.apache.activemq.artemis.lockmanager.file.FileBasedLockManager</class-name>
<properties><property key="locks-folder" value="{locks}"/></properties>
</manager>"""
CONFIG = """<connectors>
<connector name="itself">tcp://{host}:{itself}</connector>
<connector name="other">tcp://{host}:{other}</connector>
</connectors>
<cluster-user>{user}</cluster-user>
<cluster-password>{password}</cluster-password>
<cluster-connections><cluster-connection name="pair">
<connector-ref>itself</connector-ref>
<check-period>4000</check-period>
<connection-ttl>8000</connection-ttl>
<retry-interval>200</retry-interval>
<static-connectors><connector-ref>other</connector-ref></static-connectors>
</cluster-connection></cluster-connections>
<ha-policy><replication>{policy}</replication></ha-policy>
"""
IS_ACTIVE, IS_SYNCHRONIZED, HAS_STOPPED = "AMQ221007", "AMQ221024", "AMQ221002"
STANDS_BY = "started, awaiting connection to a primary"
IDLE_SECS = 15.0
"""How long a stopped backup may take to stand by again, and an active one to give way."""
_LAST_WORDS = 4_000
BEFORE = "<security-settings>"
_LOGGER = logging.getLogger(__name__)


class Node(Broker):
    """One broker of the pair. It is up once it is active, or has all that the active one has."""

    def is_up(self, said: str) -> bool:
        return IS_ACTIVE in said or IS_SYNCHRONIZED in said

    @property
    def is_active(self) -> bool:
        return is_open(self.amqp_port)

    @property
    def has_all(self) -> bool:
        """Whether it stands by and has all that the active one has."""
        said = self.said()
        return said.rfind(IS_SYNCHRONIZED) > max(map(said.rfind, (STANDS_BY, IS_ACTIVE, HAS_STOPPED)))

    @property
    def has_stopped(self) -> bool:
        """Whether it does nothing, although its process is alive."""
        said = self.said()
        return said.rfind(HAS_STOPPED) > max(said.rfind(STANDS_BY), said.rfind(IS_ACTIVE))

    def start(
        self, id_cache_sizes: Mapping[str, int] | None = None, *, properties: Mapping[str, object] | None = None
    ) -> None:
        """Start it so that no message counts as poison, even if it was under way at ten kills."""
        super().start(id_cache_sizes, properties={'addressSettings."#".maxDeliveryAttempts': -1, **(properties or {})})


class Pair(Nodes[Node]):
    """A primary and its backup; the first node is the primary. The primary is active whenever it runs and has all
    that the backup has."""

    def __init__(self, home: Path, folder: Path, *, has_locks: bool = True) -> None:
        """Without locks, the backup takes over whenever it doesn't hear the primary."""
        with ThreadPoolExecutor() as threads:  # making one takes seconds
            super().__init__(list(threads.map(lambda name: Node(home, folder / name), ("primary", "backup"))))
        self.primary, self.backup = self.nodes
        locks = LOCKS.format(locks=subfolder(folder, "locks")) if has_locks else ""
        ports = [self.network.port_to(node, node.core_port) for node in self.nodes]
        looks_first = "" if has_locks else "<check-for-active-server>true</check-for-active-server>"
        policies = [
            f"<primary>{locks}{looks_first}</primary>",
            f"<backup>{locks}<allow-failback>true</allow-failback></backup>",
        ]
        for node, itself, other, policy in zip(self.nodes, ports, reversed(ports), policies, strict=True):
            config = CONFIG.format(host=HOST, itself=itself, other=other, user=USER, password=PASSWORD, policy=policy)
            file = node.folder / "etc" / "broker.xml"
            text = file.read_text(encoding="utf-8")
            assert text.count(BEFORE) == 1
            file.write_text(text.replace(BEFORE, config + BEFORE), encoding="utf-8")

    def leader(self, _queue: str) -> Node:
        """The active node."""
        return until(lambda: next((node for node in self.nodes if node.is_active), None))

    def settle(self) -> None:
        """Wait until the primary is active, and the backup could take over."""
        self._wait(self.primary, until_so=lambda: self.primary.is_active, stuck=lambda: self.primary.has_all)
        self._wait(self.backup, until_so=lambda: self.backup.has_all, stuck=lambda: self.backup.has_stopped)

    def _wait(self, node: Node, *, until_so: Callable[[], bool], stuck: Callable[[], bool]) -> None:
        """Wait until the condition holds. Start the node again if it is stuck, as Artemis 2.44 is now and then: as a
        backup starts again, Artemis stops it and leaves it so; or it gives up for good to hand back to the primary
        ("Failback interrupted")."""
        stuck_since = math.inf

        def looked() -> bool:
            nonlocal stuck_since
            stuck_since = min(stuck_since, time.monotonic()) if stuck() else math.inf
            if time.monotonic() > stuck_since + IDLE_SECS:
                _LOGGER.warning("%s is stuck, and is started again", node.folder.name)
                node.kill()
                self.start(node)
            return until_so()

        until(looked, self._last_words)

    def _last_words(self) -> str:
        said = {"primary": self.primary.said(), "backup": self.backup.said()}
        return "\n".join(f"the {name} said\n{text[-_LAST_WORDS:]}" for name, text in said.items())


@contextmanager
def running(home: Path, *, has_locks: bool = True) -> Iterator[Pair]:
    """A pair in a temporary folder. It ends with the block, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="receiver-artemis-", ignore_cleanup_errors=True) as folder:
        pair = Pair(home, Path(folder), has_locks=has_locks)
        try:
            pair.start()
            yield pair
        finally:
            pair.close()
