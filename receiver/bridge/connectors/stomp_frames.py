"""Frames of STOMP 1.2: made to be sent, and cut out of what comes, none of them larger than was agreed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from receiver.bridge.connectors import too_large
from receiver.errors import BrokerError, MessageRefusedError

_COMMANDS = (b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR")
_LONGEST_HEAD_BYTES = 16 << 20
_LINE_ENDS = re.compile(rb"[\r\n]+")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:\s*([0-9]+)", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id:([^\r\n]*)", re.MULTILINE)
_ESCAPED = str.maketrans({"\\": "\\\\", ":": "\\c", "\n": "\\n", "\r": "\\r"})
_UNESCAPED = {"\\\\": "\\", "\\c": ":", "\\n": "\n", "\\r": "\r"}
_ESCAPE = re.compile(r"\\.?", re.DOTALL)


class Frame(NamedTuple):
    command: str
    headers: Mapping[str, str] = {}
    """By name, without escapes; of a name that comes twice the first counts."""
    body: bytes = b""

    def encoded(self) -> bytes:
        """The bytes to send. A broker that got a raw colon would drop it silently, and merge two ids, so it is escaped;
        but not in the first frame, by which the version is agreed on."""
        if self.command == "STOMP":
            lines = [f"{name}:{value}" for name, value in self.headers.items()]
        else:
            lines = [f"{name.translate(_ESCAPED)}:{value.translate(_ESCAPED)}" for name, value in self.headers.items()]
        head = "\n".join([self.command, *lines, "\n"])
        return b"".join((head.encode("utf-8", "replace"), self.body, b"\0"))


class UnreadableError(MessageRefusedError):
    """A message has headers that are no STOMP, but a known end."""

    def __init__(self, message: str, *, hint: str, frame: Frame) -> None:
        super().__init__(message, hint=hint)
        self.frame = frame
        """All of it as its body, with headers as far as they can be read."""


class FrameReader:
    """Reads whole frames by `more`, which waits for the next bytes and gives none once the connection has ended.

    Why a message can't be taken is given to `refuse` as soon as its head is there; its body is read and thrown away, for
    answers stand behind it; an `UnreadableError` has all of the message. What is no frame is a `BrokerError`.
    """

    def __init__(
        self, more: Callable[[], bytes], refuse: Callable[[MessageRefusedError], None], *, max_body_bytes: int
    ) -> None:
        self._more = more
        self._refuse = refuse
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()

    def read(self) -> Frame | None:
        """The next frame; None once nothing more comes."""
        try:
            while (frame := self._read_or_skip()) is None:
                pass
        except EOFError:
            return None
        return frame

    def _read_or_skip(self) -> Frame | None:
        head = self._head()
        length = _LENGTH.search(head)
        end = self._first_zero(head) if length is None else len(head) + int(length[1])
        body_bytes = end - len(head)
        if body_bytes > self._max_body_bytes:
            self._refuse(too_large(_name(head), f"{body_bytes:,}", self._max_body_bytes))
        elif b"\0" in head:
            self._refuse(_unreadable(head, "the zero byte"))
        else:
            try:
                command, headers = _read_head(head, is_strict=head.startswith(b"MESSAGE"))
            except ValueError as error:
                refused = _unreadable(head, str(error))
                command, headers = _read_head(head, is_strict=False)
                whole = Frame(command, headers, head + self._cut(len(head), end))
                self._refuse(UnreadableError(refused.message, hint=refused.hint or "", frame=whole))
                return None
            else:
                return Frame(command, headers, self._cut(len(head), end))
        self._skip(end + 1)
        return None

    def _head(self) -> bytes:
        """What comes before the body, the empty line included."""
        buffer, searched = self._buffer, 0
        while True:
            if (between := _LINE_ENDS.match(buffer)) is not None:
                del buffer[: between.end()]  # heartbeats
            start = bytes(buffer[:10])
            if not any(start.startswith(command[: len(start)]) for command in _COMMANDS):
                raise BrokerError(f"it doesn't speak STOMP but says {start!r}", hint="check the port")
            if (ending := _HEAD_END.search(buffer, searched)) is not None:
                return bytes(buffer[: ending.end()])
            searched = max(0, len(buffer) - 3)
            if searched > _LONGEST_HEAD_BYTES:
                raise BrokerError("the headers of its frame never end")
            self._read_more()

    def _first_zero(self, head: bytes) -> int:
        """Where a body without a length ends; what follows one that is too large is never reached."""
        searched = len(head)
        while (index := self._buffer.find(0, searched)) < 0:
            searched = len(self._buffer)
            if searched - len(head) > self._max_body_bytes:
                self._refuse(too_large(_name(head), "still more", self._max_body_bytes))
                raise EOFError
            self._read_more()
        return index

    def _cut(self, start: int, end: int) -> bytes:
        """The body that is there from start to end, once all of the frame is."""
        while len(self._buffer) <= end:
            self._read_more()
        if self._buffer[end] != 0:
            raise BrokerError("its frame doesn't end where it should")
        with memoryview(self._buffer) as whole:
            body = bytes(whole[start:end])
        del self._buffer[: end + 1]
        return body

    def _skip(self, length_bytes: int) -> None:
        while len(self._buffer) < length_bytes:
            length_bytes -= len(self._buffer)
            self._buffer.clear()
            self._read_more()
        del self._buffer[:length_bytes]

    def _read_more(self) -> None:
        data = self._more()
        if not data:
            raise EOFError
        self._buffer += data


def _read_head(head: bytes, *, is_strict: bool) -> tuple[str, dict[str, str]]:
    """The command and the headers. `ValueError` where those of a message aren't as the protocol has them: read anyhow, two
    ids might become one. What else a broker says is for people, and is shown whatever it is."""
    try:
        command, *lines = head.decode("utf-8", "strict" if is_strict else "replace").split("\n")
    except UnicodeDecodeError:
        raise ValueError("what isn't UTF-8") from None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.removesuffix("\r").partition(":")
        if colon:
            headers.setdefault(_unescaped(name, is_strict=is_strict), _unescaped(value, is_strict=is_strict))
        elif name and is_strict:
            raise ValueError(f"a line without a colon ({name!r:.80})")
    return command.removesuffix("\r"), headers


def _unescaped(text: str, *, is_strict: bool) -> str:
    if "\\" not in text:
        return text
    try:
        return _ESCAPE.sub(lambda match: _UNESCAPED[match[0]], text)
    except KeyError as error:
        if is_strict:
            raise ValueError(f"the escape {error}") from None
        return text


def _unreadable(head: bytes, what: str) -> MessageRefusedError:
    return MessageRefusedError(
        f"{_name(head)}: {what} in a header of it can't be read by STOMP", hint="take it by AMQP"
    )


def _name(head: bytes) -> str:
    id_ = _MESSAGE_ID.search(head)
    return "a message" if id_ is None else f"message {id_[1].decode(errors='replace')}"
