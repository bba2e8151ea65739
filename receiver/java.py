"""The Java that scripts such as Spark's and Artemis' would start: whether it is there, new enough and complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from receiver.errors import ReceiverError

_LEAST_VERSION = 17
_INSTALL = (
    f"install Java {_LEAST_VERSION} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install "
    "openjdk@17; others: https://adoptium.net) and let JAVA_HOME name its folder"
)
_ANSWER_SECS = 30


def require_java(user: str, error: type[ReceiverError], *, module: str | None = None) -> None:
    """Raise the error, with how to mend it, unless there is a Java for the user: of version 17 or newer, with the module."""
    java = _java(user, error)
    modules = () if module is None else ("--add-modules", module)
    whole = _run(error, java, *modules, "-version")
    if whole.returncode == 0 and _version(whole.stderr) >= _LEAST_VERSION:
        return
    plain = _run(error, java, "-version")
    version = _version(plain.stderr)
    if plain.returncode != 0 or version == 0:
        said = (plain.stderr.strip() or plain.stdout.strip() or "nothing").splitlines()[0]
        raise error(f"{java} doesn't work as Java: it said {said!r}", hint=_INSTALL)
    if version < _LEAST_VERSION:
        raise error(f"{user} needs Java {_LEAST_VERSION} or newer, and {java} is Java {version}", hint=_INSTALL)
    raise error(f"{user} needs Java's module {module}, which {java} (Java {version}) lacks", hint=_INSTALL)


def _java(user: str, error: type[ReceiverError]) -> str:
    """Looked for as the scripts do."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home) / "bin" / "java")
        if shutil.which(java) is None:
            raise error(f"{user} needs Java, and JAVA_HOME is {home}, where there is no bin/java", hint=_INSTALL)
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise error(f"{user} needs Java, and there is none on the PATH", hint=_INSTALL)
    return on_path


def _run(error: type[ReceiverError], java: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - as the scripts do
            [java, *arguments], capture_output=True, text=True, errors="replace", check=False, timeout=_ANSWER_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise error(f"{java} can't be run: {failure}", hint=_INSTALL) from failure


def _version(printed: str) -> int:
    """Java's first number: 17 of `openjdk version "17.0.15"`, 8 of `"1.8.0_292"`, 0 where there is none."""
    number = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(number.group(1)) if number else 0
