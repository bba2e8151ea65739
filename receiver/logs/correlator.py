"""The text log of an Apama correlator: the messages that `logJmsMessages` prints, and its `JMS Status:` lines.

A message is one header line and the indented lines after it:

    2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: Property.NAME=VALUE
       Property.NAME=VALUE
       JMSDestination=Topic<NAME>
       JMSRedelivered=false
       Body="..."

The body is free text of any number of lines, which may look like lines of the log. It ends with a quote at the end of
a line. A header before that quote may be text of the body; or the log broke off inside the body (a crash, a rotation), and
the header is of a new message. It counts as a message only if fields of JMS follow it, as in every real message. So text
quoted from a log isn't read as a receipt, and a body without an end hides no receipt.

Reading line by line implements all these rules, but would take most of the time. So the lines of a block are cut into
*stretches*: a line that begins with a time, as every entry of the log does, and the lines up to the next such line. A stretch
is *plain* if, read by itself, it is an ordinary message, or an entry without a message or status line. Then it can be read
without the lines before it, unless a message's body is still open. All plain stretches of a block are read at once, as arrays
(`_BlockLines`), and the others line by line (`_Parser`). A test checks that both agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.logs import times
from receiver.logs.columns import COLUMNS, LogBatch, StatusLine
from receiver.logs.options import BODY_FIELD, ReadOptions, check_present
from receiver.logs.rows import BatchMaker, RawRows, Unreadable
from receiver.logs.source import Block, LogSource, blocks_of

_TIME_FORM = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}"
"""`\\d` means ASCII digits to Arrow, and digits of any script to Python."""
LOG_LINE = re.compile(rf"(?P<time>{_TIME_FORM}) +\S+ +\[")
"""The beginning of every entry of the log."""
_RECEIVED = re.compile(r".*?\] - '(?P<receiver>.*?)' has received JMS message:(?: (?P<first>.*))?", re.DOTALL)
_STATUS = re.compile(r"[^\]]*\] - JMS Status: (?P<figures>.*)", re.DOTALL)
_FIGURE = re.compile(r"(\w+)=(-?\d[\d,]*(?:\.\d+)?)(?=\s|$)", re.ASCII)
_INDENT = "   "
_FIELD = re.compile(r"(?P<property>Property\.)?(?P<name>(?(property)[^=]+|[A-Za-z]\w*))=(?P<value>.*)", re.DOTALL)
_BODY = "Body"
"""The field that ends a message. A property may have this name, too."""

_TIME, _RECEIVER, _NOTHING = "header: time", "header: receiver", "header: nothing"
"""Names for the values of the header line. These are set first, and the first value of a name wins, so no property of such a
name replaces them."""
_OF_HEADER = {"received_at": _TIME, "connection_id": _NOTHING, "receiver_id": _RECEIVER}
_FIELDS = {name: name_here for name, column in COLUMNS.items() if (name_here := _OF_HEADER.get(name, column.jms_name))}
"""Column -> the field that it is read from. A correlator's log doesn't have the columns without a JMS name."""

_LF, _CR, _EQUALS, _QUOTE, _SPACE, _ZERO = (ord(letter) for letter in '\n\r=" 0')
_BEYOND_ASCII = 0x80
_TIME_BUT_ONE = "2017-03-05 18:17:36.09"
_TIME_BYTES = len(_TIME_BUT_ONE) + 1
_NONE = -1

_Indexes = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


def read_correlator(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:
    """Received messages of a correlator log, with its status lines. LINE is a message's header."""
    fields = _FIELDS | options.column_map
    parser = _Parser(ZoneInfo(options.time_zone), fields)
    batches = BatchMaker(source.name, options)
    for block in blocks_of(source):
        yield batches.batch(parser.read(block))
    yield batches.batch(parser.finish())
    if parser.first:
        shown = [name for name in parser.first.fields if not name.startswith("header: ")]
        check_present(parser.present, shown, options, source.name)


@dataclass(slots=True)
class _Message:
    line: int
    fields: dict[str, str]
    doubtful: list[str] | None = None
    """Its lines so far, if its header came inside another message's body, and no field of JMS has shown that it is real."""
    last: str | None = None
    """The field whose value continues in lines that aren't fields; None after a field that came a second time."""
    body: list[str] = field(default_factory=list)
    """The lines of its own body, if a column is mapped to bodies."""


