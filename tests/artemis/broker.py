"""A real ActiveMQ Artemis on loopback, for tests that need a broker: fetched by Maven, stopped, killed and restarted.

Needs Java 17 or newer and Maven, which keeps what it has fetched: `missing` tells what isn't there.
"""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

ARTIFACT = "org.apache.activemq:apache-artemis:2.44.0:tar.gz:bin"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
LEAST_JAVA = 17
HOST = "127.0.0.1"
USER = PASSWORD = "admin"  # noqa: S105 - of a broker that listens on loopback and is gone after the tests
STOMP_PORT, AMQP_PORT, CORE_PORT = 61613, 5672, 61616
OFFSETS = range(1, 3_900)
"""By which all ports of a broker are moved: none then lies where the system takes its own from for connections, so
that nobody has taken it when the broker is restarted."""
JAVA_ARGS = (
    # Without the better one of its compilers Java is up in a third of the time.
    "-Xmx1G -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.disableJmx=true"
    " --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
)
IS_UP = "AMQ221007"
STARTS_SECS = STOPS_SECS = 60
FETCHES_SECS = 600


def missing() -> str | None:
    """What isn't on this machine of what a broker needs; None if all is."""
    if os.name != "posix":
        return "the broker is started by a shell script"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=Path(home) / "bin" if home else None)
    if java is None:
        return f"no Java: install version {LEAST_JAVA} or newer"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < LEAST_JAVA:
        return f"Java {LEAST_JAVA} or newer is needed, and {java} says {said.partition(chr(10))[0]}"
    return None if shutil.which("mvn") else "no Maven, which fetches the broker: install mvn"


def fetch(folder: Path) -> Path:
    """Where the broker's program is, after Maven has fetched it and it was unpacked into the folder."""
    ran = subprocess.run(
        ["mvn", "--batch-mode", "--quiet", COPY, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FETCHES_SECS,
        check=False,
    )
    assert ran.returncode == 0, f"Maven could not fetch {ARTIFACT}:\n{ran.stdout}{ran.stderr}"
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    (home,) = folder.glob("apache-artemis-*")
    return home


class Broker:
    """One broker and its data, in a folder of its own; not running until `start`.

    Anybody may connect, with any password; with `require_login` only USER with PASSWORD. Addresses and queues are made
    when they are first used. Its ports stay the same for its life.
    """

    def __init__(self, home: Path, folder: Path, *, require_login: bool = False) -> None:
        self._folder = folder
        self._log = folder / "said.log"
        self._process: subprocess.Popen[bytes] | None = None
        offset = _free_offset()
        self.stomp_port, self.amqp_port = STOMP_PORT + offset, AMQP_PORT + offset
        arguments = ["--user", USER, "--password", PASSWORD, "--host", HOST, "--port-offset", str(offset)]
        flags = ["no-web", "no-mqtt-acceptor", "no-hornetq-acceptor", "no-autotune", "nio", "silent"]
        flags.append("require-login" if require_login else "allow-anonymous")
        arguments += [f"--{flag}" for flag in flags]
        subprocess.run([home / "bin" / "artemis", "create", *arguments, folder], capture_output=True, check=True)

    def said(self, since: int = 0) -> str:
        """What it has logged, but for the first so many bytes."""
        with self._log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def start(self, id_cache_sizes: Mapping[str, int] | None = None) -> None:
        """Start and wait until it is up; `id_cache_sizes` are those of its duplicate id caches, by address.

        Addresses not named have the broker's default, 20,000, whatever they had before.
        """
        assert self._process is None, "it is running"
        sizes = [f'addressSettings."{name}".IDCacheSize={size}' for name, size in (id_cache_sizes or {}).items()]
        properties = self._folder / "etc" / "tests.properties"
        # A machine with a full disk isn't what is tested.
        properties.write_text("\n".join(["maxDiskUsage=-1", *sizes]), encoding="utf-8")
        with self._log.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                [self._folder / "bin" / "artemis", "run", "--properties", properties],
                env=os.environ | {"JAVA_ARGS": JAVA_ARGS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        give_up = time.monotonic() + STARTS_SECS
        while IS_UP not in self.said(before):
            assert self._process.poll() is None, f"it has ended:\n{self.said(before)}"
            assert time.monotonic() < give_up, f"it isn't up yet:\n{self.said(before)}"
            time.sleep(0.02)

    def stop(self) -> None:
        """End as an operator ends it, and wait until it has written down what it knows."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once, by kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Be sure that it has ended; for whoever will not start it again."""
        if self._process is not None:
            self.kill()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "it isn't running"
        self._process.send_signal(how)
        try:
            self._process.wait(STOPS_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None


@contextmanager
def new_broker(home: Path, *, require_login: bool = False) -> Iterator[Broker]:
    """A broker of the program at `home`, not running yet; whatever happens, it has ended afterwards and left nothing."""
    with tempfile.TemporaryDirectory(prefix="receiver-artemis-") as folder:
        broker = Broker(home, Path(folder) / "broker", require_login=require_login)
        try:
            yield broker
        finally:
            broker.close()


def _free_offset() -> int:
    for offset in random.sample(OFFSETS, len(OFFSETS)):
        with ExitStack() as stack:
            try:
                for port in (STOMP_PORT, AMQP_PORT, CORE_PORT):
                    stack.enter_context(socket.create_server((HOST, port + offset)))
            except OSError:
                continue
            return offset
    raise AssertionError("all ports are taken")
