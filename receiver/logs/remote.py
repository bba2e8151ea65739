"""Logs at URLs: lists and reads files by fsspec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from receiver.errors import LogFormatError, MissingExtraError, OutputError, ReceiverError, SettingsError
from receiver.masking import masked_log

_PATIENCE_SECS = 300
_CONNECTS_SECS = 30
_SKIPPED_BYTES = 1 << 20
_HTTP = ("http://", "https://")
TABLE = "table:"
"""The beginning of a log's name that is a table of Spark."""
_URL = re.compile(r"[A-Za-z][\w+.-]*://\S+")


def local_path(log: str) -> str:
    """The path of a `file:` URL; anything else unchanged."""
    return url2pathname(urlsplit(log).path) if log.startswith("file:") else log


def is_url(log: str) -> bool:
    """Whether a log's name is a URL, other than that of a file on this machine."""
    return re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://", log) is not None


def urls_at(url: str) -> list[tuple[str, int | None]]:
    """The files at a URL and their sizes in bytes, ordered by name: one file, those of a glob, or all of a folder.

    A folder includes the folders inside it, such as partitions, except names that begin with `.` or `_`. `LogFormatError` if
    there are none.
    """
    with _translated(url):
        files, path = _filesystem(url)
        # A bucket's folders are only prefixes of names, so a cached listing may be outdated.
        files.invalidate_cache()
        if _is_glob(path) and not (files.isfile(path) or _is_folder(files, path)):
            entries = files.glob(path, detail=True)
        elif _is_folder(files, path):
            entries = files.find(path, detail=True)
            entries = {name: entry for name, entry in entries.items() if not is_hidden(name.removeprefix(path))}
        else:
            entries = {path: files.info(path)}
        files_there = sorted(
            (name, entry.get("size"))
            for name, entry in entries.items()
            if entry["type"] == "file" and (name == path or not _stands_for_folder(name, entry))
        )
    if not files_there:
        raise LogFormatError(masked_log(url), "no file matches", hint="name a log of receipts")
    return [(_url_of(name, url, files), size_bytes) for name, size_bytes in files_there]


def _url_of(name: str, url: str, files: Any) -> str:
    """The URL of a file that was listed at `url`. A filesystem's own names may lack the host and the user."""
    path_of = files._strip_protocol  # noqa: SLF001 - as `url_to_fs` uses it
    url, path = url.rstrip("/"), path_of(url).rstrip("/")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reversed(url), reversed(path), strict=False)))
    whole = url[: len(url) - same] + name.removeprefix(path[: len(path) - same])
    return whole if path_of(whole) == name else str(files.unstrip_protocol(name))


def _is_glob(path: str) -> bool:
    return "*" in path or "[" in path or ("?" in path and not path.startswith(_HTTP))  # by HTTP, ? begins a query


def _stands_for_folder(name: str, entry: dict[str, Any]) -> bool:
    """Whether it is an empty object that stands for a folder, as consoles of S3, Hadoop and EMR make them."""
    return name.endswith(("/", "_$folder$")) and not entry.get("size")


def is_hidden(path: str) -> bool:
    """Whether a path below a folder to read leads to no log: it, or a folder on the way, has a name that begins with `.` or `_`."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


class UrlStream:
    """A file at a URL, open for reading."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _translated(url):
            self._files, self._path = _filesystem(url)
            self._stream = self._files.open(self._path, "rb")
        self._read_bytes = 0
        self._size_bytes = getattr(self._stream, "size", None) or 0
        self._in_ranges = url.startswith(_HTTP)

    def read(self, size: int = -1) -> bytes:
        with _translated(self._url):
            try:
                piece = bytes(self._stream.read(size))
            except ValueError:
                if not self._in_ranges:
                    raise
                self._read_whole()
                piece = bytes(self._stream.read(size))
        self._read_bytes += len(piece)
        if not piece and self._read_bytes < self._size_bytes:
            raise LogFormatError(
                masked_log(self._url),
                f"ended after {self._read_bytes:,} of {self._size_bytes:,} bytes",
                hint="read it again, once nothing writes to it",
            )
        return piece

    def _read_whole(self) -> None:
        """Go on in one answer with the whole file: by HTTP, not every server sends the ranges that fsspec asks for."""
        self._in_ranges = False
        self._stream.close()
        self._stream = self._files.open(self._path, "rb", block_size=0)
        left = self._read_bytes
        while left and (piece := self._stream.read(min(left, _SKIPPED_BYTES))):
            left -= len(piece)

    def close(self) -> None:
        self._stream.close()


