"""Chooses the node of a cluster to connect to, if an address names several hosts: any node that serves the address.

Nodes are tried in turn. After a loss the turn begins behind the lost node. So a node that accepts connections and then ends
them, or freezes, doesn't keep us from the others.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from receiver.bridge.connectors.address import BrokerAddress, Node
from receiver.errors import BrokerError, BrokerRefusedError, ReceiverError, SettingsError
from receiver.retrying import may_pass

_T = TypeVar("_T")
_LOGGER = logging.getLogger("receiver.bridge")
_LOOKS_SECS = 3.0
"""How long all nodes have, at the first connection, to identify themselves."""


class Nodes:
    """The nodes of an address, shared by all connections of a process to it."""

    def __init__(self, address: BrokerAddress, identity_of: Callable[[BrokerAddress], str]) -> None:
        """`identity_of` gives what all nodes of a cluster have in common, such as the product's name."""
        self.address = address
        self.at: Node | None = None
        """The node to which we connected last; None before, and with Kafka, whose client chooses nodes by itself."""
        self.changes = 0
        """How often that node changed."""
        self._identity_of = identity_of
        self._identities: dict[Node, str] = {}
        self._away: list[ReceiverError] = []
        """The errors of nodes that didn't identify themselves when all were asked."""
        self._has_looked = False
        self.serve_at_once = False
        """Whether several nodes answered when all were asked, even late: of a primary and its backups only one would."""
        self._lock = threading.Lock()

    def look(self) -> None:
        """At the first call, ask all nodes at once for their identity. Slow ones are asked later, when we connect to them.

        Raises:
            SettingsError: The nodes aren't one cluster.
        """
        with self._lock:
            has_looked, self._has_looked = self._has_looked, True
        if has_looked:
            return
        asking = [threading.Thread(target=self._ask, args=[node], daemon=True) for node in self.address.nodes]
        for thread in asking:
            thread.start()
        until = time.monotonic() + _LOOKS_SECS
        for thread in asking:
            thread.join(max(0.0, until - time.monotonic()))
        self._compare()

    def identify(self, node: Node) -> None:
        """Ask a node for its identity unless it is known. Errors are those of connecting, and of `look`."""
        if node not in self._identities:
            self._identities[node] = self._identity_of(self.address.at(node))
        self._compare()  # also with nodes that were slow to answer

    def _ask(self, node: Node) -> None:
        try:
            self._identities[node] = self._identity_of(self.address.at(node))
            if len(self._identities) > 1:
                self.serve_at_once = True
        except ReceiverError as error:  # connecting there will raise it again
            self._away.append(error)

    def _compare(self) -> None:
        known = {node: self._identities[node] for node in self.address.nodes if node in self._identities}
        if len(set(known.values())) > 1:
            said = ", ".join(f"{node} is {identity}" for node, identity in known.items())
            raise SettingsError(f"{self.address} isn't one cluster: {said}", hint="name hosts of one cluster alone")

    def tell_of_unknown(self) -> None:
        """Warn, after a connection, of hosts whose names don't resolve: they may be misspelt."""
        away, self._away = self._away, []
        for error in away:
            if isinstance(error.__cause__, socket.gaierror):
                _LOGGER.warning("%s", error)

    def note(self, node: Node) -> None:
        """Note a connection to a node."""
        with self._lock:
            before, self.at = self.at, node
            self.changes += before not in {None, node}
        if before not in {None, node}:
            _LOGGER.warning("%s: goes on at %s, no longer at %s", self.address, node, before)


class ConnectionFactory(Generic[_T]):
    """Connects to the first node that serves. Each user that connects repeatedly needs one `of_its_own`."""

    def __init__(self, nodes: Nodes, make: Callable[..., _T]) -> None:
        """`make` connects to an address."""
        self.nodes = nodes
        self._make = make
        self._last: Node | None = None

    def of_its_own(self, **more: Any) -> ConnectionFactory[_T]:
        """Another factory, with a turn of its own among the nodes. Its `make` also gets these arguments."""
        return ConnectionFactory(self.nodes, partial(self._make, **more))

    def __call__(self) -> _T:
        """The result of `make` for the first node that serves.

        Raises:
            BrokerError: No node serves. `BrokerRefusedError` if all refuse.
            SettingsError: The nodes aren't one cluster.
        """
        nodes, address = self.nodes, self.nodes.address
        if address.others:
            nodes.look()
        made = self._make(address) if address.finds_nodes else first_of(self._turn(), self._at)
        nodes.tell_of_unknown()
        return made

    def _at(self, node: Node) -> _T:
        nodes = self.nodes
        if nodes.address.others:
            nodes.identify(node)
        made = self._make(nodes.address.at(node))
        self._last = node
        nodes.note(node)
        return made

    def _turn(self) -> list[Node]:
        """All nodes in order, from the one connected to last; if we lost that one, from the next."""
        nodes, at = self.nodes.address.nodes, self.nodes.at
        first = 0 if at is None else nodes.index(at) + (at == self._last)
        return [*nodes[first:], *nodes[:first]]


def first_of(nodes: Sequence[Node], do: Callable[[Node], _T]) -> _T:
    """The result of `do` for the first node for which it succeeds; errors as with a `ConnectionFactory`."""
    failures = []
    for node in nodes:
        try:
            return do(node)
        except BrokerError as error:
            if len(nodes) == 1 or not may_pass(error):
                raise
            failures.append(error)
    refusals = [error for error in failures if isinstance(error, BrokerRefusedError)]
    kind = BrokerRefusedError if refusals == failures else BrokerError
    raise kind("; ".join(error.message for error in failures), hint=(refusals or failures)[0].hint)
