"""AMQP 1.0 by way of Qpid Proton, as ActiveMQ Artemis speaks it.

Proton serves as an engine without input and output: bytes go in, bytes come out, and it knows how the link stands. One
thread moves the bytes and alone touches the engine, which isn't safe for several; so heartbeats are answered while
whoever took messages is busy with them. What came and what is to be done lies in queues, behind a condition.

No broker need answer that it has heard of an acceptance, and Artemis doesn't, whichever settlement mode is asked for. So
a batch is acknowledged in a transaction of its own: that this is discharged is answered, once all of it is written down.
What is sent is safe by the broker's acceptance. A whole batch is under way at once, for sent one by one each message
would wait for its answer.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from receiver.bridge.address import BrokerAddress
from receiver.bridge.connector import Delivery, Message, Property
from receiver.errors import BrokerError, BrokerRefusedError, MissingExtraError

try:
    import proton
    from proton import Endpoint, Terminus
except ImportError as error:  # pragma: no cover - depends on the installation
    raise MissingExtraError("bridge", "AMQP") from error

__all__ = ["AmqpSink", "AmqpSource"]

_ANSWER_SECS = 30.0
_CLOSE_SECS = 5.0
_PIECE_BYTES = 64 << 10
_AHEAD_BYTES = 4 << 20
"""What the broker may send ahead of `take`, and what waits to be written; a larger message goes all the same."""
_AHEAD_MESSAGES = 1_000
_TURN_SECS = 1.0
"""How often clocks are looked at when nothing comes: for heartbeats, and for answers that don't come."""
_REFUSALS = {"amqp:unauthorized-access", "amqp:not-found", "amqp:not-allowed", "amqp:not-implemented"}
"""Conditions that another connection would meet again."""
_DECLARED, _TRANSACTIONAL = 0x33, 0x34
"""States of deliveries that Proton has no names for: of AMQP's chapter on transactions."""


