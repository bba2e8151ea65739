"""One connection with one link by AMQP 1.0, and the thread that serves it.

Proton serves as an engine without input and output: bytes go in, bytes come out, and it knows how the link stands. One
thread moves the bytes and alone touches the engine, which isn't safe for several; so heartbeats are answered while
whoever took messages is busy with them. What came and what is to be done lies in queues, behind a condition.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
import uuid
from contextlib import suppress
from copy import copy
from typing import Any

from receiver.bridge.connectors import sockets
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.products import Product, amqp_hostnames, product_by_amqp
from receiver.closing import Closing, Mutex
from receiver.errors import BrokerError, BrokerRefusedError, MissingExtraError

try:
    import proton
    from proton import Endpoint
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("bridge", "AMQP") from error

__all__ = ["AHEAD_BYTES", "REFUSALS", "AmqpLink", "proton"]

AHEAD_BYTES = 4 << 20
"""What the broker may send ahead of `take`, and what waits to be written; a larger message goes all the same."""
_HEADERS = (b"AMQP\3\1\0\0", b"AMQP\0\1\0\0")
"""How AMQP 1.0 begins, with a login and without."""
_CLOCK_SECS = 1.0
"""How often clocks are looked at when nothing comes: for heartbeats, and for answers that don't come."""
_OPENED = 1
"""How many things the broker has done once the link is open: that is the first which is asked of it."""
_NOT_FOUND = "amqp:not-found"
REFUSALS = {"amqp:unauthorized-access", _NOT_FOUND, "amqp:not-allowed", "amqp:not-implemented", "amqp:invalid-field"}
"""Conditions that another connection would meet again."""


class _OtherHostnameError(BrokerRefusedError):
    """The broker calls its virtual hosts otherwise than we did."""


