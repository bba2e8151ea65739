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
from receiver.logs.columns import LogBatch, StatusLine, check_present
from receiver.logs.correlator_blocks import BlockLines, PlainRows
from receiver.logs.correlator_grammar import (
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
)
from receiver.logs.rows import BatchMaker, RawRows, Unreadable
from receiver.logs.source import Block, LogSource, ReadOptions, blocks_of

if TYPE_CHECKING:
    import re

    import numpy.typing as npt

__all__ = ["read_correlator"]


def read_correlator(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Received messages of a correlator log, with its status lines. LINE is a message's header."""
    fields = FIELDS | options.column_map
    reader = _Reader(_Parser(ZoneInfo(options.time_zone)), fields)
    batches = BatchMaker(source.name, options)
    for block in blocks_of(source.pieces, source.name):
        yield batches.batch(reader.take(block))
    yield batches.batch(reader.end())
    if reader.first:
        present = [column for column, name in fields.items() if name in reader.names]
        shown = [name for name in reader.first.fields if not name.startswith("header: ")]
        check_present(present, shown, options, source.name)


class _Reader:
    """Reads plain messages by the block, and leaves the others to the parser of lines."""

    def __init__(self, parser: _Parser, fields: dict[str, str]) -> None:
        self._parser = parser
        self._fields = fields
        self.names: set[str] = set()
        """Of the fields that were there."""
        self.first: _Message | None = None

    def take(self, block: Block) -> RawRows:
        parser = self._parser
        if block.line == 1:
            parser.know_ending(block)
        lines = BlockLines(block, parser.ending, set(self._fields.values()))
        parser.take(*lines.text(-1))
        wanted = lines.is_plain.copy()
        stretch = 0
        left = np.flatnonzero(~lines.is_plain)
        while stretch < len(wanted):
            parser.end()
            self._note_first()
            if self.first and not parser.in_body and lines.is_plain[stretch]:
                after = np.searchsorted(left, stretch)
                stretch = int(left[after]) if after < len(left) else len(wanted)
            else:
                wanted[stretch] = False
                parser.take(*lines.text(stretch))
                stretch += 1
        return self._raw(lines.rows(self._fields, wanted))

    def end(self) -> RawRows:
        self._parser.end()
        return self._raw(None)

    def _note_first(self) -> None:
        self.first = self.first or next(iter(self._parser.messages), None)

    def _raw(self, plain: PlainRows | None) -> RawRows:
        self._note_first()
        raw, lines = self._parser.raw(self._fields, self.names)
        if plain is None or not len(plain.lines):
            return raw
        self.names |= plain.names
        if not len(lines):
            raw.columns, raw.line_of = plain.columns, lambda row: int(plain.lines[row])
            return raw
        lines = np.concatenate([plain.lines, lines])
        order = np.argsort(lines)
        by_order = pa.array(order)
        for column, values in raw.columns.items():
            raw.columns[column] = pa.concat_arrays([plain.columns[column], values]).take(by_order)
        raw.line_of = lambda row: int(lines[order[row]])
        return raw


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
        self.ending = ""
        """What lines end with before the line feed, as the first line does: a carriage return, or nothing."""
        self._open: _Message | None = None
        self.in_body = False
        """Whether the body of a message has no end yet."""
        self.messages: list[_Message] = []
        self._status_lines: list[StatusLine] = []
        self._unreadable: list[Unreadable] = []

    def know_ending(self, first: Block) -> None:
        self.ending = "\r" if first.data.partition(b"\n")[0].endswith(b"\r") else ""

    def take(self, number: int, text: str) -> None:
        """Lines, the first of which has this number."""
        for at, line in enumerate(text.removesuffix("\n").split("\n") if text else (), number):
            self._take_line(at, line.removesuffix(self.ending))

    def _take_line(self, number: int, line: str) -> None:
        entry = LOG_LINE.match(line) if line[:1].isdigit() else None
        if entry is not None:
            self._entry(number, line, entry)
        elif self._open is not None:
            self._more(self._open, line)
        elif self.in_body:
            self.in_body = not line.endswith('"')

    def end(self) -> None:
        """The message in hand is whole: the log ends here, or its next entry begins."""
        message, self._open = self._open, None
        if message is None:
            return
        if message.inside_body:
            self.in_body = not message.quoted
        else:
            self.messages.append(message)

    def _entry(self, number: int, line: str, entry: re.Match[str]) -> None:
        self.end()
        received = RECEIVED.match(line, entry.end())
        if received is not None:
            header = {TIME: entry["time"], RECEIVER: received["receiver"], NOTHING: ""}
            self._open = _Message(number, header, self.in_body, quoted=line.endswith('"'))
            if received["first"]:
                self._more(self._open, INDENT + received["first"])
        elif self.in_body:
            self.in_body = not line.endswith('"')
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
                self.in_body = field["value"].startswith('"') and not field["value"][1:].endswith('"')
                return
        message.last = None if name in message.fields else name
        message.fields.setdefault(name, field["value"])

    def raw(self, fields: dict[str, str], seen: set[str]) -> tuple[RawRows, npt.NDArray[np.int64]]:
        """What was gathered since the last call, and the line of each row; adds the names of its fields to `seen`."""
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
        lines = np.array([message.line for message in good], np.int64)
        return RawRows(columns, lambda row: good[row].line, unreadable, status_lines), lines


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
