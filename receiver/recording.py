"""A receiver's receipts on their way to a log that `receiver simulate` reads.

A batch is packed into a row of the store, in the batch's own transaction. So the database guarantees that every receipt of
every committed batch is recorded, and no other. Once these rows are many or old enough, a thread makes files of them, and
deletes them. Without a store that outlives the process, a batch is appended to a hidden file once it is committed.

Recording never fails a batch. Receipts that can't be recorded are dropped and counted. If no file can be made, they wait.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from receiver.closing import Closing, Mutex
from receiver.domains import Channel
from receiver.errors import MissingExtraError, OutputError, SettingsError, unwritable
from receiver.message import ReceiptValues
from receiver.settings import Recording, StoreSettings
from receiver.store.recorded import Cut, Left, RecordedBatches
from receiver.store.tables import RecordedRow

if TYPE_CHECKING:
    from _typeshed import StrPath
    from sqlalchemy import URL

    from receiver.logs.packing import IndexedReceipt
    from receiver.logs.rotating import RecordingFolder

_SHORTEST_WAIT_SECS = 0.05
"""The least time between two looks for files that are due."""
_RETRY_SECS = 5.0
"""How soon to try again to make files."""
_MOST_WAITING_FILES, _LEAST_LIMIT_BYTES = 4, 64 << 20
"""Receipts are dropped while so many files of `rotate_bytes` wait in the store or, if that is more, so many bytes."""
_FOREIGN_ROTATIONS = 2
"""If a host's batches have waited for so many times `rotate_secs`, it is dead or can't write: other hosts make its files."""
_PATIENCE_SECS = 10.0
"""How long to wait for others that make files in the folder, if no store's settings say so."""
_FORKED = "the recorder belongs to the process that opened it"

_LOGGER = logging.getLogger(__name__)