class _Parser:
    """Collects messages: plain messages by the block, all others line by line."""

    def __init__(self, zone: tzinfo, fields: dict[str, str]) -> None:
        self._zone = zone
        self._fields = fields
        self._patterns = {
            name: re.compile(name.removeprefix(BODY_FIELD)) for name in fields.values() if name.startswith(BODY_FIELD)
        }
        self._ending = ""
        """The text before each line feed, as in the first line: a carriage return, or nothing."""
        self._open: _Message | None = None
        self._unclosed: _Message | None = None
        """The message whose body hasn't ended yet."""
        self.first: _Message | None = None
        self.present: set[str] = set()
        """The columns of which at least one message has the field."""
        self._messages: list[_Message] = []
        self._status_lines: list[StatusLine] = []
        self._unreadable: list[Unreadable] = []

    def read(self, block: Block) -> RawRows:
        """The messages that are complete after this block, but weren't after the block before."""
        self.know_ending(block)
        lines = _BlockLines(block, self._ending)
        if self._patterns:  # `_BlockLines` doesn't search bodies
            lines.is_plain[:] = False
        self.take(*lines.text(-1))
        wanted = lines.is_plain.copy()
        stretch = 0
        left = np.flatnonzero(~lines.is_plain)
        while stretch < len(wanted):
            if lines.is_plain[stretch]:  # a plain stretch begins with an entry
                self._end()
            if self.first and self._unclosed is None and lines.is_plain[stretch]:
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
        """Read lines, the first of which has this number."""
        for at, line in enumerate(text.removesuffix("\n").split("\n") if text else (), number):
            self._take_line(at, line.removesuffix(self._ending))

    def finish(self) -> RawRows:
        """The messages left at the end of the log."""
        self._end()
        self._unclosed = None
        return self.rows()

    def _take_line(self, number: int, line: str) -> None:
        entry = LOG_LINE.match(line) if line[:1].isdigit() else None
        if entry is not None:
            self._end()
        if entry is not None and (received := _RECEIVED.match(line, entry.end())):
            header = {_TIME: entry["time"], _RECEIVER: received["receiver"], _NOTHING: ""}
            self._open = _Message(number, header, None if self._unclosed is None else [line])
            if received["first"]:
                self._more(self._open, _INDENT + received["first"])
        elif self._open is not None:
            if self._open.doubtful is not None:
                self._open.doubtful.append(line)
            self._more(self._open, line)
        elif self._unclosed is not None:
            self._continue_body(self._unclosed, [line])
        elif entry is not None and (status := _STATUS.match(line, entry.end())):
            self._status(number, entry["time"], status["figures"])

    def _end(self) -> None:
        """Complete the open message: the log ends here, or its next entry begins."""
        message, self._open = self._open, None
        if message is None:
            return
        if message.doubtful is None:
            self._messages.append(message)
            self.first = self.first or message
        elif self._unclosed is not None:
            self._continue_body(self._unclosed, message.doubtful)

    def _continue_body(self, message: _Message, lines: list[str]) -> None:
        if self._patterns:
            message.body += lines
        if any(line.endswith('"') for line in lines):
            self._unclosed = None

    def _status(self, number: int, time: str, figures: str) -> None:
        try:
            logged_at_us, _unit = times.exact(time, None, self._zone)
        except ValueError as error:
            self._unreadable.append(Unreadable(number, str(error)))
            return
        values = {name: float(value.replace(",", "")) for name, value in _FIGURE.findall(figures)}
        self._status_lines.append(StatusLine(logged_at_us, values))

    def _more(self, message: _Message, line: str) -> None:
        """Read a line after the header: a field, the body, or the next line of a value with line breaks."""
        field = _FIELD.fullmatch(line, len(_INDENT)) if line.startswith(_INDENT) else None
        if field is None:
            if message.doubtful is not None:
                self._end()
            elif message.last is not None:
                message.fields[message.last] += "\n" + line
            return
        name, value = field["name"], field["value"]
        if not field["property"]:
            if message.doubtful is not None:  # the message is real, so the body before it has no end
                message.doubtful = self._unclosed = None
            if name == _BODY:
                self._end()
                if self._patterns:
                    message.body.append(value)
                self._unclosed = message if value.startswith('"') and not value[1:].endswith('"') else None
                return
        message.last = None if name in message.fields else name
        message.fields.setdefault(name, value)

    def rows(self, plain: _Rows | None = None) -> RawRows:
        """The messages and status lines since the last call, merged with `plain` messages in the order of their lines."""
        messages = [each for each in self._messages if each is not self._unclosed]
        left = self._messages[len(messages) :]  # its body may continue in the next block
        for message in messages:
            self._search(message)
        columns = {
            column: _column([message.fields.get(name) for message in messages]) for column, name in self._fields.items()
        }
        lines = np.array([message.line for message in messages], np.int64)
        if plain is not None and len(plain.lines):
            columns, lines = _merged(plain, _Rows(columns, lines)) if messages else plain
        self.present.update(column for column, values in columns.items() if values.null_count < len(values))
        unreadable, status_lines = sorted(self._unreadable), self._status_lines
        self._messages, self._unreadable, self._status_lines = left, [], []
        return RawRows(columns, lambda row: int(lines[row]), unreadable, status_lines)

    def _search(self, message: _Message) -> None:
        """Read the columns that are mapped to the message's body."""
        text = "\n".join(message.body)
        if text.startswith('"'):
            text = text[1:].removesuffix('"')
        for name, pattern in self._patterns.items():
            match = pattern.search(text)
            if match is not None and (value := match[1 if pattern.groups else 0]) is not None:
                message.fields[name] = value


