"""A real Qpid Broker-J, made of the libraries that it needs for AMQP 1.0 and Derby, its store on disk."""

import json
from pathlib import Path

from examples.demo.processes import HOST, JAVA_ARGS, Server, free_ports
from tests.brokers.cached import WithQueues, fetch_jars

VERSION = "10.1.0"
ARTIFACTS = [f"org.apache.qpid:qpid-broker:{VERSION}"]
WITHOUT = [
    "org.apache.qpid:qpid-bdbstore",  # needs Berkeley DB, which Maven Central hasn't
    "org.apache.qpid:qpid-broker-plugins-amqp-1-0-protocol-bdb-link-store",
    "org.apache.qpid:qpid-broker-plugins-management-http",  # a third of the whole size
    "org.apache.qpid:qpid-broker-plugins-websocket",
]


def fetch(cache: Path) -> Path:
    """The folder of its libraries. Maven fetches them if they aren't there."""
    return fetch_jars(cache, f"qpid-broker-{VERSION}", ARTIFACTS, WITHOUT)


class Broker(WithQueues, Server):
    """One broker and its data, in its own folder. It doesn't run until `start`. Derby keeps the data through `kill`.

    Its ports never change. Clients need its login. Queues are made when they are first used.
    """

    user = password = "admin"

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(folder / "said.log")
        self._home, self._folder = home, folder
        (self.amqp_port,) = free_ports(5672)
        self._config = folder / "initial.json"
        self._config.write_text(json.dumps(self._initial()), encoding="utf-8")

    def _initial(self) -> dict[str, object]:
        makes_queues = {"pattern": ".*", "createdOnPublish": True, "createdOnConsume": True, "nodeType": "queue"}
        host = {"type": "DERBY", "nodeAutoCreationPolicies": [makes_queues | {"attributes": {}}]}
        user = {"name": self.user, "type": "managed", "password": self.password}
        port = {"name": "amqp", "port": self.amqp_port, "bindingAddress": HOST, "authenticationProvider": "users"}
        aliases = [{"name": f"{kind}Alias", "type": f"{kind}Alias"} for kind in ("default", "name", "hostname")]
        node = {"name": "default", "type": "JSON", "defaultVirtualHostNode": True}
        return {
            "name": "Broker",
            "modelVersion": "9.1",
            "authenticationproviders": [
                {"name": "users", "type": "Plain", "secureOnlyMechanisms": [], "users": [user]},
            ],
            "ports": [port | {"protocols": ["AMQP_1_0"], "virtualhostaliases": aliases}],
            "virtualhostnodes": [node | {"virtualHostInitialConfiguration": json.dumps(host)}],
        }

    def start(self) -> None:
        """Start and wait until it is up."""
        java = ["java", "-Xmx256m", *JAVA_ARGS.split(), "-cp", f"{self._home}/*", f"-DQPID_WORK={self._folder}/work"]
        command = [*java, "org.apache.qpid.server.Main", "-icp", str(self._config)]
        self.launch(command, lambda said: "BRK-1004" in said)
