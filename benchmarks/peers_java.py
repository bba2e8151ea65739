"""The peers that are written in Java, as one process that answers commands; and a broker at its full speed."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from examples.demo.artemis import Broker
from examples.demo.processes import HOST, fetch_by_maven, last_lines, require_java, require_maven, whole
from receiver.closing import Closing
from tests.brokers.cached import COPY

_SOURCES = Path(__file__).parent / "java"
_POM = _SOURCES / "pom.xml"
_BROKER_ARGS = "-Xms512M -Xmx1G --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
_FLUSH_NANOS = 100_000
"""How long the journal collects writes before it syncs. A broker that tunes itself to its disk takes 0.1 to 0.2 ms."""


def fetch(cache: Path) -> Path:
    """The folder of the peers' libraries, fetched by Maven if it isn't there."""
    require_java("the peers")

    def bring(folder: Path) -> Path:
        require_maven()
        shutil.copy(_POM, folder)
        copied = [COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
        fetch_by_maven("Apache Camel", copied, folder)
        return folder / "jars"

    return whole(cache / f"peers-{zlib.crc32(_POM.read_bytes()):08x}", bring)


class TunedBroker(Broker):
    """A broker with Java's better compiler, and with a journal as quick as one that has tuned itself to its disk."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(home, folder)
        file = folder / "etc" / "broker.xml"
        itself = f'<connectors><connector name="itself">tcp://{HOST}:{self.core_port}</connector></connectors>'
        settings = f"<journal-buffer-timeout>{_FLUSH_NANOS}</journal-buffer-timeout>{itself}<acceptors>"
        config = re.sub("<journal-buffer-timeout>.*?</journal-buffer-timeout>", "", file.read_text(encoding="utf-8"))
        file.write_text(config.replace("<acceptors>", settings, 1), encoding="utf-8")

    def launch(self, command: Sequence[str], is_up: Any, env: Mapping[str, str] | None = None) -> None:
        super().launch(command, is_up, {**(env or {}), "JAVA_ARGS": _BROKER_ARGS})


class Peers(Closing):
    """The process of `Peers.java`."""

    def __init__(self, jars: Path, broker: Broker, store: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as said:
            command = ["java", "-cp", f"{jars}/*", str(_SOURCES / "Peers.java"), str(broker.core_port), _jdbc(store)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None  # noqa: S101 - they are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer.startswith("done"):
            said = self._log.read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"{command}: {answer or 'it has ended'}: {last_lines(said)}")
        return answer.removeprefix("done").strip()


def _jdbc(store: str) -> str:
    """The same database, by the same socket or port, as an address for Java."""
    url = make_url(store)
    user = f"user={url.username or 'postgres'}" + (f"&password={url.password}" if url.password else "")
    folder = url.query.get("host")
    if folder is None:
        return f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database}?{user}"
    socket = f"{folder}/.s.PGSQL.{url.query.get('port', url.port or 5432)}"
    factory = "org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg"
    return f"jdbc:postgresql://localhost/{url.database}?{user}&sslmode=disable&socketFactory={factory}&socketFactoryArg={socket}"