class _Rows(NamedTuple):
    """Messages in order."""

    columns: dict[str, pa.Array]
    lines: _Indexes
    """The physical line of each message's header."""


def _merged(plain: _Rows, others: _Rows) -> _Rows:
    """Both in the order of their lines."""
    lines = np.concatenate([plain.lines, others.lines])
    order = np.argsort(lines)
    columns = {
        column: pa.concat_arrays([values, others.columns[column]]).take(pa.array(order))
        for column, values in plain.columns.items()
    }
    return _Rows(columns, lines[order])


def _column(texts: Iterable[str | None]) -> pa.Array:
    """The bytes of these texts as in the log. UTF-8 is checked later, with all else (`rows.py`)."""
    values = [None if text is None else text.encode(errors="surrogateescape") for text in texts]
    return pa.array(values, pa.binary()).view(pa.string())


class _Word(NamedTuple):
    """The kind of a line.

    A line's *word* is its text up to its first "="; of an entry's time it has the last digit only. Lines with equal words are of
    one kind. A log has few different words, so each is matched once:

        2017-03-05 18:17:36.091 INFO  [1:R] - 'orders' has received JMS message: Property.uniqueMessageId=1:S01
                              1 INFO  [1:R] - 'orders' has received JMS message: Property.uniqueMessageId=
           JMSRedelivered=false
           JMSRedelivered=
    """

    is_entry: bool = False
    is_silent: bool = False
    """Whether the line is an entry whose word shows that it is neither a message nor a status line."""
    receiver: str | None = None
    """The receiver in a message's header, if the word has the whole header."""
    name: str = ""
    """The name of the field in the line."""
    is_body: bool = False


@lru_cache(maxsize=1 << 12)
def _word_of(text: bytes) -> _Word:
    line = text.decode(errors="surrogateescape")
    if line.startswith(_INDENT):
        return _with_field(_Word(), line[len(_INDENT) :])
    line = _TIME_BUT_ONE + line
    entry = LOG_LINE.match(line)
    if entry is None:
        return _Word()
    received = _RECEIVED.match(line, entry.end())
    if received is None:  # if the word ends with "=", the rest of the line may still make it a message
        return _Word(is_entry=True, is_silent=not line.endswith("=") and _STATUS.match(line, entry.end()) is None)
    header, first = _Word(is_entry=True, receiver=received["receiver"]), received["first"] or ""
    return _with_field(header, first) if first.endswith("=") else header


