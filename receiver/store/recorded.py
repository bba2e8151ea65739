"""Batches that wait in a store to be written to the files of a recording.

A batch's row is written in the batch's own transaction (`sql_rows.py`). A process that makes a file first *cuts* it: it
writes a row that names the file and its batches. Once the file is finished, its batches and the cut are deleted. A process
that finds a cut of a killed one looks at the file: if it isn't finished, it makes the file of exactly those batches. So each
batch is in one file, even under kills.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import NamedTuple, Self

from sqlalchemy import URL, ColumnElement, Connection, bindparam, delete, func, insert, or_, select

from receiver.settings import StoreSettings
from receiver.store.codec import MOST_NUMBERS, decoded_numbers, encoded_numbers, parts_of, runs_of, text_of, to_bytes
from receiver.store.databases import database_of, translated
from receiver.store.sql_rows import driver_of
from receiver.store.tables import RecordedRow, recorded

_ROWS_AT_ONCE = 200
"""Rows read or deleted in one transaction: so few that it takes only some milliseconds."""


class Cut(NamedTuple):
    """A file to make, and its batches."""

    number: int
    file: str
    """The file's name."""
    numbers: Sequence[int]
    """The numbers of its batches' rows, ascending."""
    size_bytes: int


class Left(NamedTuple):
    """The size and age of the batches that wait."""

    receipts: int
    size_bytes: int
    oldest_us: int
    """When the oldest batch was recorded; 0 without batches."""


class RecordedBatches:
    """The batches of one recording. Within `connected` they can be read, cut and deleted."""

    def __init__(self, url: URL, settings: StoreSettings, recording: str, host: str) -> None:
        self._url = url
        self._writing = database_of(url).writable(url, settings)
        self._reading = database_of(url).read_only(url, settings)
        self._recording = to_bytes(recording)
        self._host = to_bytes(host)

    @contextmanager
    def connected(self) -> Iterator[Self]:
        """Within it, a driver's errors become `StoreError`s."""
        with translated(self._url), self._reading.connect() as self._reader, self._writing.connect() as self._writer:
            for connection in (self._reader, self._writer):
                database_of(self._url).watch_idle(driver_of(connection), partial(_is_idle, connection))
            yield self

    def left(self, foreign_before_us: int) -> Left:
        """Figures of the waiting batches of this host, and of those of other hosts from before that time, whoever cut them."""
        c = recorded.c
        totals = select(func.sum(c.receipts), func.sum(c.size_bytes), func.min(c.recorded_at_us))
        with self._reader.begin():
            values = self._reader.execute(totals.where(c.file.is_(None), self._ours(foreign_before_us))).one()
        return Left(*(int(value or 0) for value in values))

    def cuts(self, foreign_before_us: int) -> list[Cut]:
        """The files that a killed process has cut but not finished."""
        with self._reader.begin():
            return _cuts_in(self._reader, self._ours(foreign_before_us))

    def cut(self, file: str, size_bytes: int, foreign_before_us: int) -> Cut | None:
        """Cut a file of about this size from the oldest batches that no cut has; None if there are none."""
        c = recorded.c
        batches = select(c.number, c.receipts, c.size_bytes).where(c.file.is_(None), self._ours(foreign_before_us))
        with self._writer.begin():
            # Two hosts that take over the batches of a third must not both take the same.
            database_of(self._url).keep_migrators_out(self._writer)
            taken = set(chain.from_iterable(cut.numbers for cut in _cuts_in(self._writer, self._of_recording())))
            numbers, receipts, cut_bytes = [], 0, 0
            for number, more, more_bytes in self._writer.execute(batches.order_by(c.number).limit(MOST_NUMBERS)):
                if number in taken:
                    continue
                if cut_bytes >= size_bytes:
                    break
                numbers.append(number)
                receipts += more
                cut_bytes += more_bytes
            if not numbers:
                return None
            row = (time.time_ns() // 1000, to_bytes(file), receipts, cut_bytes, encoded_numbers(numbers).encode())
            values = dict(zip(RecordedRow._fields, (self._recording, self._host, *row), strict=True))
            key = self._writer.execute(insert(recorded).values(values)).inserted_primary_key
            return Cut(key[0] if key else 0, file, numbers, cut_bytes)

    def packed(self, cut: Cut) -> Iterator[bytes]:
        """The batches of a cut, in their order."""
        c = recorded.c
        for part in parts_of(cut.numbers, _ROWS_AT_ONCE):
            several = select(c.number, c.packed).where(c.number.between(part[0], part[-1]), c.file.is_(None))
            wanted = set(part)
            with self._reader.begin():
                rows = self._reader.execute(several.where(self._of_recording()).order_by(c.number)).all()
            yield from (packed for number, packed in rows if number in wanted)

    def delete(self, cut: Cut) -> None:
        """Delete a cut and its batches, which are in a file by now, in short transactions, so that nobody waits long."""
        for part in parts_of(cut.numbers, _ROWS_AT_ONCE):
            began = time.monotonic()
            self._delete(part)
            time.sleep(time.monotonic() - began)  # let others have their turn
        self._delete([cut.number])

    def _delete(self, numbers: Sequence[int]) -> None:
        delete_run = delete(recorded).where(recorded.c.number.between(bindparam("first"), bindparam("last")))
        with self._writer.begin():
            self._writer.execute(delete_run, [{"first": first, "last": last} for first, last in runs_of(numbers)])

    def _of_recording(self) -> ColumnElement[bool]:
        return recorded.c.recording == self._recording

    def _ours(self, foreign_before_us: int) -> ColumnElement[bool]:
        ours = or_(recorded.c.host == self._host, recorded.c.recorded_at_us < foreign_before_us)
        return self._of_recording() & ours


def _cuts_in(connection: Connection, where: ColumnElement[bool]) -> list[Cut]:
    c = recorded.c
    cuts = select(c.number, c.file, c.packed, c.size_bytes).where(c.file.is_not(None), where).order_by(c.number)
    return [
        Cut(number, text_of(file), decoded_numbers(packed), size_bytes)
        for number, file, packed, size_bytes in connection.execute(cuts)
    ]


def _is_idle(connection: Connection) -> bool:
    return not connection.in_transaction()
