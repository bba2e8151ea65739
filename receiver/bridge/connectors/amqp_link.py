"""One connection with one link by AMQP 1.0, and the thread that serves it.

Proton is used as an engine without I/O: bytes go in, bytes come out, and it knows the state of the link. A thread moves the
bytes. Only this thread touches the engine, which isn't thread-safe. So heartbeats are answered even while the consumer is busy.
Received messages and requests are in queues, guarded by a condition.
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
"""The most bytes that the broker may send ahead of `take`, and that may wait to be written; a single larger message may pass."""
_HEADERS = (b"AMQP\3\1\0\0", b"AMQP\0\1\0\0")
"""The first bytes of AMQP 1.0, with a login and without."""
_CLOCK_SECS = 1.0
"""How often to check for missing answers when no bytes come."""
_LEAST_WAIT_SECS = 0.01
_OPENED = 1
"""The number of requests done once the link is open: opening is the first."""
_NOT_FOUND = "amqp:not-found"
REFUSALS = {"amqp:unauthorized-access", _NOT_FOUND, "amqp:not-allowed", "amqp:not-implemented", "amqp:invalid-field"}
"""Error conditions that another connection would get again."""


class _OtherHostnameError(BrokerRefusedError):
    """The broker's product has another form for virtual hosts than we used."""