def _with_field(word: _Word, text: str) -> _Word:
    field = _FIELD.fullmatch(text)
    if field is None:
        return word._replace(receiver=None)
    return word._replace(name=field["name"], is_body=field["name"] == _BODY and not field["property"])


class _BlockLines:
    """The lines of a block, cut into stretches."""

    def __init__(self, block: Block, ending: str) -> None:
        """`ending` is the text before each line feed: a carriage return, or nothing."""
        self._first_line = block.line
        self._data = block.data if block.data.endswith(b"\n") else block.data + b"\n"
        letters = np.frombuffer(self._data, np.uint8)
        marks = np.flatnonzero((letters == _LF) | (letters == _EQUALS))
        feeds = np.flatnonzero(letters[marks] == _LF)
        feeds_at = marks[feeds]
        self._starts = np.concatenate([[0], feeds_at + 1])
        """The index at which each line begins, and behind these the end of the block."""
        begins = self._starts[:-1]
        self._ends = feeds_at
        if ending:
            self._ends = feeds_at - ((letters[feeds_at - 1] == _CR) & (feeds_at > begins))
        first_mark = marks[np.concatenate([[0], feeds[:-1] + 1])]
        has_equals = letters[first_mark] == _EQUALS
        self._values = np.where(has_equals, first_mark + 1, self._ends)
        """The index at which each line's word ends."""
        first_letters = letters[begins]
        is_digit = first_letters - np.uint8(_ZERO) <= 9  # noqa: PLR2004
        self._heads = self._timed(np.flatnonzero(is_digit))
        self._know_words(has_equals & (first_letters == _SPACE))
        may_hide_entry = np.flatnonzero(is_digit | (first_letters >= _BEYOND_ASCII))
        self.is_plain = self._plain(letters) & self._is_usual(may_hide_entry)
        """Whether each stretch is plain."""

    def _timed(self, lines: _Indexes) -> _Indexes:
        """Drop the lines that don't begin with a time."""
        begins = self._starts[lines]
        long = self._ends[lines] - begins >= _TIME_BYTES
        lines, begins = lines[long], begins[long]
        is_time = pc.match_substring_regex(self._texts(begins, begins + _TIME_BYTES), _TIME_FORM)
        return np.asarray(lines[is_time.to_numpy(zero_copy_only=False)])

    def _know_words(self, may_be_field: _Flags) -> None:
        is_head = np.zeros(len(self._ends), np.bool_)
        is_head[self._heads] = True
        lines = np.flatnonzero(is_head | may_be_field)
        begins = self._starts[lines] + (_TIME_BYTES - 1) * is_head[lines]
        encoded = self._texts(begins, self._values[lines]).dictionary_encode()
        self._known = [_Word(), *map(_word_of, encoded.dictionary.to_pylist())]
        self._words = np.zeros(len(self._ends), np.int32)
        """Each line's index among the known words; 0 for a line that is neither a head nor a field."""
        self._words[lines] = encoded.indices.to_numpy() + 1

    def _by_word(self, of: Callable[[_Word], Any], lines: _Indexes | slice = slice(None)) -> npt.NDArray[Any]:
        """The result of `of` for the word of each of the lines."""
        return np.asarray(np.array([of(word) for word in self._known])[self._words[lines]])

    def _plain(self, letters: npt.NDArray[np.uint8]) -> _Flags:
        heads, next_heads = self._heads, np.append(self._heads, len(self._ends))[1:]
        bodies = np.append(np.flatnonzero(self._by_word(lambda word: word.is_body)), len(self._ends))
        body = bodies[np.searchsorted(bodies, heads)]
        has_body = body < next_heads
        self._fields_end = np.minimum(body, next_heads)
        """The line before which each stretch's fields end."""
        others = _before(self._by_word(lambda word: not word.name))
        all_fields = others[np.maximum(self._fields_end, heads + 1)] == others[heads + 1]
        body = np.where(has_body, body, heads)
        begins, ends = self._values[body], self._ends[body]
        ends_quoted = (letters[self._ends - 1] == _QUOTE) & (self._ends > self._starts[:-1])
        quoted = _before(ends_quoted)
        opens = (letters[begins] == _QUOTE) & (begins < ends)
        closes = (ends_quoted[body] & (ends - begins > 1)) | (quoted[next_heads] > quoted[body + 1])
        is_entry = np.append(self._by_word(lambda word: word.is_entry, heads), False)
        self._is_message = self._by_word(lambda word: word.receiver is not None, heads)
        is_whole = self._is_message & all_fields & np.where(has_body, ~opens | closes, is_entry[1:])
        return np.asarray(is_whole | self._by_word(lambda word: word.is_silent, heads))

    def _is_usual(self, may_hide_entry: _Indexes) -> bool:
        """Whether the block is UTF-8, and no line but the heads begins with a time, in digits of any script."""
        if self._data.isascii():
            return True
        try:
            others = np.setdiff1d(may_hide_entry, self._heads, assume_unique=True).tolist()
            texts = (self._data[self._starts[line] : self._ends[line]].decode() for line in others)
            return bool(self._data.decode()) and not any(map(LOG_LINE.match, texts))
        except UnicodeDecodeError:
            return False

    def _texts(self, begins: _Indexes, ends: _Indexes) -> pa.Array:
        """The bytes from each of `begins` to the matching one of `ends`. The texts are in order and don't overlap."""
        if not len(begins):
            return pa.array([], pa.binary())
        offsets = np.stack([begins, ends], axis=1).ravel().astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        with_gaps = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return with_gaps.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))

    def text(self, stretch: int) -> tuple[int, str]:
        """The number of a stretch's first line, and its lines. Stretch -1 has the lines before the first stretch."""
        begin = int(self._heads[stretch]) if stretch >= 0 else 0
        end = int(self._heads[stretch + 1]) if stretch + 1 < len(self._heads) else len(self._ends)
        text = self._data[self._starts[begin] : self._starts[end]]
        return self._first_line + begin, text.decode(errors="surrogateescape")

    def rows(self, fields: Mapping[str, str], wanted: _Flags) -> _Rows:
        """The messages of the `wanted` stretches, which must be plain."""
        messages = np.flatnonzero(self._is_message & wanted)
        heads = self._heads[messages]
        fields_end = np.append(self._fields_end[messages], 0)  # at index -1 for the lines before the first message
        numbers = {name: number for number, name in enumerate(set(fields.values()))}
        name_of = self._by_word(lambda word: np.int16(numbers.get(word.name, _NONE)))
        named = np.flatnonzero(name_of != _NONE)
        row = np.searchsorted(heads, named, side="right") - 1
        is_field = named < fields_end[row]
        named, row = named[is_field], row[is_field]
        columns: dict[str, pa.Array] = {}
        for column, name in fields.items():
            if name == _TIME:
                begins = self._starts[heads]
                columns[column] = self._texts(begins, begins + _TIME_BYTES).view(pa.string())
            elif name == _RECEIVER:
                known = [(word.receiver or "").encode(errors="surrogateescape") for word in self._known]
                columns[column] = pa.array(known, pa.binary()).take(pa.array(self._words[heads])).view(pa.string())
            elif name == _NOTHING:
                columns[column] = pa.repeat("", len(heads))
            else:
                mine = np.flatnonzero(name_of[named] == numbers[name])
                mine = mine[np.append(True, row[mine[1:]] != row[mine[:-1]])[: len(mine)]]  # the first of a name
                columns[column] = self._column(named[mine], row[mine], len(heads))
        return _Rows(columns, self._first_line + heads)

    def _column(self, lines: _Indexes, rows: _Indexes, count: int) -> pa.Array:
        """The values that these lines have for these of `count` rows; null for the others."""
        values = self._texts(self._values[lines], self._ends[lines]).view(pa.string())
        if len(lines) == count:
            return values
        index = np.zeros(count, np.int32)
        missing = np.ones(count, np.bool_)
        index[rows], missing[rows] = np.arange(len(rows)), False
        return values.take(pa.array(index, mask=missing))


def _before(flags: _Flags) -> _Indexes:
    """How many flags are set before each line, and before the end."""
    return np.append(0, np.cumsum(flags))
