"""What commands print and write: results, progress bars, reports; and standard output whose reader may have gone."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, TextIO

from receiver.errors import MissingExtraError, OutputError, SettingsError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

    from receiver.report.document import Document

_PATIENCE_SECS = 2.0
_CREDENTIALS = re.compile(r"(?<=://)[^/?#]*@|\?.*")
"""What of a URL may be secret: the user with the password, and the options."""


def print_json(value: dict[str, Any]) -> None:
    """Print one object in JSON as bytes, so that it is the same whatever the terminal's encoding."""
    from receiver.report.json_object import dumped

    sys.stdout.buffer.write(dumped(value).encode() + b"\n")


def print_report(document: Document) -> None:
    from receiver.report.terminal import print_document

    print_document(document, console())


def console() -> Console:
    """Standard output for text and tables; what its encoding lacks is escaped."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


@contextmanager
def progress(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error once the work has taken two seconds, if that is a terminal.

    The function that it yields takes how much more is done, towards `total`, or without an end if that is None;
    `in_bytes` says the unit.
    """
    with _bar(what, total, in_bytes=in_bytes) as update:
        yield lambda done: update(advance=done)


@contextmanager
def stages(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar as `progress` does, for work in stages; until the first stage it shows `what`.

    The function that it yields takes the stage's name, how much of it is done, and its total, 0 if that isn't known.
    """
    with _bar(what, None) as update:
        yield lambda now, done, total: update(description=now, completed=done, total=total or None)


@contextmanager
def _bar(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[..., None]]:
    if not sys.stderr.isatty():
        yield lambda **_changes: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    start = Timer(_PATIENCE_SECS, bar.start)
    start.daemon = True
    start.start()
    try:
        yield lambda **changes: bar.update(task, **changes)
    finally:
        start.cancel()
        start.join()
        bar.stop()


def _provenance() -> str:
    """The command that is run, with its files, its version and the day; without what URLs hold of credentials."""
    from importlib.metadata import version

    arguments = [_CREDENTIALS.sub("", each) if "://" in each else each for each in sys.argv[1:]]
    return f"{shlex.join(['receiver', *arguments])} (version {version('reliable-receiver')}, {datetime.now(UTC):%Y-%m-%d} UTC)"


def check_extras(report: str | None, *, on_spark: bool = False) -> None:
    """`MissingExtraError` for all extras that lack something, at once. Each of them has what other commands on logs need."""
    missing: dict[str, str] = {}
    for is_wanted, extra, option, module in (
        (on_spark, "spark", "--engine spark", "pyspark"),
        (report is not None, "report", "--report", "receiver.report.html"),
    ):
        try:
            if is_wanted:
                import_module(module)
        except ImportError:
            missing[extra] = option
    if missing:
        raise MissingExtraError(",".join(missing), " with ".join(missing.values()))


@contextmanager
def report_file(path: str | None) -> Iterator[Callable[[Callable[[], Document]], object]]:
    """Create the file at once, if a path is given; the function that it yields makes a report and writes its page there."""
    if path is None:
        yield lambda _document: None
        return
    if path in {"", "-"}:
        raise SettingsError(f"--report {path!r} names no file", hint="such as --report report.html")
    from receiver.logs.writer import replacing
    from receiver.report.html import page_text

    with replacing(path) as file:
        yield lambda document: file.write(page_text(document(), _provenance()).encode())
    if Path(path).suffix.lower() not in {".html", ".htm"} and not Path(path).is_char_device():
        print(f"note: the report is HTML, whatever {path} ends with", file=sys.stderr)


def spare_logs(logs: Iterable[str], *, report: str | None, verdicts: str | None) -> None:
    """Raise `SettingsError` if an output would overwrite a log that is read, or both outputs are one file.

    A log that is read twice is worth a note.
    """
    read = Counter(Path(os.path.realpath(log)) for log in logs)
    for path, times in read.items():
        if times > 1 and path.is_file():
            print(f"note: {path} is read {times} times, so each of its receipts counts as a duplicate", file=sys.stderr)
    # Unlike `resolve`, it takes links that lead in a circle.
    outputs = [Path(os.path.realpath(path)) for path in (report, verdicts) if path is not None]
    for path in outputs:
        if path in read and path.is_file():
            raise SettingsError(f"{path} is a log to read, and would be overwritten", hint="name another file")
    if len(outputs) > len(set(outputs)) and not outputs[0].is_char_device():
        raise SettingsError("--report and --verdicts name the same file", hint="name two files")


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
