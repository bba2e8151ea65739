"""Two real Artemis brokers, a primary and its backup, by replication: failover, and back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from examples.demo.artemis import PASSWORD, USER, Broker
from examples.demo.processes import HOST
from tests.brokers.cluster import Nodes, subfolder

# Who holds the lock is active: without one, both are while they don't hear each other.
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
<check-period>500</check-period>
<connection-ttl>2000</connection-ttl>
<retry-interval>200</retry-interval>
<static-connectors><connector-ref>other</connector-ref></static-connectors>
</cluster-connection></cluster-connections>
<ha-policy><replication>{policy}</replication></ha-policy>
"""
IS_ACTIVE, IS_SYNCHRONIZED = "AMQ221007", "AMQ221024"
BEFORE = "<security-settings>"


class Node(Broker):
    """One of the two. It is up once it is active, or has all that the active one has."""

    def is_up(self, said: str) -> bool:
        return IS_ACTIVE in said or IS_SYNCHRONIZED in said


class Pair(Nodes[Node]):
    """The first is the primary. Whenever it is there and has all that the backup has, it is the active one."""

    def __init__(self, home: Path, folder: Path) -> None:
        with ThreadPoolExecutor() as threads:  # making one takes seconds
            super().__init__(list(threads.map(lambda name: Node(home, folder / name), ("primary", "backup"))))
        self.primary, self.backup = self.nodes
        locks = LOCKS.format(locks=subfolder(folder, "locks"))
        ports = [self.network.port_to(node, node.core_port) for node in self.nodes]
        policies = [f"<primary>{locks}</primary>", f"<backup>{locks}<allow-failback>true</allow-failback></backup>"]
        for node, itself, other, policy in zip(self.nodes, ports, reversed(ports), policies, strict=True):
            config = CONFIG.format(host=HOST, itself=itself, other=other, user=USER, password=PASSWORD, policy=policy)
            file = node.folder / "etc" / "broker.xml"
            text = file.read_text(encoding="utf-8")
            assert text.count(BEFORE) == 1
            file.write_text(text.replace(BEFORE, config + BEFORE), encoding="utf-8")
