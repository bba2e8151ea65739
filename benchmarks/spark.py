"""`receiver simulate --engine spark`: against itself with half the cores and a tenth of the log, and the local engine.

One hot domain, Parquet. Every measurement is of a process from its start to its end, once a turn; what Spark takes to
begin is measured with a log of few rows, and taken off where the work says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread

from benchmarks.logs import check_read, write_log
from benchmarks.pairing import Comparison, Goal
from benchmarks.simulate import GRID
from benchmarks.workload import trace

__all__ = ["spark"]

_ROWS = 20_000_000
_TENTH = 10
_TURNS = 2
_LOOK_SECS = 0.2
_FEW_ROWS = 1_000


@dataclass(slots=True)
class _Run:
    """A command on a log, its printed result, and the peak memory of it with all processes that it started."""

    log: Path
    options: list[str]
    printed: bytes = b""
    peaks_gb: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        command = [sys.executable, "-m", "receiver", "simulate", str(self.log), *GRID, "--json", *self.options]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            ended = Event()
            watcher = Thread(target=self._watch, args=(process.pid, ended))
            watcher.start()
            self.printed = process.stdout.read() if process.stdout else b""
            status = process.wait()
            took = time.perf_counter() - start
            ended.set()
            watcher.join()
        if status:
            raise subprocess.CalledProcessError(status, command)
        return took

    def _watch(self, pid: int, ended: Event) -> None:
        peak = 0
        while not ended.wait(_LOOK_SECS):
            peak = max(peak, _tree_bytes(pid))
        self.peaks_gb.append(peak / 1e9)


def _tree_bytes(pid: int) -> int:
    """Memory of a process and its descendants but for mapped files, 0 where the system doesn't tell."""
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


def spark(scale: float) -> list[Comparison]:
    rows = max(_TENTH * _FEW_ROWS, round(_ROWS * scale))
    with tempfile.TemporaryDirectory() as folder:
        logs = {count: Path(folder) / f"{count}.parquet" for count in (_FEW_ROWS, rows // _TENTH, rows)}
        for count, log in logs.items():
            write_log(trace(count), log)
        two, one, tenth, few = (
            _Run(logs[count], ["--engine", "spark", "--master", f"local[{cores}]"])
            for count, cores in ((rows, 2), (rows, 1), (rows // _TENTH, 2), (_FEW_ROWS, 2))
        )
        here = _Run(logs[rows], [])
        few.seconds()  # compiles
        took = [[run.seconds() for run in (two, one, here, tenth, few)] for _ in range(_TURNS)]
    if not two.printed == one.printed == here.printed:
        raise AssertionError("the engines print different figures")
    for run, count in ((two, rows), (tenth, rows // _TENTH), (few, _FEW_ROWS)):
        check_read(json.loads(run.printed)["log"], trace(count))

    work = f"receiver simulate --engine spark, one domain of {rows:,} rows, 8 windows x 8 expiries, 2 cores"
    cores = [(rows / on_two, rows / on_one) for on_two, on_one, _, _, _ in took]
    local = [(on_two, local) for on_two, _, local, _, _ in took]
    # Of a small log the start is all there is.
    growth = [
        (max(_LOOK_SECS, on_two - start), max(_LOOK_SECS, on_tenth - start)) for on_two, _, _, on_tenth, start in took
    ]
    memory = list(zip(two.peaks_gb, tenth.peaks_gb, strict=True))
    at_most = partial(Goal, at_most=True)
    past = f"{work}, past the start"
    peak = f"{work}, peak memory"
    return [
        _compared("spark-cores", work, "rows/s", cores, anchor="the same on 1 core", goal=Goal(1.6, aim=1.8)),
        _compared("spark-local", work, "s", local, anchor="the local engine", goal=at_most(3, aim=1)),
        _compared("spark-growth", past, "s", growth, anchor="a tenth of the rows", goal=at_most(11, aim=_TENTH)),
        _compared("spark-memory", peak, "GB", memory, anchor="a tenth of the rows", goal=at_most(1.2, aim=1)),
    ]


def _compared(
    name: str, work: str, unit: str, pairs: list[tuple[float, float]], *, anchor: str, goal: Goal
) -> Comparison:
    ours, anchors = zip(*pairs, strict=True)
    ratios = tuple(ours / anchor for ours, anchor in pairs)
    return Comparison(name, work, unit, anchor, median(ours), median(anchors), ratios, goal)
