"""`receiver simulate --engine spark` against what Spark's users know, the local engine, and itself at other sizes.

The log is Parquet, with one hot domain. Every measurement times a process from its start to its end, once a turn. The
processes of a turn run one after the other. A log of few rows shows how long Spark takes to start. Where the row says so,
that time is subtracted.

Where the time goes (2 cores, 25 GB; docs/performance.md has the results):

`spark-local` takes 48 s, as `--verbose` prints:

    reading: 8.5
    linking ids: 10
    assembling chunks: 8
    measuring: 3.5
    tails: 3.5
    trying windows: 3
    replaying: 4.7
    the start and the end: 7

The steps' own work is about 1.3 us of processor time per receipt, so 13 s of two cores. The rest is each receipt's way
through Java, which writes and reads about 340 bytes for it. It was 610 bytes when ids went to chunks first, and from there
to their links. Two things would help: a key in four bytes where a piece spans less than half an hour, and chunks of one
file that need no shuffle.

`spark-start`: two seconds start Java from its archive of classes, and one and a half start Spark's session. One second
goes to the list of functions that Spark ML adds to each session, and one to the end of Java. Eight steps take the rest.

`spark-growth`, `spark-cores` had one turn each, since 60 M rows take two minutes. `spark-growth` doesn't count the start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

from benchmarks.logs import check_read, write_log
from benchmarks.orders import scaled
from benchmarks.pairing import Comparison, Goal
from benchmarks.simulate import GRID
from benchmarks.workload import trace

_ROWS = 20_000_000
_TIMES = 3
_TURNS = 2
_LOOK_SECS = 0.2
_FEW_ROWS = 1_000


_COUNT_DISTINCT = """\
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.parquet(sys.argv[1]).selectExpr("count(distinct unique_message_id)").first()[0])
spark.stop()
"""


@dataclass(slots=True)
class _Run:
    """A command, its output, and the peak memory of its process together with all processes that it started."""

    command: list[str]
    printed: bytes = b""
    peaks_gb: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        start = time.perf_counter()
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            ended = Event()
            watcher = Thread(target=self._watch, args=(process.pid, ended))
            watcher.start()
            self.printed = process.stdout.read() if process.stdout else b""
            status = process.wait()
            took = time.perf_counter() - start
            ended.set()
            watcher.join()
        if status:
            raise subprocess.CalledProcessError(status, self.command)
        return took

    def _watch(self, pid: int, ended: Event) -> None:
        peak = 0
        while not ended.wait(_LOOK_SECS):
            peak = max(peak, _tree_bytes(pid))
        self.peaks_gb.append(peak / 1e9)


def _tree_bytes(pid: int) -> int:
    """The memory of a process and its descendants, without mapped files; 0 where the system doesn't show it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        waiting += children.get(each, [])
        total += _own_bytes(each)
    return total


def _own_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def _simulating(log: Path, *options: str) -> _Run:
    return _Run([sys.executable, "-m", "receiver", "simulate", str(log), *GRID, "--json", *options])


def _on_spark(log: Path, *before: str) -> _Run:
    run = _simulating(log, "--engine", "spark", "--master", "local[2]")
    return _Run([*before, *run.command])


def spark(scale: float) -> list[Comparison]:
    rows = max(_FEW_ROWS, round(_ROWS * scale))
    with tempfile.TemporaryDirectory() as folder:
        logs = {size: Path(folder) / f"{size}.parquet" for size in (_FEW_ROWS, rows, _TIMES * rows)}
        for size, log in logs.items():
            write_log(trace(size), log)
        two, more, few = (_on_spark(logs[size]) for size in (rows, _TIMES * rows, _FEW_ROWS))
        one = _on_spark(logs[rows], "taskset", "--cpu-list", "0")
        here = _simulating(logs[rows])
        counting, counting_few = (
            _Run([sys.executable, "-c", _COUNT_DISTINCT, str(logs[size])]) for size in (rows, _FEW_ROWS)
        )
        few.seconds()  # compiles
        runs = (two, counting, here, one, more, few, counting_few)
        took = [[run.seconds() for run in runs] for _ in range(scaled(_TURNS, scale, least=1))]
    if not two.printed == one.printed == here.printed:
        raise AssertionError("the engines print different figures")
    for run, size in ((two, rows), (more, _TIMES * rows), (few, _FEW_ROWS)):
        check_read(json.loads(run.printed)["log"], trace(size))

    work = f"receiver simulate --engine spark, one domain of {rows:,} rows, 8 windows x 8 expiries, 2 cores"
    large = f"the same of {_TIMES * rows:,} rows"
    on_two, count, local, on_one, on_more, start, count_few = zip(*took, strict=True)

    def past_start(of_turns: Iterable[float]) -> list[float]:  # a small log's run is almost only the start
        return [max(_LOOK_SECS, each - begin) for each, begin in zip(of_turns, start, strict=True)]

    rates_on_two, rates_on_one = ([rows / each for each in of_turns] for of_turns in (on_two, on_one))
    at_most = partial(Goal, at_most=True)
    distinct = "Spark's own count(distinct unique_message_id)"
    third = "a third of the rows"
    return [
        Comparison("spark-distinct", work, "s", distinct, on_two, count, at_most(0.95, aim=0.8)),
        Comparison("spark-local", work, "s", "the local engine", on_two, local, at_most(1.8, aim=1.5)),
        Comparison(
            "spark-cores", work, "rows/s", "the same on 1 processor", rates_on_two, rates_on_one, Goal(1.75, aim=1.85)
        ),
        Comparison(
            "spark-growth",
            f"{large}, past the start",
            "s",
            third,
            past_start(on_more),
            past_start(on_two),
            at_most(3.5, aim=3.1),
        ),
        Comparison(
            "spark-memory", f"{large}, peak memory", "GB", third, more.peaks_gb, two.peaks_gb, at_most(1.2, aim=1.1)
        ),
        Comparison(
            "spark-start", f"the same of {_FEW_ROWS:,} rows", "s", distinct, start, count_few, at_most(0.65, aim=0.55)
        ),
    ]
