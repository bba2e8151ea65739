"""A program's system calls on given files: strace lists them, and makes one fail."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ENDS_SECS = 300
LINE = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\(\d+<(?P<path>[^>]*)>")


@dataclass(frozen=True)
class Call:
    thread: int
    name: str
    path: Path
    injected: bool


@dataclass(frozen=True)
class Fault:
    """The outcome of the `when`-th of these calls. Each thread counts its own calls."""

    syscall: str
    outcome: str
    """`error=EIO`, `error=ENOSPC` or `signal=SIGKILL`. The signal comes before the call does anything."""
    when: int

    def __str__(self) -> str:
        return f"{self.syscall}:{self.outcome}:when={self.when}"


def traced(
    command: Sequence[str | Path],
    *,
    syscalls: Sequence[str],
    files: Sequence[Path],
    log: Path,
    fault: Fault | None = None,
    cwd: Path,
) -> tuple[str, list[Call]]:
    """Run a command to its end. Returns its standard output, and its calls on these files. Other calls neither count
    nor fail."""
    if not shutil.which("strace"):
        pytest.skip("strace isn't installed, so no system call can be made to fail")
    if subprocess.run(["strace", "-o", log, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("strace isn't allowed here, so no system call can be made to fail")
    options = ["-f", "-y", "-o", log, "-e", f"trace={','.join(syscalls)}"]
    for file in files:
        options += ["-P", file]
    if fault:
        options += ["-e", f"inject={fault}"]
    ran = subprocess.run(
        ["strace", *options, "--", *command], cwd=cwd, capture_output=True, text=True, timeout=ENDS_SECS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, calls_in(log.read_text(encoding="utf-8", errors="replace"))


def calls_in(log: str) -> list[Call]:
    return [
        Call(int(match["thread"]), match["name"], Path(match["path"]), "(INJECTED)" in line)
        for line in log.splitlines()
        if (match := LINE.match(line))
    ]