class AmqpLink(Closing):
    """One connection with one link, and the thread that serves it.

    Links are opened once the broker has said which product it is, and so how its queues are addressed.
    """

    def __init__(self, address: BrokerAddress, *, client_id: str | None = None) -> None:
        self._address = address
        self._lock = Mutex()
        """We enter this, not the condition, which an interrupt may leave locked, as in `receiver.recording`."""
        self._changed = threading.Condition(self._lock)
        self.product: Product | None = None
        refused: BrokerError | None = None
        for hostname in [address.host] if address.vhost is None else amqp_hostnames(address.vhost):
            self._start(hostname, client_id or f"receiver-{uuid.uuid4().hex}")
            try:
                self._wait_for(_OPENED)
            except BaseException as error:  # after an interrupt, too, nobody would close it, and it would hold messages
                self.close()
                if not isinstance(error, BrokerError) or not self._may_mean_hostname(error):
                    raise
                refused = refused or (None if isinstance(error, _OtherHostnameError) else error)
            else:
                return
        why = "" if refused is None else f": {refused.message}"
        raise BrokerRefusedError(
            f"{address}: the virtual host can't be used{why}",
            hint="check that it exists, and that this user may use it",
        )

    def _start(self, hostname: str, client_id: str) -> None:
        address = self._address
        self._failure: BrokerError | None = None
        self._is_open = False
        self._heard = b""
        self._closes_at: float | None = None
        self._asked, self._done = _OPENED, 0
        self._moved_at, self._waiting_bytes = time.monotonic(), 0
        self._socket = sockets.connected(address)
        try:
            self._wakened, self._waker = socket.socketpair()
        except OSError as error:
            self._socket.close()
            raise sockets.failure(address, error) from error
        for end in (self._wakened, self._waker):
            end.settimeout(0)
        transport = self._transport = proton.Transport()
        transport.max_frame_size = sockets.PIECE_BYTES
        transport.idle_timeout = sockets.ANSWER_SECS
        self._sasl = transport.sasl()
        self._sasl.allow_insecure_mechs = True  # whether a password goes without TLS is for the address to say
        self._sasl.allowed_mechs("ANONYMOUS" if address.user is None else "PLAIN")
        connection = self._connection = proton.Connection()
        connection.container = client_id
        connection.hostname = hostname
        if address.user is not None:
            connection.user, connection.password = address.user, address.password or ""
        self._session: Any = None
        self._links: list[Any] = []
        transport.bind(connection)
        connection.open()
        self._thread = threading.Thread(target=self._run, name="receiver amqp", daemon=True)
        self._thread.start()

    def _may_mean_hostname(self, error: BrokerError) -> bool:
        """Whether another name for the virtual host may be taken: this one isn't, by a product that isn't known yet."""
        if self._address.vhost is None or self.product is not None:
            return isinstance(error, _OtherHostnameError)
        return bool(self._sasl.outcome == proton.SASL.OK)

    def _meet(self) -> None:
        """Learn which product the broker is, and open links as that product wants them."""
        product = self.product = product_by_amqp(self._connection.remote_properties or {})
        self.dialect = product.amqp
        self.drops_known_ids = product.drops_known_ids
        if self._address.vhost is not None:
            hostname = self.dialect.hostname(self._address.vhost)
            if hostname is None:
                raise self._unable("virtual hosts", "leave out ?vhost=")
            if hostname != self._connection.hostname:
                raise _OtherHostnameError(f"{self._address}: it names its virtual hosts in another way")
        self._terminus_address = self.dialect.address(self._address.name, is_topic=self._address.is_topic)
        self._session = self._connection.session()
        self._session.incoming_capacity = self.dialect.session_bytes
        self._session.open()
        self._link = self._make_link()
        self._links = [self._link, *self._more_links()]
        for link in self._links:
            link.open()

    def _unable(self, what: str, instead: str) -> BrokerRefusedError:
        """The error for what the product hasn't."""
        name = "the broker" if self.product is None else self.product.name
        return BrokerRefusedError(f"{self._address}: {name} has no {what}", hint=instead)

    # What kinds of links do in their own way. The thread calls these, with the lock.

    def _make_link(self) -> Any: ...

    def _more_links(self) -> list[Any]:
        return []

    def _serve(self) -> None:
        """Do at the link what is to be done; called after whatever may matter to it."""

    def _give_back(self) -> None:
        """Give back what isn't acknowledged, before the connection ends."""

    def close(self) -> None:
        with self._lock:
            if self._closes_at is None:
                self._closes_at = time.monotonic() + sockets.CLOSE_SECS
                self._fail("the connection is closed")
                self._wake()
        self._thread.join()

    def _ask(self, count: int) -> int:
        """Wake the thread to have the broker do so many more things; how many it has done in all after them."""
        with self._lock:
            self._check()
            if self._asked == self._done:
                self._moved_at = time.monotonic()
            self._asked += count
            self._wake()
            return self._asked

    def _wait_for(self, until: int) -> None:
        """Wait until the broker has done so many things in all."""
        with self._lock:
            self._changed.wait_for(lambda: self._done >= until or self._failure is not None)
            if self._done < until:
                self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)  # whoever asks again has a traceback of its own

    def _fail(self, why: str, kind: type[BrokerError] = BrokerError, hint: str = "connect again") -> None:
        self._fail_with(kind(f"{self._address}: {why}", hint=hint))

    def _fail_with(self, error: BrokerError) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._waker.send(b"!")

    def _run(self) -> None:
        with self._socket, self._wakened, self._waker:
            try:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._wakened, selectors.EVENT_READ)
                    selector.register(self._socket, selectors.EVENT_READ)
                    while self._work():
                        writes = selectors.EVENT_WRITE if self._transport.pending() > 0 else 0
                        selector.modify(self._socket, selectors.EVENT_READ | writes)
                        selector.select(_CLOCK_SECS)
            except Exception as error:  # noqa: BLE001 - whoever waits would never hear of it
                with self._lock:
                    self._fail_lost(sockets.failure(self._address, error, "is lost"))

    def _work(self) -> bool:
        """Read, do and write what can be without waiting; False when all is over."""
        with self._lock:
            with suppress(BlockingIOError):
                self._wakened.recv(sockets.PIECE_BYTES)
            self._read()
            try:
                self._proceed()
            except BrokerError as error:
                self._fail_with(error)
            self._look_for_failure()
            if self._closes_at is not None and self._connection.state & Endpoint.LOCAL_ACTIVE:
                self._give_back()
                self._connection.close()
            self._transport.tick(time.monotonic())
            self._write()
            self._look_for_progress()
            self._changed.notify_all()
            if self._failure is None:
                return True
            is_ended = self._connection.state & Endpoint.REMOTE_CLOSED or self._transport.capacity() < 0
            return self._closes_at is not None and not is_ended and time.monotonic() < self._closes_at

    def _proceed(self) -> None:
        """Do what can be done by how things stand; `BrokerError` where that is nothing any more."""
        if not self._links:
            # A broker that refuses opens too before it closes; Qpid says then which product it is, Classic does not.
            says_product = "product" in (self._connection.remote_properties or {})
            if self._failure is None and (self._connection.state & Endpoint.REMOTE_ACTIVE or says_product):
                self._meet()
            return
        if not self._is_open and self._is_attached():
            self._is_open = True
            self._count_done()
        if self._is_open and self._closes_at is None:
            self._serve()

    def _is_attached(self) -> bool:
        """Whether the broker has answered all links as asked; `BrokerRefusedError` if it has answered otherwise."""
        link = self._link
        its_end = link.remote_source if link.is_receiver else link.remote_target
        # Where it refuses, its end has no address.
        return all(each.state & Endpoint.REMOTE_ACTIVE for each in self._links) and bool(its_end.address)

    def _read(self) -> None:
        while (room := self._transport.capacity()) > 0:
            try:
                data = self._socket.recv(min(room, sockets.PIECE_BYTES))
            except sockets.WOULD_WAIT:
                return
            if not data:
                self._transport.close_tail()
                return
            self._heard = self._heard or data
            self._transport.push(data)

    def _write(self) -> None:
        while (waiting := self._transport.pending()) > 0:
            try:
                written = self._socket.send(self._transport.peek(min(waiting, sockets.PIECE_BYTES)) or b"")
            except sockets.WOULD_WAIT:
                return
            self._transport.pop(written)

    def _look_for_failure(self) -> None:
        for end in (*self._links, self._session, self._connection):
            # A link may be detached without being closed. Proton shows that by the reason alone.
            if end is not None and (end.state & Endpoint.REMOTE_CLOSED or end.remote_condition is not None):
                self._fail_by(end.remote_condition, whole=end is self._connection)
        if self._transport.condition is not None or self._transport.capacity() < 0:
            self._fail_by(self._transport.condition, whole=True)

    def _fail_by(self, condition: Any, *, whole: bool = False) -> None:
        """By what the broker says as it ends a link or session, or the `whole` connection."""
        if not self._heard.startswith(_HEADERS):
            error = sockets.foreign("amqp", self._heard)
            self._fail(error.message, hint=error.hint or "")
        elif condition is None:
            self._fail_lost(BrokerError(f"{self._address}: the connection is lost", hint="connect again"))
        else:
            why = condition.description or condition.name
            if condition.name in REFUSALS:
                self._fail(why, BrokerRefusedError, self._hint(condition.name, whole=whole))
            else:
                self._fail(why)

    def _fail_lost(self, error: BrokerError) -> None:
        if self.product is None and self._sasl.outcome == proton.SASL.OK:
            # RabbitMQ says no more where a user may not use a virtual host, or there is none.
            hint = "check that the virtual host exists (?vhost=NAME), and that this user may use it"
            error = BrokerError(f"{error.message}; the virtual host was being opened", hint=hint)
        self._fail_with(error)

    def _hint(self, condition: str, *, whole: bool) -> str:
        if self._sasl.outcome != proton.SASL.OK:
            if self._sasl.mech:
                return "check user and password"
            if self._address.user is None:
                return "it refuses anonymous users: name a user"
            return "it refuses plain passwords: allow PLAIN there, or write amqps://"
        if whole:
            return "check user, password, virtual host (?vhost=NAME), and what this user may do"
        missing = self.product and self.product.missing_hint(self._address.name)
        if missing and condition == _NOT_FOUND and not self._address.is_topic:
            return missing
        return "check user, password, name, and what this user may do"

    def _look_for_progress(self) -> None:
        """Notice when the broker neither answers nor takes what is written, which a heartbeat wouldn't show."""
        now, waiting = time.monotonic(), 0 if self._session is None else self._session.outgoing_bytes
        if waiting != self._waiting_bytes or self._asked == self._done:
            self._moved_at, self._waiting_bytes = now, waiting
        if now - self._moved_at > sockets.ANSWER_SECS:
            self._fail_with(sockets.mute(self._address, is_met=self._is_open))

    def _count_done(self) -> None:
        self._done += 1
        self._moved_at = time.monotonic()


class _Greeting(AmqpLink):
    """A connection by which nothing is asked but what the broker is."""

    def _meet(self) -> None:
        if self.product is None:
            self.product = product_by_amqp(self._connection.remote_properties or {})
            self._count_done()


def product_at(address: BrokerAddress) -> str:
    with _Greeting(address) as greeting:
        assert greeting.product is not None  # noqa: S101 - it is once it is connected
        return greeting.product.identity
