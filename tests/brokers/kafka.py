"""A real Kafka, made of the libraries that it needs: one node that is broker and controller (KRaft), or three."""

import os
import subprocess
import time
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.demo.processes import HOST, JAVA_ARGS, Server, free_ports, last_lines
from receiver.errors import BrokerError
from tests.brokers.cached import fetch_jars
from tests.brokers.cluster import Nodes, subfolder
from tests.patience import until

VERSION = "4.3.1"
ARTIFACTS = [f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36"]
ANSWERS_SECS = 30


def fetch(cache: Path) -> Path:
    """The folder of its libraries. Maven fetches them if they aren't there."""
    return fetch_jars(cache, f"kafka-{VERSION}", ARTIFACTS)


class WithTopics:
    """Servers with topics, without a login. Only `declare` makes topics."""

    servers: str
    """The addresses for clients, `bootstrap.servers`."""
    replicas = 1

    @abstractmethod
    def whole_nodes(self) -> Sequence["Broker"]:
        """The nodes that answer."""

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers})

    def declare(self, topic: str, partitions: int = 1, *, node: int | None = None, **config: str) -> None:
        """Make a topic, with settings such as `retention_ms="1000"`. If a node's number is given, only that node has
        the topic."""
        given: dict[str, Any] = {"config": {name.replace("_", "."): value for name, value in config.items()}}
        if node is None:
            given["replication_factor"] = self.replicas
        else:
            given["replica_assignment"] = [[node]] * partitions
        admin = self.admin()  # the name keeps it alive: its answers end with it
        made = admin.create_topics([NewTopic(topic, partitions, **given)], operation_timeout=ANSWERS_SECS)
        made[topic].result(ANSWERS_SECS)
        # Each node learns of the topic by itself, and a client may ask any node.
        until(lambda: all(node.leaders(topic) == partitions for node in self.whole_nodes()))

    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """Make a new topic and return its name."""
        name = f"orders-{uuid.uuid4().hex}"
        self.declare(name, partitions, **config)
        return name

    def delete(self, topic: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([topic]).values()
        deleted.result(ANSWERS_SECS)
        until(lambda: self.leaders(topic) == 0)
        time.sleep(0.5)

    def leaders(self, topic: str) -> int:
        """How many partitions of a topic have a leader, by what a node answers to clients. A node may know of a
        change a moment later."""
        shown = self.admin().list_topics(topic, timeout=ANSWERS_SECS).topics[topic]
        return sum(partition.leader >= 0 for partition in shown.partitions.values())

    def address(self, topic: str, group: str | None = None, **options: str) -> str:
        """The address of a topic for the bridge."""
        given = {"group": group, **options} if group else options
        more = "&".join(f"{name}={value}" for name, value in given.items())
        return f"kafka://{self.servers}/{topic}" + (f"?{more}" if more else "")


class Broker(WithTopics, Server):
    """One node and its data, in its own folder. It doesn't run until `start`. Its ports never change."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(folder / "said.log")
        self._folder = folder
        self._java = ["java", "-Xmx384m", *JAVA_ARGS.split(), "-cp", f"{home}/*"]
        self.port, self.controller_port = free_ports(9092, 9093)
        self.servers = f"{HOST}:{self.port}"
        self.cluster_id = uuid.uuid4().hex[:22]
        controller = f"{HOST}:{self.controller_port}"
        self.settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 500,
            # So long the controller takes a dead node for alive. A restart after a kill waits for that.
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 500,
            **_replicated(1, least=1),
        }
        """Settings of its configuration, which is made at the first start."""

    def whole_nodes(self) -> Sequence["Broker"]:
        return [self]

    def start(self) -> None:
        """Start and wait until it is up."""
        config = self._folder / "server.properties"
        if not config.exists():
            config.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()), encoding="utf-8")
            formats = ["kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(config)]
            ran = subprocess.run([*self._java, *formats], capture_output=True, text=True, check=False)
            if ran.returncode:
                raise BrokerError(f"Kafka's data can't be made: {last_lines(ran.stdout + ran.stderr)}")
        self.launch([*self._java, "kafka.Kafka", str(config)], lambda said: "Kafka Server started" in said)

    def lose_half(self, topic: str) -> None:
        """Lose the later half of the topic's partition, as a power cut may. Call it only while the node doesn't run."""
        data = self._folder / "data"
        (log,) = (data / f"{topic}-0").glob("*.log")
        os.truncate(log, log.stat().st_size // 2)
        (data / ".kafka_cleanshutdown").unlink()  # so that it checks what is left


class Cluster(Nodes[Broker], WithTopics):
    """Three nodes, each broker and controller. Two are enough to go on. What is written is safe on two."""

    replicas = 3

    def __init__(self, home: Path, folder: Path) -> None:
        Nodes.__init__(self, [Broker(home, subfolder(folder, f"node{number}")) for number in range(1, 4)])
        self.servers = ",".join(node.servers for node in self.nodes)
        to_controllers = [f"{HOST}:{self.network.port_to(node, node.controller_port)}" for node in self.nodes]
        voters = ",".join(f"{number}@{controller}" for number, controller in enumerate(to_controllers, 1))
        for number, (node, controller) in enumerate(zip(self.nodes, to_controllers, strict=True), 1):
            (port,) = free_ports(9094)
            to_node = f"{HOST}:{self.network.port_to(node, port)}"
            node.cluster_id = self.nodes[0].cluster_id
            node.settings |= {
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"{node.settings['listeners']},INTERNAL://{HOST}:{port}",
                "advertised.listeners": f"PLAINTEXT://{node.servers},INTERNAL://{to_node},CONTROLLER://{controller}",
                "listener.security.protocol.map": ",".join(
                    f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "INTERNAL", "CONTROLLER")
                ),
                "inter.broker.listener.name": "INTERNAL",
                **_replicated(self.replicas, least=2),
            }

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Wait until a partition has a leader that runs and is in touch with the others, and return that node."""

        def asked() -> Broker | None:
            shown = self.whole_nodes()[0].admin().list_topics(topic, timeout=ANSWERS_SECS).topics[topic]
            number = shown.partitions[partition].leader
            return self.nodes[number - 1] if number > 0 and self.is_whole(self.nodes[number - 1]) else None

        return until(asked)


class Apart(Nodes[Broker], WithTopics):
    """Two nodes, 1 and 2. Only the first is a controller."""

    def __init__(self, home: Path, folder: Path) -> None:
        Nodes.__init__(self, [Broker(home, subfolder(folder, f"node{number}")) for number in (1, 2)])
        first, second = self.nodes
        self.servers = first.servers
        second.cluster_id = first.cluster_id
        second.settings |= {
            "process.roles": "broker",
            "node.id": 2,
            "controller.quorum.voters": first.settings["controller.quorum.voters"],
            "listeners": f"PLAINTEXT://{second.servers}",
        }


def _replicated(replicas: int, *, least: int) -> dict[str, object]:
    """Settings for how many nodes have each partition, and how many must have what is confirmed."""
    factors = ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic"]
    leasts = ["transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr", "min.insync.replicas"]
    return dict.fromkeys((f"{name}.replication.factor" for name in factors), replicas) | dict.fromkeys(leasts, least)
