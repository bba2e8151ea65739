"""A real ActiveMQ Artemis on loopback: fetched by Maven, started, stopped, killed and started again.

Needs Java 17 or newer, and Maven to fetch it once.
"""

from __future__ import annotations

import os
import random
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

from receiver.demo.process import uninterrupted
from receiver.errors import BrokerError, MissingProgramError
from receiver.java import require_java

__all__ = ["HOST", "PASSWORD", "USER", "VERSION", "Broker", "check_programs", "fetch", "home_in", "new_broker"]

VERSION = "2.44.0"
HOST = "127.0.0.1"
USER = PASSWORD = "admin"  # noqa: S105 - of a broker that listens on loopback alone
_NAME = f"apache-artemis-{VERSION}"
_ARTIFACT = f"org.apache.activemq:apache-artemis:{VERSION}:tar.gz:bin"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_STOMP_PORT, _AMQP_PORT, _CORE_PORT = 61613, 5672, 61616
_OFFSETS = range(1, 3_900)
"""One of these is added to all ports of a broker. None of the ports then lies among those that the system takes for
connections, so they are still free when the broker is started again."""
_JAVA_ARGS = (
    # Without the better one of its compilers Java is up in a third of the time.
    "-Xmx1G -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.disableJmx=true"
    " --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
)
_IS_UP = "AMQ221007"
_STARTS_SECS = _STOPS_SECS = 60
_FETCHES_SECS = 600
_LAST_LINES = 5


def check_programs(cache: Path) -> None:
    """Raise `MissingProgramError` if a program that a broker needs isn't on this machine."""
    if os.name != "posix":
        raise MissingProgramError("the broker is started by a shell script", hint="on Windows: run this in WSL")
    require_java("ActiveMQ Artemis", MissingProgramError)
    if not home_in(cache).is_dir() and shutil.which("mvn") is None:
        raise MissingProgramError(
            "Maven fetches the broker, and there is no mvn on the PATH",
            hint="install it (Debian, Ubuntu: apt install maven; macOS: brew install maven; "
            "others: https://maven.apache.org)",
        )


def home_in(cache: Path) -> Path:
    """The folder of the broker's program within the cache; once it exists, the program is whole."""
    return cache / _NAME


def fetch(cache: Path) -> Path:
    """The folder of the broker's program within the cache, fetched by Maven if it wasn't there."""
    home = home_in(cache)
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked beside `home` and then renamed: a process killed on the way leaves no half of a program there.
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as folder:
        _fetch_archive(Path(folder))
        unpacked = _unpacked(Path(folder))
        try:
            unpacked.rename(home)
        except OSError:
            if not home.is_dir():  # else another process was faster
                raise
    return home


def _unpacked(folder: Path) -> Path:
    try:
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (ValueError, EOFError, tarfile.TarError) as error:
        raise MissingProgramError(f"what Maven brought isn't the archive of {_ARTIFACT}: {error}") from error
    return folder / _NAME


def _fetch_archive(folder: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", _COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}"]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCHES_SECS, check=False)
    except subprocess.TimeoutExpired:
        raise MissingProgramError(
            f"Maven has not fetched {_ARTIFACT} in {_FETCHES_SECS} s", hint="try again with a better connection"
        ) from None
    if ran.returncode:
        raise MissingProgramError(
            f"Maven can't fetch {_ARTIFACT}: {_last_lines(ran.stdout + ran.stderr)}",
            hint="it needs the way to Maven Central, or a mirror of it in ~/.m2/settings.xml",
        )


class Broker:
    """One broker and its data, in a folder of its own; not running until `start`.

    Anybody may connect, with any password; with `require_login` only USER with PASSWORD. Addresses and queues are made
    when they are first used. Its ports stay the same for its life. What it can't do is a `BrokerError`.
    """

    def __init__(self, home: Path, folder: Path, *, require_login: bool = False) -> None:
        self._folder = folder
        self._log = folder / "said.log"
        self._process: subprocess.Popen[bytes] | None = None
        offset = _free_offset()
        self.stomp_port, self.amqp_port = _STOMP_PORT + offset, _AMQP_PORT + offset
        self.core_port = _CORE_PORT + offset
        """The port of Artemis' own protocol, which its JMS client speaks."""
        arguments = ["--user", USER, "--password", PASSWORD, "--host", HOST, "--port-offset", str(offset)]
        flags = ["no-web", "no-mqtt-acceptor", "no-hornetq-acceptor", "no-autotune", "nio", "silent"]
        flags.append("require-login" if require_login else "allow-anonymous")
        arguments += [f"--{flag}" for flag in flags]
        command = [str(home / "bin" / "artemis"), "create", *arguments, str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if ran.returncode:
            raise BrokerError(f"a broker can't be made in {folder}: {_last_lines(ran.stdout + ran.stderr)}")

    def said(self, since: int = 0) -> str:
        """What it has logged after the first `since` bytes."""
        with self._log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def start(
        self, id_cache_sizes: Mapping[str, int] | None = None, *, properties: Mapping[str, object] | None = None
    ) -> None:
        """Start and wait until it is up.

        `id_cache_sizes` are those of its duplicate id caches, by address; addresses not named have the broker's default,
        20,000, whatever they had before. `properties` are more of the broker's own, such as
        `addressSettings."#".maxDeliveryAttempts`; they too hold until it ends.
        """
        if self._process is not None:
            raise BrokerError("the broker is running already")
        # A disk that is nearly full is no reason to stop a broker that keeps a few megabytes.
        given: dict[str, object] = {"maxDiskUsage": -1}
        given |= {f'addressSettings."{name}".IDCacheSize': size for name, size in (id_cache_sizes or {}).items()}
        given |= properties or {}
        file = self._folder / "etc" / "given.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
        with self._log.open("ab") as log:
            before = log.tell()
            with uninterrupted():
                self._process = subprocess.Popen(
                    [self._folder / "bin" / "artemis", "run", "--properties", file],
                    env=os.environ | {"JAVA_ARGS": _JAVA_ARGS},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the process that started it, which then ends it
                )
        self._wait_until_up(self._process, before)

    def _wait_until_up(self, process: subprocess.Popen[bytes], before: int) -> None:
        give_up = time.monotonic() + _STARTS_SECS
        while _IS_UP not in (said := self.said(before)):
            if process.poll() is not None:
                raise BrokerError(f"the broker has ended as it started: {_last_lines(said)}")
            if time.monotonic() > give_up:
                raise BrokerError(f"the broker isn't up after {_STARTS_SECS} s: {_last_lines(said)}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it by SIGTERM, and wait until it has written its data and ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, by kill -9."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it if it still runs."""
        if self._process is not None:
            self.kill()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            raise BrokerError("the broker isn't running")
        self._process.send_signal(how)
        try:
            self._process.wait(_STOPS_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerError(f"the broker hasn't stopped in {_STOPS_SECS} s, and was killed") from None
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
    for offset in random.sample(_OFFSETS, len(_OFFSETS)):
        with ExitStack() as stack:
            try:
                for port in (_STOMP_PORT, _AMQP_PORT, _CORE_PORT):
                    stack.enter_context(socket.create_server((HOST, port + offset)))
            except OSError:
                continue
            return offset
    raise BrokerError("all ports that a broker could listen on are taken")


def _last_lines(said: str) -> str:
    return " | ".join(line.strip() for line in said.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