class _Connector(ABC):
    """One connection with one link, and the thread that serves it."""

    def __init__(self, address: BrokerAddress, *, client_id: str | None = None) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._failure: BrokerError | None = None
        self._is_open = False
        self._closes_at: float | None = None
        self._asked, self._done = 0, 0
        self._moved_at, self._waiting_bytes = 0.0, 0
        self._socket = _connected(address)
        self._wakened, self._waker = socket.socketpair()
        for end in (self._socket, self._wakened, self._waker):
            end.settimeout(0)
        self._transport = proton.Transport()
        self._connection = proton.Connection()
        self._connection.container = client_id or f"receiver-{uuid.uuid4().hex}"
        self._session = self._opened_session()
        self._link = self._make_link()
        self._links = [self._link, *self._more_links()]
        for link in self._links:
            link.open()
        self._thread = threading.Thread(target=self._run, name="receiver amqp", daemon=True)
        self._thread.start()
        try:
            self._ask(1)
        except BrokerError:
            self.close()
            raise

    def _opened_session(self) -> Any:
        connection, transport, address = self._connection, self._transport, self._address
        transport.max_frame_size = _PIECE_BYTES
        transport.idle_timeout = _ANSWER_SECS
        sasl = transport.sasl()
        sasl.allow_insecure_mechs = True  # whether a password goes without TLS is for the address to say
        sasl.allowed_mechs("ANONYMOUS" if address.user is None else "PLAIN")
        if address.user is not None:
            connection.user, connection.password = address.user, address.password or ""
        connection.hostname = address.host
        transport.bind(connection)
        connection.open()
        session = connection.session()
        session.incoming_capacity = _AHEAD_BYTES
        session.open()
        return session

    @abstractmethod
    def _make_link(self) -> Any: ...

    def _more_links(self) -> list[Any]:
        return []

    @abstractmethod
    def _terminus(self) -> Any:
        """The broker's end of the link, which has no address where it refuses."""

    @abstractmethod
    def _serve(self) -> None:
        """Do at the link what is to be done; called by the thread, with the lock, after whatever may matter to it."""

    def _give_back(self) -> None:
        """What the broker is to know before the connection ends."""

    def close(self) -> None:
        with self._changed:
            if self._closes_at is None:
                self._closes_at = time.monotonic() + _CLOSE_SECS
                self._fail("the connection is closed")
                self._wake()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(self, count: int) -> None:
        """Wait until the broker has done so many more things; for whoever has the lock, or is alone."""
        with self._changed:
            self._check()
            if self._asked == self._done:
                self._moved_at = time.monotonic()
            self._asked += count
            until = self._asked
            self._wake()
            self._changed.wait_for(lambda: self._done >= until or self._failure is not None)
            if self._done < until:
                self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, hint=self._failure.hint)

    def _fail(self, why: str, kind: type[BrokerError] = BrokerError) -> None:
        if self._failure is None:
            self._failure = kind(f"{self._address}: {why}", hint="connect again" if kind is BrokerError else None)
        self._changed.notify_all()

    def _wake(self) -> None:
        with suppress(OSError):  # it is awake already, or has ended
            self._waker.send(b"!")

    def _run(self) -> None:
        with self._socket, self._wakened, self._waker, selectors.DefaultSelector() as selector:
            selector.register(self._wakened, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while self._turn():
                    writes = selectors.EVENT_WRITE if self._transport.pending() > 0 else 0
                    selector.modify(self._socket, selectors.EVENT_READ | writes)
                    selector.select(_TURN_SECS)
            except Exception as error:  # noqa: BLE001 - whoever waits would never hear of it
                with self._changed:
                    self._fail(str(error) or repr(error))

    def _turn(self) -> bool:
        """Read, do and write what can be without waiting; False when all is over."""
        with self._changed:
            with suppress(BlockingIOError):
                self._wakened.recv(_PIECE_BYTES)
            self._read()
            if not self._is_open and self._link.state & Endpoint.REMOTE_ACTIVE and self._terminus().address:
                self._is_open = True
                self._count_done()
            if self._is_open and self._closes_at is None:
                self._serve()
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

    def _read(self) -> None:
        while (room := self._transport.capacity()) > 0:
            try:
                data = self._socket.recv(min(room, _PIECE_BYTES))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                self._transport.close_tail()
                return
            self._transport.push(data)

    def _write(self) -> None:
        while (waiting := self._transport.pending()) > 0:
            try:
                written = self._socket.send(self._transport.peek(min(waiting, _PIECE_BYTES)) or b"")
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._transport.pop(written)

    def _look_for_failure(self) -> None:
        for end in (*self._links, self._connection):
            if end.state & Endpoint.REMOTE_CLOSED:
                self._fail_by(end.remote_condition)
        if self._transport.capacity() < 0:
            self._fail_by(self._transport.condition)

    def _fail_by(self, condition: Any) -> None:
        if condition is None:
            self._fail("the connection is lost")
        else:
            kind = BrokerRefusedError if condition.name in _REFUSALS else BrokerError
            self._fail(f"{condition.description or condition.name}", kind)

    def _look_for_progress(self) -> None:
        """Notice when the broker neither answers nor takes what is written, which a heartbeat wouldn't show."""
        now, waiting = time.monotonic(), self._session.outgoing_bytes
        if waiting != self._waiting_bytes or self._asked == self._done:
            self._moved_at, self._waiting_bytes = now, waiting
        if now - self._moved_at > _ANSWER_SECS:
            self._fail(f"no answer in {_ANSWER_SECS:g} s")

    def _count_done(self) -> None:
        self._done += 1
        self._moved_at = time.monotonic()


class AmqpSource(_Connector):
    """Messages of a queue, or of a topic's durable subscription."""

    def __init__(self, address: BrokerAddress) -> None:
        self._incoming: deque[bytes] = deque()
        self._incoming_bytes = 0
        self._part = bytearray()
        self._unsettled: deque[Any] = deque()
        """What came and isn't acknowledged, in order; `_to_accept` of them from its front may be."""
        self._to_accept = 0
        self._accepted: list[Any] = []
        self._answer: Any = None
        """What the broker is to say of the transaction, where something was asked of it."""
        self._taken = self._acknowledged = 0
        self._unreadable: BrokerError | None = None
        super().__init__(address, client_id=address.subscription)

    def take(self, at_most: int, *, wait_secs: float) -> list[Delivery]:
        with self._changed:
            self._check()
            if self._unreadable is not None:
                raise self._unreadable
            self._changed.wait_for(lambda: self._incoming or self._failure is not None, wait_secs)
            self._check()
            encoded = [self._incoming.popleft() for _ in range(min(at_most, len(self._incoming)))]
            self._incoming_bytes -= sum(map(len, encoded))
            self._wake()
        taken: list[Delivery] = []
        for data in encoded:
            try:
                message = _message(data)
            except (proton.ProtonException, TypeError, ValueError) as error:
                self._unreadable = BrokerRefusedError(f"{self._address}: a message can't be read: {error}")
                if taken:
                    return taken  # so that these can be acknowledged
                raise self._unreadable from error
            self._taken += 1
            taken.append(Delivery(message, self._taken))
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self._check()
            if deliveries:
                count = deliveries[-1].token - self._acknowledged  # and with the last all before
                self._to_accept += count
                self._acknowledged += count
                self._ask(1)

    def _make_link(self) -> Any:
        address = self._address
        link = self._session.receiver(address.subscription or "receiver")
        link.source.address = address.name
        link.source.capabilities.put_object(_capabilities(address))
        if address.subscription is not None:
            link.source.durability = Terminus.DELIVERIES
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = proton.Link.RCV_FIRST
        return link

    def _more_links(self) -> list[Any]:
        self._coordinator = self._session.sender("receiver-transactions")
        self._coordinator.target.type = Terminus.COORDINATOR
        return [self._coordinator]

    def _terminus(self) -> Any:
        return self._link.remote_source

    def _serve(self) -> None:
        while self._incoming_bytes < _AHEAD_BYTES and (delivery := self._link.current) is not None:
            self._receive(delivery)
            if delivery.partial:
                break
            self._link.advance()
        self._serve_transaction()
        ahead = self._link.credit + len(self._incoming)
        if ahead <= _AHEAD_MESSAGES // 2:
            self._link.flow(_AHEAD_MESSAGES - ahead)

    def _give_back(self) -> None:
        # Only by this the broker will say of them that they are redelivered.
        for _ in range(len(self._unsettled) - len(self._incoming)):
            delivery = self._unsettled.popleft()
            delivery.local.failed = True
            delivery.update(proton.Delivery.MODIFIED)
            delivery.settle()

    def _serve_transaction(self) -> None:
        if self._to_accept and self._answer is None:
            self._answer = self._tell_coordinator("amqp:declare:list", [None])
        if self._answer is None or not self._answer.remote_state:
            return
        answer, self._answer = self._answer, None
        if answer.remote_state == _DECLARED:
            (transaction,) = answer.remote.data
            accepted = [transaction, proton.Described(proton.ulong(proton.Delivery.ACCEPTED), [])]
            for _ in range(self._to_accept):
                delivery = self._unsettled.popleft()
                delivery.local.data = accepted
                delivery.update(_TRANSACTIONAL)
                self._accepted.append(delivery)
            self._to_accept = 0
            self._answer = self._tell_coordinator("amqp:discharge:list", [transaction, False])
        elif answer.remote_state == proton.Delivery.ACCEPTED:
            for delivery in self._accepted:
                delivery.settle()
            self._accepted.clear()
            self._count_done()
        else:
            self._fail(f"it doesn't acknowledge: {answer.remote.condition or answer.remote_state}")
        answer.settle()

    def _tell_coordinator(self, what: str, about: list[Any]) -> Any:
        return self._coordinator.send(proton.Message(body=proton.Described(proton.symbol(what), about)))

    def _receive(self, delivery: Any) -> None:
        if delivery.aborted:
            self._part.clear()
            delivery.settle()
            return
        if delivery.pending:
            self._part += self._link.recv(delivery.pending)
        if not delivery.partial:
            self._incoming.append(bytes(self._part))
            self._incoming_bytes += len(self._part)
            self._part.clear()
            self._unsettled.append(delivery)


class AmqpSink(_Connector):
    """Messages to a queue or a topic; durable ones."""

    def __init__(self, address: BrokerAddress) -> None:
        self._outgoing: deque[Message] = deque()
        self._sent: deque[Any] = deque()
        super().__init__(address)

    def send(self, messages: Sequence[Message]) -> None:
        with self._changed:
            self._check()
            self._outgoing.extend(messages)
            self._ask(len(messages))

    def _make_link(self) -> Any:
        link = self._session.sender("receiver")
        link.target.address = self._address.name
        link.target.capabilities.put_object(_capabilities(self._address))
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        return link

    def _terminus(self) -> Any:
        return self._link.remote_target

    def _serve(self) -> None:
        while self._outgoing and self._link.credit > 0 and self._session.outgoing_bytes < _AHEAD_BYTES:
            message = self._outgoing.popleft()
            try:
                self._sent.append(self._link.send(_encoded(message)))
            except (proton.ProtonException, TypeError, ValueError, OverflowError) as error:
                self._fail(f"a message can't be sent by AMQP: {error}", BrokerRefusedError)
                return
        while self._sent and self._sent[0].settled:
            delivery = self._sent.popleft()
            if delivery.remote_state != proton.Delivery.ACCEPTED:
                said = delivery.remote.condition
                self._fail(f"a message isn't accepted: {said or delivery.remote_state}")
                return
            delivery.settle()
            self._count_done()


def _connected(address: BrokerAddress) -> socket.socket:
    try:
        connected = socket.create_connection((address.host, address.port), _ANSWER_SECS)
        # Frames are small, and answers are waited for: without this each might take 40 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _encrypted(connected, address.host) if address.tls else connected
    except (OSError, UnicodeError) as error:
        raise BrokerError(f"{address} can't be reached: {error or 'no answer'}") from error


def _encrypted(connected: socket.socket, host: str) -> socket.socket:
    try:
        return ssl.create_default_context().wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def _capabilities(address: BrokerAddress) -> Any:
    # Without it Artemis would take a new address for a topic's, and drop what is sent while nobody listens.
    return proton.symbol("topic" if address.is_topic else "queue")


def _encoded(message: Message) -> proton.Message:
    return proton.Message(
        # As JMS has it by AMQP: text is a value, and bytes are data.
        body=message.body.decode() if message.is_text else message.body,
        inferred=not message.is_text,
        properties=dict(message.properties),
        durable=True,
        id=f"ID:{uuid.uuid4()}",
        creation_time=time.time(),
    )


def _message(encoded: bytes) -> Message:
    message = proton.Message()
    message.decode(encoded)
    body: Any = message.body
    properties: dict[str, Any] = message.properties or {}
    if not isinstance(body, str | bytes | memoryview | None):
        raise TypeError(f"its body is neither text nor bytes but {type(body).__name__}")
    return Message(
        body=body.encode() if isinstance(body, str) else bytes(body or b""),
        is_text=isinstance(body, str),
        properties={name: _plain(value) for name, value in properties.items()},
        message_id=None if message.id is None else str(_plain(message.id)),
        redelivered=message.delivery_count > 0,
        jms_timestamp_ms=round(message.creation_time * 1_000) or None,
    )


def _plain(value: Any) -> Property:
    """Without what AMQP says more of a value: that it is of 32 bits, a symbol, a time."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value)
