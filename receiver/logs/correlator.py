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

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from receiver.logs import times
from receiver.logs.columns import LogBatch, StatusLine
from receiver.logs.correlator_blocks import (
    BODY,
    FIELD,
    FIELDS,
    FIGURE,
    INDENT,
    LOG_LINE,
    NOTHING,
    RECEIVED,
    RECEIVER,
    STATUS,
    TIME,
    BlockLines,
    PlainRows,
)
from receiver.logs.options import ReadOptions, check_present
from receiver.logs.rows import BatchMaker, RawRows, Unreadable
from receiver.logs.source import Block, LogSource, blocks_of

if TYPE_CHECKING:
    import re


def read_correlator(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Received messages of a correlator log, with its status lines. LINE is a message's header."""
    fields = FIELDS | options.column_map
    parser = _Parser(ZoneInfo(options.time_zone), fields)
    batches = BatchMaker(source.name, options)
    for block in blocks_of(source.pieces, source.name):
        yield batches.batch(parser.read(block))
    parser.end()
    yield batches.batch(parser.rows())
    if parser.first:
        present = [column for column, name in fields.items() if name in parser.names]
        shown = [name for name in parser.first.fields if not name.startswith("header: ")]
        check_present(present, shown, options, source.name)


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
    """Gathers messages: plain ones by the block, all others line by line."""

    def __init__(self, zone: tzinfo, fields: dict[str, str]) -> None:
        self._zone = zone
        self._fields = fields
        self._ending = ""
        """What lines end with before the line feed, as the first line does: a carriage return, or nothing."""
        self._open: _Message | None = None
        self._in_body = False
        """Whether the body of a message has no end yet."""
        self.first: _Message | None = None
        self.names: set[str] = set()
        """The names of the fields that were there."""
        self._messages: list[_Message] = []
        self._status_lines: list[StatusLine] = []
        self._unreadable: list[Unreadable] = []

    def read(self, block: Block) -> RawRows:
        """The messages that end in this block, or in the one before without being known to."""
        self.know_ending(block)
        lines = BlockLines(block, self._ending)
        self.take(*lines.text(-1))
        wanted = lines.is_plain.copy()
        stretch = 0
        left = np.flatnonzero(~lines.is_plain)
        while stretch < len(wanted):
            if lines.is_plain[stretch]:  # so it begins with an entry
                self.end()
            if self.first and not self._in_body and lines.is_plain[stretch]:
                after = np.searchsorted(left, stretch)
                stretch = int(left[after]) if after < len(left) else len(wanted)
            else:
                wanted[stretch] = False
                self.take(*lines.text(stretch))
                stretch += 1
        return self.rows(lines.rows(self._fields, wanted))

    def know_ending(self, block: Block) -> None:
        if block.line == 1:
            self._ending = "\r" if block.data.partition(b"\n")[0].endswith(b"\r") else ""

    def take(self, number: int, text: str) -> None:
        """Lines, the first of which has this number."""
        for at, line in enumerate(text.removesuffix("\n").split("\n") if text else (), number):
            self._take_line(at, line.removesuffix(self._ending))

    def _take_line(self, number: int, line: str) -> None:
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
            self._messages.append(message)
            self.first = self.first or message

    def _entry(self, number: int, line: str, entry: re.Match[str]) -> None:
        self.end()
        received = RECEIVED.match(line, entry.end())
        if received is not None:
            header = {TIME: entry["time"], RECEIVER: received["receiver"], NOTHING: ""}
            self._open = _Message(number, header, self._in_body, quoted=line.endswith('"'))
            if received["first"]:
                self._more(self._open, INDENT + received["first"])
        elif self._in_body:
            self._in_body = not line.endswith('"')
        elif status := STATUS.match(line, entry.end()):
            self._status(number, entry["time"], status["figures"])

    def _status(self, number: int, time: str, figures: str) -> None:
        try:
            logged_at_us, _unit = times.exact(time, None, self._zone)
        except ValueError as error:
            self._unreadable.append(Unreadable(number, str(error)))
            return
        values = {name: float(value.replace(",", "")) for name, value in FIGURE.findall(figures)}
        self._status_lines.append(StatusLine(logged_at_us, values))

    def _more(self, message: _Message, line: str) -> None:
        """A line after the header: a field, the body, or the next line of a value with line breaks."""
        field = FIELD.fullmatch(line, len(INDENT)) if line.startswith(INDENT) else None
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
            if name == BODY:
                self.end()
                self._in_body = field["value"].startswith('"') and not field["value"][1:].endswith('"')
                return
        message.last = None if name in message.fields else name
        message.fields.setdefault(name, field["value"])

    def rows(self, plain: PlainRows | None = None) -> RawRows:
        """What was gathered since the last call, and plain messages, in the order of their lines."""
        good = []
        for message in self._messages:
            self.names.update(message.fields)
            wrong = [column for column, name in self._fields.items() if not _is_utf8(message.fields.get(name, ""))]
            if wrong:
                self._unreadable.append(Unreadable(message.line, f"{wrong[0]} is not UTF-8, expected text in UTF-8"))
            else:
                good.append(message)
        columns = {
            column: pa.array([message.fields.get(name) for message in good], pa.string())
            for column, name in self._fields.items()
        }
        lines = np.array([message.line for message in good], np.int64)
        if plain is not None and len(plain.lines):
            self.names |= plain.names
            lines = np.concatenate([plain.lines, lines])
            if not good:
                columns = plain.columns
            else:
                order = np.argsort(lines)
                lines, by_order = lines[order], pa.array(order)
                columns = {
                    column: pa.concat_arrays([plain.columns[column], values]).take(by_order)
                    for column, values in columns.items()
                }
        unreadable, status_lines = sorted(self._unreadable), self._status_lines
        self._messages, self._unreadable, self._status_lines = [], [], []
        return RawRows(columns, lambda row: int(lines[row]), unreadable, status_lines)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