class UrlPath:
    """A file or a folder at a URL, with the methods of `Path` that compacted logs need.

    Errors of reading are `LogFormatError` or `FileNotFoundError`; those of writing are `OutputError`.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with _translated(url):
            self._files, self._path = _filesystem(self.url)

    def __str__(self) -> str:
        return masked_log(self.url)

    def __truediv__(self, name: str | PurePosixPath) -> UrlPath:
        return UrlPath(f"{self.url}/{name}")

    def is_dir(self) -> bool:
        with _translated(self.url):
            self._files.invalidate_cache()
            return _is_folder(self._files, self._path)

    @property
    def keeps_lists(self) -> bool:
        """Whether fsspec answers questions on files from the last list of their folder."""
        return not self.url.startswith(_HTTP)

    def is_file(self) -> bool:
        with _translated(self.url):
            if self._files.isfile(self._path):
                return True
            self._files.invalidate_cache(self._path)  # it may be newer than the list of its folder
            return bool(self._files.isfile(self._path))

    def size_bytes(self) -> int | None:
        with _translated(self.url):
            size_bytes: int | None = self._files.size(self._path)
        return size_bytes

    def rglob(self, pattern: str) -> Iterator[UrlPath]:
        """The files in the folder, and in folders inside it."""
        with _translated(self.url):
            self._files.invalidate_cache()
            entries = self._files.find(self._path, detail=True)
        for name, entry in entries.items():
            if fnmatchcase(name, pattern) and not _stands_for_folder(name, entry):
                yield self / name.removeprefix(self._path).lstrip("/")

    def read_bytes(self) -> bytes:
        with _translated(self.url):
            try:
                return bytes(self._files.cat_file(self._path))
            except FileNotFoundError as error:
                missing = error
        raise missing

    def write_bytes(self, content: bytes) -> None:
        with _translated(self.url, writing=True):
            self._files.pipe_file(self._path, content)

    @contextmanager
    def open(self, mode: str) -> Iterator[IO[bytes]]:
        with _translated(self.url, writing=mode != "rb"), self._files.open(self._path, mode) as opened:
            yield opened

    def mkdir(self) -> None:
        with _translated(self.url, writing=True):
            self._files.makedirs(self._path, exist_ok=True)

    def rmtree(self) -> None:
        """Remove the folder as far as possible."""
        with suppress(Exception):
            self._files.invalidate_cache()
            self._files.rm(self._path, recursive=True)


def _is_folder(files: Any, path: str) -> bool:
    """Whether there is a folder at a path.

    By HTTP that is a page with links. fsspec would look for links in any file, and so load a whole log into memory.
    """
    if path.startswith(_HTTP):
        with suppress(FileNotFoundError):  # also if there is no server: `isdir` says so
            if files.info(path).get("mimetype") != "text/html":
                return False
    return bool(files.isdir(path))


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("remote", "reading logs at URLs") from error
    try:
        files, path = url_to_fs(url, **({"get_client": _http_client} if url.startswith(_HTTP) else {}))
    except ImportError as error:
        raise SettingsError(
            f"{masked_log(url)} can't be read: {error}", hint="install that package beside this one"
        ) from error
    except ValueError as error:
        reason = "its port is no number" if str(error).startswith("Port") else error  # it may be half a password
        raise SettingsError(
            f"{masked_log(url)} can't be read: {reason}",
            hint="such as s3://BUCKET/FOLDER/, or a database with --query SQL",
        ) from error
    return files, path


async def _http_client(**options: Any) -> Any:
    """A client of HTTP that waits as long as answers come, however many are open: aiohttp's own would end each after five
    minutes, and let the 101st wait for ever."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    patience = ClientTimeout(sock_connect=_CONNECTS_SECS, sock_read=_PATIENCE_SECS)
    return ClientSession(connector=TCPConnector(limit=0), timeout=patience, **options)


@contextmanager
def _translated(url: str, *, writing: bool = False) -> Iterator[None]:
    """Turn the exceptions of filesystems, of which each has its own, into this package's errors."""
    try:
        yield
    except ReceiverError:
        raise
    except Exception as error:
        # By HTTP whatever fails is a file that isn't there; only the cause says that a certificate can't be trusted.
        said = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
        reason = _URL.sub(lambda each: masked_log(each[0]), str(said)) or type(said).__name__
        if writing:
            raise OutputError(
                f"can't write {masked_log(url)}: {reason}", hint="is it spelled right, and may this user write it?"
            ) from error
        raise LogFormatError(
            masked_log(url), f"can't be read: {reason}", hint="is it spelled right, and may this user read it?"
        ) from error
