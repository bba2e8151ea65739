"""Standard output and standard error while a command runs: a reader that has gone changes neither work nor status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO

from receiver.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@contextmanager
def shielded() -> Iterator[None]:
    """Drop what is written to a standard stream once the other end of its pipe is closed.

    Whatever else keeps standard output from being written is an `OutputError`. Standard error may always fail, for
    there is nowhere left to say so.
    """
    plain = sys.stdout, sys.stderr
    shields = _shield(sys.stdout, must_arrive=True), _shield(sys.stderr, must_arrive=False)
    sys.stdout, sys.stderr = shields
    try:
        try:
            yield
        finally:
            for stream in shields:
                stream.flush()
    finally:
        sys.stdout, sys.stderr = plain


@contextmanager
def plain_output() -> Iterator[None]:
    """Within `shielded`, standard output as it is, where a message counts as delivered once it is written.

    `OutputError` if something written in the block could not leave the process by its end.
    """
    shield = sys.stdout
    sys.stdout = plain = getattr(shield, "plain", shield)
    try:
        yield
    finally:
        sys.stdout = shield
        failure = _emptied(plain)
    if failure:
        raise _unwritten(failure) from failure


class _Shield(io.TextIOWrapper):
    """A standard stream by its own encoding, above bytes that are shielded."""

    plain: TextIO


class _ShieldedBytes(io.RawIOBase):
    def __init__(self, beneath: IO[bytes], *, must_arrive: bool) -> None:
        self._beneath = beneath
        self._must_arrive = must_arrive
        self._is_lost = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._beneath.fileno()

    def isatty(self) -> bool:
        return not self._beneath.closed and self._beneath.isatty()

    def write(self, data: ReadableBuffer, /) -> int | None:
        if not self._is_lost:
            try:
                return self._beneath.write(data)
            except OSError as error:
                self._is_lost = True
                if self._must_arrive and not isinstance(error, BrokenPipeError):
                    raise _unwritten(error) from error
        return memoryview(data).nbytes


def _shield(plain: TextIO, *, must_arrive: bool) -> TextIO:
    buffer: Any = getattr(plain, "buffer", None)
    if buffer is None:  # not a file: closed (None), or what a program has put there
        return plain or io.StringIO()
    plain.flush()
    shielded = _ShieldedBytes(getattr(buffer, "raw", buffer), must_arrive=must_arrive)
    shield = _Shield(
        io.BufferedWriter(shielded),
        encoding=plain.encoding,
        errors=plain.errors,
        line_buffering=getattr(plain, "line_buffering", False),
        write_through=getattr(plain, "write_through", False),
    )
    shield.plain = plain
    return shield


def _emptied(stream: TextIO) -> OSError | None:
    """Write what is buffered. What can't be written is dropped, else the interpreter would complain of it at its end."""
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _unwritten(error: OSError) -> OutputError:
    return OutputError(f"can't write to standard output: {error.strerror or error}")
