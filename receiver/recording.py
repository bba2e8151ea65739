"""Receipts recorded as a log that `receiver simulate` reads, beside the receiver's work and never in its way.

A batch is handed over in memory and written by a thread, about once a second. What can't be written is dropped and
counted: a full disk must not cost a message.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from receiver.closing import Closing
from receiver.domains import Channel
from receiver.errors import MissingExtraError, OutputError, SettingsError
from receiver.message import Receipt
from receiver.settings import Recording

if TYPE_CHECKING:
    from _typeshed import StrPath

    from receiver.logs.rotating import RotatingLog

__all__ = ["Recorder"]

FLUSH_SECS = 1.0
"""How long receipts wait for others to be written with them: what a killed process loses."""
QUEUE_RECEIPTS = 1 << 16
"""How many may wait for the thread; a larger batch is taken only while nothing else waits."""

_CLOSED = "the recorder is closed"
_FORKED = "the recorder belongs to the process that opened it"
_FULL = "receipts come faster than they can be written"

_LOGGER = logging.getLogger(__name__)


class Recorder(Closing):
    """Writes the receipts of one receiver to the rotating log that a path or a `Recording` names.

    `SettingsError` for a path or an id that can't be meant, `OutputError` where nothing can be written at the time,
    `MissingExtraError` without the extra 'simulate'. After that nothing is raised: what fails is counted in `dropped`,
    named in `last_error`, and told by a warning of the logger `receiver.recording`, once until recording works again.
    """

    def __init__(
        self,
        record: Recording | StrPath,
        *,
        connection_id: str = "",
        destination: str = "",
        receiver_id: str | None = None,
    ) -> None:
        self.written = 0
        """Receipts in the log."""
        self.dropped = 0
        """Receipts that aren't."""
        self.last_error: str | None = None
        """Why the last ones were dropped, or a file couldn't be finished."""
        self._channel = _checked(Channel(connection_id, destination, receiver_id or ""))
        self._rotating = _opened(record if isinstance(record, Recording) else Recording(record))
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._batches: list[tuple[Receipt, ...]] = []
        self._waiting = 0
        self._taken = self._settled = 0  # batches, since the start
        self._hurry = self._closing = False
        self._failing = False
        self._told: set[str] = set()
        self._writer = threading.Thread(target=self._write_until_closed, name="receiver-recorder", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    def record(self, receipts: Sequence[Receipt]) -> None:
        """Hand over a batch's receipts, each with the time of its receipt as read; never waits for the disk."""
        if self._in_a_child():
            if self.last_error != _FORKED:
                _LOGGER.warning("not recording: %s", _FORKED)
            self.dropped += len(receipts)
            self.last_error = _FORKED
            return
        with self._changed:
            full = self._waiting and self._waiting + len(receipts) > QUEUE_RECEIPTS
            refusal = _CLOSED if self._closing else _FULL if full else None
            if refusal is None and receipts:
                self._batches.append(tuple(receipts))
                self._taken += 1
                self._waiting += len(receipts)
                self._hurry = self._hurry or self._waiting >= QUEUE_RECEIPTS // 2
                if self._hurry or len(self._batches) == 1:
                    self._changed.notify_all()
        if refusal is not None:
            self._drop(len(receipts), refusal)

    def flush(self) -> None:
        """Wait until all that was handed over before is written or dropped."""
        if self._in_a_child():
            return
        with self._changed:
            taken = self._taken
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled >= taken)

    def close(self) -> None:
        """Write what waits and finish the file; later receipts are dropped. Closing again does nothing."""
        if self._in_a_child():
            return
        with self._changed:
            self._closing = self._hurry = True
            self._changed.notify_all()
        self._writer.join()
        atexit.unregister(self.close)

    def _in_a_child(self) -> bool:
        """Whether the process was forked: it has no such thread, and the lock may be held for ever."""
        return os.getpid() != self._pid

    def _write_until_closed(self) -> None:
        self._try(self._rotating.finish_abandoned)
        closing = False
        while not closing:
            batches, closing = self._next_batches()
            if batches:
                self._write(batches)
            if closing or self._rotating.secs_to_rotation() == 0:
                self._try(self._rotating.rotate)
            with self._changed:
                self._settled += len(batches)
                self._changed.notify_all()

    def _next_batches(self) -> tuple[list[tuple[Receipt, ...]], bool]:
        """What to write next, and whether it is the last; nothing where only the file is old enough to be finished."""
        with self._changed:
            patience_secs = min(self._rotating.secs_to_rotation(), threading.TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._batches or self._hurry, patience_secs)
            if self._batches:
                self._changed.wait_for(lambda: self._hurry, FLUSH_SECS)
            batches, self._batches, self._waiting, self._hurry = self._batches, [], 0, False
            return batches, self._closing

    def _write(self, batches: list[tuple[Receipt, ...]]) -> None:
        from receiver.logs.receipts import recordable

        left = sum(map(len, batches))
        try:
            rows, refusals = recordable(list(chain.from_iterable(batches)), self._channel)
            for refusal in refusals:
                self._drop(1, refusal)
                left -= 1
            if left:
                self._rotating.append(rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, the receiver goes on
            self._failing = True
            self._drop(left, _reason(error))
            return
        with self._changed:
            self.written += left
        if self._failing and left:
            self._failing = False
            self._told.clear()
            _LOGGER.warning("recording again; %d receipts were dropped so far", self.dropped)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - what was written stays, and is finished another time
            self._drop(0, _reason(error))

    def _drop(self, receipts: int, reason: str) -> None:
        with self._changed:
            self.dropped += receipts
            self.last_error = reason
            new = reason not in self._told
            self._told.add(reason)
        if new:
            _LOGGER.warning("not recording: %s", reason)


def _checked(channel: Channel) -> Channel:
    for name, text in channel._asdict().items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{name} {text!r:.80} has a lone surrogate, which no log can hold") from None
    return channel


def _opened(recording: Recording) -> RotatingLog:
    try:
        from receiver.logs.rotating import RotatingLog
        from receiver.logs.segments import segment_names
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
            rotate_bytes=recording.rotate_bytes,
            rotate_secs=recording.rotate_secs,
            keep_files=recording.keep_files,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        hint = "make the folder first" if isinstance(error, FileNotFoundError) else None
        raise OutputError(f"can't record to {os.fspath(recording.path)!r}: {_reason(error)}", hint=hint) from error


def _reason(error: Exception) -> str:
    """Few different texts, so that each is told once: a file's own name isn't in them."""
    cause = error.__cause__ if isinstance(error, OutputError) else error
    if isinstance(cause, OSError):
        return cause.strerror or type(cause).__name__
    return f"{type(error).__name__}: {error}"
