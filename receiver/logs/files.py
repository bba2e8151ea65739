"""From the paths of a command to opened logs: which files, how they are compressed, what format they are in.

What a file holds wins over what its name ends with; the ending decides only where the first bytes don't show it.
"""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

from receiver.errors import LogFormatError, MissingExtraError, SettingsError
from receiver.logs.columns import COLUMNS, LogBatch
from receiver.logs.compacted import (
    MANIFEST,
    STATUS_LINES_BEGIN,
    Folder,
    Manifest,
    is_part_path,
    manifest_of,
    read_status_lines,
)
from receiver.logs.correlator import LOG_LINE, read_correlator
from receiver.logs.csv_log import read_csv
from receiver.logs.journal import (
    JOURNAL_BEGINS,
    finished_from,
    is_journal,
    journals_in,
    journals_of,
    read_journal,
)
from receiver.logs.jsonl import read_jsonl
from receiver.logs.options import ReadOptions, spellings
from receiver.logs.parquet import MAGIC, read_parquet
from receiver.logs.remote import UrlPath, is_url, local_path, urls_at
from receiver.logs.rotating import segment_names
from receiver.logs.source import BOM, PIECE_BYTES, LogSource, Stream, content_of, opened

if TYPE_CHECKING:
    from receiver.logs.query import Query

_PARTITION = re.compile("[^=]+=.*", re.DOTALL)
"""The name of a folder that is searched too."""


class LogReader(Protocol):
    """One format. Reads a log as a stream and yields its rows in order, or raises `LogFormatError`."""

    def __call__(self, source: LogSource, options: ReadOptions) -> Iterator[LogBatch]: ...


_READERS: dict[str, LogReader] = {
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".log": read_correlator,
    ".journal": read_journal,
}
_BEGINNINGS: dict[bytes, LogReader] = {
    MAGIC: read_parquet,
    STATUS_LINES_BEGIN: read_status_lines,
    JOURNAL_BEGINS: read_journal,
}


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file to be read."""

    path: Path | None
    """None for standard input, and for a URL."""
    name: str
    """As errors name it."""
    size_bytes: int | None
    """None where it isn't known before the end: a pipe."""
    follows: bool = False
    """Whether its rows come after those of the file before, as if both were one file."""
    manifest: Manifest | None = field(default=None, repr=False)
    """The manifest of the compacted log that the file belongs to."""
    url: str | None = None
    """Where it is read from, instead of a path."""
    query: Query | None = None
    """What it is read by, of a database."""

    @property
    def can_reopen(self) -> bool:
        return self.size_bytes is not None


def find_files(paths: Sequence[str], *, growing: bool = True) -> list[LogFile]:
    """The files that paths, folders, globs, URLs and `-` stand for, in order; a folder's and a glob's by name.

    Where a rotating log was recorded to a path, the path stands for its files. With `growing`, the journals of receivers of
    earlier versions are among the files. A journal is replaced by a finished file in the end, so a caller that
    remembers files leaves journals out. The folder of a compacted log stands for the files that its manifest names.
    """
    if not paths:
        raise SettingsError("no log was named", hint="name a file, a folder, a glob, or - for standard input")
    if paths.count("-") > 1:
        raise SettingsError("standard input can be read once only", hint="give - once")
    return [file for path in paths for file in _expanded(path, growing=growing)]


def queried(logs: Sequence[str], sql: str) -> LogFile:
    """The rows of a query as a file; the only log is the database's address."""
    if len(logs) != 1:
        raise SettingsError("a query is of one database", hint="name its address alone, such as sqlite:///file")
    from receiver.logs.query import Query  # with SQLAlchemy, which few logs need

    query = Query(logs[0], sql)
    return LogFile(None, query.name, None, query=query)


