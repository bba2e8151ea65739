"""A whole log, of one file or many: its batches in order, and its columns and counts so far.

Several files are merged by (running maximum of `received_at` in the file so far, index of the file, row). The running maximum
keeps the order of rows within a file even if its clock stepped back. Rows move in slices, not one by one, and a file is
opened only when its first row is due. So for a folder with a log for each day, memory holds one batch of each overlapping day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.errors import LogFormatError, first_few
from receiver.logs.columns import COLUMNS, LogBatch, optional_columns
from receiver.logs.files import LogFile, find_files, manifests_of, queried
from receiver.logs.opening import read_file
from receiver.logs.options import ReadOptions
from receiver.logs.parquet import group_sizes

_NAMES_SHOWN = 3
_FEW_ROWS = 1 << 12
"""After a smaller batch, a file is read on at once, because it probably ends there."""
_MOST_ROWS = 1 << 18
"""About the most rows of a merged batch, except with more rows of one time."""
_TEXT_LOG = re.compile(r"-|.*\.(log|txt)(\.\w+)*", re.DOTALL)
"""Probable names of a correlator's log."""
_ATTRIBUTES = tuple(column.attribute for column in COLUMNS.values())


def read_logs(paths: Sequence[str], options: ReadOptions, query: str | None = None) -> LogBatches:
    """The receipts of files, folders, globs and `-`, in order, as batches. With `query`, the receipts of a database query: then
    the only path is the database's address.

    `LogFormatError` at once for a missing file or a folder without logs; while reading, for a row that can't be read, and at the
    end if there was no receipt.
    """
    files = find_files(paths) if query is None else [queried(paths, query)]
    return LogBatches(files, options)


class LogBatches(Iterator[LogBatch]):
    """The batches of a whole log, and its columns and counts so far."""

    def __init__(self, files: Sequence[LogFile], options: ReadOptions) -> None:
        self.columns_present: set[str] = set()
        """The optional columns that at least one file had."""
        self.receipts = 0
        self._skipped = 0
        self.manifests = manifests_of(files)
        """The manifests of the compacted logs among the files."""
        self.left_out = sum(manifest.skipped for manifest in self.manifests)
        """Rows that couldn't be read when logs were compacted."""
        self.paths = [str(file.path) for file in files if file.path is not None]
        """The files to read, without standard input and URLs."""
        sizes = [file.size_bytes for file in files if file.size_bytes is not None]
        self.size_bytes = sum(sizes) if len(sizes) == len(files) else None
        """The size of all files together, as stored; None if it isn't known before the end."""
        self.on_read: Callable[[int], None] = lambda _bytes: None
        """Called by the reading thread, with the number of these bytes that were read since the last call."""
        self._files = files
        self._options = options
        logs = _whole_logs(files)
        if len(logs) == 1:
            self._batches = self._rows_of(logs[0])
        else:
            self._batches = merge([self._waiting(log, index) for index, log in enumerate(logs)])

    def __next__(self) -> LogBatch:
        batch = next(self._batches, None)
        if batch is None:
            if not self.receipts:
                raise no_receipt([file.name for file in self._files], self._skipped)
            raise StopIteration
        self.receipts += len(batch)
        self._skipped += batch.skipped
        self.columns_present |= optional_columns(batch)
        return batch

    @property
    def known_receipts(self) -> int:
        """The least number of receipts, by the footers of Parquet files and the manifests of compacted logs."""
        if self._options.on_error != "stop":  # rows that are skipped aren't receipts
            return 0
        compacted = sum(manifest.receipts for manifest in self.manifests)
        plain = [file.path for file in self._files if file.manifest is None and file.path and file.can_reopen]
        return compacted + sum(sum(group_sizes(path)) for path in plain)

    def _rows_of(self, log: Sequence[LogFile], *, counted: bool = True) -> Iterator[LogBatch]:
        def on_read(read_bytes: int) -> None:
            if counted:
                self.on_read(read_bytes)  # looked up here, because it may be set after the file is opened

        return chain.from_iterable(read_file(file, self._options, on_read) for file in log)

    def _waiting(self, log: Sequence[LogFile], index: int) -> Waiting:
        """Read up to the log's first receipt, for its time. If the log can be opened again, it is closed until it is due."""
        can_reopen = all(file.can_reopen for file in log)
        batches = self._rows_of(log, counted=not can_reopen)
        ahead: list[LogBatch] = []
        for batch in batches:
            ahead.append(batch)
            if len(batch):
                break
        first_us = int(ahead[-1].received_at_us[0]) if ahead and len(ahead[-1]) else 0
        if can_reopen:
            return Waiting(first_us, index, lambda: self._rows_of(log))
        return Waiting(first_us, index, lambda: chain(ahead, batches))


