"""Translates the errors of Spark, and the problems of its Java, each with a remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from receiver.errors import ReceiverError, SparkError

_LEAST_JAVA = 17
_MODULE = "jdk.incubator.vector"
_INSTALL = (
    f"install Java {_LEAST_JAVA} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install "
    "openjdk@17; others: https://adoptium.net) and let JAVA_HOME name its folder"
)
_ANSWER_SECS = 30
_LAST_MOMENTS_SECS = 1.0
_LOOKS = 10
_MORE_MEMORY = (
    "fewer cores per executor, or more memory: spark.executor.memory, spark.executor.memoryOverhead for Python; on a local "
    "master the variable SPARK_DRIVER_MEMORY, such as 4g, or --master local[1]"
)
CLASSIC = "take a classic session of Spark, and unset the variable SPARK_REMOTE"


class _Failure(NamedTuple):
    sign: str
    """A regular expression that matches a part of Spark's text."""
    message: str
    """The message, which may name the expression's groups."""
    hint: str


_FAILURES = (
    _Failure(
        r'No FileSystem for scheme "?(?P<scheme>\w+)|(Class|ClassNotFoundException:) (?P<name>[\w.$]*FileSystem)( not found|\s)',
        "Spark has no filesystem for such a URL: {scheme}{name}",
        "add its jar to Spark, for s3a:// --packages org.apache.hadoop:hadoop-aws:VERSION, with Spark's Hadoop version "
        "(variable PYSPARK_SUBMIT_ARGS, or spark.jars.packages): see docs/spark.md",
    ),
    _Failure(
        r"AccessControlException: (?P<said>[^\n]*)|AccessDeniedException: (?P<denied>[^\n]*)",
        "no permission: {said}{denied}",
        "let the executors' user read it, or give Spark the right credentials",
    ),
    _Failure(
        r"No space left on device|Disk quota exceeded",
        "the disk that Spark works on is full",
        "make room, or let spark.local.dir (or the variable SPARK_LOCAL_DIRS) name a folder on a larger disk",
    ),
    _Failure(
        r"(?s)temp directory \(under (?P<folder>[^)]*)\).*Failed to create any local dir",
        "Spark can't write to {folder}",
        "let spark.local.dir (or the variable SPARK_LOCAL_DIRS) name a folder that is there and may be written",
    ),
    _Failure(
        r"PYTHON_VERSION_MISMATCH\W.*different version: (?P<theirs>[\d.]+) than that in driver: (?P<ours>[\d.]+)",
        "Spark's workers run Python {theirs}, and this is Python {ours}",
        "let the variable PYSPARK_PYTHON name a Python {ours} on the workers' machines",
    ),
    _Failure(
        r"ModuleNotFoundError: No module named '(?P<module>\w+)",
        "the Python of Spark's workers has no module {module}",
        "let PYSPARK_PYTHON name a Python that has this package with the extra 'spark', or send one along with --archives: "
        "see docs/spark.md",
    ),
    _Failure(
        r'Cannot run program "(?P<program>[^"]+)"',
        "Spark's workers can't start {program}",
        "let the variable PYSPARK_PYTHON name a Python on the workers' machines",
    ),
    _Failure(
        r"bigger than (?P<setting>spark\.driver\.maxResultSize) \((?P<size>[^)]*)\)",
        "the summaries of this log take more than {setting}, {size}",
        "set it higher, and spark.driver.memory with it",
    ),
    _Failure(
        r"OutOfMemoryError|GC overhead|OutOfMemory|MemoryError|UNABLE_TO_ACQUIRE_MEMORY|[Ee]xit (code|status):? 137|"
        r"Container killed|memory limits",
        "Spark ran out of memory",
        _MORE_MEMORY,
    ),
    _Failure(
        r"Python worker (exited unexpectedly|failed)",
        "a Python worker of Spark was killed or crashed, mostly for want of memory",
        _MORE_MEMORY,
    ),
    _Failure(
        r"ExecutorLostFailure|MetadataFetchFailed|FetchFailed|Checkpoint block \S+ not found",
        "Spark lost executors and what they had kept, mostly for want of memory",
        _MORE_MEMORY,
    ),
    _Failure(
        r"All masters are unresponsive|Master removed our application|Could not parse Master URL|stopped SparkContext",
        "the Spark master didn't take this job, or ended it",
        "is it a Spark master of the same version, and is this its address, as its web page shows it?",
    ),
    _Failure(
        r"(?m)^(?P<said>(Invalid|Too small|Incompatible|Conflicting|Unrecognized) .*(heap|option|VM).*)$",
        "Java can't start: {said}",
        "mend spark.driver.memory, SPARK_DRIVER_MEMORY or JAVA_TOOL_OPTIONS",
    ),
    _Failure(
        r"Cannot start a remote Spark session|grpcio\S* .* must be installed",
        "Spark would connect by Spark Connect, which has no SparkContext",
        CLASSIC,
    ),
    _Failure(
        r"UnknownHostException: (?P<host>[^\s:]+)",
        "this machine can't find {host}",
        "is it the right name? If it is this machine's own, set the variable SPARK_LOCAL_IP=127.0.0.1, or mend /etc/hosts",
    ),
)