def _expanded(text: str, *, growing: bool) -> list[LogFile]:
    if text == "-":
        return [LogFile(None, "-", None)]
    text = local_path(text)
    if is_url(text):
        return _at_url(text)
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        matches = sorted(match for match in glob.glob(text, recursive=True) if not Path(match).is_dir())  # noqa: PTH207
        files = [_log_file(Path(match)) for match in matches] or _segments(text, growing=growing)
        if not files:
            reason = "no file matches" if glob.has_magic(text) else getattr(error, "strerror", None) or str(error)
            raise LogFormatError(_printable(text), reason, hint="name a log of receipts") from error
        return files
    if not stat.S_ISDIR(mode):
        return [_log_file(path)]
    manifest = manifest_of(path)
    if manifest is not None:
        return _compacted(path, manifest)
    try:
        logs = _logs_in(path)
    except OSError as error:
        raise LogFormatError(_printable(text), f"the folder can't be read: {error.strerror}") from error
    files = [_log_file(log) for log in logs] + (_growing(journals_in(path), logs) if growing else [])
    if not files:
        raise LogFormatError(
            _printable(text),
            "a folder without logs",
            hint="folders inside it are searched if their names are KEY=VALUE",
        )
    if parts := [file for file in files if is_part_path(file.name)]:
        raise LogFormatError(parts[0].name, "a part of a compacted log without its manifest", hint="compact it anew")
    return sorted(files, key=lambda file: _final_path(file).relative_to(path).as_posix())


def _logs_in(folder: Path) -> list[Path]:
    """The files in a folder, and in folders of it whose names are KEY=VALUE, such as `day=2026-11-23`, to any depth."""
    logs: list[Path] = []
    for entry in os.scandir(folder):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_file():
            logs.append(folder / entry.name)
        elif entry.is_dir() and _PARTITION.fullmatch(entry.name):
            logs += _logs_in(folder / entry.name)
    return logs


def _at_url(url: str) -> list[LogFile]:
    folder = UrlPath(url)
    if folder.is_dir() and (manifest := _manifest_at(folder)) is not None:
        return _compacted(folder, manifest)
    return [LogFile(None, file, size_bytes, url=file) for file, size_bytes in urls_at(url)]


def _manifest_at(folder: UrlPath) -> Manifest | None:
    if (manifest := manifest_of(folder)) is not None:
        return manifest
    for inner in folder.rglob(f"*/{MANIFEST}"):  # whose files, taken one by one, would be in another order
        raise LogFormatError(str(folder), f"holds a compacted log: {inner}", hint="name the folder of that log itself")
    return None


def is_compacted(log: str) -> bool:
    """Whether a compacted log is at a URL, as far as fsspec knows. `LogFormatError` where it is in a folder there."""
    if not is_url(log):
        return False
    try:
        folder = UrlPath(log)
        if not folder.is_dir():
            return False
    except (MissingExtraError, SettingsError, LogFormatError):  # Spark may know the filesystem
        return False
    return _manifest_at(folder) is not None


def _compacted(folder: Folder, manifest: Manifest) -> list[LogFile]:
    files = [_log_file(folder / manifest.status_lines_file)] if manifest.status_lines else []
    files += [
        _log_file(folder / part.path, follows=number > 0)
        for domain in manifest.domains
        for number, part in enumerate(domain.files)
    ]
    return [replace(file, manifest=manifest) for file in files]


def _segments(text: str, *, growing: bool) -> list[LogFile]:
    """The files of a rotating log that the path names."""
    names = segment_names(text)
    try:
        finished, journals = (names.finished(), journals_of(names)) if names else ([], [])
    except (OSError, ValueError):
        return []
    files = [_log_file(path) for path in finished] + (_growing(journals, finished) if growing else [])
    return sorted(files, key=lambda file: _final_path(file).name)


def _growing(journals: Sequence[Path], finished: Sequence[Path]) -> list[LogFile]:
    """The journals that aren't empty and whose finished file isn't there yet."""
    left = [path for path in journals if finished_from(path) not in finished]
    sizes = {path: path.stat().st_size if path.exists() else None for path in left}
    return [LogFile(path, _printable(str(path)), size) for path, size in sizes.items() if size != 0]


def _final_path(file: LogFile) -> Path:
    assert file.path is not None  # noqa: S101 - it is one of a folder
    return finished_from(file.path)


