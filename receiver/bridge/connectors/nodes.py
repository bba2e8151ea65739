"""Which node of a cluster to connect to, where an address names several hosts: any will do that serves it.

They are tried in turn. After a loss the turn begins behind the node that was lost: so a node that takes connections and then
ends them, or freezes, keeps nobody from the others.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from receiver.bridge.connectors.address import BrokerAddress, Node
from receiver.errors import BrokerError, BrokerRefusedError, ReceiverError, SettingsError
from receiver.retrying import may_pass

_T = TypeVar("_T")
_LOGGER = logging.getLogger("receiver.bridge")
_LOOKS_SECS = 3.0
"""How long all nodes have, at the first connection, to say what they are."""


class Nodes:
    """The nodes of an address, for all of a process that connect there."""

    def __init__(self, address: BrokerAddress, identity_of: Callable[[BrokerAddress], str]) -> None:
        """`identity_of` says of a node what all nodes of a cluster have in common, such as the product's name."""
        self.address = address
        self.at: Node | None = None
        """The one that was connected to last; None before, and with Kafka, whose client chooses nodes by itself."""
        self.changes = 0
        """How often it was another than before."""
        self._identity_of = identity_of
        self._identities: dict[Node, str] = {}
        self._away: list[ReceiverError] = []
        """Why nodes didn't say what they are when all were asked."""
        self._has_looked = False
        self._lock = threading.Lock()

    def look(self) -> None:
        """Ask all nodes at once what they are, the first time. Who doesn't answer soon is asked when it is connected to.

        Raises:
            SettingsError: They aren't one cluster.
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
        """Know what a node is; errors are those of connecting there, and of `look`."""
        if node not in self._identities:
            self._identities[node] = self._identity_of(self.address.at(node))
        self._compare()  # also with those that were slow to answer

    def _ask(self, node: Node) -> None:
        try:
            self._identities[node] = self._identity_of(self.address.at(node))
        except ReceiverError as error:  # whoever connects there hears of it
            self._away.append(error)

    def _compare(self) -> None:
        known = {node: self._identities[node] for node in self.address.nodes if node in self._identities}
        if len(set(known.values())) > 1:
            said = ", ".join(f"{node} is {identity}" for node, identity in known.items())
            raise SettingsError(f"{self.address} isn't one cluster: {said}", hint="name hosts of one cluster alone")

    def tell_of_unknown(self) -> None:
        """Warn, once somebody has connected, of hosts that stand for nothing: their names may be misspelt."""
        away, self._away = self._away, []
        for error in away:
            if isinstance(error.__cause__, socket.gaierror):
                _LOGGER.warning("%s", error)

    def note(self, node: Node) -> None:
        """Note that somebody has connected to a node."""
        with self._lock:
            before, self.at = self.at, node
            self.changes += before not in {None, node}
        if before not in {None, node}:
            _LOGGER.warning("%s: goes on at %s, no longer at %s", self.address, node, before)


class Way(Generic[_T]):
    """A way to connect to whichever node serves. Whoever connects again and again has one of its own, such as a copy."""

    def __init__(self, nodes: Nodes, make: Callable[..., _T]) -> None:
        """`make` connects to an address."""
        self.nodes = nodes
        self._make = make
        self._last: Node | None = None

    def __call__(self, **more: Any) -> _T:
        """What `make` makes at the first node that serves.

        Raises:
            BrokerError: None does. `BrokerRefusedError` if all refuse.
            SettingsError: The nodes aren't one cluster.
        """
        nodes, address = self.nodes, self.nodes.address
        if address.others:
            nodes.look()
        made = self._make(address, **more) if address.finds_nodes else first_of(self._turn(), partial(self._at, more))
        nodes.tell_of_unknown()
        return made

    def _at(self, more: Mapping[str, Any], node: Node) -> _T:
        nodes = self.nodes
        if nodes.address.others:
            nodes.identify(node)
        made = self._make(nodes.address.at(node), **more)
        self._last = node
        nodes.note(node)
        return made

    def _turn(self) -> list[Node]:
        """All nodes, from the one that others have connected to since; or else from behind the one that was lost."""
        nodes, at = self.nodes.address.nodes, self.nodes.at
        first = 0 if at is None else nodes.index(at) + (at == self._last)
        return [*nodes[first:], *nodes[:first]]


def first_of(nodes: Sequence[Node], do: Callable[[Node], _T]) -> _T:
    """What `do` returns for the first node that it works for; errors as with a `Way`."""
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