def _whole_logs(files: Iterable[LogFile]) -> list[list[LogFile]]:
    """The files in groups, one for each log. A file that `follows` belongs to the log of the file before."""
    logs: list[list[LogFile]] = []
    for file in files:
        if file.follows:
            logs[-1].append(file)
        else:
            logs.append([file])
    return logs


def no_receipt(names: Sequence[str], skipped: int = 0) -> LogFormatError:
    """The error for files that hold no receipt at all."""
    hint = "the columns are there, but no rows: take a log of a time when messages came"
    if skipped:
        hint = "none of its rows can be read: without --on-error skip the first one is named"
    elif any(map(_TEXT_LOG.fullmatch, names)):
        hint = "a correlator logs them with logJmsMessages=true"
    return LogFormatError(first_few(names, _NAMES_SHOWN), "no receipt in the log", hint=hint)


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A log that isn't open yet: its first key, its index among the logs, and a function that opens it."""

    first_us: int
    index: int
    open: Callable[[], Iterator[LogBatch]] = field(compare=False)


class _Cursor:
    """An open log: the rest of its current batch, with the keys of the rows."""

    def __init__(self, file: Waiting) -> None:
        self.index = file.index
        self._batches = file.open()
        self._latest_us = 0
        self._ahead: LogBatch | None = None
        self.keys: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.batch: LogBatch | None = None
        self.is_last = False
        """Whether no rows are known to follow these."""

    @property
    def end(self) -> tuple[int, int]:
        """The last key in hand, and the index of the file."""
        return int(self.keys[-1]), self.index

    def fill(self) -> Iterator[LogBatch]:
        """Read until there are rows in hand, or the file ends. Yields batches without rows, which still carry counts and status
        lines."""
        if len(self.keys):
            return
        batch, self._ahead = self._ahead or (yield from self._next()), None
        if batch is None:
            return
        self.keys = np.maximum.accumulate(np.maximum(batch.received_at_us, self._latest_us))
        self._latest_us = int(self.keys[-1])
        self.batch = batch
        if len(batch) < _FEW_ROWS:
            self._ahead = yield from self._next()
            self.is_last = self._ahead is None

    def _next(self) -> Generator[LogBatch, None, LogBatch | None]:
        for batch in self._batches:
            if len(batch):
                return batch
            yield batch
        return None

    def take(self, rows: int) -> LogBatch:
        """The next rows, as a batch of their own."""
        assert self.batch is not None  # noqa: S101 - filled before
        taken, self.batch = _sliced(self.batch, 0, rows), _sliced(self.batch, rows, len(self.batch))
        self.batch.skipped, self.batch.status_lines = 0, []
        self.keys = self.keys[rows:]
        return taken


def merge(waiting: Sequence[Waiting]) -> Iterator[LogBatch]:
    """The rows of all files in their common order."""
    to_open = sorted(waiting, reverse=True)
    cursors: list[_Cursor] = []
    while cursors or to_open:
        for cursor in cursors:
            yield from cursor.fill()
        cursors = [cursor for cursor in cursors if len(cursor.keys)]
        due = min((cursor.end for cursor in cursors), default=None)
        while to_open and (due is None or (to_open[-1].first_us, to_open[-1].index) <= due):
            cursor = _Cursor(to_open.pop())
            yield from cursor.fill()
            if len(cursor.keys):
                cursors.append(cursor)
                due = min(due or cursor.end, cursor.end)
        if cursors:
            cursors.sort(key=attrgetter("index"))
            yield _up_to(_horizon(cursors, to_open), cursors)


