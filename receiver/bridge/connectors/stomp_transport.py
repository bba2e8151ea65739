"""A socket for the STOMP library that never hangs and proves by TLS whom it talks to.

The library's own waits for ever for a broker that takes nothing, looks at all of a body again with each piece of it,
and through TLS doesn't notice that a connection has ended.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from receiver.bridge.connectors.address import CLOSE_SECS, PIECE_BYTES, WOULD_WAIT, BrokerAddress, connected, failure
from receiver.bridge.connectors.stomp_frames import FrameReader
from receiver.errors import BrokerError, MessageRefusedError, MissingExtraError

try:
    from stomp import ConnectionListener
    from stomp.connect import BaseConnection, StompConnection12
    from stomp.exception import StompException
    from stomp.protocol import Protocol12
    from stomp.transport import BaseTransport
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("bridge", "STOMP") from error

__all__ = ["ConnectionListener", "StompConnection", "StompException", "StompTransport"]

_HEARTBEATS_MS = (10_000, 10_000)

# What it logs is raised here too; Python would print it where the application has set up no logging.
logging.getLogger("stomp.py").addHandler(logging.NullHandler())


class StompTransport(BaseTransport):  # type: ignore[misc]
    """The library's thread reads by `receive`; whoever sends writes by `send`, heartbeats among them."""

    def __init__(
        self,
        address: BrokerAddress,
        *,
        max_body_bytes: int,
        answer_secs: float,
        refuse: Callable[[MessageRefusedError], None],
    ) -> None:
        super().__init__(auto_decode=False)
        self.vhost = None
        self.current_host_and_port = (address.host, address.port)
        self.moved_at = time.monotonic()
        """When the broker last sent more than a heartbeat, or took something."""
        self.patience_secs = answer_secs
        """How long the broker may take nothing of what is sent."""
        self.failure: BrokerError | None = None
        self.socket: Any = None
        self._address = address
        self._frames = FrameReader(self._more, refuse, max_body_bytes=max_body_bytes)
        self._sending = threading.Lock()
        self._touching = threading.Lock()  # TLS isn't safe for two threads

    def attempt_connection(self) -> None:
        self.socket = connected(self._address, self.patience_secs)

    def receive(self) -> bytes:
        try:
            return self._frames.read()
        except BrokerError as error:
            self._fail(BrokerError(f"{self._address}: {error.message}", hint=error.hint))
        except (OSError, ValueError) as error:
            self._fail(failure(self._address, error, "is lost"))
        return b""

    def send(self, encoded_frame: bytes) -> None:
        left = memoryview(encoded_frame)
        try:
            with self._sending:
                while left:
                    sent = self._tried(self.socket.send, left[:PIECE_BYTES])
                    if sent is None:
                        self._wait(selectors.EVENT_WRITE, self.patience_secs)
                    else:
                        left = left[sent:]
                        self.moved_at = time.monotonic()
        except (OSError, ValueError) as error:
            self._fail(lost := failure(self._address, error, "is lost"))
            self.disconnect_socket()
            raise lost from error

    def stop(self) -> None:
        """Give the broker a while to end the connection, then end it."""
        if self.io_thread is not None:
            self.io_thread.join(CLOSE_SECS)
            self.disconnect_socket()
            self.io_thread.join()

    def disconnect_socket(self) -> None:
        self.running = False
        if self.socket is None:
            return
        with self._touching, suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # which wakes the thread that reads, to close it

    def cleanup(self) -> None:
        with self._touching:
            self.socket.close()

    def _more(self) -> Any:
        while (data := self._tried(self.socket.recv, PIECE_BYTES)) is None:
            self._wait(selectors.EVENT_READ, None)
        if data.strip(b"\r\n"):
            self.moved_at = time.monotonic()
        self.notify("heartbeat")  # a large message counts while it comes
        return data

    def _tried(self, do: Callable[[Any], Any], what: Any) -> Any:
        """What that gives, or None if it would have to wait."""
        with self._touching:
            try:
                return do(what)
            except WOULD_WAIT:
                return None

    def _wait(self, event: int, secs: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, event)
            if not selector.select(secs):
                raise TimeoutError(f"it takes nothing in {secs:g} s")

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error


class StompConnection(StompConnection12):  # type: ignore[misc]
    """The library's connection over that transport."""

    def __init__(self, transport: StompTransport) -> None:
        BaseConnection.__init__(self, transport)
        # The presence of a length says that a body is bytes.
        Protocol12.__init__(self, transport, _HEARTBEATS_MS, auto_content_length=False)
