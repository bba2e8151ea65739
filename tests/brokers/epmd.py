"""A port mapper for Erlang's nodes that gives the ports of proxies. So a test can come between the nodes of a cluster.

Source: "EPMD Protocol" in Erlang's documentation, https://www.erlang.org/doc/apps/erts/erl_dist_protocol.
"""

import asyncio
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from examples.demo.processes import HOST
from tests.links import CLOSED

_REGISTERS, _ASKS_PORT, _ASKS_NAMES = b"xzn"
_REGISTERED, _PORT = 118, 119
_HIDDEN, _TCP, _VERSION = 72, 0, 6


class Names:
    """Answers where a node listens. A node is known while its connection to this server lasts, as with epmd."""

    def __init__(self, port: int, ports: Mapping[str, int] = MappingProxyType({})) -> None:
        """Listens on `port`. `ports` are the ports by which nodes are reached, by their names before the @. A node
        that isn't listed is reached at the port that it registers."""
        self.port = port
        self._ports = ports
        self._here: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._listener = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, port))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Closing again does nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listener.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*CLOSED, asyncio.CancelledError):
            (length,) = struct.unpack(">H", await reader.readexactly(2))
            asked = await reader.readexactly(length)
            if asked[0] == _REGISTERS:
                await self._register(asked, reader, writer)
            elif asked[0] == _ASKS_PORT:
                writer.write(self._port_of(asked[1:]))
            elif asked[0] == _ASKS_NAMES:
                lines = "".join(f"name {name} at port {port}\n" for name, port in self._here.items())
                writer.write(struct.pack(">I", self.port) + lines.encode())
            await writer.drain()
        writer.close()

    async def _register(self, asked: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port, length = struct.unpack_from(">xH6xH", asked)
        name = asked[11 : 11 + length].decode()
        self._here[name] = self._ports.get(name, port)
        writer.write(struct.pack(">BBI", _REGISTERED, 0, 1))
        try:
            await reader.read()
        finally:
            del self._here[name]

    def _port_of(self, name: bytes) -> bytes:
        port = self._here.get(name.decode())
        if port is None:
            return struct.pack(">BB", _PORT, 1)
        about = struct.pack(">BBHBBHH", _PORT, 0, port, _HIDDEN, _TCP, _VERSION, _VERSION)
        return about + struct.pack(">H", len(name)) + name + struct.pack(">H", 0)
