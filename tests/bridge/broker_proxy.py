"""Links to a broker that can be cut at any moment: also after the broker has acted, and before its answer arrives."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from examples.demo.processes import HOST
from tests import links

PIECE_BYTES = 1 << 16


class Link(links.Link):
    """A link that passes bytes on. While muted, it drops the server's. While unheard, it drops the client's."""

    muted = unheard = False

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE_BYTES):
            if not self.unheard:
                self.server.write(data)
                await self.server.drain()

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE_BYTES):
            if not self.muted:
                self.client.write(data)
                await self.client.drain()


class BrokerProxy(links.Proxy):
    """A proxy that listens on its own port, and connects to the broker's port."""

    def __init__(self, port: int) -> None:
        super().__init__(partial(asyncio.open_connection, HOST, port), Link)

    def cut_muted(self, muted_secs: float) -> None:
        """Cut all links, after a time in which the broker hears its clients and they don't hear it."""

        async def abort_all() -> None:
            cut = list(self.links)
            for link in cut:
                link.muted = True
            await asyncio.sleep(muted_secs)
            for link in cut:
                link.abort()

        asyncio.run_coroutine_threadsafe(abort_all(), self.loop).result()


@contextmanager
def broker_proxy(port: int) -> Iterator[BrokerProxy]:
    """A proxy to this port of a broker. It listens until the block ends."""
    proxy = BrokerProxy(port)
    with links.serving(proxy):
        yield proxy
