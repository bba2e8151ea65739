"""A link to PostgreSQL that can be cut around a COMMIT, the one moment that matters."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from pathlib import PurePosixPath

from sqlalchemy import URL, make_url

from tests import links
from tests.postgres import shown

LATE_SECS = 0.3
READY_FOR_QUERY = b"Z"
"""The kind of the last message in the server's reply to a query."""


class Cut(Enum):
    """When the link breaks."""

    BEFORE_COMMIT = auto()
    """COMMIT never reaches the server."""
    BEFORE_REPLY = auto()
    """The server has committed, but its reply never reaches the client."""
    LATE_COMMIT = auto()
    """The client sees a broken link while its COMMIT is still under way. The COMMIT reaches the server a little
    later."""


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """The kind and all bytes of each message: a letter, a length that includes itself, and the rest."""
    while True:
        kind = await reader.readexactly(1)
        length = await reader.readexactly(4)
        yield kind, kind + length + await reader.readexactly(int.from_bytes(length) - 4)


def begins_commit(kind: bytes, message: bytes) -> bool:
    """Whether the message is a Query with the text COMMIT, or a Parse of such a statement without a name."""
    text = {b"Q": message[5:], b"P": message[6:]}.get(kind, b"")
    return text.split(b"\0")[0].strip().upper() == b"COMMIT"


class Link(links.Link):
    """A link that reads the messages on it."""

    def __init__(self, proxy: "Proxy", client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        super().__init__(client, server)
        self.proxy = proxy
        self.muted = False

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        # The first message has no letter. A request for encryption would come before it, but the proxy's address asks
        # for none.
        length = await reader.readexactly(4)
        self.server.write(length + await reader.readexactly(int.from_bytes(length) - 4))
        stream = messages(reader)
        async for kind, first in stream:
            message = first
            cut = None
            if begins_commit(kind, message):
                if kind == b"P":  # Bind, Describe and Execute follow, then Sync
                    async for part, rest in stream:
                        message += rest
                        if part == b"S":
                            break
                cut = self.proxy.take()
            if cut is Cut.BEFORE_COMMIT:
                return
            if cut:
                self.muted = True
            if cut is Cut.LATE_COMMIT:
                self.client.transport.abort()
                await asyncio.sleep(LATE_SECS)
            self.server.write(message)
            await self.server.drain()
            if cut:
                await asyncio.Event().wait()  # wait until the server's reply ends the other direction

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        async for kind, message in messages(reader):
            if not self.muted:
                self.client.write(message)
                await self.client.drain()
            elif kind == READY_FOR_QUERY:
                return


class Proxy(links.Proxy):
    """A proxy that listens on `url` for clients of the server. `proxied` makes it."""

    def __init__(self, server_url: str) -> None:
        self._server_url = make_url(server_url)
        self._armed: Cut | None = None
        self._then_unreachable = False
        self._lock = threading.Lock()
        super().__init__(partial(_connect, self._server_url), partial(Link, self))

    @property
    def url(self) -> str:
        query = {"sslmode": "disable", "gssencmode": "disable"}
        return shown(self._server_url.set(host="127.0.0.1", port=self.port, query=query))

    def arm(self, cut: Cut, *, then_unreachable: bool = False) -> None:
        """Cut the link at the next COMMIT. With `then_unreachable`, new links are refused until `reachable` is set
        again."""
        with self._lock:
            self._armed, self._then_unreachable = cut, then_unreachable

    @property
    def armed(self) -> bool:
        """Whether the cut hasn't happened yet."""
        return self._armed is not None

    def take(self) -> Cut | None:
        with self._lock:
            cut, self._armed = self._armed, None
            if cut:
                self.reachable = not self._then_unreachable
            return cut


async def _connect(server_url: URL) -> links.Streams:
    host = server_url.host or server_url.query.get("host", "localhost")
    port = server_url.port or 5432
    if PurePosixPath(str(host)).is_absolute():
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(str(host), port)


@contextmanager
def proxied(server_url: str) -> Iterator[Proxy]:
    """A proxy to this server, which listens until the block ends."""
    proxy = Proxy(server_url)
    with links.serving(proxy):
        yield proxy