class AmqpLink(Closing):
    """Links are opened once the broker has said which product it is, because this decides how queues are addressed."""

    def __init__(self, address: BrokerAddress, *, client_id: str | None = None) -> None:
        self._address = address
        self._lock = Mutex()
        """Enter this lock, not the condition: an interrupt may leave that locked, as in `receiver.recording`."""
        self._changed = threading.Condition(self._lock)
        self.product: Product | None = None
        refused: BrokerError | None = None
        for hostname in [address.host] if address.vhost is None else amqp_hostnames(address.vhost):
            self._start(hostname, client_id or f"receiver-{uuid.uuid4().hex}")
            try:
                self._wait_for(_OPENED)
            except BaseException as error:  # after an interrupt too: otherwise it would stay open, and hold messages
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
        self._tick_at = 0.0
        """When the next heartbeat is due, ours or the broker's; 0 if none is."""
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
        self._sasl.allow_insecure_mechs = True  # the address decides whether a password may go without TLS
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
        """Whether the virtual host's name may have another form: this one is refused, by a product not known yet."""
        if self._address.vhost is None or self.product is not None:
            return isinstance(error, _OtherHostnameError)
        return bool(self._sasl.outcome == proton.SASL.OK)

    def _meet(self) -> None:
        """Learn which product the broker is, and open links in that product's way."""
        product = self.product = product_by_amqp(self._connection.remote_properties or {})
        self.dialect = product.amqp
        self.drops_known_ids = product.drops_known_ids
        if self._address.vhost is not None:
            hostname = self.dialect.hostname(self._address.vhost)
            if hostname is None:
                raise self._lacking_error("virtual hosts", "leave out ?vhost=")
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

    def _lacking_error(self, what: str, instead: str) -> BrokerRefusedError:
        """The error for a feature that the product lacks."""
        name = "the broker" if self.product is None else self.product.name
        return BrokerRefusedError(f"{self._address}: {name} has no {what}", hint=instead)

    # Each kind of link overrides these. The thread calls them, with the lock.

    def _make_link(self) -> Any: ...

    def _more_links(self) -> list[Any]:
        return []

    def _serve(self) -> None:
        """Do the link's work; called after every event that may matter to it."""

    def _give_back(self) -> None:
        """Give back unacknowledged messages, before the connection ends."""

    def close(self) -> None:
        with self._lock:
            if self._closes_at is None:
                self._closes_at = time.monotonic() + sockets.CLOSE_SECS
                self._fail("the connection is closed")
                self._wake()
        self._thread.join()

    def _ask(self, count: int) -> int:
        """Wake the thread for `count` more requests. Returns the number of requests that will then be done in all."""
        with self._lock:
            self._check()
            if self._asked == self._done:
                self._moved_at = time.monotonic()
            self._asked += count
            self._wake()
            return self._asked

    def _wait_for(self, until: int) -> None:
        """Wait until the broker has done `until` requests in all."""
        with self._lock:
            self._changed.wait_for(lambda: self._done >= until or self._failure is not None)
            if self._done < until:
                self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)  # so that each caller has a traceback of its own

    def _fail(self, why: str) -> None:
        self._fail_with(BrokerError(f"{self._address}: {why}", hint="connect again"))

    def _fail_with(self, error: BrokerError) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _wake(self) -> None:
        with suppress(OSError):  # the thread is awake already, or has ended
            self._waker.send(b"!")

    def _run(self) -> None:
        with self._socket, self._wakened, self._waker:
            try:
                self._work_until_over()
            except Exception as error:  # noqa: BLE001 - otherwise the waiting threads would wait for ever
                with self._lock:
                    self._fail_lost(sockets.failure(self._address, error, "is lost"))

    def _work_until_over(self) -> None:
        """Work whenever the socket, a request or a heartbeat needs it, and once a second, until the connection is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakened, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while self._work():
                writes = selectors.EVENT_WRITE if self._transport.pending() > 0 else 0
                selector.modify(self._socket, selectors.EVENT_READ | writes)
                left_secs = self._tick_at - time.monotonic() if self._tick_at else _CLOCK_SECS
                selector.select(min(max(left_secs, _LEAST_WAIT_SECS), _CLOCK_SECS))

    def _work(self) -> bool:
        """Read, work and write as far as possible without waiting. False when the connection is over."""
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
            self._write()
            # After the write: Proton counts the time to the next heartbeat from the first tick that sees the bytes written.
            self._tick_at = self._transport.tick(time.monotonic())
            self._write()
            self._look_for_progress()
            self._changed.notify_all()
            if self._failure is None:
                return True
            is_ended = self._connection.state & Endpoint.REMOTE_CLOSED or self._transport.capacity() < 0
            return self._closes_at is not None and not is_ended and time.monotonic() < self._closes_at

    def _proceed(self) -> None:
        """Do what the state of the link allows; `BrokerError` if the connection or the link has ended."""
        if not self._links:
            # A broker that refuses a connection also opens it before closing. Qpid then says which product it is, Classic doesn't.
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
        """Whether the broker has attached all links as asked; `BrokerRefusedError` if in another way."""
        link = self._link
        its_end = link.remote_source if link.is_receiver else link.remote_target
        # If it refuses, its end has no address.
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
            # A link may be detached without being closed. In Proton only the condition shows that.
            if end is not None and (end.state & Endpoint.REMOTE_CLOSED or end.remote_condition is not None):
                self._fail_by(end.remote_condition, whole=end is self._connection)
        if self._transport.condition is not None or self._transport.capacity() < 0:
            self._fail_by(self._transport.condition, whole=True)

    def _fail_by(self, condition: Any, *, whole: bool = False) -> None:
        """Fail with the broker's condition at the end of a link or session, or of the `whole` connection."""
        if not self._heard.startswith(_HEADERS):
            error = sockets.wrong_protocol_error("amqp", self._heard, tls=self._address.tls)
            self._fail_with(sockets.named(self._address, error))
        elif condition is None:
            self._fail_lost(BrokerError(f"{self._address}: the connection is lost", hint="connect again"))
        else:
            self._fail_with(self._error_of(condition, whole=whole))

    def _error_of(self, condition: Any, *, whole: bool = False) -> BrokerError:
        why = f"{self._address}: {condition.description or condition.name}"
        if condition.name in REFUSALS:
            return BrokerRefusedError(why, hint=self._hint(condition.name, whole=whole))
        return BrokerError(why, hint="connect again")

    def _fail_lost(self, error: BrokerError) -> None:
        if self.product is None and self._sasl.outcome == proton.SASL.OK:
            # RabbitMQ says no more if a user may not use a virtual host, or if there is none.
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
        """Notice a broker that neither answers requests nor takes bytes: heartbeats wouldn't show this."""
        now, waiting = time.monotonic(), 0 if self._session is None else self._session.outgoing_bytes
        if waiting != self._waiting_bytes or self._asked == self._done:
            self._moved_at, self._waiting_bytes = now, waiting
        if now - self._moved_at > sockets.ANSWER_SECS:
            self._fail_with(sockets.no_answer_error(self._address, is_met=self._is_open))

    def _count_done(self) -> None:
        self._done += 1
        self._moved_at = time.monotonic()


class _Greeting(AmqpLink):
    """A connection that only asks which product the broker is."""

    def _meet(self) -> None:
        if self.product is None:
            self.product = product_by_amqp(self._connection.remote_properties or {})
            self._count_done()


def product_at(address: BrokerAddress) -> str:
    with _Greeting(address) as greeting:
        assert greeting.product is not None  # noqa: S101 - known once connected
        return greeting.product.identity
