"""The Java that Spark runs in: whether it is there, and an archive of classes that spares seconds of its start."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from receiver.errors import SparkError
from receiver.java import require_java

__all__ = ["archive_options", "check_java", "keep_errors_apart", "submitted"]

_STANDARD_ERROR = 2
_MODULE = "jdk.incubator.vector"
_SETTLED_SECS = 60.0


def check_java() -> None:
    """Raise `SparkError` unless the Java that Spark's scripts would start is new enough and complete."""
    require_java("Spark", SparkError, module=_MODULE)


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

    Empty where there is no such place. Java ignores an archive that doesn't fit.
    """
    archive = _archive()
    if archive is None:
        return ""
    for unfinished in archive.parent.glob(f"{archive.stem}-*.new"):
        # Java writes it after this process has ended, for some seconds.
        with suppress(OSError):
            if time.time() - unfinished.stat().st_mtime < _SETTLED_SECS:
                return ""
            unfinished.replace(archive)
    if archive.exists():
        return f"-Xshare:auto -XX:SharedArchiveFile={archive}"
    return f"-XX:ArchiveClassesAtExit={archive.with_name(f'{archive.stem}-{os.getpid()}.new')}"


def _archive() -> Path | None:
    """One for each Java and Spark."""
    from platformdirs import user_cache_path

    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    try:
        real = Path(java or "").resolve(strict=True)
        fitting = f"{real} {real.stat().st_mtime_ns} {real.stat().st_size} {version('pyspark')}"
        cache = user_cache_path("reliable-receiver", ensure_exists=True)
    except (OSError, RuntimeError, ModuleNotFoundError):
        return None
    if not os.access(cache, os.W_OK) or " " in str(cache):  # Spark's scripts cut options at blanks
        return None
    return cache / f"spark-{hashlib.sha256(fitting.encode()).hexdigest()[:16]}.jsa"
