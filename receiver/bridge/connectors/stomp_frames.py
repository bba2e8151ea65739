"""Frames of STOMP cut out of what comes, none of them larger than was agreed."""

from __future__ import annotations

import re
from collections.abc import Callable

from receiver.bridge.connectors import too_large
from receiver.errors import BrokerError, MessageRefusedError

__all__ = ["FrameReader"]

_COMMANDS = (b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR")
_LONGEST_HEAD_BYTES = 16 << 20
_LINE_ENDS = re.compile(rb"[\r\n]+")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:\s*([0-9]+)", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id:([^\r\n]*)", re.MULTILINE)


class FrameReader:
    """Reads whole frames by `more`, which waits for the next bytes and gives none once the connection has ended.

    A message that can't be taken is told to `refuse` as soon as its head is there; its body is read and thrown away,
    for answers stand behind it. What is no frame is a `BrokerError`.
    """

    def __init__(
        self, more: Callable[[], bytes], refuse: Callable[[MessageRefusedError], None], *, max_body_bytes: int
    ) -> None:
        self._more = more
        self._refuse = refuse
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()

    def read(self) -> bytes:
        """The next frame with the zero byte at its end; empty once nothing more comes."""
        try:
            while not (frame := self._read_or_skip()):
                pass
        except EOFError:
            return b""
        if not frame.endswith(b"\0"):
            raise BrokerError("its frame doesn't end where it should")
        return frame

    def _read_or_skip(self) -> bytes:
        head = self._head()
        length = _LENGTH.search(head)
        end = (self._first_zero(head) if length is None else len(head) + int(length[1])) + 1
        body_bytes = end - len(head) - 1
        if b"\0" in head:
            problem = "STOMP can't express the zero byte in a property of it"
            self._refuse(MessageRefusedError(f"{_name(head)}: {problem}", hint="take it by AMQP"))
        elif body_bytes > self._max_body_bytes:
            self._refuse(too_large(_name(head), f"{body_bytes:,}", self._max_body_bytes))
        else:
            return self._cut(end)
        self._skip(end)
        return b""

    def _head(self) -> bytes:
        """What comes before the body, the empty line included."""
        buffer, searched = self._buffer, 0
        while True:
            if (between := _LINE_ENDS.match(buffer)) is not None:
                del buffer[: between.end()]  # heartbeats
            start = bytes(buffer[:10])
            if not any(start.startswith(command[: len(start)]) for command in _COMMANDS):
                raise BrokerError(f"it doesn't speak STOMP but says {start!r}", hint="check the port")
            if (found := _HEAD_END.search(buffer, searched)) is not None:
                return bytes(buffer[: found.end()])
            searched = max(0, len(buffer) - 3)
            if searched > _LONGEST_HEAD_BYTES:
                raise BrokerError("its frame has headers without end")
            self._read_more()

    def _first_zero(self, head: bytes) -> int:
        """Where a body without a length ends; what follows one that is too large is never reached."""
        searched = len(head)
        while (found := self._buffer.find(0, searched)) < 0:
            searched = len(self._buffer)
            if searched - len(head) > self._max_body_bytes:
                self._refuse(too_large(_name(head), "still more", self._max_body_bytes))
                raise EOFError
            self._read_more()
        return found

    def _cut(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._read_more()
        with memoryview(self._buffer) as whole:
            frame = bytes(whole[:count])
        del self._buffer[:count]
        return frame

    def _skip(self, count: int) -> None:
        while len(self._buffer) < count:
            count -= len(self._buffer)
            self._buffer.clear()
            self._read_more()
        del self._buffer[:count]

    def _read_more(self) -> None:
        data = self._more()
        if not data:
            raise EOFError
        self._buffer += data


def _name(head: bytes) -> str:
    id_ = _MESSAGE_ID.search(head)
    return "a message" if id_ is None else f"message {id_[1].decode(errors='replace')}"
