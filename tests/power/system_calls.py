"""A program's changes to a folder's files and its output, in order, as strace recorded them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ENDS_SECS = 600
TRACED = (
    "openat,open,creat,close,dup,dup2,dup3,lseek,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,"
    "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat"
)
UNREAD = {"writev", "pwritev", "truncate", "fallocate", "link", "linkat", "rmdir"}
"""Calls that no program makes in its folder so far. For a program that does, this module must learn to read them."""
_LINE = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\((?P<rest>.*)")
_RESUMED = re.compile(r"(?P<thread>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"\) += (?P<result>-?\d+)(?:<(?P<path>[^>]*)>)?")
_ARGUMENT = re.compile(r'"(?P<text>[^"]*)"|(?P<number>AT_FDCWD|-?\d+)(?:<(?P<path>[^>]*)>)?|(?P<flags>[A-Z_|]+)')


@dataclass(frozen=True)
class Said:
    """A line on standard output."""

    text: str


@dataclass(frozen=True)
class Opened:
    path: Path
    makes: bool
    empties: bool


@dataclass(frozen=True)
class Wrote:
    path: Path
    offset: int
    data: bytes


@dataclass(frozen=True)
class Resized:
    path: Path
    size: int


@dataclass(frozen=True)
class Synced:
    path: Path
    data_only: bool


@dataclass(frozen=True)
class Renamed:
    old: Path
    new: Path


@dataclass(frozen=True)
class Removed:
    path: Path


Event = Said | Opened | Wrote | Resized | Synced | Renamed | Removed


def recorded(command: Sequence[str | Path], folder: Path, log: Path, cwd: Path) -> list[Event]:
    """Run a program to its end. Returns what it did in the folder and said, in the order in which the calls ended."""
    if not shutil.which("strace"):
        pytest.skip("strace isn't installed, so no system calls can be recorded")
    options = ["-f", "-y", "-xx", "-s", "33554432", "-o", log, "-e", f"trace={TRACED}"]
    reader = _Reader(folder)  # reads the files before the program changes them
    ran = subprocess.run(
        ["strace", *options, "--", *command], cwd=cwd, capture_output=True, text=True, timeout=ENDS_SECS, check=False
    )
    if "ptrace" in ran.stderr and not log.exists():
        pytest.skip("strace isn't allowed here, so no system calls can be recorded")
    assert ran.returncode == 0, ran.stderr
    with log.open(encoding="ascii", errors="replace") as lines:
        return list(reader.events(_whole(lines)))


def _whole(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and the rest of each call, once it has ended. Calls of several threads overlap in the log."""
    begun: dict[str, str] = {}
    for line in map(str.rstrip, lines):
        if match := _RESUMED.match(line):
            yield match["name"], begun.pop(match["thread"], "") + match["rest"]
        elif match := _LINE.match(line):
            if match["rest"].endswith(_UNFINISHED):
                begun[match["thread"]] = match["rest"].removesuffix(_UNFINISHED)
            else:
                yield match["name"], match["rest"]


def _bytes(escaped: str | None) -> bytes:
    return bytes.fromhex((escaped or "").replace("\\x", ""))


class _Reader:
    """Follows descriptors, so that it knows where each writes next. The program has only one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[int, list[int]] = {}
        """The offset of each open file. Descriptors that dup has made share it."""
        self._appending: set[int] = set()
        self._sizes: dict[Path, int] = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        self._said = b""

    def events(self, calls: Iterator[tuple[str, str]]) -> Iterator[Event]:
        for name, rest in calls:
            found = _RESULT.search(rest)
            if found is None or int(found["result"]) < 0:
                continue
            arguments = list(_ARGUMENT.finditer(rest[: found.start()]))
            yield from self._event(name, arguments, int(found["result"]))

    def _event(self, name: str, arguments: list[re.Match[str]], result: int) -> Iterator[Event]:
        if name == "write" and arguments[0]["number"] == "1":
            yield from self._says(_bytes(arguments[1]["text"]))
            return
        if name in {"openat", "open", "creat"}:
            yield from self._opens(arguments, result)
        elif name in {"rename", "renameat", "renameat2"}:
            old, new = self._paths(arguments)
            if self._is_ours(new):
                self._sizes[new] = self._sizes.pop(old)
                yield Renamed(old, new)
        elif name in {"unlink", "unlinkat"}:
            (path,) = self._paths(arguments)
            if self._sizes.pop(path, None) is not None:  # no folder
                yield Removed(path)
        elif arguments and arguments[0]["path"] is not None:
            descriptor, path = int(arguments[0]["number"]), Path(_bytes(arguments[0]["path"]).decode())
            if self._is_ours(path):
                yield from self._on_file(name, descriptor, path, arguments, result)

    def _says(self, data: bytes) -> Iterator[Said]:
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            yield Said(line.decode())

    def _opens(self, arguments: list[re.Match[str]], descriptor: int) -> Iterator[Opened]:
        (path,) = self._paths(arguments)
        flags = next((argument["flags"] for argument in arguments if argument["flags"]), "").split("|")
        if not self._is_ours(path) or (path not in self._sizes and "O_CREAT" not in flags):  # a folder
            return
        self._offsets[descriptor] = [0]
        self._appending.discard(descriptor)
        if "O_APPEND" in flags:
            self._appending.add(descriptor)
        makes, empties = path not in self._sizes, "O_TRUNC" in flags
        if makes or empties:
            self._sizes[path] = 0
            yield Opened(path, makes=makes, empties=empties)

    def _on_file(
        self, name: str, descriptor: int, path: Path, arguments: list[re.Match[str]], result: int
    ) -> Iterator[Event]:
        assert name not in UNREAD, f"{name} on {path}"
        if name in {"fsync", "fdatasync"}:
            yield Synced(path, data_only=name == "fdatasync")
        elif name == "lseek":
            self._offsets.setdefault(descriptor, [0])[0] = result  # of a folder, which is listed again
        elif name == "ftruncate":
            size = int(arguments[1]["number"])
            self._sizes[path] = size
            yield Resized(path, size)
        elif name in {"dup", "dup2", "dup3"}:
            self._offsets[result] = self._offsets[descriptor]
            if descriptor in self._appending:
                self._appending.add(result)
        elif name in {"write", "pwrite64"}:
            data = _bytes(arguments[1]["text"])[:result]
            if name == "pwrite64":
                offset = int(arguments[3]["number"])
            elif descriptor in self._appending:
                offset = self._sizes[path]
            else:
                offset = self._offsets[descriptor][0]
            if name == "write":
                self._offsets[descriptor][0] = offset + len(data)
            self._sizes[path] = max(self._sizes[path], offset + len(data))
            yield Wrote(path, offset, data)

    def _paths(self, arguments: list[re.Match[str]]) -> list[Path]:
        """The paths of a call. A path is relative to the folder that stands before it, if there is one."""
        paths, beside = [], Path()
        for argument in arguments:
            if argument["text"] is not None:
                paths.append(beside / _bytes(argument["text"]).decode())
            elif argument["path"] is not None:
                beside = Path(_bytes(argument["path"]).decode())
        return paths

    def _is_ours(self, path: Path) -> bool:
        return self._folder == path or (self._folder in path.parents and not path.name.endswith("-shm"))
