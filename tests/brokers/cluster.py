"""The nodes of a cluster. A test can kill them, freeze them, cut them off from the others, and start them again.

Proxies on loopback carry what nodes send each other, so that cutting a node off needs no rights.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import psutil

from examples.demo.processes import HOST, Server, free_ports
from tests import links

PIECE_BYTES = 1 << 16
TICK_SECS = 0.02
_SEEN_PORT = 20_000
_LISTENS = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""
_Node = TypeVar("_Node", bound=Server)


class _Wire(links.Link):
    """A connection from one node to another. While it is held up, no bytes come through, and neither end notices."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        super().__init__(client, server)
        self.client_port: int = client.get_extra_info("peername")[1]
        self.passes = asyncio.Event()

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        await self._pass_on(reader, self.server)

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        await self._pass_on(reader, self.client)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open = True
        while is_open:
            try:
                data = await reader.read(PIECE_BYTES)
            except ConnectionError:
                data = b""
            await self.passes.wait()  # bytes and the end that come while it is held up are passed on later
            is_open = bool(data)
            writer.write(data)
            await writer.drain()


class Network:
    """The connections between nodes. A node that is cut off can't reach the others, nor they it. Clients still reach
    it.

    A connection to a node that doesn't listen is refused, as without proxies: brokers take a refusal otherwise than
    silence.
    """

    def __init__(self) -> None:
        self.away: set[Server] = set()
        """The nodes that are cut off."""
        self._routes: list[_Route] = []
        self._serving = ExitStack()
        self._ended = threading.Event()
        self._following = threading.Thread(target=self._follow, daemon=True)

    def port_to(self, node: Server, port: int) -> int:
        """The port through which other nodes reach a node's port."""
        (seen_port,) = free_ports(_SEEN_PORT)
        proxy = links.Proxy(partial(asyncio.open_connection, HOST, port), partial(self._new_wire, node), seen_port)
        self._serving.enter_context(links.serving(proxy))
        self._routes.append(_Route(node, port, proxy))
        return seen_port

    def start(self) -> None:
        """Begin to watch which nodes listen. Call it before the first node listens."""
        if self._following.ident is None:
            self._following.start()

    def _follow(self) -> None:
        open_ports = {route.port for route in self._routes}
        while not self._ended.wait(TICK_SECS):
            listening = _listening_ports()
            for route in self._routes:
                if (route.port in open_ports) != (route.port in listening):
                    route.proxy.listen(again=route.port in listening)
            open_ports = listening

    def cut_off(self, node: Server) -> None:
        self.away.add(node)
        self._hold()

    def mend(self) -> None:
        self.away.clear()
        self._hold()

    def close(self) -> None:
        self._ended.set()
        if self._following.ident is not None:
            self._following.join()
        self._serving.close()

    def _hold(self) -> None:
        """Let each wire pass bytes on, or hold it up if one of its nodes is away."""

        async def hold(target: Server, wires: set[_Wire]) -> None:
            for wire in wires:
                self._hold_if_away(target, wire)

        for route in self._routes:
            asyncio.run_coroutine_threadsafe(hold(route.node, route.proxy.links), route.proxy.loop).result()

    def _new_wire(self, target: Server, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> _Wire:
        wire = _Wire(client, server)
        self._hold_if_away(target, wire)
        return wire

    def _hold_if_away(self, target: Server, wire: _Wire) -> None:
        if any(node is target or wire.client_port in _client_ports(node) for node in self.away):
            wire.passes.clear()
        else:
            wire.passes.set()


class _Route(NamedTuple):
    node: Server
    port: int
    proxy: links.Proxy


def _listening_ports() -> set[int]:
    """The ports on which any process listens. To connect to each port would disturb the listeners."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in lines if state == _LISTENS}


def _client_ports(node: Server) -> set[int]:
    """The local ports of the connections that the node's process has made. Only they show which node a connection
    comes from."""
    if node.pid is None:
        return set()
    try:
        return {each.laddr.port for each in psutil.Process(node.pid).net_connections("tcp") if each.laddr}
    except psutil.NoSuchProcess:
        return set()


class Nodes(Generic[_Node]):
    """The nodes of a cluster. They don't run until `start`. `close` ends all of them, in whatever state they are."""

    def __init__(self, nodes: Sequence[_Node]) -> None:
        self.nodes = nodes
        self.network = Network()
        self._frozen: set[_Node] = set()

    def start(self, *nodes: _Node) -> None:
        """Start these nodes at once, by default all, and wait until they are up."""
        self.network.start()
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda node: node.start(), nodes or self.nodes))

    def stop(self) -> None:
        """Stop all nodes, the last first."""
        for node in reversed(self.nodes):
            node.stop()

    def freeze(self, node: _Node) -> None:
        """Freeze a node: its connections stay, and it sends nothing until `thaw`."""
        os.kill(_pid(node), signal.SIGSTOP)
        self._frozen.add(node)

    def thaw(self, node: _Node) -> None:
        os.kill(_pid(node), signal.SIGCONT)
        self._frozen.discard(node)

    def settle(self) -> None:
        """Wait until the cluster can do without any one of its nodes again."""

    def is_whole(self, node: _Node) -> bool:
        """Whether the node runs, and is neither frozen nor cut off."""
        return node.pid is not None and node not in self._frozen and node not in self.network.away

    def whole_nodes(self) -> Sequence[_Node]:
        return [node for node in self.nodes if self.is_whole(node)]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.network.close()


def is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((HOST, port)) == 0


def subfolder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def _pid(node: Server) -> int:
    assert node.pid is not None
    return node.pid
