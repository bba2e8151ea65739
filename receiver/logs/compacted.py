"""A compacted log: a folder of Parquet files by domain and day, with a manifest of their order.

    _receiver_log.json                                   the manifest
    _status_lines.jsonl                                  the `JMS Status:` lines of the log, if it had any
    _bad_rows.jsonl                                      rows left out of it; no reader needs them
    domain=bridge-1%3Aqueue%3A%2F%2Forders/day=2026-11-21/part-00000.parquet
    _data-5c1e.../domain=0/day=2026-11-21/...            at a URL, where the files keep the names that Spark gave them

The files of a domain are one log, and its rows keep their order. If each file were a log of its own, their rows would be
merged by time, which swaps rows if a clock stepped back.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from receiver.closing import sync_path
from receiver.errors import LogFormatError, OutputError, SettingsError, unreadable
from receiver.logs.columns import SCHEMA, LogBatch, StatusLine
from receiver.logs.options import ReadOptions
from receiver.logs.remote import UrlPath, is_url, local_path
from receiver.logs.source import LogSource, blocks_of
from receiver.logs.writer import UNFINISHED, appearing, naming, replacing

STATUS_LINES = "_status_lines.jsonl"
BAD_ROWS = "_bad_rows.jsonl"
STATUS_LINES_BEGIN = b'{"jms_status_at_us":'

MANIFEST = "_receiver_log.json"
_VERSION = 1
_LONGEST_FOLDER_NAME = 200
"""Most file systems end at 255 bytes."""
_MOST = 2**62
Folder = Path | UrlPath
COMPACT_AGAIN = "compact the log again, and leave the folder as it is"


class PartFile(msgspec.Struct, frozen=True):
    path: str
    """The path below the folder, with "/" on every system."""
    rows: Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
    latest_us: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    """The largest time of its rows."""


class DomainFiles(msgspec.Struct, frozen=True):
    domain: str
    files: list[PartFile]
    """In the order of their rows."""


class Manifest(msgspec.Struct, frozen=True):
    """The content of a compacted log. A replay under its `domain_key` gives the same figures as the original log."""

    domain_key: str
    domains: list[DomainFiles]
    """Ordered by name."""
    columns: list[str]
    receipts: int
    skipped: int
    """Rows that couldn't be read, and are left out."""
    status_lines: int
    version: int = _VERSION
    status_lines_file: str = STATUS_LINES


class _Version(msgspec.Struct):
    version: int


class _Status(msgspec.Struct):
    jms_status_at_us: int
    values: dict[str, float]


def part_path(domain: str, day: np.datetime64 | str, number: int) -> PurePosixPath:
    """The path of a file in its log.

    Numbers are unique in the whole log, because a file system may treat `Orders` and `orders` as one folder.
    """
    name = quote(domain, safe="")
    if len(name) > _LONGEST_FOLDER_NAME:
        digest = hashlib.sha256(domain.encode()).hexdigest()
        name = f"{name[: _LONGEST_FOLDER_NAME - len(digest) - 1]}+{digest}"  # only shortened names have a "+"
    return PurePosixPath(f"domain={name}", f"day={day}", f"part-{number:05}.parquet")


def folder_at(text: str) -> Folder:
    """The folder that a path or a URL names."""
    path = local_path(text)
    return UrlPath(path) if is_url(path) else Path(path)


def is_part_path(path: str) -> bool:
    """Whether a path has the form that `part_path` makes, below any folder."""
    return re.search(r"/domain=[^/]+/day=[^/]+/part-\d{5,}\.parquet$", path) is not None


@contextmanager
def new_folder(folder: Folder) -> Iterator[Folder]:
    """A folder to write a new log to, which is moved to `folder` when the block ends without error: see `appearing`.

    At a URL it is `folder` itself, which isn't a log before its manifest is written.
    """
    if isinstance(folder, Path):
        with appearing(folder) as unfinished:
            yield unfinished
        return
    if any(folder.rglob("*")):
        raise SettingsError(f"{folder} is there already and isn't empty", hint="name a folder that isn't there yet")
    yield folder


