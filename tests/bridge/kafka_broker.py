"""A real Kafka on loopback, one node: fetched by Maven, started, stopped, killed and started again."""

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from receiver.errors import MissingProgramError

VERSION = "4.3.1"
HOST = "127.0.0.1"
STARTS_SECS = 60
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>receiver</groupId><artifactId>kafka-broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
JAVA = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
JAVA += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]


def fetch(folder: Path) -> Path:
    """The folder of its jars."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise MissingProgramError("Kafka needs Java and Maven")
    (folder / "pom.xml").write_text(POM)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    ran = subprocess.run(
        [*command, f"-DoutputDirectory={folder / 'lib'}"], cwd=folder, capture_output=True, check=False
    )
    if ran.returncode:
        raise MissingProgramError(f"Maven can't fetch Kafka: {ran.stdout.decode()[-500:]}")
    return folder / "lib"


class KafkaBroker:
    """One broker and its data, in a folder of its own; not running until `start`. Its ports stay the same."""

    def __init__(self, jars: Path, folder: Path, *settings: str) -> None:
        self._command = [*JAVA, f"{jars}/*"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.secure_port, self._controller_port = _free_port(), _free_port(), _free_port()
        self._config = folder / "server.properties"
        self._config.write_text("\n".join([*self._settings(), *settings]))
        cluster = str(uuid.uuid4().hex[:22])
        format_ = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config)]
        ran = subprocess.run([*self._command, *format_], capture_output=True, check=False)
        assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()[-2000:]

    def _settings(self) -> Iterator[str]:
        at, controller = f"{HOST}:{self.port}", f"{HOST}:{self._controller_port}"
        yield "process.roles=broker,controller"
        yield "node.id=1"
        yield f"controller.quorum.voters=1@{controller}"
        yield f"listeners=PLAINTEXT://{at},CONTROLLER://{controller}"
        yield f"advertised.listeners=PLAINTEXT://{at}"
        yield "controller.listener.names=CONTROLLER"
        yield "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        yield f"log.dirs={self._folder / 'data'}"
        yield "offsets.topic.replication.factor=1"
        yield "offsets.topic.num.partitions=1"
        yield "transaction.state.log.replication.factor=1"
        yield "transaction.state.log.min.isr=1"
        yield "group.initial.rebalance.delay.ms=0"
        yield "group.min.session.timeout.ms=500"
        yield "log.retention.check.interval.ms=500"
        yield "log.segment.delete.delay.ms=100"

    def start(self) -> None:
        with (self._folder / "said.log").open("ab") as log:
            command = [*self._command, "kafka.Kafka", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        until = time.monotonic() + STARTS_SECS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "said.log").read_text()[-2000:]
            assert time.monotonic() < until, "Kafka doesn't start"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def new_topic(self, partitions: int = 1, **config: str) -> str:
        """The name of a topic of its own."""
        name = f"orders-{uuid.uuid4().hex}"
        self.make(name, partitions, **config)
        return name

    def make(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
        made.result(30)
        time.sleep(0.1)

    def delete(self, name: str) -> None:
        admin = self.admin()
        (deleted,) = admin.delete_topics([name]).values()
        deleted.result(30)
        time.sleep(0.5)

    def set(self, topic: str, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        (done,) = admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, settings)]).values()
        done.result(30)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": f"{HOST}:{self.port}"})

    def address(self, topic: str, group: str | None = None, **options: str) -> str:
        given = {"group": group, **options} if group else options
        more = "&".join(f"{name}={value}" for name, value in given.items())
        return f"kafka://{HOST}:{self.port}/{topic}" + (f"?{more}" if more else "")

    def _answers(self) -> bool:
        with closing(socket.socket()) as link:
            if link.connect_ex((HOST, self.port)):
                return False
        try:
            return bool(self.admin().list_topics(timeout=1).brokers)
        except Exception:  # noqa: BLE001 - whatever it is, it isn't up
            return False


@contextmanager
def new_broker(jars: Path, folder: Path, *settings: str) -> Iterator[KafkaBroker]:
    """One that runs."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = KafkaBroker(jars, folder, *settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def _free_port() -> int:
    with closing(socket.socket()) as held:
        held.bind((HOST, 0))
        return int(held.getsockname()[1])
