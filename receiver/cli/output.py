"""The output of commands: results, progress bars, reports; and standard output that a reader may have closed."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, TextIO

from receiver.errors import MissingExtraError, OutputError, SettingsError, first_few
from receiver.masking import masked_log
from receiver.quantities import count
from receiver.report.words import sanitised

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

    from receiver.logs.compacted import Manifest
    from receiver.report.document import Document

_PATIENCE_SECS = 2.0
_FOLDERS_SHOWN = 3
_LONGEST_NAMES = 500


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object, always in UTF-8, whatever the terminal's encoding."""
    from receiver.report.json_object import dumped

    sys.stdout.buffer.write(dumped(value).encode() + b"\n")


def print_report(document: Document) -> None:
    from receiver.report.terminal import print_document

    print_document(document, console())


def note(text: str) -> None:
    """Print a note on standard error."""
    print(f"note: {text}", file=sys.stderr)


def console() -> Console:
    """Standard output for text and tables. Characters that its encoding lacks are escaped."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


@contextmanager
def progress(what: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal, once the work has taken two seconds.

    Yields a function to call with the amount done since its last call. `total` is None if it isn't known. `in_bytes`: whether
    amounts are bytes.
    """
    with _bar(what, total, in_bytes=in_bytes) as update:
        yield lambda done: update(advance=done)


@contextmanager
def stages(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar as `progress` does, for work in stages. Until the first stage it shows `what`.

    Yields a function to call with the stage's name, the amount of it that is done, and its total, 0 if that isn't known.
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
    """The command line that is run, with the version and the date, without credentials in URLs."""
    from importlib.metadata import version

    arguments = map(masked_log, sys.argv[1:])
    return f"{shlex.join(['receiver', *arguments])} (version {version('reliable-receiver')}, {datetime.now(UTC):%Y-%m-%d} UTC)"


def check_extras(report: str | None, *, on_spark: bool = False) -> None:
    """One `MissingExtraError` for all missing extras. Each of these extras includes what commands on logs need."""
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
def report_file(path: str | None) -> Iterator[Callable[[Document], object]]:
    """Create the file at once, if a path is given. Yields a function that writes a report's page to the file."""
    if path is None:
        yield lambda _document: None
        return
    if path in {"", "-"}:
        raise SettingsError(f"--report {path!r} names no file", hint="such as --report report.html")
    from receiver.logs.writer import replacing
    from receiver.report.html import page_text

    with replacing(path) as file:
        yield lambda document: file.write(page_text(document, _provenance()).encode())
    if Path(path).suffix.lower() not in {".html", ".htm"} and not Path(path).is_char_device():
        note(f"the report is HTML, whatever {path} ends with")


def check_outputs(logs: Iterable[str], *, report: str | None, verdicts: str | None) -> None:
    """Raise `SettingsError` if an output would overwrite a log that is read, or both outputs are one file.

    Print a note if a log is read twice. Of a folder among the `logs`, all files are read.
    """
    read = Counter(Path(os.path.realpath(log)) for log in logs)
    for path, times in read.items():
        if times > 1 and path.is_file():
            note(f"{path} is read {times} times, so each of its receipts counts as a duplicate")
    # Unlike `resolve`, `realpath` accepts links that lead in a circle.
    outputs = [Path(os.path.realpath(path)) for path in (report, verdicts) if path is not None]
    for path in outputs:
        if path.is_file() and not read.keys().isdisjoint((path, *path.parents)):
            raise SettingsError(f"{path} is a log to read, and would be overwritten", hint="name another file")
    if len(outputs) > len(set(outputs)) and not outputs[0].is_char_device():
        raise SettingsError("--report and --verdicts name the same file", hint="name two files")


def note_folders_left_out(logs: Sequence[str]) -> None:
    """Print a note if folders inside a folder to read aren't searched: the receipts in them would be missing unseen."""
    from receiver.logs.files import folders_left_out

    if left_out := folders_left_out(logs):
        what = count(len(left_out), "folder")
        shown = sanitised(first_few(left_out, _FOLDERS_SHOWN), _LONGEST_NAMES)
        how = "only a folder that is named itself is searched, and those in it named KEY=VALUE"
        note(f"{what} left out ({how}): {shown}")


def note_other_key(manifests: Iterable[Manifest], key: str) -> None:
    """Print a note if a compacted log has several domains of another KEY: its order over all domains isn't kept."""
    if others := sorted({each.domain_key for each in manifests if len(each.domains) > 1} - {key}):
        note(
            f"a log was compacted by --domain {sanitised(', '.join(others), _LONGEST_NAMES)}: receipts of its several domains are"
            " merged by time here, so those of equal times, or from clocks that stepped back, may be in another order than in the"
            " original log"
        )


@contextmanager
def shielded() -> Iterator[None]:
    """Drop text that is written to a standard stream after the other end of its pipe is closed.

    Any other failure to write standard output raises `OutputError`. Failures of standard error are ignored, because there is
    nowhere left to report them.
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
    """Within `shielded`, standard output without its shield: for messages, which count as delivered once they are written.

    `OutputError` if output of the block couldn't be written by its end.
    """
    shield = sys.stdout
    sys.stdout = plain = getattr(shield, "plain", shield)
    try:
        yield
    finally:
        sys.stdout = shield
        failure = _flush(plain)
    if failure:
        raise _unwritten_error(failure) from failure


class _Shield(io.TextIOWrapper):
    """A standard stream in its own encoding, on shielded bytes."""

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
                    raise _unwritten_error(error) from error
        return memoryview(data).nbytes


def _shield(plain: TextIO, *, must_arrive: bool) -> TextIO:
    buffer: Any = getattr(plain, "buffer", None)
    if buffer is None:  # not a file: closed (None), or replaced by a program
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


def _flush(stream: TextIO) -> OSError | None:
    """Flush the stream. If that fails, drop the rest, of which the interpreter would complain at its end, and return the error."""
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _unwritten_error(error: OSError) -> OutputError:
    return OutputError(f"can't write to standard output: {error.strerror or error}")