@contextmanager
def adding(folder: Folder, before: Manifest | None) -> Iterator[Adding]:
    """Write a new log, or add to the log whose manifest was read `before`. Files that aren't committed are removed.

    `OutputError` if the folder can't be written, or another run has written to it meanwhile.
    """
    files = Adding(folder, before)
    written = files.written
    with naming(str(folder)):
        written.mkdir()
    try:
        yield files
    finally:
        if isinstance(written, Path):
            shutil.rmtree(written, ignore_errors=True)
        elif not files.stay:
            written.rmtree()


class Adding:
    """The files that a run adds to a log; they are part of it once the manifest names them."""

    def __init__(self, folder: Folder, before: Manifest | None) -> None:
        self._folder = folder
        self._before = before
        self._name = f"_data-{secrets.token_hex(8)}"
        self._renamed: list[Path] = []
        self._noted_before: int | None = None
        """The size of `BAD_ROWS` before this run, once it has noted its own."""
        self.stay = False
        """Whether the manifest may name files in `written`, which then must stay."""
        self.written = folder / self._name
        """A new folder in the log's folder for Parquet files `domain=NUMBER/day=DAY/NAME`. Readers ignore it by its name."""

    def commit(self, new: Manifest, status_lines: bytes, bad_rows: Iterable[bytes] | None) -> Manifest:
        """Move the files from `written` into the log, and write its new manifest, which is returned.

        `new` describes only the new files, by their paths below `written`. `OutputError` if another run has replaced the
        manifest meanwhile. Other runs wait until this ends.
        """
        folder, before = self._folder, self._before
        numbers = count(sum(len(each.files) for each in before.domains) if before else 0)
        with naming(str(folder)), _alone(folder):
            if manifest_of(folder) != before:
                raise OutputError(f"another run has added to {folder} meanwhile", hint="run it again")
            try:
                if bad_rows is not None:
                    self._note(bad_rows)
                domains = [
                    DomainFiles(each.domain, [self._moved(each.domain, part, next(numbers)) for part in each.files])
                    for each in new.domains
                ]
                status_lines_file = _kept_status_lines(folder, before, status_lines)
                added = structs.replace(new, domains=domains, status_lines_file=status_lines_file)
                manifest = _joined(before, added)
                self._write_manifest(manifest)
            except Exception:
                self._undo()
                raise
            if isinstance(folder, Path):  # an error here must not undo anything: the manifest names the files
                sync_path(folder)
        return manifest

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest once all that it names is on the disk, so that a power cut leaves the old one or the new one."""
        folder, content = self._folder, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        if isinstance(folder, UrlPath):
            (folder / MANIFEST).write_bytes(content)
            return
        files = [*self._renamed, *filter(Path.exists, (folder / BAD_ROWS, folder / manifest.status_lines_file))]
        folders = {parent for file in files for parent in file.parents if folder in (parent, *parent.parents)}
        for path in (*files, *folders):
            sync_path(path)
        with replacing(folder / MANIFEST, unfinished=folder / f"{UNFINISHED}{MANIFEST}") as file:
            file.write(content)

    def _note(self, bad_rows: Iterable[bytes]) -> None:
        with (self._folder / BAD_ROWS).open("ab") as noted:
            self._noted_before = noted.tell()
            noted.writelines(bad_rows)

    def _undo(self) -> None:
        """Remove the files and the rows that this run has added. The manifest still is that of before."""
        for path in self._renamed:
            path.unlink(missing_ok=True)
        if self._noted_before is not None and isinstance(self._folder, Path):
            os.truncate(self._folder / BAD_ROWS, self._noted_before)

    def _moved(self, domain: str, part: PartFile, number: int) -> PartFile:
        written, folder = self.written, self._folder
        if isinstance(written, UrlPath) or isinstance(folder, UrlPath):
            # The files stay here, because at a URL a rename is a copy. They aren't removed after an error either: the manifest
            # may have been written all the same, and then names them.
            self.stay = True
            path = PurePosixPath(self._name, part.path)
        else:
            day = PurePosixPath(part.path).parent.name.removeprefix("day=")
            path = part_path(domain, day, number)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            self._renamed.append((written / part.path).rename(folder / path))
        return structs.replace(part, path=str(path))


def _kept_status_lines(folder: Folder, before: Manifest | None, new: bytes) -> str:
    """Write new status lines behind those before. Returns the name of their file: a new one, as the manifest still names the
    old."""
    if before is None:
        name, known = STATUS_LINES, b""
    elif not new:
        return before.status_lines_file
    else:
        name = f"_status_lines-{secrets.token_hex(8)}.jsonl"
        known = (folder / before.status_lines_file).read_bytes() if before.status_lines else b""
    if new:
        (folder / name).write_bytes(known + new)
    return name


def _joined(before: Manifest | None, new: Manifest) -> Manifest:
    if before is None:
        return new
    files = {each.domain: each.files for each in before.domains}
    for each in new.domains:
        files[each.domain] = files.get(each.domain, []) + each.files
    return structs.replace(
        new,
        domains=[DomainFiles(domain, files[domain]) for domain in sorted(files)],
        columns=[column for column in SCHEMA.names if column in {*before.columns, *new.columns}],
        receipts=before.receipts + new.receipts,
        skipped=before.skipped + new.skipped,
        status_lines=before.status_lines + new.status_lines,
    )


@contextmanager
def _alone(folder: Folder) -> Iterator[None]:
    """Let one process at a time into the block, if the system has file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    if isinstance(folder, UrlPath):
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def manifest_of(folder: Folder) -> Manifest | None:
    """The manifest of a compacted log; None for any other folder. `LogFormatError` for a manifest that can't be used."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(str(path), error) from error
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != _VERSION:
            raise LogFormatError(
                str(path),
                f"a compacted log of version {version}, expected {_VERSION}",
                hint="upgrade this package" if version > _VERSION else COMPACT_AGAIN,
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogFormatError(str(path), f"not a compacted log's manifest: {error}", hint=COMPACT_AGAIN) from error
    parts = [part.path for domain in manifest.domains for part in domain.files]
    if not parts:
        raise LogFormatError(str(path), "names no files", hint=COMPACT_AGAIN)
    for name in parts + [manifest.status_lines_file] * (manifest.status_lines > 0):
        _check(folder, name)
    return manifest


def _check(folder: Folder, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise LogFormatError(str(folder / MANIFEST), f"names a file elsewhere, {name!r}", hint=COMPACT_AGAIN)
    if not (folder / path).is_file():
        raise LogFormatError(str(folder / path), "the file is missing from a compacted log", hint=COMPACT_AGAIN)


def status_lines_text(lines: Sequence[StatusLine]) -> bytes:
    """The content of `STATUS_LINES`. Infinite values, which JSON doesn't have, are left out."""
    finite = ({name: value for name, value in line.values.items() if math.isfinite(value)} for line in lines)
    return msgspec.json.Encoder().encode_lines(map(_Status, (line.logged_at_us for line in lines), finite))


def read_status_lines(source: LogSource, options: ReadOptions) -> Iterator[LogBatch]:  # noqa: ARG001
    """The status lines of a compacted log, in batches without receipts."""
    decode = msgspec.json.Decoder(_Status).decode_lines
    for block in blocks_of(source):
        try:
            lines = [StatusLine(line.jms_status_at_us, line.values) for line in decode(block.data)]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LogFormatError(source.name, f"no status lines: {error}", hint=COMPACT_AGAIN) from error
        yield LogBatch(np.empty(0, np.int64), pa.array([], pa.string()), status_lines=lines)
