"""A proxy on loopback between clients and a server. A test can cut its links."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

CLOSED = (asyncio.IncompleteReadError, ConnectionError)
_ACCEPTS_SECS = 0.01
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """A client's connection to the proxy, and the proxy's connection to the server for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        """Pass on the client's bytes. The link is cut when this ends."""
        raise NotImplementedError

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        """Pass on the server's bytes. The link is cut when this ends."""
        raise NotImplementedError


class Proxy:
    """A proxy that listens on its own port. `serving` runs it."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Streams]],
        make_link: Callable[[asyncio.StreamWriter, asyncio.StreamWriter], Link],
        port: int = 0,
    ) -> None:
        """`port`: its port; 0 for any free one."""
        self._connect = connect
        self._make_link = make_link
        self.links: set[Link] = set()
        self.reachable = True
        self.loop = asyncio.new_event_loop()
        self.listener = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", port))
        self.port: int = self.listener.sockets[0].getsockname()[1]

    def listen(self, *, again: bool) -> None:
        """Refuse connections as if nobody listened; with `again`, take them again."""

        async def listen_again() -> None:
            self.listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

        asyncio.run_coroutine_threadsafe(listen_again() if again else self.deafen(), self.loop).result()

    async def deafen(self) -> None:
        """Stop listening. If a server closes while asyncio takes a connection, that connection stays open. So first
        no new one is taken."""
        for listening in self.listener.sockets:
            self.loop.remove_reader(listening.fileno())
        await asyncio.sleep(_ACCEPTS_SECS)
        self.listener.close()

    def cut(self) -> None:
        """Cut all links now."""

        async def abort_all() -> None:
            for link in self.links:
                link.abort()

        asyncio.run_coroutine_threadsafe(abort_all(), self.loop).result()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if not self.reachable:
            client.transport.abort()
            return
        try:
            server_reader, server = await self._connect()
        except OSError:
            client.transport.abort()
            return
        link = self._make_link(client, server)
        self.links.add(link)
        pumps = [
            asyncio.create_task(link.from_client(client_reader)),
            asyncio.create_task(link.from_server(server_reader)),
        ]
        try:
            ended, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            with suppress(*CLOSED):
                await ended.pop()
        except asyncio.CancelledError:
            pass  # the proxy is closed; where tasks end so, the loop of Python 3.11 logs an error
        finally:
            link.abort()  # first, since the proxy may be closed while the others are awaited
            self.links.discard(link)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


@contextmanager
def serving(proxy: Proxy) -> Iterator[None]:
    """Serve the proxy's clients in a thread until the block ends."""
    thread = threading.Thread(target=proxy.loop.run_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_closed(proxy), proxy.loop).result()
        proxy.loop.call_soon_threadsafe(proxy.loop.stop)
        thread.join()
        proxy.loop.close()


async def _closed(proxy: Proxy) -> None:
    await proxy.deafen()
    serving = asyncio.all_tasks() - {asyncio.current_task()}
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
