"""Programs of brokers, which stay in the user's cache; and brokers in temporary folders."""

import fcntl
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from platformdirs import user_cache_path

from examples.demo.processes import HOST, Server, fetch_by_maven, require_java, require_maven, whole
from receiver.errors import MissingProgramError

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>receiver</groupId><artifactId>brokers</artifactId><version>1</version>
<dependencies>{}</dependencies>
</project>"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions>{}</exclusions></dependency>"""
EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class WithQueues:
    """A broker with queues and a login. It has a port for each protocol, such as `amqp_port`."""

    user: str
    password: str

    def address(self, protocol: str, queue: str) -> str:
        """The address of a queue for the bridge, by one of the broker's protocols, with the login."""
        port = getattr(self, f"{protocol}_port")
        return f"{protocol}://{self.user}:{self.password}@{HOST}:{port}/queue/{queue}"


def fetched(fetch: Callable[[Path], Path]) -> Path:
    """The folder that `fetch` makes in the cache. Processes fetch one after the other. Skips the test if fetching
    isn't possible."""
    cache = user_cache_path("reliable-receiver", ensure_exists=True)
    with (cache / "fetching.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            return fetch(cache)
        except MissingProgramError as error:
            pytest.skip(str(error))


def fetch_jars(cache: Path, name: str, artifacts: Sequence[str], without: Sequence[str] = ()) -> Path:
    """The folder of a Java program's libraries: these `group:artifact:version` and all that they need, but not
    `without`."""
    require_java(name)
    exclusions = "".join(EXCLUSION.format(*artifact.split(":")) for artifact in without)
    pom = POM.format("".join(DEPENDENCY.format(*artifact.split(":"), exclusions) for artifact in artifacts))
    home = cache / f"{name}-{zlib.crc32(pom.encode()):08x}"

    def bring(folder: Path) -> Path:
        require_maven()
        (folder / "pom.xml").write_text(pom, encoding="utf-8")
        fetch_by_maven(name, [COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"], folder)
        return folder / "jars"

    return whole(home, bring)


@contextmanager
def new_broker(product: ModuleType, make: Callable[[Path, Path], Server] | None = None) -> Iterator[Server]:
    """A broker of a product, which doesn't run yet. At the end of the block it ends and its folder is removed, whatever
    happens.

    The product's module has `fetch` and `Broker`. It also has `FOLDERS` if its brokers must be inside the fetched
    folder. `make` makes another kind of broker than `Broker`.
    """
    home = fetched(product.fetch)
    folders = home / product.FOLDERS if hasattr(product, "FOLDERS") else None
    with tempfile.TemporaryDirectory(prefix="receiver-broker-", dir=folders, ignore_cleanup_errors=True) as folder:
        broker = (make or product.Broker)(home, Path(folder))
        try:
            yield broker
        finally:
            broker.close()
