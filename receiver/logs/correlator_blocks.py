"""The messages of a whole block of a correlator log at once, over arrays of its lines, by the grammar of each line.

The lines are cut into *stretches*: an entry of the log and the lines up to the next entry. A stretch is *plain* if, read
by itself, it is a message without anything odd, or nothing at all. What it says then depends on no line before it, as
long as no message's body is still open. All other stretches are for the parser of lines (`correlator.py`), which knows
all the rules.

A line's *word* is all of it up to its first "=", without an entry's time. Names end there, so the word decides what the
line is. There are few different words in a log, and each is matched once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.logs.correlator_grammar import BODY, FIELD, INDENT, LOG_LINE, NOTHING, RECEIVED, RECEIVER, STATUS, TIME
from receiver.logs.source import Block

__all__ = ["BlockLines", "PlainRows"]

_LF, _CR, _EQUALS, _QUOTE, _SPACE = (ord(letter) for letter in '\n\r=" ')
_SOME_TIME = b"2017-03-05 18:17:36.091"
_LEAST = np.frombuffer(b"0000-00-00 00:00:00,000", np.uint8)
_MOST = np.frombuffer(b"9999-99-99 99:99:99.999", np.uint8)
_POINT, _BETWEEN_POINTS = 19, ord("-")  # which is the one letter between "," and "."
_ASCII = 0x80
_NONE = -1

_Indexes = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class _Word(NamedTuple):
    """What a line is, by its word."""

    is_entry: bool = False
    is_plain: bool = False
    """Whether its stretch may be plain: it is a field, or an entry of which the word shows enough."""
    name: str = ""
    """The field that the line has."""
    is_body: bool = False
    receiver: str | None = None
    """Of a message's header."""


@lru_cache(maxsize=1 << 12)
def _field_word(word: bytes) -> _Word:
    line = word.decode(errors="surrogateescape")
    field = FIELD.fullmatch(line, len(INDENT)) if line.startswith(INDENT) else None
    return _Word() if field is None else _field(field)


def _field(field: re.Match[str], *, is_entry: bool = False, receiver: str | None = None) -> _Word:
    is_body = field["name"] == BODY and not field["property"]
    return _Word(is_entry, is_plain=True, name=field["name"], is_body=is_body, receiver=receiver)


@lru_cache(maxsize=1 << 12)
def _entry_word(word: bytes) -> _Word:
    line = (_SOME_TIME + word).decode(errors="surrogateescape")
    entry = LOG_LINE.match(line)
    if entry is None:
        return _Word()
    received = RECEIVED.match(line, entry.end())
    if received is None:  # behind a "=" the rest of the line may still show that it is one
        is_plain = not line.endswith("=") and STATUS.match(line, entry.end()) is None
        return _Word(is_entry=True, is_plain=is_plain)
    first = received["first"] or ""
    if not first.endswith("="):
        return _Word(is_entry=True, is_plain=True, receiver=received["receiver"])
    field = FIELD.fullmatch(first)
    return _Word(is_entry=True) if field is None else _field(field, is_entry=True, receiver=received["receiver"])


class _Words:
    """The words of some lines, each different one looked up once."""

    def __init__(self, texts: pa.Array, look_up: Callable[[bytes], _Word]) -> None:
        encoded = texts.dictionary_encode()
        self._codes = encoded.indices.to_numpy()
        self._known = [look_up(word) for word in encoded.dictionary.to_pylist()] or [_Word()]

    def flags(self, of: Callable[[_Word], bool]) -> _Flags:
        return np.asarray(np.array([of(word) for word in self._known])[self._codes])

    def names(self, numbers: Mapping[str, int]) -> npt.NDArray[np.int16]:
        numbers_known = np.array([numbers.get(word.name, _NONE) for word in self._known], np.int16)
        return np.asarray(numbers_known[self._codes])

    def receivers(self, lines: _Indexes) -> pa.Array:
        """Those of some of the lines, all of them UTF-8."""
        known = [(word.receiver or "").encode(errors="surrogateescape") for word in self._known]
        return pa.array(known, pa.binary()).take(pa.array(self._codes[lines])).view(pa.string())


