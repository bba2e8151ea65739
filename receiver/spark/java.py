"""Whether there is a Java that Spark can run in. Spark itself answers with a page of Java's own words, or hangs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from receiver.errors import SparkError

__all__ = ["check_java"]

_LEAST_VERSION = 17
_MODULE = "jdk.incubator.vector"
_INSTALL = (
    "install Java 17 or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "others: https://adoptium.net) and let JAVA_HOME name its folder"
)
_ANSWER_SECS = 30


def check_java() -> None:
    """Raise `SparkError` unless the Java that Spark's scripts would start is new enough and complete."""
    java = _java()
    whole = _run(java, "--add-modules", _MODULE, "-version")
    if whole.returncode == 0 and _version(whole.stderr) >= _LEAST_VERSION:
        return
    plain = _run(java, "-version")
    version = _version(plain.stderr)
    if plain.returncode != 0 or version == 0:
        said = (plain.stderr.strip() or plain.stdout.strip() or "nothing").splitlines()[0]
        raise SparkError(f"{java} doesn't work as Java: it said {said!r}", hint=_INSTALL)
    if version < _LEAST_VERSION:
        raise SparkError(f"Spark needs Java {_LEAST_VERSION} or newer, and {java} is Java {version}", hint=_INSTALL)
    raise SparkError(f"Spark needs Java's module {_MODULE}, which {java} (Java {version}) lacks", hint=_INSTALL)


def _java() -> str:
    """Looked for as Spark's scripts do."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home) / "bin" / "java")
        if shutil.which(java) is None:
            raise SparkError(f"Spark needs Java, and JAVA_HOME is {home}, where there is no bin/java", hint=_INSTALL)
        return java
    found = shutil.which("java")
    if found is None:
        raise SparkError("Spark needs Java, and there is none on the PATH", hint=_INSTALL)
    return found


def _run(java: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - as Spark's scripts do
            [java, *arguments], capture_output=True, text=True, errors="replace", check=False, timeout=_ANSWER_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkError(f"{java} can't be run: {error}", hint=_INSTALL) from error


def _version(printed: str) -> int:
    """Java's first number: 17 of `openjdk version "17.0.15"`, 8 of `"1.8.0_292"`, 0 where there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found.group(1)) if found else 0