class Recorder(Closing):
    """Records the receipts of one receiver to the files that a path or a `Recording` names.

    `store`: where its batches are committed; None if nothing outlives the process. The constructor raises `SettingsError` for a
    wrong path or id, `OutputError` if the path can't be written now, and `MissingExtraError` without the extra 'simulate'. Later
    nothing is raised: `last_error` has the failure, and the logger `receiver.recording` warns once until recording works again.
    """

    def __init__(
        self,
        record: Recording | StrPath,
        channel: Channel = Channel(),  # noqa: B008 - a value
        *,
        store: tuple[URL, StoreSettings] | None = None,
    ) -> None:
        self.written = 0
        """Receipts of batches that are known to be committed."""
        self.dropped = 0
        """Receipts that couldn't be recorded."""
        self.last_error: str | None = None
        """Why receipts were last dropped, or a file couldn't be finished; None before that."""
        self._channel = _checked(channel)
        self._settings = record if isinstance(record, Recording) else Recording(record)
        self.folder = _opened(self._settings)
        self._recording, self._host = str(self.folder.names), platform.node()
        self._store = None if store is None else RecordedBatches(*store, self._recording, self._host)
        self._unfinished = self.folder.unfinished()
        self.patience_secs = _PATIENCE_SECS if store is None else store[1].lock_timeout_secs
        self._pid = os.getpid()
        self._lock = Mutex()
        """Enter this lock, not the condition: an interrupt in the condition's `__enter__`, which is Python, may leave it locked."""
        self._changed = threading.Condition(self._lock)
        self._waiting_bytes = 0
        """The bytes that wait in the store: those left when files were last made, and those packed since."""
        self._wakes_at_bytes = self._settings.rotate_bytes
        self._asked = self._done = 0
        """How often files were asked for, and how often they have been made."""
        self._closing = False
        self._failing = False
        self._reported: set[str] = set()
        self._try_to_make_files(everything=True)  # finishes the recordings of killed processes
        self._maker = threading.Thread(target=self._make_files_until_closed, name="receiver-recorder", daemon=True)
        self._maker.start()
        atexit.register(self.close)

    def packed(self, rows: Sequence[ReceiptValues], full: Sequence[IndexedReceipt]) -> RecordedRow | None:
        """The row that a batch of these rows must leave in the store, in its transaction; None if there is nothing to record.

        `full`: receipts without a row, or with more than their row's id, source and time; each with its time as read, behind its
        index in the batch.
        """
        plain = _plain(rows, full)
        receipts = len(plain) + len(full)
        if self._in_a_child():
            if self.last_error != _FORKED:
                _LOGGER.warning("not recording: %s", _FORKED)
            self.dropped += receipts
            self.last_error = _FORKED
            return None
        with self._lock:
            if self._closing and self._store is None:  # in a store they wait for the next receiver that records there
                self._note_failure("the recorder is closed", dropped=receipts)
                return None
            # Here too: only making files corrects the count of batches that were rolled back, for which `commit` isn't called.
            self._ask_if_much_waits()
            if self._waiting_bytes >= max(_MOST_WAITING_FILES * self._settings.rotate_bytes, _LEAST_LIMIT_BYTES):
                self._note_failure("too much waits in the store already", dropped=receipts)
                return None
            try:
                row = self._row(plain, full)
            except Exception as error:  # noqa: BLE001 - whatever it is, the receiver goes on
                self._failing = True
                self._note_failure(_reason(error), dropped=receipts)
                return None
            if self._store is not None:
                self._waiting_bytes += row.size_bytes
            return row if row.receipts else None

    def commit(self, row: RecordedRow) -> None:
        """Note that the batch of this row is committed."""
        if self._in_a_child():
            return
        with self._lock:
            if self._store is None and not self._append(row):
                return
            self.written += row.receipts
            self._ask_if_much_waits()

    def _append(self, row: RecordedRow) -> bool:
        """Append a batch to the hidden file. Returns whether that succeeded."""
        try:
            self._unfinished.append(row.packed, row.size_bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the receiver goes on
            self._failing = True
            self._note_failure(_reason(error), dropped=row.receipts)
            return False
        self._recover()
        if self._unfinished.size_bytes >= self._settings.rotate_bytes:
            self._unfinished.leave()
            self._ask()
        return True

    def flush(self) -> None:
        """Wait until files are made of all batches that were due before the call."""
        if self._in_a_child():
            return
        with self._lock:
            self._ask()
            asked = self._asked
            self._changed.wait_for(lambda: self._done >= asked or self._closing)

    def close(self) -> None:
        """Make a file of all batches that wait; later receipts are dropped. Closing again does nothing."""
        if self._in_a_child():
            return
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._maker.join()
        atexit.unregister(self.close)

    def _ask(self) -> None:
        self._asked += 1
        self._changed.notify_all()

    def _ask_if_much_waits(self) -> None:
        if self._waiting_bytes >= self._wakes_at_bytes:
            self._wakes_at_bytes += self._settings.rotate_bytes
            self._ask()

    def _in_a_child(self) -> bool:
        """Whether this is a forked process: it lacks the thread, and the lock may be held for ever."""
        return os.getpid() != self._pid

    def _row(self, rows: Sequence[ReceiptValues], full: Sequence[IndexedReceipt]) -> RecordedRow:
        from receiver.logs.packing import packed, problems_of, receipts_of

        where_and_when = self._recording, self._host, time.time_ns() // 1000
        with suppress(ValueError):
            return RecordedRow(*where_and_when, None, *packed(rows, full, self._channel))
        receipts = receipts_of(rows, full)
        problems = problems_of(receipts, self._channel)
        for problem in problems.values():
            self._note_failure(problem, dropped=1)
        good = list(enumerate(receipt for index, receipt in enumerate(receipts) if index not in problems))
        return RecordedRow(*where_and_when, None, *packed((), good, self._channel))

    def _make_files_until_closed(self) -> None:
        """Make files whenever one is due and, at the end, of all batches that wait."""
        secs, closing = self._settings.rotate_secs, False
        while not closing:
            with self._lock:
                patience_secs = max(_SHORTEST_WAIT_SECS, min(secs, threading.TIMEOUT_MAX))
                self._changed.wait_for(lambda: self._closing or self._asked > self._done, patience_secs)
                asked, closing = self._asked, self._closing
            secs = self._try_to_make_files(everything=closing)
            with self._lock:
                self._done = asked
                self._changed.notify_all()
        if self._failing:
            lacking = f"the recording lacks {self.dropped} receipts; others" if self.dropped else "receipts"
            _LOGGER.warning("%s may wait in the store", lacking)

    def _try_to_make_files(self, *, everything: bool) -> float:
        """Make files if possible. Returns after how many seconds to look again."""
        waiting_bytes = self._waiting_bytes
        try:
            left = self._make_files(everything=everything)
        except Exception as error:  # noqa: BLE001 - what waits goes on waiting
            self._failing = self._failing or self._store is not None
            self._note_failure(_reason(error), dropped=0)
            return _RETRY_SECS
        with self._lock:
            if self._store is not None:
                self._waiting_bytes += left.size_bytes - waiting_bytes
                self._wakes_at_bytes = self._settings.rotate_bytes
                self._recover()
            return self._secs_until_due(left) or self._settings.rotate_secs

    def _make_files(self, *, everything: bool) -> Left:
        """Make files of batches that are due, or of all. Returns figures of those that still wait."""
        left = self._leave_unfinished(everything=everything)
        with self.folder.locked(self.patience_secs):
            if self._store is not None:
                with self._store.connected() as waiting:
                    left = self._make_files_of(waiting, everything=everything)
            self.folder.finish_left(partial(self._note_failure, dropped=1))
            self.folder.remove_oldest()
        return left

    def _leave_unfinished(self, *, everything: bool) -> Left:
        with self._lock:
            left = Left(0, self._unfinished.size_bytes, self._unfinished.began_us)
            if left.size_bytes and (everything or self._secs_until_due(left) <= 0):
                self._unfinished.leave()
                left = Left(0, 0, 0)
            return left

    def _make_files_of(self, waiting: RecordedBatches, *, everything: bool) -> Left:
        before_us = int(time.time_ns() / 1000 - _FOREIGN_ROTATIONS * self._settings.rotate_secs * 1e6)
        for cut in waiting.cuts(before_us):  # cuts of killed processes
            self._finish(waiting, cut)
        size_bytes = self._settings.rotate_bytes
        while True:
            left = waiting.left(before_us)
            if not left.receipts or not (everything or self._secs_until_due(left) <= 0):
                return left
            cut_now = waiting.cut(self.folder.new_name(), size_bytes, before_us)
            if cut_now is None:  # another host has cut it
                return left
            self._finish(waiting, cut_now)
            everything = everything and cut_now.size_bytes >= size_bytes  # ends even if others go on recording

    def _finish(self, waiting: RecordedBatches, cut: Cut) -> None:
        self.folder.finish(cut.file, waiting.packed(cut), partial(self._note_failure, dropped=1))
        waiting.delete(cut)

    def _secs_until_due(self, left: Left) -> float:
        if left.size_bytes >= self._settings.rotate_bytes:
            return 0.0
        # If the clock was set back, the batches are from the future: the difference counts as their age too.
        age_secs = abs(time.time_ns() // 1000 - left.oldest_us) / 1e6 if left.oldest_us else 0.0
        return max(0.0, self._settings.rotate_secs - age_secs)

    def _recover(self) -> None:
        """Log that recording works again, if it didn't."""
        if self._failing:
            self._failing = False
            self._reported.clear()
            _LOGGER.warning("recording again; %d receipts were dropped so far", self.dropped)

    def _note_failure(self, reason: str, *, dropped: int) -> None:
        """Count receipts that are dropped, and warn; of each reason once. If none is dropped, receipts wait for a file."""
        with self._lock:
            self.dropped += dropped
            self.last_error = reason
            said = f"not recording: {reason}" if dropped else f"no file can be made, so receipts wait: {reason}"
            new = said not in self._reported
            self._reported.add(said)
        if new:
            _LOGGER.warning(said)


def _plain(rows: Sequence[ReceiptValues], full: Sequence[IndexedReceipt]) -> Sequence[ReceiptValues]:
    """The rows of a batch that hold the whole receipt."""
    if not full:
        return rows
    without_row = 0
    of_full = set()
    for index, receipt in full:
        if receipt.unique_message_id:  # otherwise it has no row, and later rows have lower indexes
            of_full.add(index - without_row)
        else:
            without_row += 1
    return [row for index, row in enumerate(rows) if index not in of_full]


def _checked(channel: Channel) -> Channel:
    for name, text in channel._asdict().items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{name} {text!r:.80} has a lone surrogate, which no log can hold") from None
    return channel


def _opened(recording: Recording) -> RecordingFolder:
    try:
        from receiver.logs.rotating import RecordingFolder, segment_names
    except ImportError as error:
        raise MissingExtraError("simulate", "recording receipts") from error
    names = segment_names(recording.path)
    if names is None:
        raise SettingsError(
            f"can't record to {os.fspath(recording.path)!r}",
            hint="a folder, or a path ending in .jsonl.zst or .parquet",
        )
    try:
        # Absolute, whatever folder the process works in later.
        return RecordingFolder(replace(names, folder=names.folder.absolute()), recording.keep_files)
    except OSError as error:
        raise unwritable(os.fspath(recording.path), error, what="can't record to") from error
    except ValueError as error:  # a NUL in the path
        raise OutputError(f"can't record to {os.fspath(recording.path)!r}: {error}") from error


def _reason(error: Exception) -> str:
    """The error as text, without a file's name: each text is reported once, so there must be few different ones."""
    cause = error.__cause__ if isinstance(error, OutputError) else error
    if isinstance(cause, OSError):
        return cause.strerror or str(cause) or type(cause).__name__
    return f"{type(error).__name__}: {error}"
