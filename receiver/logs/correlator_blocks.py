"""How the lines of a correlator log are written, and the messages of a whole block of them at once, over arrays.

The lines are cut into *stretches*: a line that begins with a time, as every entry of the log does, and the lines up to
the next such line. A stretch is *plain* if, read by itself, it is a message without anything odd, or an entry that says
nothing here. What it says then depends on no line before it, as long as no message's body is still open. All other
stretches are for the parser of lines (`correlator.py`), which knows all the rules.

A line's *word* is all of it up to its first "=", without an entry's time but for its last digit. Names end there, so the
word decides what the line is. There are few different words in a log, and each is matched once:

    2017-03-05 18:17:36.091 INFO  [1:R] - 'orders' has received JMS message: Property.uniqueMessageId=1:S01
                          1 INFO  [1:R] - 'orders' has received JMS message: Property.uniqueMessageId=
       JMSRedelivered=false
       JMSRedelivered=
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver.logs.columns import COLUMNS
from receiver.logs.source import Block

_TIME_FORM = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}"
"""To Arrow, digits are those of ASCII; to Python, those of any script."""
LOG_LINE = re.compile(rf"(?P<time>{_TIME_FORM}) +\S+ +\[")
"""How every entry of the log begins."""
RECEIVED = re.compile(r".*?\] - '(?P<receiver>.*?)' has received JMS message:(?: (?P<first>.*))?", re.DOTALL)
STATUS = re.compile(r"[^\]]*\] - JMS Status: (?P<figures>.*)", re.DOTALL)
FIGURE = re.compile(r"(\w+)=(-?\d[\d,]*(?:\.\d+)?)(?=\s|$)", re.ASCII)
INDENT = "   "
FIELD = re.compile(r"(?P<property>Property\.)?(?P<name>(?(property)[^=]+|[A-Za-z]\w*))=(?P<value>.*)", re.DOTALL)
BODY = "Body"
"""The field that ends a message; a property may be named so too."""

TIME, RECEIVER, NOTHING = "header: time", "header: receiver", "header: nothing"
"""Stand for what the header line says. It comes first, and the first of a name wins, whatever a property is named."""
_OF_HEADER = {"received_at": TIME, "connection_id": NOTHING, "receiver_id": RECEIVER}
FIELDS = {name: name_here for name, column in COLUMNS.items() if (name_here := _OF_HEADER.get(name, column.jms_name))}
"""Column -> the field that it is read from. Columns that JMS has no name for aren't in such a log."""

_LF, _CR, _EQUALS, _QUOTE, _SPACE, _ZERO = (ord(letter) for letter in '\n\r=" 0')
_BEYOND_ASCII = 0x80
_TIME_BUT_ONE = "2017-03-05 18:17:36.09"
_TIME_BYTES = len(_TIME_BUT_ONE) + 1
_NONE = -1

_Indexes = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class _Word(NamedTuple):
    """What a line is, by its word."""

    is_entry: bool = False
    is_silent: bool = False
    """Whether it is an entry of which the word shows that it is no message and no status line."""
    receiver: str | None = None
    """The receiver that a message's header names, where the word shows all that comes before a value."""
    name: str = ""
    """The field that the line has."""
    is_body: bool = False


@lru_cache(maxsize=1 << 12)
def _word_of(text: bytes) -> _Word:
    line = text.decode(errors="surrogateescape")
    if line.startswith(INDENT):
        return _with_field(_Word(), line[len(INDENT) :])
    line = _TIME_BUT_ONE + line
    entry = LOG_LINE.match(line)
    if entry is None:
        return _Word()
    received = RECEIVED.match(line, entry.end())
    if received is None:  # behind a "=" the rest of the line may still show that it is one
        return _Word(is_entry=True, is_silent=not line.endswith("=") and STATUS.match(line, entry.end()) is None)
    header, first = _Word(is_entry=True, receiver=received["receiver"]), received["first"] or ""
    return _with_field(header, first) if first.endswith("=") else header


def _with_field(word: _Word, text: str) -> _Word:
    field = FIELD.fullmatch(text)
    if field is None:
        return word._replace(receiver=None)
    return word._replace(name=field["name"], is_body=field["name"] == BODY and not field["property"])


class PlainRows(NamedTuple):
    """Messages in their order."""

    columns: dict[str, pa.Array]
    lines: _Indexes
    """The physical line of each one's header."""
    names: set[str]
    """The fields that at least one of them has, of those that are columns."""