class PlainRows(NamedTuple):
    """Messages in their order."""

    columns: dict[str, pa.Array]
    lines: _Indexes
    """The physical line of each one's header."""
    names: set[str]
    """The fields that at least one of them has, of those that are columns."""


class BlockLines:
    """The lines of a block, cut into stretches."""

    def __init__(self, block: Block, ending: str, wanted: Collection[str]) -> None:
        """`ending` is what lines end with before the line feed: a carriage return, or nothing. `wanted` are the fields
        that are columns.
        """
        self._first_line = block.line
        self._data = block.data if block.data.endswith(b"\n") else block.data + b"\n"
        self._letters = np.frombuffer(self._data, np.uint8)
        self._numbers = {name: number for number, name in enumerate(wanted)}
        self._cut(ending)
        self._find_entries()
        self._find_fields()
        self.is_plain = self._plain()
        """By stretch."""

    def _cut(self, ending: str) -> None:
        letters = self._letters
        marks = np.flatnonzero((letters == _LF) | (letters == _EQUALS))
        feeds = np.flatnonzero(letters[marks] == _LF)
        feeds_at = marks[feeds]
        self._starts = np.concatenate([[0], feeds_at + 1])
        """Of each line, and of one more."""
        self._ends = feeds_at
        if ending:
            self._ends = feeds_at - ((letters[feeds_at - 1] == _CR) & (feeds_at > self._starts[:-1]))
        first_mark = marks[np.concatenate([[0], feeds[:-1] + 1])]
        self._has_equals = letters[first_mark] == _EQUALS
        self._values = np.where(self._has_equals, first_mark + 1, self._ends)
        """Where each line's word ends."""

    def _find_entries(self) -> None:
        starts, lines = self._starts[:-1], len(self._ends)
        timed = self._timed()
        self._entry_words = _Words(self._texts(starts[timed] + len(_SOME_TIME), self._values[timed]), _entry_word)
        known = self._entry_words.flags(lambda word: word.is_entry)
        is_entry = np.zeros(lines, np.bool_)
        is_entry[timed] = known
        for line in [*timed[~known].tolist(), *self._perhaps_entries(timed)]:
            text = self._data[starts[line] : self._ends[line]].decode(errors="surrogateescape")
            is_entry[line] = LOG_LINE.match(text) is not None
        self._heads = np.flatnonzero(is_entry)
        self._word_of_head = np.full(len(self._heads), _NONE)
        """Its index among the words of entries; -1 where the word doesn't show that it is one."""
        self._word_of_head[np.searchsorted(self._heads, timed[known])] = np.flatnonzero(known)

    def _timed(self) -> _Indexes:
        """The lines that begin with a time, in digits of ASCII."""
        letters, starts = self._letters, self._starts[:-1]
        candidates = np.flatnonzero(letters[starts] - np.uint8(ord("0")) <= 9)  # noqa: PLR2004
        candidates = candidates[self._values[candidates] - starts[candidates] >= len(_SOME_TIME)]
        shown = letters[starts[candidates, None] + np.arange(len(_SOME_TIME))]
        good = ((shown >= _LEAST) & (shown <= _MOST)).all(axis=1)
        return np.asarray(candidates[good & (shown[:, _POINT] != _BETWEEN_POINTS)])

    def _perhaps_entries(self, timed: _Indexes) -> list[int]:
        """The other lines that may begin with a time, in digits beyond ASCII."""
        if self._data.isascii():
            return []
        begins = self._letters[self._starts[:-1]]
        odd = (begins >= _ASCII) | (begins - np.uint8(ord("0")) <= 9)  # noqa: PLR2004
        odd[timed] = False
        return np.flatnonzero(odd).tolist()

    def _find_fields(self) -> None:
        """What the lines are that have a "=": those of plain stretches are fields."""
        letters, lines = self._letters, len(self._ends)
        self._is_field, self._is_body = np.zeros((2, lines), np.bool_)
        self._names = np.full(lines, _NONE, np.int16)
        indented = np.flatnonzero(self._has_equals & (letters[self._starts[:-1]] == _SPACE))
        words = _Words(self._texts(self._starts[indented], self._values[indented]), _field_word)
        self._is_field[indented] = words.flags(lambda word: word.is_plain)
        self._is_body[indented] = words.flags(lambda word: word.is_body)
        self._names[indented] = words.names(self._numbers)
        known = self._word_of_head != _NONE
        entries, heads = self._word_of_head[known], self._heads[known]
        self._is_body[heads] = self._entry_words.flags(lambda word: word.is_body)[entries]
        self._names[heads] = self._entry_words.names(self._numbers)[entries]

    def _plain(self) -> _Flags:
        heads, lines = self._heads, len(self._ends)
        next_heads = np.append(heads, lines)[1:]
        bodies = np.flatnonzero(self._is_body)
        has_body, body = _first_in(heads, next_heads, bodies)
        fields_end = np.where(has_body, body, next_heads)
        self._fields_end = np.append(fields_end, 0)
        """The line of each stretch that its fields end before; and none for the lines before the first, whose index is -1."""
        all_fields = _count(~self._is_field, heads + 1, np.maximum(fields_end, heads + 1)) == 0
        is_known, is_message = np.zeros((2, len(heads)), np.bool_)
        known = self._word_of_head != _NONE
        entries = self._word_of_head[known]
        is_known[known] = self._entry_words.flags(lambda word: word.is_plain)[entries]
        is_message[known] = self._entry_words.flags(lambda word: word.receiver is not None)[entries]
        self._is_message = is_message & is_known
        closed = self._closed(np.where(has_body, body, heads), next_heads)
        whole = np.where(has_body, closed, next_heads < lines)
        return np.asarray(is_known & (~is_message | (all_fields & whole)) & self._decodes())

    def _closed(self, bodies: _Indexes, next_heads: _Indexes) -> _Flags:
        """Whether each of these bodies ends before the next entry."""
        letters, begins, ends = self._letters, self._values[bodies], self._ends[bodies]
        ends_quoted = (letters[self._ends - 1] == _QUOTE) & (self._ends > self._starts[:-1])
        opens = (letters[begins] == _QUOTE) & (begins < ends)
        closes = ends_quoted[bodies] & (ends - begins > 1)
        return np.asarray(~opens | closes | (_count(ends_quoted, bodies + 1, next_heads) > 0))

    def _decodes(self) -> _Flags | bool:
        """Whether each stretch is UTF-8: if the block isn't, those of nothing but ASCII."""
        try:
            self._data.isascii() or self._data.decode()
        except UnicodeDecodeError:
            begins = self._starts[self._heads]
            beyond = np.append(0, np.cumsum(self._letters >= _ASCII))
            return np.asarray(beyond[np.append(begins, len(self._letters))[1:]] == beyond[begins])
        return True

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
        named = np.flatnonzero(self._names != _NONE)
        stretch = np.searchsorted(self._heads, named, side="right") - 1
        of_message = (row_of[stretch] != _NONE) & (named < self._fields_end[stretch])
        named, row = named[of_message], row_of[stretch[of_message]]
        number = self._names[named]
        columns: dict[str, pa.Array] = {}
        names = {TIME, RECEIVER, NOTHING} if len(heads) else set()
        for column, name in fields.items():
            if name == TIME:
                begins = self._starts[heads]
                columns[column] = self._texts(begins, begins + len(_SOME_TIME)).view(pa.string())
            elif name == RECEIVER:
                columns[column] = self._entry_words.receivers(self._word_of_head[stretches])
            elif name == NOTHING:
                columns[column] = pa.array([""], pa.string()).take(pa.array(np.zeros(len(heads), np.int32)))
            else:
                mine = np.flatnonzero(number == self._numbers[name])
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


def _first_in(begins: _Indexes, ends: _Indexes, lines: _Indexes) -> tuple[_Flags, _Indexes]:
    """Whether any of the ascending `lines` lies in each stretch, and the first that does."""
    first = np.searchsorted(lines, begins)
    at = np.append(lines, np.iinfo(np.int64).max)[first]
    return at < ends, at


def _count(flags: _Flags, begins: _Indexes, ends: _Indexes) -> _Indexes:
    """How many flags are set from each of `begins` up to its one of `ends`."""
    before = np.append(0, np.cumsum(flags))
    return np.asarray(before[ends] - before[begins])
