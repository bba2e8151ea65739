"""Makes the Spark session, after checks for problems that Spark's own errors don't name."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from socketserver import BaseServer
from threading import Thread
from typing import IO, TYPE_CHECKING

from receiver.errors import MissingExtraError, SettingsError, SparkError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

_STANDARD_ERROR = 2
# Mapped at the address for which it was made. Otherwise Java would have to relocate all of it when it starts.
_FROM_ARCHIVE = (
    "-Xshare:auto -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0 "
    "-XX:SharedArchiveFile="
)
_SETTLED_SECS = 60
_RENEWED_SECS = 86_400
_ARCHIVES = 4
"""How many archives are kept, each for one Java and one Spark. Others are removed, the longest unused first."""
_HEAD_BYTES = 1 << 14
_PROBE_SECS = 5.0
_PARTITIONS_PER_CORE = 4
_COUNT = "[1-9][0-9]{0,5}"
_MASTER = re.compile(
    rf"local(\[({_COUNT}|\*)(, *{_COUNT})?\])?|local-cluster\[{_COUNT}, *{_COUNT}, *{_COUNT}\]|spark://.+|yarn|k8s://.+"
)

_COMPILE_LEAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends before its best compiler would pay off."""
_COMPILE_LITTLE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000 -XX:+UseParallelGC"
)
"""For any other JVM. Few of its loops run long: with Java's defaults its best compiler took a quarter of all processor time, and
a concurrent garbage collector a tenth.
"""