@contextmanager
def translated(printed: IO[bytes] | None = None, *, quiet: bool = False) -> Iterator[None]:
    """Raise `SparkError` for an error of Spark in the block, with that as its cause.

    `printed` has Java's output. Without it the user has seen that output, and sees Spark's error in full unless `quiet`.
    """
    try:
        yield
    except ReceiverError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        gone = _java_is_gone(error)
        if not (gone or isinstance(error, (Py4JError, PySparkException))):
            raise
        if printed is None and not quiet:
            traceback.print_exception(error, file=sys.stderr)
        raise _meaning(str(error), _all_of(printed), gone=gone) from error


def _was_interrupted(error: BaseException) -> bool:
    # At Ctrl-C, PySpark ends the jobs, and raises an error for that while it cleans up.
    above = error.__context__
    return isinstance(error, KeyboardInterrupt) or (above is not None and _was_interrupted(above))


def _java_is_gone(error: Exception) -> bool:
    # If Java ends, any call may fail in its own way, perhaps a moment before Java has ended.
    if isinstance(error, (Py4JJavaError, PySparkException)):
        return False
    if isinstance(error, Py4JNetworkError) or isinstance(error.__context__, Py4JNetworkError):  # or on a retry
        return True
    for _ in range(_LOOKS):
        try:
            session = SparkSession.getActiveSession()
            if session is not None:
                session.sparkContext.statusTracker().getActiveJobsIds()
        except (Py4JError, OSError, AttributeError, TypeError):  # PySpark itself doesn't expect it
            return True
        time.sleep(_LAST_MOMENTS_SECS / _LOOKS)
    return False


def _all_of(printed: IO[bytes] | None) -> str:
    if printed is None:
        return ""
    printed.seek(0, os.SEEK_SET)
    return printed.read().decode(errors="replace")


def _meaning(raised: str, printed: str, *, gone: bool) -> SparkError:
    for text in (raised, printed):  # the latter may have errors from which Spark has recovered
        for failure in _FAILURES:
            if match := re.search(failure.sign, text):
                names = match.groupdict(default="")
                return SparkError(failure.message.format(**names), hint=failure.hint.format(**names))
    if gone or "JAVA_GATEWAY_EXITED" in raised:
        said, what = _causes(printed), "Java ended while Spark ran in it"
    else:
        lines = [line for line in raised.strip().splitlines() if not line.startswith("\tat ")]
        said, what = _causes(raised) or lines, "Spark failed"
    return SparkError(
        f"{what}: {said[-1]}" if said else what, hint="Spark's own words say more: --verbose, or this error's __cause__"
    )


def _causes(text: str) -> list[str]:
    """The lines with exceptions, without the names of Java's packages."""
    return re.findall(
        r"^(?:: |Caused by: |Exception in thread \S+ )?(?:[\w.$]+\.)?(\w*(?:Exception|Error): \S.*)$",
        text,
        re.MULTILINE,
    )


def check_java() -> None:
    """Raise `SparkError` unless the Java that Spark's scripts would start is new enough and complete."""
    java = _java()
    whole = _run(java, "--add-modules", _MODULE, "-version")
    if whole.returncode == 0 and _version(whole.stderr) >= _LEAST_JAVA:
        return
    plain = _run(java, "-version")
    version = _version(plain.stderr)
    if plain.returncode != 0 or version == 0:
        said = (plain.stderr.strip() or plain.stdout.strip() or "nothing").splitlines()[0]
        raise SparkError(f"{java} doesn't work as Java: it said {said!r}", hint=_INSTALL)
    if version < _LEAST_JAVA:
        raise SparkError(f"Spark needs Java {_LEAST_JAVA} or newer, and {java} is Java {version}", hint=_INSTALL)
    raise SparkError(f"Spark needs Java's module {_MODULE}, which {java} (Java {version}) lacks", hint=_INSTALL)


def _java() -> str:
    """The path of Java, searched for as Spark's scripts do."""
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
    """Java's major version: 17 for `openjdk version "17.0.15"`, 8 for `"1.8.0_292"`, 0 if there is none."""
    number = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(number.group(1)) if number else 0