def _log_file(path: Folder, *, follows: bool = False) -> LogFile:
    if isinstance(path, UrlPath):
        return LogFile(None, str(path), path.size_bytes(), follows, url=str(path))
    try:
        status = path.stat()
    except OSError as error:
        raise LogFormatError(_printable(str(path)), error.strerror or str(error)) from error
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    return LogFile(path, _printable(str(path)), size_bytes, follows)


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def spooled(file: LogFile, path: Path) -> LogFile:
    """The log of a file, copied to `path`."""
    try:
        with opened(file.path, file.url) as stream, path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, PIECE_BYTES)
    except OSError as error:
        raise LogFormatError(file.name, f"can't be kept in a temporary file: {error.strerror or error}") from error
    return replace(file, path=path, size_bytes=path.stat().st_size)


@contextmanager
def open_log(
    file: LogFile, options: ReadOptions, advanced: Callable[[int], None] | None = None
) -> Iterator[tuple[LogSource, LogReader]]:
    """Open one file, and choose its reader; `advanced` is called with the number of bytes read since its last call."""
    if (query := file.query) is not None:
        from receiver.logs.query import read_query

        yield LogSource(file.name, iter(())), lambda _source, how: read_query(query, how)
        return
    on_read = advanced or (lambda _bytes: None)
    try:
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(opened(file.path, file.url))
            except FileNotFoundError:
                if file.path is None or not is_journal(file.path):
                    raise
                finished = finished_from(file.path)
                if not finished.exists():  # so it held nothing, or the oldest files were removed
                    yield LogSource(file.name, iter(())), read_journal
                    return
                file = replace(file, path=finished)
                stream = stack.enter_context(opened(file.path, file.url))
            yield _source(file, stream, options, on_read)
    except OSError as error:
        raise LogFormatError(file.name, f"can't be read: {error.strerror or error}") from error


def open_content(name: str, content: bytes, options: ReadOptions) -> tuple[LogSource, LogReader]:
    """Open a file whose bytes are in memory, otherwise as `open_log`."""
    return _source(LogFile(Path(name), name, None), io.BytesIO(content), options, lambda _bytes: None)


def _source(
    file: LogFile, stream: Stream, options: ReadOptions, on_read: Callable[[int], None]
) -> tuple[LogSource, LogReader]:
    content = content_of(stream, file.name, on_read)
    reader = _reader_by_content(content.head, options) or _reader_by_name(file, compressed=content.was_compressed)
    if reader is not read_parquet or content.was_compressed or not file.can_reopen or file.path is None:
        return LogSource(file.name, content.pieces), reader
    left_bytes = max(0, (file.size_bytes or 0) - PIECE_BYTES)  # one piece was read to know the format
    return LogSource(file.name, content.pieces, file.path, lambda share: on_read(int(share * left_bytes))), reader


def _reader_by_content(head: bytes, options: ReadOptions) -> LogReader | None:
    for begins, reader in _BEGINNINGS.items():
        if head.startswith(begins):
            return reader
    text = head.removeprefix(BOM).lstrip(b" \t\r\n")
    if text.startswith((b"{", b"[")):
        return read_jsonl
    lines = text.decode(errors="replace").split("\n")
    known = {field for column in COLUMNS for field in spellings(column, options)}
    if known & {name.strip().strip('"') for name in lines[0].split(",")}:
        return read_csv
    if any(LOG_LINE.match(line) for line in lines):
        return read_correlator
    return None


def _reader_by_name(file: LogFile, *, compressed: bool) -> LogReader:
    endings = [ending.lower() for ending in PurePath(file.name).suffixes]
    last = endings[-1] if endings else ""
    if last in {".gz", ".zst"}:
        if not compressed:
            kind = "gzip" if last == ".gz" else "zstd"
            raise LogFormatError(
                file.name,
                f"not {kind} data, and no log of receipts either",
                hint=f"copy it again from where it came, or leave out {last} if it isn't compressed",
            )
        endings.pop()
    return _READERS.get(endings[-1] if endings else "", read_csv)
