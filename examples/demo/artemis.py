"""A real ActiveMQ Artemis on loopback: fetched by Maven, started, stopped, killed and started again.

Needs Java 17 or newer, and Maven to fetch it once.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from examples.demo import processes
from examples.demo.processes import HOST, JAVA_ARGS, Server
from receiver.errors import BrokerError, MissingProgramError

VERSION = "2.44.0"
USER = PASSWORD = "admin"  # noqa: S105 - of a broker that listens on loopback alone
_NAME = f"apache-artemis-{VERSION}"
_ARTIFACT = f"org.apache.activemq:apache-artemis:{VERSION}:tar.gz:bin"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_STOMP_PORT, _AMQP_PORT, _CORE_PORT = 61613, 5672, 61616
_JAVA_ARGS = f"-Xmx1G {JAVA_ARGS} -Dlog4j2.disableJmx=true --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
_IS_UP = "AMQ221007"


def check_programs(cache: Path) -> None:
    """Raise `MissingProgramError` if a program that a broker needs isn't on this machine."""
    if os.name != "posix":
        raise MissingProgramError("the broker is started by a shell script", hint="on Windows: run this in WSL")
    processes.require_java("ActiveMQ Artemis")
    if not home_in(cache).is_dir():
        processes.require_maven()


def home_in(cache: Path) -> Path:
    """The folder of the broker's program within the cache; once it exists, the program is whole."""
    return cache / _NAME


def fetch(cache: Path) -> Path:
    """The folder of the broker's program within the cache, fetched by Maven if it wasn't there."""
    return processes.whole(home_in(cache), _unpacked)


def _unpacked(folder: Path) -> Path:
    processes.fetch_by_maven(_ARTIFACT, [_COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}"], folder)
    try:
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (ValueError, EOFError, tarfile.TarError) as error:
        raise MissingProgramError(f"what Maven brought isn't the archive of {_ARTIFACT}: {error}") from error
    return folder / _NAME


class Broker(Server):
    """One broker and its data, in a folder of its own; not running until `start`.

    Anybody may connect, with any password; with `require_login` only USER with PASSWORD. Addresses and queues are made
    when they are first used. Its ports stay the same for its life. What it can't do is a `BrokerError`.
    """

    def __init__(self, home: Path, folder: Path, *, require_login: bool = False) -> None:
        super().__init__(folder / "said.log")
        self.folder = folder
        self.stomp_port, self.amqp_port, self.core_port = processes.free_ports(_STOMP_PORT, _AMQP_PORT, _CORE_PORT)
        """The port of Artemis' own protocol, which its JMS client speaks."""
        arguments = [
            "--user",
            USER,
            "--password",
            PASSWORD,
            "--host",
            HOST,
            "--port-offset",
            str(self.stomp_port - _STOMP_PORT),
        ]
        flags = ["no-web", "no-mqtt-acceptor", "no-hornetq-acceptor", "no-autotune", "nio", "silent"]
        flags.append("require-login" if require_login else "allow-anonymous")
        arguments += [f"--{flag}" for flag in flags]
        command = [str(home / "bin" / "artemis"), "create", *arguments, str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if ran.returncode:
            raise BrokerError(f"a broker can't be made in {folder}: {processes.last_lines(ran.stdout + ran.stderr)}")

    def start(
        self, id_cache_sizes: Mapping[str, int] | None = None, *, properties: Mapping[str, object] | None = None
    ) -> None:
        """Start and wait until it is up.

        `id_cache_sizes` are those of its duplicate id caches, by address; addresses not named have the broker's default,
        20,000, whatever they had before. `properties` are more of the broker's own, such as
        `addressSettings."#".maxDeliveryAttempts`; they too hold until it ends.
        """
        # A disk that is nearly full is no reason to stop a broker that keeps a few megabytes.
        given: dict[str, object] = {"maxDiskUsage": -1}
        given |= {f'addressSettings."{name}".IDCacheSize': size for name, size in (id_cache_sizes or {}).items()}
        given |= properties or {}
        file = self.folder / "etc" / "given.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
        command = [str(self.folder / "bin" / "artemis"), "run", "--properties", str(file)]
        self.launch(command, self.is_up, {"JAVA_ARGS": _JAVA_ARGS})

    def is_up(self, said: str) -> bool:
        """Whether it is, by what it has said since it was started."""
        return _IS_UP in said


@contextmanager
def new_broker(home: Path, *, require_login: bool = False) -> Iterator[Broker]:
    """A broker of the program at `home`, not running yet; whatever happens, it has ended afterwards and left nothing."""
    with tempfile.TemporaryDirectory(prefix="receiver-artemis-") as folder:
        broker = Broker(home, Path(folder) / "broker", require_login=require_login)
        try:
            yield broker
        finally:
            broker.close()
