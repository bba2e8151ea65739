"""Finds the files that the paths, folders, globs and URLs of a command stand for, in order."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from receiver.errors import LogFormatError, MissingExtraError, SettingsError
from receiver.logs.compacted import MANIFEST, Folder, Manifest, is_part_path, manifest_of
from receiver.logs.journal import finished_from, journals_in, journals_of
from receiver.logs.remote import UrlPath, is_hidden, is_url, local_path, urls_at
from receiver.logs.rotating import segment_names
from receiver.masking import masked_log

if TYPE_CHECKING:
    from receiver.logs.query import Query

_PARTITION = re.compile("[^=]+=.*", re.DOTALL)
"""The name of a folder inside a folder that is searched, too."""


@dataclass(frozen=True, slots=True)
class LogFile:
    path: Path | None
    """None for standard input, and for a URL."""
    name: str
    """The name in errors."""
    size_bytes: int | None
    """None if it isn't known before the end, as for a pipe."""
    follows: bool = False
    """Whether this file continues the file before, as if both were one file."""
    manifest: Manifest | None = field(default=None, repr=False)
    """The manifest of the compacted log that the file belongs to."""
    url: str | None = None
    """The URL to read from, instead of a path."""
    query: Query | None = None
    """The query that returns the rows, for a log in a database."""

    @property
    def can_reopen(self) -> bool:
        return self.size_bytes is not None


def find_files(paths: Sequence[str], *, growing: bool = True) -> list[LogFile]:
    """The files that paths, folders, globs, URLs and `-` stand for, in order. Files of a folder or glob are sorted by name.

    A path to which a rotating log was recorded stands for the log's files. The folder of a compacted log stands for the files
    that its manifest names. With `growing`, the files include journals of receivers of earlier versions. A caller that keeps
    the names of files must leave journals out, because each is replaced by a finished file of another name in the end.
    """
    if isinstance(paths, str | os.PathLike):  # otherwise each letter would be a path
        raise SettingsError(
            f"logs are named by a list of paths, not by {paths!r:.80}", hint=f"write [{str(paths)!r:.80}]"
        )
    if not paths:
        raise SettingsError("no log was named", hint="name a file, a folder, a glob, or - for standard input")
    if "" in paths:  # otherwise it would stand for the current folder
        raise SettingsError("a log is named by an empty text", hint="is a variable of the shell unset?")
    if paths.count("-") > 1:
        raise SettingsError("standard input can be read once only", hint="give - once")
    return [file for path in paths for file in _expanded(os.fspath(path), growing=growing)]


def queried(logs: Sequence[str], sql: str) -> LogFile:
    """The rows of a query as a file. `logs` must have only the database's address."""
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
        matches, folders = _matches(text)
        files = [_log_file(Path(match)) for match in matches] or _segments(text, growing=growing)
        if not files:
            reason = "no file matches" if glob.has_magic(text) else getattr(error, "strerror", None) or str(error)
            hint = f"folders do: write {_printable(text.rstrip('/'))}/*" if folders else "name a log of receipts"
            raise LogFormatError(_printable(text), reason, hint=hint) from error
        return files
    if not stat.S_ISDIR(mode):
        return [_log_file(path)]
    manifest = manifest_of(path)
    if manifest is not None:
        return _compacted(path, manifest)
    try:
        logs, _ = _searched(path)
    except OSError as error:
        raise LogFormatError(_printable(text), f"the folder can't be read: {error.strerror}") from error
    files = [_log_file(log) for log in logs] + (_journal_files(journals_in(path), logs) if growing else [])
    if not files:
        raise LogFormatError(
            _printable(text),
            "a folder without logs",
            hint="folders inside it are searched if their names are KEY=VALUE",
        )
    if parts := [file for file in files if is_part_path(file.name)]:
        raise LogFormatError(
            parts[0].name,
            "a part of a compacted log without its manifest",
            hint="name the folder of the whole log, or compact it anew",
        )
    return sorted(files, key=lambda file: _final_path(file).relative_to(path).as_posix())


def _matches(text: str) -> tuple[list[str], list[str]]:
    """The files, and the folders, that match a glob; each sorted by name."""
    files: list[str] = []
    folders: list[str] = []
    for match in sorted(glob.glob(text, recursive=True)):  # noqa: PTH207
        (folders if Path(match).is_dir() else files).append(match)
    return files, folders


