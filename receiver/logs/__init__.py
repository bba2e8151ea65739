"""Logs of receipts: one file per format behind one small interface.

`read_logs` is the way in. `files` finds and opens logs, a reader per format (`csv_log`, `jsonl`, `parquet`,
`correlator`) gives raw columns, `rows` checks their values, `merge` makes one log of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import get_args
from zoneinfo import ZoneInfo

from receiver.errors import LogFormatError, SettingsError
from receiver.logs.batch import BATCH_ROWS, Batch, LogReader, LogSource, OnError, ReadOptions, StatusLine
from receiver.logs.columns import COLUMNS, OPTIONAL, checked_map
from receiver.logs.files import LogFile, find_files, open_log
from receiver.logs.merge import Waiting, merge
from receiver.logs.parquet import group_sizes
from receiver.logs.times import UNITS

__all__ = [
    "BATCH_ROWS",
    "COLUMNS",
    "Batch",
    "LogBatches",
    "LogReader",
    "LogSource",
    "OnError",
    "Progress",
    "ReadOptions",
    "StatusLine",
    "checked_options",
    "no_receipt",
    "optional_columns",
    "read_logs",
]

_ATTRIBUTES = {column: "jms_timestamp_ms" if column == "jms_timestamp" else column for column in OPTIONAL}
_NAMES_SHOWN = 3

Progress = Callable[[int, int | None], None]
"""Told the bytes read so far, and the bytes in all where they are known."""


def read_logs(paths: Sequence[str], options: ReadOptions, *, progress: Progress | None = None) -> LogBatches:
    """The receipts of files, folders, globs and `-`, in order, as batches.

    What can be checked without reading is checked at once: `LogFormatError` for a missing file or a folder without
    logs, `SettingsError` for options that can't be meant. Reading raises `LogFormatError`, at the latest at its end
    where there was no receipt at all.
    """
    return LogBatches(find_files(paths), checked_options(options), progress)


class LogBatches(Iterator[Batch]):
    """The batches of a whole log, and what is known of it so far."""

    def __init__(self, files: Sequence[LogFile], options: ReadOptions, progress: Progress | None) -> None:
        self.columns_present: set[str] = set()
        """The optional columns that some file had."""
        self.receipts = 0
        self.paths = [str(file.path) for file in files if file.path is not None]
        """The files to read; standard input is none."""
        self._files = files
        self._options = options
        self._progress = progress
        sizes = [file.size_bytes for file in files if file.size_bytes is not None]
        self._total_bytes = sum(sizes) if len(sizes) == len(files) else None
        self._done_bytes = 0
        logs = _whole_logs(files)
        self._batches = self._rows_of(logs[0]) if len(logs) == 1 else self._merged(logs)

    def __next__(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            if not self.receipts:
                raise no_receipt([file.name for file in self._files])
            raise StopIteration
        self.receipts += len(batch)
        self.columns_present |= optional_columns(batch)
        return batch

    @property
    def known_receipts(self) -> int:
        """How many there are at least, by what Parquet files and compacted logs say of themselves."""
        if self._options.on_error != "stop":  # unreadable rows are skipped, and aren't receipts
            return 0
        compacted = {id(file.manifest): file.manifest.receipts for file in self._files if file.manifest is not None}
        plain = [file.path for file in self._files if file.manifest is None and file.path and file.can_reopen]
        return sum(compacted.values()) + sum(sum(group_sizes(path)) for path in plain)

    def _rows_of(self, log: Sequence[LogFile], *, told: bool = True) -> Iterator[Batch]:
        for file in log:
            with open_log(file, self._options, self._advance if told else None) as (source, reader):
                yield from reader(source, self._options)

    def _merged(self, logs: Sequence[Sequence[LogFile]]) -> Iterator[Batch]:
        return merge([self._waiting(log, place) for place, log in enumerate(logs)])

    def _waiting(self, log: Sequence[LogFile], place: int) -> Waiting:
        """Look at the log's first receipt. It is read from the start again when its turn comes, where it can be."""
        can_reopen = all(file.can_reopen for file in log)
        batches = self._rows_of(log, told=not can_reopen)
        ahead: list[Batch] = []
        for batch in batches:
            ahead.append(batch)
            if len(batch):
                break
        first_us = int(ahead[-1].received_at_us[0]) if ahead and len(ahead[-1]) else 0
        if can_reopen:
            return Waiting(first_us, place, lambda: self._rows_of(log))
        return Waiting(first_us, place, lambda: chain(ahead, batches))

    def _advance(self, read_bytes: int) -> None:
        self._done_bytes += read_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def _whole_logs(files: Iterable[LogFile]) -> list[list[LogFile]]:
    """The files that are one log together."""
    logs: list[list[LogFile]] = []
    for file in files:
        if file.follows:
            logs[-1].append(file)
        else:
            logs.append([file])
    return logs


def no_receipt(names: Sequence[str]) -> LogFormatError:
    """The error for files that together hold none."""
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    return LogFormatError(shown, "no receipt in the log", hint="there is nothing to replay")


def optional_columns(batch: Batch) -> set[str]:
    """Those that the file of a batch has."""
    return {column for column, attribute in _ATTRIBUTES.items() if getattr(batch, attribute) is not None}


def checked_options(options: ReadOptions) -> ReadOptions:
    """The same options in the form that readers expect; `SettingsError` for what can't be meant."""
    if options.time_unit is not None and options.time_unit not in UNITS:
        raise SettingsError(f"unknown time unit {options.time_unit!r}", hint=f"one of {', '.join(UNITS)}")
    if options.on_error not in get_args(OnError):
        raise SettingsError(f"unreadable rows can't be treated by {options.on_error!r}", hint="stop or skip")
    try:
        ZoneInfo(options.time_zone)
    except (KeyError, ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise SettingsError(
            f"unknown time zone {options.time_zone!r}", hint="an IANA name such as Europe/Paris"
        ) from error
    return checked_map(options)