class BlockLines:
    """The lines of a block, cut into stretches."""

    def __init__(self, block: Block, ending: str) -> None:
        """`ending` is what lines end with before the line feed: a carriage return, or nothing."""
        self._first_line = block.line
        self._data = block.data if block.data.endswith(b"\n") else block.data + b"\n"
        letters = np.frombuffer(self._data, np.uint8)
        marks = np.flatnonzero((letters == _LF) | (letters == _EQUALS))
        feeds = np.flatnonzero(letters[marks] == _LF)
        feeds_at = marks[feeds]
        self._starts = np.concatenate([[0], feeds_at + 1])
        """Of each line, and of one more."""
        begins = self._starts[:-1]
        self._ends = feeds_at
        if ending:
            self._ends = feeds_at - ((letters[feeds_at - 1] == _CR) & (feeds_at > begins))
        first_mark = marks[np.concatenate([[0], feeds[:-1] + 1])]
        has_equals = letters[first_mark] == _EQUALS
        self._values = np.where(has_equals, first_mark + 1, self._ends)
        """Where each line's word ends."""
        first_letters = letters[begins]
        is_digit = first_letters - np.uint8(_ZERO) <= 9  # noqa: PLR2004
        self._heads = self._timed(np.flatnonzero(is_digit))
        self._know_words(has_equals & (first_letters == _SPACE))
        may_hide_entry = np.flatnonzero(is_digit | (first_letters >= _BEYOND_ASCII))
        self.is_plain = self._plain(letters) & self._is_usual(may_hide_entry)
        """By stretch."""

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
        """What `of` gives for the word of each of the lines."""
        return np.asarray(np.array([of(word) for word in self._known])[self._words[lines]])

    def _plain(self, letters: npt.NDArray[np.uint8]) -> _Flags:
        heads, next_heads = self._heads, np.append(self._heads, len(self._ends))[1:]
        bodies = np.append(np.flatnonzero(self._by_word(lambda word: word.is_body)), len(self._ends))
        body = bodies[np.searchsorted(bodies, heads)]
        has_body = body < next_heads
        fields_end = np.where(has_body, body, next_heads)
        self._fields_end = np.append(fields_end, 0)
        """The line of each stretch that its fields end before; and none for the lines before the first, whose index is -1."""
        others = _before(self._by_word(lambda word: not word.name))
        all_fields = others[np.maximum(fields_end, heads + 1)] == others[heads + 1]
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
        """Whether the block is UTF-8, and the heads are all lines that begin with a time, in digits of whatever script."""
        if self._data.isascii():
            return True
        try:
            others = np.setdiff1d(may_hide_entry, self._heads, assume_unique=True).tolist()
            texts = (self._data[self._starts[line] : self._ends[line]].decode() for line in others)
            return bool(self._data.decode()) and not any(map(LOG_LINE.match, texts))
        except UnicodeDecodeError:
            return False

    def _texts(self, begins: _Indexes, ends: _Indexes) -> pa.Array:
        """The bytes from each of `begins` up to its one of `ends`; the texts lie one behind the other."""
        if not len(begins):
            return pa.array([], pa.binary())
        offsets = np.stack([begins, ends], axis=1).ravel().astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        with_gaps = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return with_gaps.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))

    def text(self, stretch: int) -> tuple[int, str]:
        """The number of the first line of a stretch, and its lines; -1 stands for what comes before the first stretch."""
        begin = int(self._heads[stretch]) if stretch >= 0 else 0
        end = int(self._heads[stretch + 1]) if stretch + 1 < len(self._heads) else len(self._ends)
        text = self._data[self._starts[begin] : self._starts[end]]
        return self._first_line + begin, text.decode(errors="surrogateescape")

    def rows(self, fields: Mapping[str, str], wanted: _Flags) -> PlainRows:
        """The messages of the `wanted` stretches, all of them plain."""
        stretches = np.flatnonzero(self._is_message & wanted)
        heads = self._heads[stretches]
        row_of = np.full(len(self._heads) + 1, _NONE)
        row_of[stretches] = np.arange(len(stretches))
        numbers = {name: number for number, name in enumerate(set(fields.values()))}
        name_of = self._by_word(lambda word: np.int16(numbers.get(word.name, _NONE)))
        named = np.flatnonzero(name_of != _NONE)
        stretch = np.searchsorted(self._heads, named, side="right") - 1
        of_message = (row_of[stretch] != _NONE) & (named < self._fields_end[stretch])
        named, row = named[of_message], row_of[stretch[of_message]]
        columns: dict[str, pa.Array] = {}
        names = {TIME, RECEIVER, NOTHING} if len(heads) else set()
        for column, name in fields.items():
            if name == TIME:
                begins = self._starts[heads]
                columns[column] = self._texts(begins, begins + _TIME_BYTES).view(pa.string())
            elif name == RECEIVER:
                known = [(word.receiver or "").encode(errors="surrogateescape") for word in self._known]
                columns[column] = pa.array(known, pa.binary()).take(pa.array(self._words[heads])).view(pa.string())
            elif name == NOTHING:
                columns[column] = pa.repeat("", len(heads))
            else:
                mine = np.flatnonzero(name_of[named] == numbers[name])
                mine = mine[np.append(True, row[mine[1:]] != row[mine[:-1]])[: len(mine)]]  # the first of a name
                columns[column] = self._column(named[mine], row[mine], len(heads))
                names |= {name} if len(mine) else set()
        return PlainRows(columns, self._first_line + heads, names)

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
