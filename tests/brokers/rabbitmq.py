"""A real RabbitMQ 4, from a Debian that is unpacked into a folder of the cache. It runs there by chroot."""

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pika

from examples.demo.processes import HOST, Server, free_ports, last_lines, run_to_fetch, whole
from receiver.errors import BrokerError, MissingProgramError
from tests.brokers.cached import WithQueues
from tests.brokers.cluster import Nodes, subfolder
from tests.brokers.epmd import Names
from tests.patience import until

SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
PLUGINS = ("rabbitmq_stomp", "rabbitmq_stream")
PROGRAMS = "/usr/lib/rabbitmq/bin"
FOLDERS = "var/lib/rabbitmq"
"""The folder for brokers' folders, inside the root in which they run."""
CONFIG = """listeners.tcp.1 = {host}:{amqp}
stomp.listeners.tcp.1 = {host}:{stomp}
stream.listeners.tcp.1 = {host}:{stream}
disk_free_limit.absolute = 50MB
log.console = true
log.file = false
"""
# After 5 s the others notice that a node is cut off. That node serves nobody until it is back.
CLUSTER = """cluster_formation.peer_discovery_backend = classic_config
cluster_partition_handling = pause_minority
net_ticktime = 5
"""
IS_UP = "Server startup complete"


def fetch(cache: Path) -> Path:
    """The folder that is the program's root. debootstrap makes it if it isn't there."""
    if os.name != "posix" or os.geteuid():
        raise MissingProgramError("RabbitMQ runs in a root of its own, which only root can make")
    return whole(cache / f"rabbitmq-{SUITE}", _bring)


def _bring(folder: Path) -> Path:
    if shutil.which("debootstrap") is None:
        raise MissingProgramError("debootstrap fetches RabbitMQ, and there is none", hint="apt install debootstrap")
    root = folder / "root"
    hint = f"it needs access to {MIRROR}, and the right to make devices"
    bootstrap = ["debootstrap", "--variant=minbase", SUITE, str(root), MIRROR]
    try:
        run_to_fetch("debootstrap", f"Debian {SUITE}", bootstrap, folder, hint=hint)
    finally:  # debootstrap may have left it mounted
        subprocess.run(["umount", str(root / "proc")], check=False, capture_output=True)
    refuses_to_start = root / "usr" / "sbin" / "policy-rc.d"
    refuses_to_start.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    refuses_to_start.chmod(0o755)
    for name in ("hosts", "resolv.conf"):
        shutil.copy(Path("/etc") / name, root / "etc" / name)
    install = (
        "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends rabbitmq-server && apt-get clean"
    )
    run_to_fetch("apt-get", "RabbitMQ", ["chroot", str(root), "sh", "-c", install], folder, hint=hint)
    return root


class Broker(WithQueues, Server):
    """One node and its data, in its own folder inside the program's root. It doesn't run until `start`.

    Its ports never change. It keeps durable queues through `kill`.
    """

    name = "RabbitMQ"
    user = password = "guest"

    def __init__(self, root: Path, folder: Path) -> None:
        super().__init__(folder / "said.log")
        self._root = root
        self._folder = folder
        self._names: Names | None = None
        self._has_declared = False
        ports = free_ports(5672, 61613, 5552, 4369, 25672)
        self.amqp_port, self.stomp_port, self.stream_port, self.names_port, self.dist_port = ports
        config = CONFIG.format(host=HOST, amqp=self.amqp_port, stomp=self.stomp_port, stream=self.stream_port)
        (folder / "rabbitmq.conf").write_text(config, encoding="utf-8")
        (folder / "plugins").write_text(f"[{','.join(PLUGINS)}].\n", encoding="utf-8")
        self.node = f"receiver{self.amqp_port}"
        within = f"/{folder.relative_to(root)}"
        self._env = {
            "HOME": within,
            "LANG": "C.UTF-8",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self.names_port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_NODENAME": f"{self.node}@localhost",
            "RABBITMQ_CONFIG_FILE": f"{within}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{within}/plugins",
            "RABBITMQ_MNESIA_BASE": within,
            "RABBITMQ_LOG_BASE": within,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "1",  # so that no shell stays between us and the broker and takes our signals
        }

    def _command(self, program: str, *arguments: str) -> list[str]:
        return ["chroot", str(self._root), program, *arguments]

    def start(self) -> None:
        """Start and wait until it is up."""
        self._names = self._names or Names(self.names_port)
        self.launch(self._command(f"{PROGRAMS}/rabbitmq-server"), lambda said: IS_UP in said, self._env)

    def join(self, names: Names, config: str, cookie: str) -> None:
        """Make it a node of a cluster. Call it before the first start."""
        self._names = names
        self._env["ERL_EPMD_PORT"] = str(names.port)
        with (self._folder / "rabbitmq.conf").open("a", encoding="utf-8") as file:
            file.write(config)
        secret = self._folder / ".erlang.cookie"
        secret.write_text(cookie, encoding="utf-8")
        secret.chmod(0o400)

    def kill(self) -> None:
        """Kill -9 it. Queues that `declare` has made are kept, as they would be two seconds later."""
        if self._has_declared:
            self.ctl("eval", "mnesia:sync_log().")
            self._has_declared = False
        super().kill()

    def close(self) -> None:
        self._has_declared = False
        super().close()
        if self._names is not None:
            self._names.close()

    def ctl(self, *arguments: str) -> str:
        """The output of `rabbitmqctl`, which takes a second or two."""
        command = self._command(f"{PROGRAMS}/rabbitmqctl", "--quiet", *arguments)
        ran = subprocess.run(command, env=os.environ | self._env, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise BrokerError(f"rabbitmqctl {arguments}: {last_lines(ran.stdout + ran.stderr)}")
        return ran.stdout

    def connect(self, vhost: str = "/") -> pika.BlockingConnection:
        """A connection by AMQP 0-9-1."""
        login = pika.PlainCredentials(self.user, self.password)
        return pika.BlockingConnection(pika.ConnectionParameters(HOST, self.amqp_port, vhost, login))

    def declare(self, queue: str, kind: str = "classic", *, vhost: str = "/", **arguments: Any) -> None:
        """Make a durable queue of the kind `classic`, `quorum` or `stream`, with arguments such as
        `x_delivery_limit=2`."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        with self.connect(vhost) as connection:
            connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": kind} | given)
        self._has_declared = True


class Cluster(Nodes[Broker]):
    """Three nodes. Two are enough to go on."""

    def __init__(self, root: Path, folder: Path) -> None:
        super().__init__([Broker(root, subfolder(folder, f"node{number}")) for number in range(1, 4)])
        config = CLUSTER + "".join(
            f"cluster_formation.classic_config.nodes.{number} = {node.node}@localhost\n"
            for number, node in enumerate(self.nodes, 1)
        )
        ports = {node.node: self.network.port_to(node, node.dist_port) for node in self.nodes}
        names, cookie = Names(self.nodes[0].names_port, ports), uuid.uuid4().hex
        for node in self.nodes:
            node.join(names, config, cookie)

    def leader(self, queue: str) -> Broker:
        """Wait until the other nodes name a leader of a quorum queue or stream, and return that node."""

        def asked() -> Broker | None:
            there = next(node for node in self.nodes if self.is_whole(node))
            try:
                rows = there.ctl("list_queues", "name", "leader").splitlines()
            except BrokerError:  # the others have just lost it
                return None
            leaders = dict(row.split("\t") for row in rows if "\t" in row)
            name = leaders.get(queue, "").partition("@")[0]
            return next((node for node in self.nodes if node.node == name and self.is_whole(node)), None)

        return until(asked)
