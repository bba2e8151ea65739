"""Converts a message to and from a frame of STOMP 1.2: its body, properties and headers.

Also writes frames, and reads them from the bytes that come, up to a maximum size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from receiver.bridge.connectors import (
    NON_PERSISTENT,
    UNREAD,
    Header,
    check_body,
    number_in,
    too_large_error,
    unfit_error,
)
from receiver.bridge.connectors.products import Product, StompDialect
from receiver.bridge.connectors.sockets import wrong_protocol_error
from receiver.errors import BrokerError, MessageRefusedError
from receiver.store.messages import Message, Property

_JMS_NAMES = {
    "correlation-id": Header.CORRELATION_ID,
    "reply-to": Header.REPLY_TO,
    "type": Header.JMS_TYPE,
    "content-type": Header.CONTENT_TYPE,
}
_SET_BY_FEW = {"priority": Header.PRIORITY, "expires": Header.EXPIRATION}
_FROM_AMQP, _ENCODING, _AMQP_TYPE = "JMS_AMQP_HEADER", "JMS_AMQP_ORIGINAL_ENCODING", "JMS_AMQP_ContentType"
_OBJECT = "application/x-java-serialized-object"
_NOT_BY_STOMP = {None: "an AMQP value", "3": "a sequence", "7": "a map", "8": "a list"}
"""Bodies that Artemis sends empty or garbled, by its header for the encoding of a message that came in by AMQP."""
PROTOCOLS_OWN = {
    *("destination", "message-id", "subscription", "transaction", "ack", "content-length", "content-type", "receipt"),
    *("redelivered", "timestamp", "persistent", "destination-type", *_JMS_NAMES, *_SET_BY_FEW),
}
"""Headers that aren't properties of the application."""
_PLAIN = StompDialect()