_CONTEXT_DEFAULTS = {
    # Rows are few and large, so generating and compiling code for each step's columns wouldn't pay off.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.executor.defaultJavaOptions": _COMPILE_LITTLE,
    "spark.ui.showConsoleProgress": "false",
    # Java's own serializer would keep a hundred blocks in memory while it writes them.
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
}
_LOCAL_DEFAULTS = {
    # Shuffled data stays on this machine's disks.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.rdd.compress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_WORKER_DEFAULTS = {
    "spark.python.daemon.module": "receiver.spark.session",
    # As for RDDs, so that both share workers.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
_SESSION_SETTINGS = {
    # A flow chooses the number of partitions.
    "spark.sql.adaptive.enabled": "false",
    # Rows may be large: a batch never waits for a second one.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(1 << 20),
    # The names of partitions are exact text, as all values of logs: `007` is no 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def check_installed() -> None:
    """Raises `MissingExtraError` unless the extra `spark` is installed."""
    if not all(map(find_spec, ("pyspark", "pandas", "platformdirs"))):
        raise MissingExtraError("spark", "the Spark engine")


@contextmanager
def session(master: str | None, *, verbose: bool = False, brief: bool = False) -> Iterator[SparkSession]:
    """A session on `master`; without one as spark-submit or Spark's own configuration says, otherwise on all cores here.

    An active session, such as a notebook's, is used and left open; settings are made in a child of it. The output of Spark and
    Java is dropped, unless `verbose`. `brief` is for work of seconds in a process that ends with it: Java compiles little, and
    stops Spark when the process ends. Raises `SparkError`, `MissingExtraError`, and `SettingsError` for an invalid `master`.
    """
    check_installed()
    if master is not None:
        _check_master(master)

    from pyspark.sql import SparkSession

    from receiver.spark.failures import translated

    with ExitStack() as ending:
        printed = None if verbose else ending.enter_context(tempfile.TemporaryFile())
        with translated(printed):
            active = SparkSession.getActiveSession()
            if active is not None:
                spark = _child(active, master)
            else:
                if not verbose:
                    ending.enter_context(_quiet())
                context = _started(master, printed, verbose=verbose, brief=brief)
                if verbose or not brief:
                    ending.callback(_stop, context)
                spark = SparkSession.builder.getOrCreate()
            with tuned(spark):
                yield spark


@contextmanager
def tuned(spark: SparkSession) -> Iterator[None]:
    """Set a session's settings for the steps, and restore them at the end."""
    settings = _SESSION_SETTINGS | {
        # The partitions of sorts and joins, which adaptive execution would have chosen.
        "spark.sql.shuffle.partitions": str(_PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)
    }
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        with suppress(Exception):  # Java may be gone, which the failed step has reported
            for name, was in before.items():
                spark.conf.unset(name) if was is None else spark.conf.set(name, was)


def _check_master(master: str) -> None:
    if not _MASTER.fullmatch(master):
        raise SettingsError(
            f"--master {master!r} isn't an address that Spark knows",
            hint="give local[N], spark://HOST:7077, yarn or k8s://HOST:PORT",
        )
    scheme, _, addresses = master.partition("://")
    if scheme == "spark":
        # Spark itself would try for minutes.
        problems = [problem for address in addresses.split(",") if (problem := _unreachable(address)) is not None]
        if len(problems) == len(addresses.split(",")):
            raise SparkError(
                f"the Spark master {master} can't be reached: {problems[0]}",
                hint="is it running, and is this its address, as its web page shows it?",
            )


def _unreachable(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise SettingsError(f"--master names no HOST:PORT in {address!r}", hint="such as spark://HOST:7077")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECS).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def _child(active: SparkSession, master: str | None) -> SparkSession:
    if master not in {None, active.sparkContext.master}:
        raise SettingsError(
            f"--master is {master}, but a Spark session is running already, on {active.sparkContext.master}",
            hint="leave --master out",
        )
    return active.newSession()


def _started(master: str | None, printed: IO[bytes] | None, *, verbose: bool, brief: bool) -> SparkContext:
    """Start Java, then Spark in it. Their output, and the workers', goes to `printed`; None: to standard error."""
    from pyspark import SparkContext

    Thread(target=_load_steps, daemon=True).start()  # while Java starts
    gateway = _launched(master, printed, _COMPILE_LEAST if brief else _COMPILE_LITTLE)
    conf = _conf(gateway, master, silent=submitted() and printed is not None, shows=verbose)
    local = str(conf.get("spark.master")).startswith("local")
    with _defaults_in_environment({"PYSPARK_PYTHON": sys.executable} if local else {}):
        context = SparkContext(conf=conf, gateway=gateway)
    if all(conf.get(name) == value for name, value in _WORKER_DEFAULTS.items()):
        Thread(target=_start_workers, args=(context,), daemon=True).start()  # while the session begins
    return context


def _load_steps() -> None:
    with suppress(ImportError):  # which the first step will meet too
        import receiver.steps.log  # noqa: F401


def _start_workers(context: SparkContext) -> None:
    with suppress(Exception):  # which the first step will meet too
        context.setJobDescription("Starting Python")
        context.parallelize([0], 1).count()


_java: list[JavaGateway] = []
"""The Java that was launched here, if any. It serves all sessions of this process."""


def _launched(master: str | None, printed: IO[bytes] | None, java_options: str) -> JavaGateway:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    if not _java:
        conf = SparkConf(loadDefaults=False).setAppName("receiver")
        if master is not None:
            conf.setMaster(master)
        archive = archive_options()
        launching = {
            "SPARK_DRIVER_MEMORY": f"{1024 + 256 * (os.cpu_count() or 1)}m",
            "SPARK_SUBMIT_OPTS": f"{archive} {java_options}".strip(),
            "SPARK_LAUNCHER_OPTS": _COMPILE_LEAST,
        }
        with _defaults_in_environment(launching):
            apart = {"stdout": printed or _STANDARD_ERROR, "stderr": printed}
            try:
                _java.append(launch_gateway(conf, apart))  # type: ignore[no-untyped-call]
            except KeyboardInterrupt as interrupt:
                # Java, which is still starting, would find nowhere to answer, and stay for ever. PySpark has its process in
                # a local variable alone.
                for frame, _ in traceback.walk_tb(interrupt.__traceback__):
                    if process := frame.f_locals.get("proc"):
                        process.kill()
                raise
            except Exception:
                from receiver.spark.failures import check_java

                check_java()
                raise
        said = b"" if printed is None else os.pread(printed.fileno(), _HEAD_BYTES, 0)
        give_up_useless_archive(archive, said, _java[0].jvm.System.getProperty("java.vm.info"))
    return _java[0]


def _conf(gateway: JavaGateway, master: str | None, *, silent: bool, shows: bool) -> SparkConf:
    """This package's configuration, except for options that the user has set anywhere: Java knows them by now.

    `silent`: Spark logs nothing. `shows`: Spark's UI is on.
    """
    from pyspark import SparkConf

    known = gateway.jvm.org.apache.spark.SparkConf()
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(master or (known.get("spark.master") if known.contains("spark.master") else "local[*]"))
    if not known.contains("spark.app.name"):
        conf.setAppName("receiver")
    defaults = _CONTEXT_DEFAULTS | {"spark.ui.enabled": str(shows).lower()}
    if str(conf.get("spark.master")).startswith("local"):
        defaults |= _LOCAL_DEFAULTS
        if _is_this_python() and not known.contains("spark.pyspark.python"):
            defaults |= _WORKER_DEFAULTS
    if silent:
        defaults["spark.log.level"] = "OFF"
    for name, value in defaults.items():
        if not known.contains(name):
            conf.set(name, value)
    return conf


def _is_this_python() -> bool:
    """Whether workers on this machine run the Python of this process, which has the package."""
    python = Path(os.environ.get("PYSPARK_PYTHON", sys.executable))
    return not submitted() and python.parent == Path(sys.executable).parent


@contextmanager
def _defaults_in_environment(values: dict[str, str]) -> Iterator[None]:
    missing = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Py4J's log, and the errors of PySpark's accumulator server, off the terminal if Java is gone."""
    from pyspark import accumulators

    handler = logging.NullHandler()  # without a handler, log lines go to the terminal
    logging.getLogger().addHandler(handler)
    for server in list(vars(accumulators).values()):
        if isinstance(server, type) and issubclass(server, BaseServer) and server.__module__ == accumulators.__name__:
            # For good: its thread may notice only after the session has ended.
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _stop(context: SparkContext) -> None:
    # If Java is gone, the failed step has reported it.
    with suppress(Exception), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        context.stop()


def submitted() -> bool:
    """Whether spark-submit runs this process. Then Spark is in spark-submit's Java."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def keep_errors_apart() -> None:
    """Use spark-submit's standard error. Otherwise it would write ours to its standard output, among the results."""
    if submitted():
        with suppress(OSError):  # a system without /proc, or a socket
            sys.stderr = Path(f"/proc/{os.getppid()}/fd/{_STANDARD_ERROR}").open("a", buffering=1, encoding="utf-8")  # noqa: SIM115


def archive_options() -> str:
    """The options by which Java loads its classes from an archive in the user's cache, or writes one there when it ends.

    Empty if there is no such folder. Java ignores an archive that doesn't fit.
    """
    archive = _archive()
    if archive is None:
        return ""
    try:
        for unfinished in archive.parent.glob(f"{archive.stem}-*.new"):
            # Java writes it for a few seconds after this process has ended.
            if time.time() - unfinished.stat().st_mtime < _SETTLED_SECS:
                return ""
            unfinished.replace(archive)  # not overwritten in place, because another Java may have mapped the old one
        _forget_others(archive)
        if archive.exists():
            os.utime(archive, (time.time(), archive.stat().st_mtime))
            return f"{_FROM_ARCHIVE}{archive}"
    except OSError:  # another process was faster
        return ""
    return f"-XX:ArchiveClassesAtExit={archive.with_name(f'{archive.stem}-{os.getpid()}.new')}"


def give_up_useless_archive(options: str, printed: bytes, vm_info: str) -> None:
    """Let the next run make a new archive if Java couldn't use this one; once a day at most, because a new one may not fit
    either.

    `printed`, Java's output, and `vm_info`, its property `java.vm.info`: one of them shows whether the archive was used.
    """
    _, used, archive = options.partition(_FROM_ARCHIVE)
    if used and (b"[cds" in printed or "sharing" not in vm_info):
        with suppress(OSError):
            if time.time() - Path(archive).stat().st_mtime > _RENEWED_SECS:
                Path(archive).unlink()


def _forget_others(archive: Path) -> None:
    """Remove the archives that were unused for longest, including unfinished ones, unless they are being written."""
    others = sorted(
        set(archive.parent.glob("spark-*")) - {archive}, key=lambda each: each.stat().st_atime, reverse=True
    )
    for each in others[_ARCHIVES - 1 :]:
        if time.time() - each.stat().st_mtime > _SETTLED_SECS:
            each.unlink()


def _archive() -> Path | None:
    """The path of the archive for this Java and Spark; None if there can be none."""
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


def _fork_workers() -> None:
    """Run as the parent of Spark's Python workers on this machine. They are forked with all modules for the steps loaded."""
    import gc

    import pyarrow as pa
    from pyspark.daemon import manager

    from receiver.steps.digests import digests_of

    digests_of(pa.array([""]), bytes(16))  # also loads Numba, and pandas, which Arrow imports
    gc.freeze()  # workers collect garbage after each task
    manager()


if __name__ == "__main__":  # as `spark.python.daemon.module`
    _fork_workers()
