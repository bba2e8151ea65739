"""Receipts recorded as a log that `receiver simulate` reads, beside the receiver's work and never in its way.

A batch is written to a journal before it is committed, and once it is committed the journal says so. Nothing waits for
the disk: the system's memory has the journal, also when the process dies. Whatever can't be written is dropped and
counted: a full disk must not cost a message. A thread makes a finished file of a journal that is large or old enough.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from receiver.closing import Closing
from receiver.domains import Channel
from receiver.errors import MissingExtraError, OutputError, SettingsError
from receiver.message import Receipt, ReceiptRow
from receiver.settings import Recording

if TYPE_CHECKING:
    from _typeshed import StrPath

    from receiver.logs.journal import IndexedReceipt
    from receiver.logs.rotating import AbandonedJournal, RotatingLog

__all__ = ["Recorder"]

_TRY_SECS = 0.1
"""How soon leaving a journal is tried again, where a full disk has prevented it."""
_CLOSED = "the recorder is closed"
_FORKED = "the recorder belongs to the process that opened it"

_LOGGER = logging.getLogger(__name__)


class Recorder(Closing):
    """Writes the receipts of one receiver to the rotating log that a path or a `Recording` names.

    `writer` is the number by which a store knows the receiver, and `store_id` that of its domain, None where no store
    outlives the process. Making one raises `SettingsError` for a wrong path or id, `OutputError` where nothing can be
    written now, and `MissingExtraError` without the extra 'simulate'. After that nothing is raised: a failure is counted
    in `dropped`, named in `last_error`, and reported by a warning of the logger `receiver.recording`, once until
    recording works again.
    """

    def __init__(
        self,
        record: Recording | StrPath,
        *,
        connection_id: str = "",
        destination: str = "",
        receiver_id: str | None = None,
        writer: int = 0,
        store_id: int | None = None,
    ) -> None:
        self.written = 0
        """Receipts of committed batches in the log."""
        self.dropped = 0
        """Receipts that couldn't be recorded."""
        self.last_error: str | None = None
        """Why receipts were last dropped, or a file couldn't be finished; None before that."""
        self._channel = _checked(Channel(connection_id, destination, receiver_id or ""))
        self._rotating = _opened(
            record if isinstance(record, Recording) else Recording(record), self._channel, writer, store_id
        )
        self._abandoned = self._rotating.abandoned()
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._uncertain: dict[int, int] = {}
        """How many receipts each batch has that isn't committed yet."""
        self._numbers = count(1)
        self._left, self._finished = 1, 0  # journals since the start; all that killed processes left count as one
        self._is_timed = False
        """Whether the thread knows how old the journal is."""
        self._closing = False
        self._failing = False
        self._reported: set[str] = set()
        self._finisher = threading.Thread(target=self._finish_until_closed, name="receiver-recorder", daemon=True)
        self._finisher.start()
        atexit.register(self.close)

    def record(self, receipts: Sequence[Receipt]) -> None:
        """Write receipts that nothing will take back, each with the time of its receipt as read."""
        number = next(self._numbers)
        self._write(number, (), list(enumerate(receipts)), is_checked=False)
        self.commit(number)

    def write(self, number: int, rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt]) -> None:
        """Write a batch that is about to be committed; numbers ascend. It goes to the system's memory, to no disk.

        `full` are the receipts with more than the id, source and time of a row, by their index in the batch, each
        with the time of its receipt as read; `rows` are those of the others.
        """
        self._write(number, rows, full, is_checked=True)

    def commit(self, number: int) -> None:
        """Note that the batch is committed."""
        if self._in_a_child():
            return
        with self._changed:
            receipts = self._uncertain.pop(number, 0)
            if not receipts:  # none of it could be written
                return
            self._rotating.commit(number)
            self.written += receipts
            if self._failing:
                self._failing = False
                self._reported.clear()
                _LOGGER.warning("recording again; %d receipts were dropped so far", self.dropped)
            self._tend()

    def cut(self, number: int) -> None:
        """Cut the batch off, for it was not committed. It must be the last one there."""
        if self._in_a_child():
            return
        with self._changed:
            self._uncertain.pop(number, None)
            self._try(partial(self._rotating.cut, number))
            self._tend()

    @property
    def is_settled(self) -> bool:
        """Whether the log itself says of each batch that it was committed, so that nobody need ask the store."""
        return self._rotating.is_settled

    def sync(self) -> None:
        """Have the disk keep which batches were committed, before the store forgets the number that says so."""
        with self._changed:
            self._try(self._rotating.sync)

    def abandoned(self) -> list[AbandonedJournal]:
        """The journals of the same domain that killed processes left, for its store to settle. The caller closes each."""
        abandoned, self._abandoned = self._abandoned, []
        with suppress(OSError):  # the folder is gone, and whoever writes there reports it
            abandoned = abandoned or self._rotating.abandoned()
        return abandoned

    def finish(self) -> None:
        """Have the thread finish what can be finished now."""
        with self._changed:
            self._left += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until each file is finished that was due before the call."""
        if self._in_a_child():
            return
        with self._changed:
            left = self._left
            self._changed.wait_for(lambda: self._finished >= left)

    def close(self) -> None:
        """Finish the file; later receipts are dropped. Closing again does nothing."""
        if self._in_a_child():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._finisher.join()
        atexit.unregister(self.close)

    def _in_a_child(self) -> bool:
        """Whether this is a process forked off: it lacks the thread, and the lock may be held for ever."""
        return os.getpid() != self._pid

    def _write(
        self, number: int, rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt], *, is_checked: bool
    ) -> None:
        receipts = len(rows) + len(full)
        if self._in_a_child():
            if self.last_error != _FORKED:
                _LOGGER.warning("not recording: %s", _FORKED)
            self.dropped += receipts
            self.last_error = _FORKED
            return
        with self._changed:
            if self._closing:
                self._drop(receipts, _CLOSED)
                return
            try:
                payload, receipts = self._payload(rows, full, is_checked=is_checked)
                if receipts:
                    self._uncertain[number] = receipts
                    self._rotating.write(number, payload)
            except Exception as error:  # noqa: BLE001 - whatever it is, the receiver goes on
                self._uncertain.pop(number, None)
                self._failing = True
                self._drop(receipts, _reason(error))

    def _payload(
        self, rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt], *, is_checked: bool
    ) -> tuple[bytes, int]:
        """The bytes of a batch, and how many receipts they hold. Receipts that no log can hold are dropped."""
        from receiver.logs.journal import encoded

        if is_checked:
            with suppress(ValueError):
                return encoded(rows, full), len(rows) + len(full)
        good = self._good(rows, full)
        return encoded((), good), len(good)

    def _good(self, rows: Sequence[ReceiptRow], full: Sequence[IndexedReceipt]) -> list[IndexedReceipt]:
        from receiver.logs.journal import columns_of, receipts_of, refused

        receipts = receipts_of(rows, full)
        bad = refused(columns_of(receipts), self._channel)
        for refusal in bad.values():
            self._drop(1, refusal)
        return list(enumerate(receipt for index, receipt in enumerate(receipts) if index not in bad))

    def _tend(self) -> None:
        """Begin another journal if this one is due; called after each batch, and by the thread."""
        secs = self._rotating.secs_to_rotation()
        if secs == 0:
            self._leave()
        elif secs < math.inf and not self._is_timed:
            self._is_timed = True
            self._changed.notify_all()

    def _leave(self) -> None:
        try:
            self._rotating.leave()
        except OSError as error:
            self._drop(0, _reason(error))
            return
        self._is_timed = False
        self._left += 1
        self._changed.notify_all()

    def _finish_until_closed(self) -> None:
        left, closing = 1, False
        while True:
            self._try(self._rotating.finish_abandoned)
            with self._changed:
                self._finished = left
                self._changed.notify_all()
                if closing:
                    return
                while self._left == left and not self._closing:
                    patience_secs = max(_TRY_SECS, min(self._rotating.secs_to_rotation(), threading.TIMEOUT_MAX))
                    if not self._changed.wait(patience_secs):
                        self._tend()
                closing = self._closing
                if closing:
                    self._report_what_it_lacks()
                    self._rotating.close()
                left = self._left

    def _report_what_it_lacks(self) -> None:
        if self._failing:
            _LOGGER.warning("the recording lacks %d receipts", self.dropped)
        if self._uncertain:
            _LOGGER.warning(
                "it isn't known whether %d receipts were committed: the next receiver that records there asks the store",
                sum(self._uncertain.values()),
            )

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - what was written stays, and is finished another time
            self._drop(0, _reason(error))

    def _drop(self, receipts: int, reason: str) -> None:
        with self._changed:
            self.dropped += receipts
            self.last_error = reason
            new = reason not in self._reported
            self._reported.add(reason)
        if new:
            _LOGGER.warning("not recording: %s", reason)


def _checked(channel: Channel) -> Channel:
    for name, text in channel._asdict().items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{name} {text!r:.80} has a lone surrogate, which no log can hold") from None
    return channel


def _opened(recording: Recording, channel: Channel, writer: int, store_id: int | None) -> RotatingLog:
    try:
        from receiver.logs.journal import JournalHeader
        from receiver.logs.rotating import RotatingLog, segment_names
    except ImportError as error:
        raise MissingExtraError("simulate", "recording receipts") from error
    names = segment_names(recording.path)
    if names is None:
        raise SettingsError(
            f"can't record to {os.fspath(recording.path)!r}",
            hint="a folder, or a path ending in .jsonl.zst or .parquet",
        )
    try:
        return RotatingLog(
            replace(names, folder=names.folder.absolute()),  # whatever folder the process works in later
            JournalHeader(writer, store_id, *channel),
            rotate_bytes=recording.rotate_bytes,
            rotate_secs=recording.rotate_secs,
            keep_files=recording.keep_files,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        hint = "make the folder first" if isinstance(error, FileNotFoundError) else None
        raise OutputError(f"can't record to {os.fspath(recording.path)!r}: {_reason(error)}", hint=hint) from error


def _reason(error: Exception) -> str:
    """The error as text, without a file's name: each text is reported once, so there must be few."""
    cause = error.__cause__ if isinstance(error, OutputError) else error
    if isinstance(cause, OSError):
        return cause.strerror or type(cause).__name__
    return f"{type(error).__name__}: {error}"
