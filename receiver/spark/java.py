"""The Java that Spark runs in: whether it is there, and an archive of classes that spares seconds of its start."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from receiver.errors import SparkError

_LEAST_VERSION = 17
_MODULE = "jdk.incubator.vector"
_INSTALL = (
    f"install Java {_LEAST_VERSION} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install "
    "openjdk@17; others: https://adoptium.net) and let JAVA_HOME name its folder"
)
_ANSWER_SECS = 30
_STANDARD_ERROR = 2
# Mapped where it was made for, or Java would have to mend all of it as it starts.
_FROM_ARCHIVE = (
    "-Xshare:auto -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0 "
    "-XX:SharedArchiveFile="
)
_SETTLED_SECS = 60
_RENEWED_SECS = 86_400
_ARCHIVES = 4
"""Of as many Javas and Sparks; others go, the longest unused first."""


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
    on_path = shutil.which("java")
    if on_path is None:
        raise SparkError("Spark needs Java, and there is none on the PATH", hint=_INSTALL)
    return on_path


def _run(java: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - as Spark's scripts do
            [java, *arguments], capture_output=True, text=True, errors="replace", check=False, timeout=_ANSWER_SECS
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise SparkError(f"{java} can't be run: {failure}", hint=_INSTALL) from failure


def _version(printed: str) -> int:
    """Java's first number: 17 of `openjdk version "17.0.15"`, 8 of `"1.8.0_292"`, 0 where there is none."""
    number = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(number.group(1)) if number else 0


def submitted() -> bool:
    """Whether spark-submit runs this process, in whose Java Spark is."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def keep_errors_apart() -> None:
    """Let standard error be that of spark-submit, which would put it into its standard output, among the results."""
    if submitted():
        with suppress(OSError):  # a system without /proc, or a socket
            sys.stderr = Path(f"/proc/{os.getppid()}/fd/{_STANDARD_ERROR}").open("a", buffering=1, encoding="utf-8")  # noqa: SIM115


def archive_options() -> str:
    """What makes Java take its classes from an archive in the user's cache, or leave one there at its end.

    Empty where there is no such folder. Java ignores an archive that doesn't fit.
    """
    archive = _archive()
    if archive is None:
        return ""
    try:
        for unfinished in archive.parent.glob(f"{archive.stem}-*.new"):
            # Java writes it after this process has ended, for a few seconds.
            if time.time() - unfinished.stat().st_mtime < _SETTLED_SECS:
                return ""
            unfinished.replace(archive)  # never written over, for another Java may have mapped what is there
        if archive.exists():
            os.utime(archive, (time.time(), archive.stat().st_mtime))
            _forget_others(archive)
            return f"{_FROM_ARCHIVE}{archive}"
    except OSError:  # another process was faster
        return ""
    return f"-XX:ArchiveClassesAtExit={archive.with_name(f'{archive.stem}-{os.getpid()}.new')}"


def give_up_useless_archive(options: str, printed: bytes, vm_info: str) -> None:
    """Let the next run make the archive anew if Java couldn't use it; once a day at most, for no other may fit either.

    `printed` and `vm_info` (its property `java.vm.info`) are what Java says of it, in one or the other.
    """
    _, used, archive = options.partition(_FROM_ARCHIVE)
    if used and (b"[cds" in printed or "sharing" not in vm_info):
        with suppress(OSError):
            if time.time() - Path(archive).stat().st_mtime > _RENEWED_SECS:
                Path(archive).unlink()


def _forget_others(archive: Path) -> None:
    """Archives that have been unused for longest, and what a Java that was killed has left of one."""
    archives = sorted(archive.parent.glob("spark-*.jsa"), key=lambda each: each.stat().st_atime, reverse=True)
    left = [each for each in archive.parent.glob("spark-*.new") if time.time() - each.stat().st_mtime > _RENEWED_SECS]
    for each in archives[_ARCHIVES:] + left:
        each.unlink()


def _archive() -> Path | None:
    """One for each Java, Spark, and class path, which Java compares."""
    from platformdirs import user_cache_path

    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    pyspark = find_spec("pyspark")
    spark = os.environ.get("SPARK_HOME") or (pyspark and pyspark.origin and str(Path(pyspark.origin).parent))
    try:
        fitting = [str(Path(java or "").resolve(strict=True)), f"{spark}/jars"]
        fitting += [str(Path(path).stat().st_mtime_ns) for path in fitting]
        cache = user_cache_path("reliable-receiver", ensure_exists=True)
    except (OSError, RuntimeError):
        return None
    if not os.access(cache, os.W_OK) or " " in str(cache):  # Spark's scripts cut options at blanks
        return None
    return cache / f"spark-{hashlib.sha256(' '.join(fitting).encode()).hexdigest()[:16]}.jsa"
