"""One connection by STOMP 1.2, and the threads that serve it."""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import count
from typing import Any

from receiver.bridge.connectors import sockets
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.products import Product, product_by_stomp
from receiver.bridge.connectors.stomp_message import ANSWER_BYTES, Frame, FrameReader
from receiver.closing import Mutex
from receiver.errors import BrokerError, BrokerRefusedError, MessageRefusedError, SettingsError

_VERSION = "1.2"
_HEARTBEAT_MS = 10_000
"""The interval of heartbeats on each side, unless the broker wants a longer one."""
_PER_INTERVAL = 1.5
"""So many heartbeats we send in each interval."""
_SILENT = 2.5
"""After so many intervals without a byte the broker counts as lost. Those of ActiveMQ Classic may be two intervals apart: once in
each it looks whether it has sent anything since it last looked."""
_LONGEST_BEAT_MS = 86_400_000
"""If a broker wants a longer interval, it gets this one; if it promises a longer one, none counts. Timers have a limit."""
_LONGEST_ERROR = 200
"""How many characters of an error are shown; Artemis may put all properties of a message into an error."""

_UNKNOWN = Product(name="unknown")
_HEARTBEATS = re.compile(r"\s*([0-9]+)\s*,\s*([0-9]+)\s*")


class StompSession:
    """One connection. A thread reads frames, and another sends heartbeats; callers write, and wait for messages and receipts."""

    def __init__(
        self, address: BrokerAddress, *, client_id: str | None = None, max_body_bytes: int = ANSWER_BYTES
    ) -> None:
        first = _first_frame(address, client_id)
        self.address = address
        self._messages: deque[Frame | MessageRefusedError] = deque()
        """Messages in order; an error stands in place of its message."""
        self.product = _UNKNOWN
        """The broker's product, by its own words."""
        self.is_ready = False
        """Whether login and destination are accepted, so that later errors have other causes."""
        self._lock = Mutex()
        """Enter this lock, not the condition: an interrupt may leave that locked, as in `receiver.recording`."""
        self._changed = threading.Condition(self._lock)
        self._numbers = count(1)
        """Numbers of the frames that ask for a receipt."""
        self._given: set[str | None] = set()
        """Receipts that came before the receipt of an earlier frame."""
        self.confirmed = 0
        """How many frames, from the first on, have a receipt."""
        self._broken: BrokerError | None = None
        self.was_cut = False
        """Whether the broker, or something between, ended the connection before either side gave a reason."""
        self._closing = threading.Event()
        self._silence_secs: float | None = None
        """How long the broker may send no byte; None before this is negotiated, and if it promises no heartbeats."""
        self._came_at = time.monotonic()
        """When the broker last sent more than a heartbeat."""
        self._sending = Mutex()
        self._touching = Mutex()  # TLS isn't safe for two threads
        self._frames = FrameReader(self._more, self._add, max_body_bytes=max_body_bytes)
        self._socket = sockets.connected(address)
        self._threads: list[threading.Thread] = []
        self._start(self._read)
        try:
            self._write(first.encoded())
            self._wait_for(lambda: self.product is not _UNKNOWN)
        except BaseException:  # after an interrupt too: otherwise it would stay open
            self.close()
            raise

    @property
    def _patience_secs(self) -> float:
        """How long the broker may neither answer nor accept bytes."""
        return sockets.CLOSE_SECS if self._closing.is_set() else sockets.ANSWER_SECS

    def check(self) -> None:
        """Raise the error by which the connection has ended, if it has."""
        if self._broken is not None:
            raise copy(self._broken)  # so that each caller has a traceback of its own

    def next_message(self, *, wait_secs: float) -> Frame | None:
        """The next message; None if none comes in `wait_secs`. Raises `MessageRefusedError` if it can't be taken."""
        with self._lock:
            self._changed.wait_for(lambda: self._messages or self._broken, wait_secs)
            self.check()
            came = self._messages.popleft() if self._messages else None
        if isinstance(came, MessageRefusedError):
            raise came
        return came

    def drop_messages(self) -> None:
        """Drop the messages that nobody has asked for yet."""
        self._messages.clear()

    def ask(self, *frames: Frame) -> None:
        """Send these frames, and wait until the broker has given a receipt for each of them.

        Waits as long as bytes come, such as those of a large message before the receipts; but not while closing.
        """
        self.begin_asking(*frames)()

    def tell(self, *frames: Frame) -> None:
        """Send these frames without asking for receipts: the broker takes frames in order, so that of a later one is enough."""
        self._write(b"".join(frame.encoded() for frame in frames))

    def begin_asking(self, *frames: Frame) -> Callable[[], None]:
        """Send these frames. Returns a function that waits for their receipts, and for those of all earlier frames."""
        number = 0
        for frame in frames:
            self.check()
            number = next(self._numbers)
            self._write(frame._replace(headers={**frame.headers, "receipt": str(number)}).encoded())
        return partial(self._wait_for, lambda: self.confirmed >= number)

    def close(self, *last: Frame) -> None:
        """Send these frames, wait for their receipts, and end the connection."""
        self._closing.set()
        with suppress(BrokerError):
            for frame in (*last, Frame("DISCONNECT")):
                self.ask(frame)
        self._break(self._lost_error("the connection is closed"))
        for thread in self._threads:  # the first thread, which reads, starts the other
            thread.join()
        with self._sending:
            self._socket.close()

    def _start(self, run: Callable[..., None], *arguments: float) -> None:
        thread = threading.Thread(target=run, args=arguments, name="receiver stomp", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self) -> None:
        try:
            while (frame := self._frames.read()) is not None:
                self._handle(frame)
        except BrokerError as broken:
            error, is_cut = sockets.named(self.address, broken), False
        except Exception as broken:  # noqa: BLE001 - otherwise the waiting threads would wait for ever
            error, is_cut = sockets.failure(self.address, broken, "is lost"), isinstance(broken, ConnectionError)
        else:
            has_met = self.product is not _UNKNOWN
            silent = sockets.wrong_protocol_error("stomp", b"", tls=self.address.tls)
            error = self._lost_error("the connection has ended") if has_met else sockets.named(self.address, silent)
            is_cut = True
        self._break(error, is_cut=is_cut)

    def _handle(self, frame: Frame) -> None:
        if frame.command == "MESSAGE":
            self._add(frame)
        elif frame.command == "RECEIPT":
            self._given.add(frame.headers.get("receipt-id"))
            while (following := str(self.confirmed + 1)) in self._given:
                self._given.discard(following)
                self.confirmed += 1
            self._wake()
        elif frame.command == "CONNECTED":
            self._agree(frame.headers)
        else:
            self._break(self._error_of(frame))

    def _add(self, came: Frame | MessageRefusedError) -> None:
        self._messages.append(came)
        self._wake()

    def _agree(self, headers: Mapping[str, str]) -> None:
        if (version := headers.get("version", "1.0")) != _VERSION:
            raise BrokerRefusedError(f"it speaks STOMP {version}, and not {_VERSION}", hint="reach it by AMQP")
        beats = _HEARTBEATS.fullmatch(headers.get("heart-beat", "0,0"))
        if beats is None:
            raise BrokerError(f"its heart-beat is {headers['heart-beat']!r:.80}", hint="reach it by AMQP")
        sends_ms, wants_ms = map(int, beats.groups())
        if 0 < sends_ms <= _LONGEST_BEAT_MS:
            self._silence_secs = max(sends_ms, _HEARTBEAT_MS) / 1_000 * _SILENT
        self.product = product_by_stomp(headers.get("server", ""))
        self._frames.ends_lines = self.product.stomp.ends_lines
        if wants_ms:  # earlier than promised, because a broker may end the connection after an interval without one
            self._start(self._beat, min(max(wants_ms, _HEARTBEAT_MS), _LONGEST_BEAT_MS) / 1_000 / _PER_INTERVAL)
        self._wake()

    def _error_of(self, frame: Frame) -> BrokerError:
        said, dialect = _said(frame), self.product.stomp
        why = f"{self.address} refuses: {said:.{_LONGEST_ERROR}}"
        if not self.is_ready or _says(dialect.refusals, said):
            is_missing = _says(dialect.not_found, said) and not self.address.is_topic
            missing = self.product.missing_hint(self.address.name) if is_missing else None
            return BrokerRefusedError(why, hint=missing or "check user, password, name, and what this user may do")
        if _says(dialect.faults, said):
            return MessageRefusedError(why, hint="don't send this message")
        if dialect.refusals is None:
            # The product's errors aren't documented. Trying for ever would hide a refusal.
            return BrokerRefusedError(
                why, hint="see the broker's log: the meaning of this product's errors isn't known here"
            )
        return BrokerError(why, hint="connect again")

    def _beat(self, secs: float) -> None:
        while not self._closing.wait(secs) and self._broken is None:
            with suppress(BrokerError):
                self._write(b"\n")

    def _wait_for(self, is_answered: Callable[[], bool]) -> None:
        since = time.monotonic()
        with self._lock:
            self.check()  # first: RabbitMQ may give a receipt for what it has refused
            while not is_answered():
                moved_at = since if self._closing.is_set() else max(since, self._came_at)
                left_secs = moved_at + self._patience_secs - time.monotonic()
                if left_secs > 0:
                    self._changed.wait(left_secs)
                else:
                    self._break(sockets.no_answer_error(self.address, is_met=self.is_ready))
                self.check()

    def _wake(self) -> None:
        """Wake all threads that wait for a message or an answer."""
        with self._lock:
            self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        try:
            with self._sending:  # waits as long as the broker accepts another thread's bytes
                self._write_all(memoryview(data))
        except (OSError, ValueError) as error:
            self._break(sockets.failure(self.address, error, "is lost"), is_cut=isinstance(error, ConnectionError))
        except BaseException:  # after an interrupt, the next frame would be taken for the rest of this one
            self._break(self._lost_error("the sending of a frame was interrupted"))
            raise
        self.check()

    def _write_all(self, left: memoryview) -> None:
        while left:
            written = self._tried(self._socket.send, left[: sockets.PIECE_BYTES])
            if written is not None:
                left = left[written:]
            elif not self._waits(selectors.EVENT_WRITE, self._patience_secs):
                raise TimeoutError(f"it accepted nothing for {self._patience_secs:g} s")

    def _more(self) -> bytes:
        while (data := self._tried(self._socket.recv, sockets.PIECE_BYTES)) is None:
            if not self._waits(selectors.EVENT_READ, self._silence_secs):
                raise TimeoutError(f"it sent nothing for {self._silence_secs:g} s, not even a heartbeat")
        if data.strip(b"\r\n"):
            self._came_at = time.monotonic()
        return bytes(data)

    def _tried(self, do: Callable[[Any], Any], what: Any) -> Any:
        """The result of `do`, or None if it would have to wait."""
        with self._touching:
            try:
                return do(what)
            except sockets.WOULD_WAIT:
                return None

    def _waits(self, event: int, secs: float | None) -> bool:
        """Wait until the socket is ready for `event`. Returns whether it was in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, event)
            return bool(selector.select(secs))

    def _lost_error(self, why: str) -> BrokerError:
        return BrokerError(f"{self.address}: {why}", hint="connect again")

    def _break(self, why: BrokerError, *, is_cut: bool = False) -> None:
        """End the connection with an error. Wakes all threads that wait for an answer, for a message, or at the socket."""
        if self._broken is None:
            self._broken, self.was_cut = why, is_cut
        self._wake()
        with self._touching, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _first_frame(address: BrokerAddress, client_id: str | None) -> Frame:
    # `host` only if a virtual host is named: RabbitMQ would take the broker's own name for a virtual host.
    headers = {"accept-version": _VERSION, "heart-beat": f"{_HEARTBEAT_MS},{_HEARTBEAT_MS}"}
    named = {"host": address.vhost, "login": address.user, "passcode": address.password, "client-id": client_id}
    headers |= {name: value for name, value in named.items() if value is not None}
    if any(set(value) & set("\r\n\0") for value in headers.values()):  # here nothing can be escaped
        raise SettingsError(
            f"{address}: STOMP can't express the end of a line in a user, password, virtual host or subscription",
            hint="choose another, or AMQP",
        )
    return Frame("STOMP", headers)


def _said(frame: Frame) -> str:
    """An ERROR's message, with its body if that says more: RabbitMQ's message alone is hardly a word."""
    said = frame.headers.get("message", "")
    more = " ".join(frame.body.decode("utf-8", "replace").split())
    if said and (more in said or said in more):
        return said
    return ": ".join(filter(None, [said, more])) or "it says ERROR"


def _says(pattern: str | None, said: str) -> bool:
    return pattern is not None and re.match(pattern, said) is not None


def product_at(address: BrokerAddress) -> str:
    session = StompSession(address)
    session.close()
    return session.product.identity
