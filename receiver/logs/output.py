"""Files and folders that appear whole or not at all: what stood at the path before stays until the new one is complete."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from receiver.errors import OutputError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer, StrPath

__all__ = ["UNFINISHED", "appearing", "naming", "replacing"]

UNFINISHED = ".receiver-"
"""What names begin with until the file or folder is complete."""


@contextmanager
def replacing(path: StrPath, *, unfinished: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write bytes to, which takes the place of `path` when the block ends well.

    It is made at once beside `path`, so a place that can't be written is an `OutputError` before the work begins, as
    a full disk is later. Any exception, Ctrl-C included, leaves `path` as it was and removes the unfinished file. A
    link keeps pointing where it does; what isn't a regular file (`/dev/null`, a pipe) is written directly.

    `unfinished` names the file until then, in the same folder. Nobody else may write it; one that a killed process left
    is overwritten.
    """
    with naming(path):
        mode = Path(path).stat().st_mode if Path(path).exists() else None
        target = Path(os.path.realpath(path))  # unlike `resolve`, it takes links that lead in a circle
        # Renaming over a file asks for no right to write to it; its owner does.
        if mode is not None and not os.access(target, os.W_OK):
            raise PermissionError(None, "it is read-only")
    if mode is not None and not stat.S_ISREG(mode):
        with _open(Path(path), "wb", path) as file:
            yield file
        return
    opening = "xb" if unfinished is None else "wb"
    unfinished = unfinished or _beside(target)
    try:
        with _open(unfinished, opening, path) as file:
            yield file
            with naming(path):
                os.fsync(file.fileno())
        with naming(path):
            if mode is not None:
                unfinished.chmod(stat.S_IMODE(mode))
            unfinished.replace(target)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what to tell
            unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def appearing(path: StrPath) -> Iterator[Path]:
    """A folder to fill, which stands at `path` when the block ends well; else nothing has changed.

    It is made at once beside `path`. `SettingsError` where something is there already, but for an empty folder;
    `OutputError` where it can't be made.
    """
    target = Path(os.path.realpath(path))
    with naming(path):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise SettingsError(
                f"{os.fspath(path)} is there already and isn't empty", hint="name a folder that isn't there yet"
            )
        if target.is_mount():
            raise SettingsError(f"{os.fspath(path)} is where a disk is mounted", hint="name a folder within it")
        unfinished = _beside(target)
        unfinished.mkdir()
    try:
        yield unfinished
        with naming(path):
            unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # what went wrong first is what to tell
        raise


@contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """What the system refuses in the block is an `OutputError` that names the path."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"can't write {os.fspath(path)}: {error.strerror or error}") from error


def _beside(target: Path) -> Path:
    # Not named after the target, whose name may be as long as names can be.
    return target.with_name(f"{UNFINISHED}{secrets.token_hex(8)}.part")


def _open(file: Path, mode: str, path: StrPath) -> _NamedFile:
    with naming(path):
        return _NamedFile(file, mode, path)


class _NamedFile(io.FileIO):
    """A file whose failures name the path that was asked for.

    Errors are told apart here, at the lowest place, because the block around also reads, and what fails to be read
    is not the output's fault. Unbuffered: its users write large pieces.
    """

    def __init__(self, file: Path, mode: str, path: StrPath) -> None:
        self._path = path
        super().__init__(file, mode)

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        rest = view
        with naming(self._path):
            while rest:  # the system may take less than it was given
                rest = rest[super().write(rest) :]
        return len(view)

    def close(self) -> None:
        with naming(self._path):
            super().close()
