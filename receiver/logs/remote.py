"""Logs at URLs, which fsspec reads: what is there, and its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from receiver.errors import LogFormatError, MissingExtraError, ReceiverError, SettingsError

__all__ = ["UrlStream", "is_url", "urls_at"]


def is_url(log: str) -> bool:
    """Whether a log is named by a URL rather than by a path; that of a file on this machine is a path."""
    return re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://", log) is not None


def urls_at(url: str) -> list[tuple[str, int | None]]:
    """The files that a URL stands for and their sizes in bytes, by name: one, those of a glob, or all of a folder.

    In a folder are those of folders inside it too, as of partitions, but for names that begin with `.` or `_`.
    `LogFormatError` where there are none.
    """
    with _translated(url):
        files, path = _filesystem(url)
        # A bucket and its folders are no more than the beginning of names, so a listing of them may be old.
        files.invalidate_cache()
        if "*" in path or "?" in path or "[" in path:
            entries = files.glob(path, detail=True)
        elif files.isdir(path):
            entries = files.find(path, detail=True)
            entries = {name: entry for name, entry in entries.items() if not _is_hidden(name, path)}
        else:
            entries = {path: files.info(path)}
        found = sorted((name, entry.get("size")) for name, entry in entries.items() if entry["type"] == "file")
    if not found:
        raise LogFormatError(url, "no file matches", hint="name a log of receipts")
    return [(files.unstrip_protocol(name), size_bytes) for name, size_bytes in found]


def _is_hidden(name: str, folder: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.removeprefix(folder).split("/"))


class UrlStream:
    """The bytes of a file."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _translated(url):
            files, path = _filesystem(url)
            self._stream = files.open(path, "rb")

    def read(self, size: int = -1) -> bytes:
        with _translated(self._url):
            return bytes(self._stream.read(size))

    def close(self) -> None:
        self._stream.close()


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("remote", "reading logs at URLs") from error
    try:
        files, path = url_to_fs(url)
    except ImportError as error:
        raise SettingsError(f"{url} can't be read: {error}", hint="install that package beside this one") from error
    except ValueError as error:
        raise SettingsError(f"{url} can't be read: {error}", hint="such as s3://BUCKET/FOLDER/") from error
    return files, path


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Each filesystem raises exceptions of its own."""
    try:
        yield
    except ReceiverError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise LogFormatError(
            url, f"can't be read: {reason}", hint="is it spelled right, and may this user read it?"
        ) from error