def _searched(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files in a folder, and in folders of it whose names are KEY=VALUE, such as `day=2026-11-23`, to any depth. Behind them
    the folders there that aren't searched."""
    logs: list[Path] = []
    left_out: list[Path] = []
    for entry in os.scandir(folder):
        path = folder / entry.name
        if is_hidden(entry.name):
            continue
        if entry.is_file():
            logs.append(path)
        elif entry.is_dir() and _PARTITION.fullmatch(entry.name):
            inner_logs, inner_left_out = _searched(path)
            logs += inner_logs
            left_out += inner_left_out
        elif entry.is_dir():
            left_out.append(path)
    return logs, left_out


def folders_left_out(paths: Sequence[str]) -> list[str]:
    """The folders that `find_files` doesn't search, without those whose names begin with `.` or `_`: folders inside named ones
    whose names aren't KEY=VALUE, and those that match a glob, unless `**` finds the files in them."""
    left_out: list[Path] = []
    for text in (local_path(path) for path in paths if path != "-" and not is_url(path)):
        path = Path(text)
        if path.is_dir():
            with suppress(OSError):  # it may be gone since it was read
                left_out += sorted(_searched(path)[1]) if manifest_of(path) is None else ()
        elif not path.exists() and "**" not in text:
            left_out += (folder for folder in map(Path, _matches(text)[1]) if not is_hidden(folder.name))
    return [_printable(str(folder)) for folder in left_out]


def _at_url(url: str) -> list[LogFile]:
    folder = UrlPath(url)
    if folder.is_dir() and (manifest := _manifest_at(folder)) is not None:
        return _compacted(folder, manifest)
    return [LogFile(None, masked_log(file), size_bytes, url=file) for file, size_bytes in urls_at(url)]


def _manifest_at(folder: UrlPath) -> Manifest | None:
    inside: Iterable[UrlPath] = folder.rglob(f"*/{MANIFEST}")
    if folder.keeps_lists:  # list first: then none of the manifest's files is asked for by itself
        inside = list(inside)
    if (manifest := manifest_of(folder)) is not None:
        return manifest
    for inner in inside:  # reading its files one by one would lose their order
        raise LogFormatError(str(folder), f"holds a compacted log: {inner}", hint="name the folder of that log itself")
    return None


def is_compacted(log: str) -> bool:
    """Whether there is a compacted log at a URL, as far as fsspec knows. `LogFormatError` if it is in a folder inside."""
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


def manifests_of(files: Iterable[LogFile]) -> list[Manifest]:
    """The manifest of each compacted log among these files."""
    return list({id(file.manifest): file.manifest for file in files if file.manifest is not None}.values())


def _segments(text: str, *, growing: bool) -> list[LogFile]:
    """The files of a rotating log that the path names."""
    names = segment_names(text)
    try:
        finished, journals = (names.finished(), journals_of(names)) if names else ([], [])
    except (OSError, ValueError):
        return []
    files = [_log_file(path) for path in finished] + (_journal_files(journals, finished) if growing else [])
    return sorted(files, key=lambda file: _final_path(file).name)


def _journal_files(journals: Sequence[Path], finished: Sequence[Path]) -> list[LogFile]:
    """The journals that aren't empty and have no finished file yet."""
    left = [path for path in journals if finished_from(path) not in finished]
    sizes = {path: path.stat().st_size if path.exists() else None for path in left}
    return [LogFile(path, _printable(str(path)), size) for path, size in sizes.items() if size != 0]


def _final_path(file: LogFile) -> Path:
    assert file.path is not None  # noqa: S101 - files of a folder have paths
    return finished_from(file.path)


def _log_file(path: Folder, *, follows: bool = False) -> LogFile:
    if isinstance(path, UrlPath):
        return LogFile(None, str(path), path.size_bytes(), follows, url=path.url)
    try:
        status = path.stat()
    except OSError as error:
        raise LogFormatError(_printable(str(path)), error.strerror or str(error)) from error
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    return LogFile(path, _printable(str(path)), size_bytes, follows)


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
