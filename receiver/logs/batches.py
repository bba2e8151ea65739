"""A whole log, of one file or many: its batches in order, and what is known of it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from receiver.errors import LogFormatError
from receiver.logs.columns import LogBatch, optional_columns
from receiver.logs.files import LogFile, find_files, open_log
from receiver.logs.merging import Waiting, merge
from receiver.logs.options import ReadOptions, checked_options
from receiver.logs.parquet import group_sizes

_NAMES_SHOWN = 3


def read_logs(paths: Sequence[str], options: ReadOptions) -> LogBatches:
    """The receipts of files, folders, globs and `-`, in order, as batches.

    What can be checked without reading is checked at once: `LogFormatError` for a missing file or a folder without
    logs, `SettingsError` for invalid options. Reading raises `LogFormatError` at a row that can't be read, or at the
    end if there was no receipt at all.
    """
    return LogBatches(find_files(paths), checked_options(options))


class LogBatches(Iterator[LogBatch]):
    """The batches of a whole log, and what is known of it so far."""

    def __init__(self, files: Sequence[LogFile], options: ReadOptions) -> None:
        self.columns_present: set[str] = set()
        """The optional columns that at least one file had."""
        self.receipts = 0
        self.paths = [str(file.path) for file in files if file.path is not None]
        """The files to read; standard input is none."""
        sizes = [file.size_bytes for file in files if file.size_bytes is not None]
        self.size_bytes = sum(sizes) if len(sizes) == len(files) else None
        """The size of all files together, as they are on disk; None where it isn't known before the end."""
        self.on_read: Callable[[int], None] = lambda _bytes: None
        """Called with how many of these bytes were read since the last call, by the thread that reads."""
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

    def _rows_of(self, log: Sequence[LogFile], *, counted: bool = True) -> Iterator[LogBatch]:
        for file in log:
            with open_log(file, self._options, self._count if counted else None) as (source, reader):
                yield from reader(source, self._options)

    def _waiting(self, log: Sequence[LogFile], index: int) -> Waiting:
        """Look at the log's first receipt. Where the log can be opened again, it is read from the start when it is due."""
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

    def _count(self, read_bytes: int) -> None:
        self.on_read(read_bytes)  # which may have been set after the file was opened


def _whole_logs(files: Iterable[LogFile]) -> list[list[LogFile]]:
    """The files in groups, each of which is one log: a file that `follows` belongs to the log of the one before."""
    logs: list[list[LogFile]] = []
    for file in files:
        if file.follows:
            logs[-1].append(file)
        else:
            logs.append([file])
    return logs


def no_receipt(names: Sequence[str]) -> LogFormatError:
    """The error for files that together hold no receipt."""
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    return LogFormatError(shown, "no receipt in the log", hint="there is nothing to replay")