_COMMANDS = (b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR")
_LONGEST_HEAD_BYTES = 16 << 20
ANSWER_BYTES = 100 << 20
"""The largest body of an answer; an ERROR may have a whole message."""
_LINE_ENDS = re.compile(rb"[\r\n]+")
_LINE_END = ord("\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:\s*([0-9]{1,18})", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"^message-id:([^\r\n]*)", re.MULTILINE)
_ESCAPED = str.maketrans({"\\": "\\\\", ":": "\\c", "\n": "\\n", "\r": "\\r"})
_UNESCAPED = {"\\\\": "\\", "\\c": ":", "\\n": "\n", "\\r": "\r"}
_ESCAPE = re.compile(r"\\.?", re.DOTALL)


def decoded(frame: Frame, product: Product) -> Message:
    """The message from a frame of this product; `MessageRefusedError` if the broker has a body that it didn't send."""
    headers, dialect = frame.headers, product.stomp
    if frame.refused is not None:
        id_ = headers.get("message-id")
        return Message(body=frame.body, body_kind=UNREAD, message_id=id_, refused=frame.refused)
    if dialect.is_foreign is not None and dialect.is_foreign(headers):
        raise MessageRefusedError(
            f"message {headers.get('message-id', '')} came in by AMQP, and {product.name} can't give it by STOMP",
            hint="take it by AMQP",
        )
    if _FROM_AMQP in headers or _ENCODING in headers:
        _check_body(headers)
    sent = number_in(headers.get("timestamp", ""))
    return Message(
        body=frame.body,
        is_text=_is_utf8(frame.body) and not (dialect.length_means_bytes and "content-length" in headers),
        properties={name: value for name, value in headers.items() if name not in PROTOCOLS_OWN},
        headers=_jms_headers(headers, dialect),
        message_id=headers.get("message-id"),
        redelivered=headers.get("redelivered") == "true",
        jms_timestamp_ms=None if sent is None else sent * dialect.timestamp_unit_ms,
    )


def _check_body(headers: Mapping[str, str]) -> None:
    """Refuse an empty body that Artemis sends for one that STOMP can't express. Acknowledging it would lose the body."""
    kind = "an object" if headers.get(_AMQP_TYPE) == _OBJECT else _NOT_BY_STOMP.get(headers.get(_ENCODING))
    if kind is not None:
        raise MessageRefusedError(
            f"message {headers.get('message-id')}: its body is {kind}, which the broker doesn't send by STOMP",
            hint="take it by AMQP",
        )


def _jms_headers(headers: Mapping[str, str], dialect: StompDialect) -> dict[str, str]:
    said = {jms_name: headers[name] for name, jms_name in _JMS_NAMES.items() if name in headers}
    if Header.REPLY_TO in said:
        said[Header.REPLY_TO] = said[Header.REPLY_TO].removeprefix(dialect.reply_prefix)
    if (priority := headers.get("priority", "4")) != "4":
        said[Header.PRIORITY] = priority
    if (expires_ms := headers.get("expires", "0")) != "0":
        said[Header.EXPIRATION] = expires_ms
    # Without the header, the message counts as persistent.
    if headers.get("persistent", "true") != "true":
        said[Header.DELIVERY_MODE] = NON_PERSISTENT
    return said


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def encoded_headers(message: Message, dialect: StompDialect = _PLAIN) -> dict[str, str]:
    """The headers of SEND for the message, without those of its destination; `MessageUnfitError` if STOMP can't express it."""
    check_body(message, "STOMP")
    properties = message.properties.items()
    # A property with the name of a header can't be told from it: one that came by another protocol would spoil the frame.
    own = PROTOCOLS_OWN | dialect.own_headers
    headers = {name: _text(value) for name, value in properties if value is not None and name not in own}
    if "" in headers:  # ActiveMQ Classic reads no headers behind such a one
        raise unfit_error("STOMP", "a property without a name")
    said = message.headers
    for name, jms_name in (*_JMS_NAMES.items(), *_SET_BY_FEW.items()):
        if jms_name in said:
            headers[name] = said[jms_name]
    if (priority := number_in(headers.get("priority", ""))) is not None:
        headers["priority"] = str(min(priority, dialect.highest_priority))
    for text in (*headers, *headers.values()):
        _check_text(text)
    headers["persistent"] = "false" if said.get(Header.DELIVERY_MODE) == NON_PERSISTENT else "true"
    if message.is_text and not _is_utf8(message.body):
        raise unfit_error("STOMP", "its text isn't UTF-8", hint="send it as bytes")
    # Text with a zero byte can't be sent as text: a frame without a length ends there.
    if not message.is_text or b"\0" in message.body:
        headers["content-length"] = str(len(message.body))
    return headers


def _check_text(text: str) -> None:
    """Raise `MessageUnfitError` for text that the protocol would change on the way, so that two ids might become one."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)):
        raise unfit_error("STOMP", f"{text!r:.80} in a property or header")


def _text(value: Property) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else str(value)


class Frame(NamedTuple):
    command: str
    headers: Mapping[str, str] = {}
    """The headers by name, without escapes. If a name comes twice, the first counts."""
    body: bytes = b""
    refused: str | None = None
    """Why a message's headers can't be read. Then the body is the whole frame, and `headers` has those that can be read."""

    def encoded(self) -> bytes:
        """The bytes to send. Colons are escaped: a broker would silently drop a raw one, and merge two ids. The first frame isn't
        escaped, because it negotiates the version."""
        if self.command == "STOMP":
            lines = [f"{name}:{value}" for name, value in self.headers.items()]
        else:
            lines = [f"{name.translate(_ESCAPED)}:{value.translate(_ESCAPED)}" for name, value in self.headers.items()]
        head = "\n".join([self.command, *lines, "\n"])
        return b"".join((head.encode("utf-8", "replace"), self.body, b"\0"))


class FrameReader:
    """Reads whole frames by `more`, which waits for the next bytes, and returns none once the connection has ended.

    If a message can't be taken, `refuse` gets the reason as soon as its head has come. Its body is read and thrown away, because
    answers may follow it. Raises `BrokerError` for bytes that are no frame.
    """

    def __init__(
        self, more: Callable[[], bytes], refuse: Callable[[MessageRefusedError], None], *, max_body_bytes: int
    ) -> None:
        self._more = more
        self._refuse = refuse
        self._max_body_bytes = max_body_bytes
        self.ends_lines = False
        """Whether the end of a line follows each frame, so that a text has a zero byte that nothing else shows."""
        self._buffer = bytearray()

    def read(self) -> Frame | None:
        """The next frame; None once the connection has ended."""
        try:
            while (frame := self._read_or_skip()) is None:
                pass
        except EOFError:
            return None
        return frame

    def _read_or_skip(self) -> Frame | None:
        head = self._head()
        is_message = head.startswith(b"MESSAGE")
        most_bytes = self._max_body_bytes if is_message else ANSWER_BYTES
        length = _LENGTH.search(head)
        end = self._first_zero(head, most_bytes) if length is None else len(head) + int(length[1])
        if end is None:
            return None
        body_bytes = end - len(head)
        if body_bytes > most_bytes:
            self._refuse(too_large_error(_name(head), f"{body_bytes:,}", most_bytes))
        elif is_message and length is None and self.ends_lines and self._goes_on(end + 1):
            self._refuse(
                MessageRefusedError(f"{_name(head)}: STOMP ends its text at a zero byte", hint="take it by AMQP")
            )
            self._skip(end + 1)
            while self._goes_on(0):
                self._skip_to_zero()
            return None
        elif b"\0" in head:
            self._refuse(MessageRefusedError(_unreadable(head, "the zero byte"), hint="take it by AMQP"))
        else:
            try:
                command, headers = _read_head(head, is_strict=is_message)
            except ValueError as error:
                command, headers = _read_head(head, is_strict=False)
                body = head + self._cut(len(head), end)
                return Frame(command, headers, body, refused=_unreadable(head, str(error)))
            return Frame(command, headers, self._cut(len(head), end))
        self._skip(end + 1)
        return None

    def _head(self) -> bytes:
        """The bytes before the body, including the empty line."""
        buffer, searched = self._buffer, 0
        while True:
            if (between := _LINE_ENDS.match(buffer)) is not None:
                del buffer[: between.end()]  # heartbeats
            start = bytes(buffer[:10])
            if not _may_begin(start):
                raise wrong_protocol_error("stomp", start)
            if (ending := _HEAD_END.search(buffer, searched)) is not None:
                return bytes(buffer[: ending.end()])
            searched = max(0, len(buffer) - 3)
            if searched > _LONGEST_HEAD_BYTES:
                raise BrokerError("the headers of its frame never end")
            self._read_more()

    def _first_zero(self, head: bytes, most_bytes: int) -> int | None:
        """The end of a body without a length. None if the body is too large: then the frame is refused and thrown away."""
        searched = len(head)
        while (index := self._buffer.find(0, searched)) < 0:
            searched = len(self._buffer)
            if searched - len(head) > most_bytes:
                self._refuse(too_large_error(_name(head), "still more", most_bytes))
                self._skip_to_zero()
                return None
            self._read_more()
        return index

    def _at(self, index: int) -> int:
        """The byte there, once it has come."""
        while len(self._buffer) <= index:
            self._read_more()
        return self._buffer[index]

    def _goes_on(self, index: int) -> bool:
        """Whether a text goes on here, behind a zero byte: no line ends, or what has come behind its end begins no frame."""
        return self._at(index) != _LINE_END or not _may_begin(bytes(self._buffer[index : index + 10]).lstrip(b"\r\n"))

    def _cut(self, start: int, end: int) -> bytes:
        """The body from `start` to `end`, once the whole frame has come."""
        if self._at(end) != 0:
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

    def _skip_to_zero(self) -> None:
        while (end := self._buffer.find(0)) < 0:
            self._buffer.clear()
            self._read_more()
        del self._buffer[: end + 1]

    def _read_more(self) -> None:
        data = self._more()
        if not data:
            raise EOFError
        self._buffer += data


def _may_begin(start: bytes) -> bool:
    """Whether a frame may begin so."""
    return any(start.startswith(command[: len(start)]) for command in _COMMANDS)


def _read_head(head: bytes, *, is_strict: bool) -> tuple[str, dict[str, str]]:
    """The command and the headers. `ValueError` if headers of a message aren't valid: otherwise two ids might become one. Other
    frames are for people, and are shown as they are."""
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


def _unreadable(head: bytes, what: str) -> str:
    return f"{_name(head)}: {what} in a header of it can't be read by STOMP"


def _name(head: bytes) -> str:
    id_ = _MESSAGE_ID.search(head)
    return "a message" if id_ is None else f"message {id_[1].decode(errors='replace')}"
