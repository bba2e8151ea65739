"""Several logs as one: merged by (running maximum of `received_at` in the file so far, index of the file, row).

The running maximum keeps the order of rows within a file even where its clock stepped back. Rows move in slices, not one by
one, and a file is opened only when its first row is due, so that a folder of logs of one day each needs the memory of one
batch of the days that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver.logs.columns import COLUMNS, LogBatch

_ATTRIBUTES = tuple(column.attribute for column in COLUMNS.values())


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A file that isn't open yet: its first key, its index among the files, and how to read it."""

    first_us: int
    index: int
    open: Callable[[], Iterator[LogBatch]] = field(compare=False)


class _Cursor:
    """An open file: what is left of its current batch, with the keys of the rows."""

    def __init__(self, index: int, batches: Iterator[LogBatch]) -> None:
        self.index = index
        self._batches = batches
        self._latest_us = 0
        self.keys: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.batch: LogBatch | None = None
        self.beside: list[LogBatch] = []
        """Batches without rows, which still carry counts and status lines."""

    def fill(self) -> bool:
        """Read until there are rows in hand; False at the end of the file."""
        while not len(self.keys):
            batch = next(self._batches, None)
            if batch is None:
                return False
            if not len(batch):
                self.beside.append(batch)
                continue
            self.keys = np.maximum.accumulate(np.maximum(batch.received_at_us, self._latest_us))
            self._latest_us = int(self.keys[-1])
            self.batch = batch
        return True

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
        filled = [cursor for cursor in cursors if cursor.fill()]
        for cursor in cursors:
            yield from cursor.beside
            cursor.beside.clear()
        cursors = filled
        horizon = min(((int(cursor.keys[-1]), cursor.index) for cursor in cursors), default=None)
        if to_open and (horizon is None or (to_open[-1].first_us, to_open[-1].index) <= horizon):
            file = to_open.pop()
            cursors = sorted([*cursors, _Cursor(file.index, file.open())], key=attrgetter("index"))
        elif horizon is not None:
            yield _up_to(horizon, cursors)


def _up_to(horizon: tuple[int, int], cursors: Sequence[_Cursor]) -> LogBatch:
    """All rows that can't come after any row not yet in hand.

    The horizon is the smallest (last key in hand, index of the file). The keys of a file grow, so whatever that file still has,
    and any other, comes after it. At the horizon's own key, only files of a smaller or the same index go first.
    """
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
