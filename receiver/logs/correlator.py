"""The text log of an Apama correlator: the messages that `logJmsMessages` prints, and its `JMS Status:` lines.

A message is one header line and the indented lines after it:

    2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: Property.NAME=VALUE
       Property.NAME=VALUE
       JMSDestination=Topic<NAME>
       JMSRedelivered=false
       Body="..."

The body is free text of any number of lines, which may look like lines of the log. It ends with a quote at the end of
a line. A header before that quote is either text, or the log broke off inside the body (a crash, a rotation) and a
message follows: it counts as a message only if fields of JMS follow it, as they do in every real one. So text quoted
from a log is no receipt, and a body without an end hides none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from zoneinfo import ZoneInfo

import pyarrow as pa

from receiver.logs import times
from receiver.logs.columns import COLUMNS, LogBatch, StatusLine, missing
from receiver.logs.rows import BatchMaker, RawRows, Unreadable
from receiver.logs.source import LogSource, ReadOptions, blocks_of

__all__ = ["LOG_LINE", "read_correlator"]

LOG_LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}) +\S+ +\[")
"""How every entry of the log begins."""
_RECEIVED = re.compile(r".*?\] - '(?P<receiver>.*?)' has received JMS message:(?: (?P<first>.*))?", re.DOTALL)
_STATUS = re.compile(r"[^\]]*\] - JMS Status: (?P<figures>.*)", re.DOTALL)
_FIGURE = re.compile(r"(\w+)=(-?\d[\d,]*(?:\.\d+)?)(?=\s|$)", re.ASCII)
_INDENT = "   "
_FIELD = re.compile(r"(?P<property>Property\.)?(?P<name>(?(property)[^=]+|[A-Za-z]\w*))=(?P<value>.*)", re.DOTALL)

_TIME, _RECEIVER, _NOTHING = "header: time", "header: receiver", "header: nothing"
"""Stand for what the header line says; no field is named so, because names end at their first space or "="."""
_OF_HEADER = {"received_at": _TIME, "connection_id": _NOTHING, "receiver_id": _RECEIVER}
_FIELDS = {name: name_here for name, column in COLUMNS.items() if (name_here := _OF_HEADER.get(name, column.jms_name))}
"""Column -> the field that it is read from. Columns that JMS has no name for aren't in such a log."""


def read_correlator(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Received messages of a correlator log, with its status lines. LINE is a message's header."""
    parser = _Parser(ZoneInfo(options.time_zone))
    fields = _FIELDS | options.column_map
    batches = BatchMaker(source.name, options)
    seen: set[str] = set()
    first: _Message | None = None
    for block in blocks_of(source.pieces, source.name):
        text = block.data.decode(errors="surrogateescape")
        for number, line in enumerate(text.removesuffix("\n").split("\n"), block.line):
            parser.take(number, line)
        first = first or next(iter(parser.messages), None)
        yield batches.batch(parser.raw(fields, seen))
    parser.end()
    first = first or next(iter(parser.messages), None)
    yield batches.batch(parser.raw(fields, seen))
    for column, declared in COLUMNS.items():
        if first and (declared.is_required or column in options.column_map) and fields[column] not in seen:
            names = [name for name in first.fields if not name.startswith("header: ")]
            raise missing(column, names, options, source.name)


@dataclass(slots=True)
class _Message:
    line: int
    fields: dict[str, str]
    inside_body: bool
    """Whether its header came before the end of another message's body, and nothing yet shows that it is real."""
    last: str | None = None
    """The field whose value goes on in lines that are no fields; None after a field that came a second time."""
    quoted: bool = False
    """Whether one of its lines would have ended the body it came in."""


class _Parser:
    """Gathers messages line by line."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._ending: str | None = None
        """What lines end with before the line feed, as the first line does: a carriage return, or nothing."""
        self._open: _Message | None = None
        self._in_body = False
        self.messages: list[_Message] = []
        self._status_lines: list[StatusLine] = []
        self._unreadable: list[Unreadable] = []

    def take(self, number: int, line: str) -> None:
        if self._ending is None:
            self._ending = "\r" if line.endswith("\r") else ""
        line = line.removesuffix(self._ending)
        entry = LOG_LINE.match(line) if line[:1].isdigit() else None
        if entry is not None:
            self._entry(number, line, entry)
        elif self._open is not None:
            self._more(self._open, line)
        elif self._in_body:
            self._in_body = not line.endswith('"')

    def end(self) -> None:
        """The message in hand is whole: the log ends here, or its next entry begins."""
        message, self._open = self._open, None
        if message is None:
            return
        if message.inside_body:
            self._in_body = not message.quoted
        else:
            self.messages.append(message)

    def _entry(self, number: int, line: str, entry: re.Match[str]) -> None:
        self.end()
        received = _RECEIVED.match(line, entry.end())
        if received is not None:
            header = {_TIME: entry["time"], _RECEIVER: received["receiver"], _NOTHING: ""}
            self._open = _Message(number, header, self._in_body, quoted=line.endswith('"'))
            if received["first"]:
                self._more(self._open, _INDENT + received["first"])
        elif self._in_body:
            self._in_body = not line.endswith('"')
        elif status := _STATUS.match(line, entry.end()):
            self._status(number, entry["time"], status["figures"])

    def _status(self, number: int, time: str, figures: str) -> None:
        try:
            logged_at_us, _unit = times.exact(time, None, self._zone)
        except ValueError as error:
            self._unreadable.append(Unreadable(number, str(error)))
            return
        values = {name: float(value.replace(",", "")) for name, value in _FIGURE.findall(figures)}
        self._status_lines.append(StatusLine(logged_at_us, values))

    def _more(self, message: _Message, line: str) -> None:
        """A line after the header: a field, the body, or the next line of a value with line breaks."""
        field = _FIELD.fullmatch(line, len(_INDENT)) if line.startswith(_INDENT) else None
        message.quoted = message.quoted or line.endswith('"')
        if field is None:
            if message.inside_body:
                self.end()
            elif message.last is not None:
                message.fields[message.last] += "\n" + line
            return
        name = field["name"]
        if not field["property"]:
            message.inside_body = False
            if name == "Body":
                self.end()
                self._in_body = field["value"].startswith('"') and not field["value"][1:].endswith('"')
                return
        message.last = None if name in message.fields else name
        message.fields.setdefault(name, field["value"])

    def raw(self, fields: dict[str, str], seen: set[str]) -> RawRows:
        """What was gathered since the last call; adds the names of its fields to `seen`."""
        good = []
        for message in self.messages:
            seen.update(message.fields)
            wrong = [column for column, name in fields.items() if not _is_utf8(message.fields.get(name, ""))]
            if wrong:
                self._unreadable.append(Unreadable(message.line, f"{wrong[0]} is not UTF-8, expected text in UTF-8"))
            else:
                good.append(message)
        columns = {
            column: pa.array([message.fields.get(name) for message in good], pa.string())
            for column, name in fields.items()
        }
        unreadable, status_lines = sorted(self._unreadable), self._status_lines
        self.messages, self._unreadable, self._status_lines = [], [], []
        return RawRows(columns, lambda row: good[row].line, unreadable, status_lines)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