def _horizon(cursors: Sequence[_Cursor], to_open: Sequence[Waiting]) -> tuple[int, int]:
    """The (key, index of the file) up to which rows can be handed on, because no unread row comes before it; an earlier one if
    that would be too many rows.

    The keys within a file only grow. So a file's unread rows come after its last key read. A file that isn't open begins with
    its first key. Files that are read to their end set no bound: otherwise each of thousands of small files would make a batch.
    """
    bounds = [cursor.end for cursor in cursors if not cursor.is_last]
    bounds += [(file.first_us, file.index) for file in to_open[-1:]]
    horizon = min(bounds, default=max(cursor.end for cursor in cursors))
    keys = np.concatenate([cursor.keys[: cursor.keys.searchsorted(horizon[0], side="right")] for cursor in cursors])
    if len(keys) <= _MOST_ROWS:
        return horizon
    return min(horizon, (int(np.partition(keys, _MOST_ROWS)[_MOST_ROWS]), cursors[-1].index))


def _up_to(horizon: tuple[int, int], cursors: Sequence[_Cursor]) -> LogBatch:
    """The rows up to the horizon. At its own key, only files of a smaller or the same index go first."""
    last_us, last_index = horizon
    parts, keys = [], []
    for cursor in cursors:
        side: Literal["left", "right"] = "right" if cursor.index <= last_index else "left"
        rows = int(np.searchsorted(cursor.keys, last_us, side=side))
        if rows:
            keys.append(cursor.keys[:rows])
            parts.append(cursor.take(rows))
    if len(parts) == 1:
        return parts[0]
    return _interleaved(parts, np.argsort(np.concatenate(keys), kind="stable"))


def _sliced(batch: LogBatch, start: int, stop: int) -> LogBatch:
    columns: dict[str, Any] = {name: getattr(batch, name) for name in _ATTRIBUTES}
    for name, values in columns.items():
        columns[name] = None if values is None else values[start:stop]
    return LogBatch(**columns, skipped=batch.skipped, status_lines=batch.status_lines)


def _interleaved(parts: Sequence[LogBatch], order: npt.NDArray[np.int64]) -> LogBatch:
    columns: dict[str, Any] = {}
    for name in _ATTRIBUTES:
        arrays = [getattr(part, name) for part in parts]
        kinds = {type(values) for values in arrays if values is not None}
        if not kinds:
            columns[name] = None
        elif kinds == {np.ndarray}:
            columns[name] = _numbers(arrays, parts)[order]
        else:
            columns[name] = _text(arrays, parts).take(pa.array(order))
    status_lines = [line for part in parts for line in part.status_lines]
    return LogBatch(**columns, skipped=sum(part.skipped for part in parts), status_lines=status_lines)


def _numbers(arrays: Sequence[npt.NDArray[Any] | None], parts: Sequence[LogBatch]) -> npt.NDArray[Any]:
    kind = next(values.dtype for values in arrays if values is not None)
    pairs = zip(arrays, parts, strict=True)
    return np.concatenate([np.zeros(len(part), kind) if values is None else values for values, part in pairs])


def _text(arrays: Sequence[pa.Array | None], parts: Sequence[LogBatch]) -> pa.Array:
    pairs = zip(arrays, parts, strict=True)
    filled = [pa.repeat("", len(part)) if values is None else values for values, part in pairs]
    if all(pa.types.is_string(values.type) for values in filled):
        return pa.concat_arrays(filled)
    encoded = [values if pa.types.is_dictionary(values.type) else values.dictionary_encode() for values in filled]
    return pa.chunked_array(encoded).unify_dictionaries().combine_chunks()
