"""Programs of others in a cache, each whole or not there; brought by Maven, or by whoever knows how."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from receiver.errors import MissingProgramError

__all__ = ["fetch_by_maven", "last_lines", "require_maven", "run_to_fetch", "whole"]

_FETCHES_SECS = 600
_LAST_LINES = 5
_MAVEN = ("mvn", "--batch-mode", "--quiet")


def whole(home: Path, bring: Callable[[Path], Path]) -> Path:
    """`home`, and if it isn't there yet, what `bring` makes in a folder given to it; it returns the folder to be `home`.

    It is made beside `home` and then renamed: a process killed on the way leaves no half of a program there, and of
    several who fetch at once each has it.
    """
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as folder:
        brought = bring(Path(folder))
        try:
            brought.rename(home)
        except OSError:
            if not home.is_dir():  # else another process was faster
                raise
    return home


def require_maven() -> None:
    """Raise `MissingProgramError` if there is no Maven."""
    if shutil.which("mvn") is None:
        raise MissingProgramError(
            "Maven fetches the broker, and there is no mvn on the PATH",
            hint="install it (Debian, Ubuntu: apt install maven; macOS: brew install maven; "
            "others: https://maven.apache.org)",
        )


def fetch_by_maven(what: str, arguments: Sequence[str], folder: Path) -> None:
    """Run Maven in the folder to fetch what is named; `MissingProgramError` if it can't."""
    run_to_fetch(
        "Maven",
        what,
        [*_MAVEN, *arguments],
        folder,
        hint="it needs access to Maven Central, or a mirror of it in ~/.m2/settings.xml",
    )


def run_to_fetch(who: str, what: str, command: Sequence[str], folder: Path, *, hint: str) -> None:
    """Run a command that fetches what is named; `MissingProgramError` with what it said, and the hint, if it fails."""
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_FETCHES_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingProgramError(
            f"{who} has not fetched {what} in {_FETCHES_SECS} s", hint="try again with a better connection"
        ) from None
    if ran.returncode:
        raise MissingProgramError(f"{who} can't fetch {what}: {last_lines(ran.stdout + ran.stderr)}", hint=hint)


def last_lines(said: str) -> str:
    """The end of what a program has said, in one line."""
    return " | ".join(line.strip() for line in said.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
