"""A real ActiveMQ Classic, made of the libraries that it needs for STOMP, AMQP and a store on disk."""

from pathlib import Path

from examples.demo.processes import HOST, JAVA_ARGS, Server, free_ports
from tests.brokers.cached import WithQueues, fetch_jars

VERSION = "6.3.1"
ARTIFACTS = [
    *(f"org.apache.activemq:activemq-{part}:{VERSION}" for part in ("broker", "kahadb-store", "stomp", "amqp")),
    *(f"org.apache.activemq:activemq-{part}:{VERSION}" for part in ("console", "spring", "jaas")),
    "org.springframework:spring-context:7.0.8",
    "org.slf4j:slf4j-simple:2.0.17",
]
CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="
 http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans.xsd
 http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" brokerName="classic" useJmx="false" dataDirectory="{folder}/data">
<plugins><simpleAuthenticationPlugin anonymousAccessAllowed="true"><users>
<authenticationUser username="{user}" password="{password}" groups="admins"/>
</users></simpleAuthenticationPlugin></plugins>
<transportConnectors>
<transportConnector name="stomp" uri="stomp://{host}:{stomp}"/>
<transportConnector name="amqp" uri="amqp://{host}:{amqp}"/>
</transportConnectors>
</broker></beans>
"""


def fetch(cache: Path) -> Path:
    """The folder of its libraries. Maven fetches them if they aren't there."""
    return fetch_jars(cache, f"activemq-classic-{VERSION}", ARTIFACTS)


class Broker(WithQueues, Server):
    """One broker and its data, in its own folder. It doesn't run until `start`. KahaDB keeps the data through `kill`.

    Its ports never change. Clients may connect without a login; a wrong login is refused. Queues are made when they are
    first used.
    """

    user = password = "admin"

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(folder / "said.log")
        self._home = home
        self._config = folder / "activemq.xml"
        self.amqp_port, self.stomp_port = free_ports(5672, 61613)
        ports = {"host": HOST, "amqp": self.amqp_port, "stomp": self.stomp_port}
        config = CONFIG.format(folder=folder, user=self.user, password=self.password, **ports)
        self._config.write_text(config, encoding="utf-8")

    def start(self) -> None:
        """Start and wait until it is up."""
        java = ["java", "-Xmx256m", *JAVA_ARGS.split(), "-cp", f"{self._home}/*"]
        command = [*java, "org.apache.activemq.console.Main", "start", f"xbean:file:{self._config}"]
        self.launch(command, lambda said: ") started" in said)
