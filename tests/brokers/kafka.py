"""A real Kafka of one node, broker and controller in one (KRaft), of the libraries that it needs."""

import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.demo.processes import HOST, JAVA_ARGS, Server, free_ports, last_lines
from receiver.errors import BrokerError
from tests.brokers.cached import fetch_jars

VERSION = "4.3.1"
ARTIFACTS = [f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36"]
# The session's timeout is what a restart after a kill waits for: the controller takes the dead one for alive so long.
CONFIG = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""
ANSWERS_SECS = 30


def fetch(cache: Path) -> Path:
    """The folder of its libraries, fetched by Maven if it isn't there."""
    return fetch_jars(cache, f"kafka-{VERSION}", ARTIFACTS)


class Broker(Server):
    """One node and its data in a folder of its own; not running until `start`.

    Its ports stay the same for its life. It has no login. Topics are made by `declare` alone.
    """

    def __init__(self, home: Path, folder: Path, more: Callable[[str], str] = lambda config: config) -> None:
        """`more` changes the configuration."""
        super().__init__(folder / "said.log")
        self._java = ["java", "-Xmx384m", *JAVA_ARGS.split(), "-cp", f"{home}/*"]
        self._config = folder / "server.properties"
        self.port, controller_port = free_ports(9092, 9093)
        ports = {"host": HOST, "port": self.port, "controller": controller_port}
        self._config.write_text(more(CONFIG.format(folder=folder, **ports)), encoding="utf-8")
        formats = ["kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(self._config)]
        ran = subprocess.run([*self._java, *formats], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise BrokerError(f"Kafka's data can't be made: {last_lines(ran.stdout + ran.stderr)}")

    @property
    def servers(self) -> str:
        """Where its clients connect to, `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start and wait until it is up."""
        self.launch([*self._java, "kafka.Kafka", str(self._config)], lambda said: "Kafka Server started" in said)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers})

    def declare(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic; `retention_ms="1000"` and so on."""
        given = {name.replace("_", "."): value for name, value in config.items()}
        admin = self.admin()  # kept by its name, for its answers end with it
        made = admin.create_topics([NewTopic(topic, partitions, 1, config=given)], operation_timeout=ANSWERS_SECS)
        made[topic].result(ANSWERS_SECS)
        self._until(lambda: self._leaders(topic) == partitions)

    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """The name of a topic of its own."""
        name = f"orders-{uuid.uuid4().hex}"
        self.declare(name, partitions, **config)
        return name

    def delete(self, topic: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([topic]).values()
        deleted.result(ANSWERS_SECS)
        self._until(lambda: self._leaders(topic) == 0)
        time.sleep(0.5)

    def _leaders(self, topic: str) -> int:
        """How many partitions of a topic it serves, as it says to all who ask."""
        shown = self.admin().list_topics(topic, timeout=ANSWERS_SECS).topics[topic]
        return sum(partition.leader >= 0 for partition in shown.partitions.values())

    def _until(self, is_so: Callable[[], bool]) -> None:
        """What it has taken from one, it says to others a moment later."""
        give_up = time.monotonic() + ANSWERS_SECS
        while not is_so():
            assert time.monotonic() < give_up
            time.sleep(0.05)

    def address(self, topic: str, group: str | None = None, **options: str) -> str:
        """The address of a topic as the bridge takes it."""
        given = {"group": group, **options} if group else options
        more = "&".join(f"{name}={value}" for name, value in given.items())
        return f"kafka://{self.servers}/{topic}" + (f"?{more}" if more else "")
